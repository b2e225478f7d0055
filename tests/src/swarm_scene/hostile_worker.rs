//! A worker that follows the protocol up to its answers.

use std::thread::JoinHandle;

use kvasir_link::{LinkError, LinkOptions, TlsTrust, connect_worker};
use kvasir_wire::frame::{HUB_STREAM, Kind, PAIR_STREAM};
use kvasir_wire::handshake::{Class, Features, WorkerOffer};
use kvasir_wire::id::{PluginDigest, sha256};
use kvasir_wire::message::{
    Assign, Call, CallResult, Countersign, Failure, FailureCode, Have, Held, Outcome, Ping, ReceiptMessage,
    stream_of_call,
};
use kvasir_wire::pairing::Expectation;
use kvasir_wire::receipt::Receipt;
use kvasir_wire::ticket::Role;
use kvasir_wire::work::{WorkBook, WorkItem};

use super::{Scene, key, plugin, runtime};

/// What is wrong with its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// One row too few.
    Short,
    /// An infinity.
    NotFinite,
    /// A reason instead of rows.
    Refusals,
    /// Another root than that of what it sent.
    WrongRoot,
    /// Rows other than those that it keeps, and commits to.
    OtherCopy,
    /// Every answer twice.
    Twice,
    /// One row too many: bytes that were not asked for.
    Padded,
    /// Many pings before every answer.
    Pings,
}

/// Pings before an answer of [`Answers::Pings`], on each stream that takes them.
const PINGS: u64 = 25;

/// Starts it; it ends when its link does, and says how that was.
pub fn start(scene: &Scene, answers: Answers) -> JoinHandle<LinkError> {
    let key = key(40);
    let ticket = scene.ticket(Role::Worker, key.public(), plugin());
    let address = scene.address.clone();
    std::thread::spawn(move || {
        runtime().block_on(async move {
            let plugin = PluginDigest(plugin().digest().0);
            let offer = WorkerOffer {
                plugins: vec![plugin],
                formats: vec![8],
                memory_bytes: 1 << 40,
                class: Class::Exact,
            };
            let (trust, options) = (TlsTrust::PlainText, LinkOptions::default());
            let link = connect_worker(&address, &trust, &ticket, &key, offer, Features::NONE, &options).await;
            let expectation = Expectation { plugins: vec![plugin], ..Expectation::default() };
            let mut session = link.unwrap().pair(&key, &expectation).await.unwrap();
            let mut book = WorkBook::new();
            loop {
                let payload = match session.receiver.recv().await {
                    Ok(payload) => payload,
                    Err(error) => return error,
                };
                let sent = match payload.kind {
                    Kind::Assign => {
                        let assign = Assign::decode(&payload.bytes).unwrap();
                        let held = assign
                            .experts
                            .iter()
                            .map(|assigned| Held { name: assigned.name, digest: assigned.digest });
                        let have = Have { free_bytes: 0, held: held.collect(), not_held: Vec::new() };
                        session.sender.send(Kind::Have, PAIR_STREAM, have.encode()).await
                    }
                    Kind::Call => {
                        let result = answer(&payload.bytes, answers, &mut book);
                        let stream = payload.stream;
                        for number in 0..if answers == Answers::Pings { PINGS } else { 0 } {
                            for stream in [HUB_STREAM, PAIR_STREAM] {
                                let ping = Ping { number }.encode();
                                // Where the queue is full the flood is as good as its reader lets it be.
                                let _ = session.sender.send(Kind::Ping, stream, ping).await;
                            }
                        }
                        let first = session.sender.send(Kind::Result, stream, result.clone()).await;
                        match answers {
                            Answers::Twice => session.sender.send(Kind::Result, stream, result).await,
                            _ => first,
                        }
                    }
                    Kind::Receipt => match ReceiptMessage::decode(&payload.bytes).unwrap() {
                        ReceiptMessage::Proposal { text, .. } => {
                            let receipt = Receipt::parse(&text).unwrap();
                            let countersign =
                                Countersign::Worker { seq: receipt.seq, signature: receipt.sign(&key) };
                            session.sender.send(Kind::Countersign, HUB_STREAM, countersign.encode()).await
                        }
                        _ => Ok(()),
                    },
                    _ => Ok(()),
                };
                if let Err(error) = sent {
                    return error;
                }
            }
        })
    })
}

fn answer(payload: &[u8], answers: Answers, book: &mut WorkBook) -> Vec<u8> {
    let call = Call::decode(payload).unwrap();
    assert!(stream_of_call(call.call).is_some());
    let columns = call.columns().unwrap();
    let mut values = vec![0.0f32; call.result_rows() * columns];
    match answers {
        Answers::Short => values.truncate((call.result_rows() * columns).saturating_sub(1).max(1)),
        Answers::NotFinite => values[columns / 2] = f32::INFINITY,
        Answers::Padded => values.extend(vec![0.0; columns]),
        Answers::Refusals | Answers::WrongRoot | Answers::OtherCopy | Answers::Twice | Answers::Pings => {}
    }
    let rows = CallResult::row_bytes(&values);
    let outcome = if answers == Answers::Refusals {
        Outcome::Failed(Failure { code: FailureCode::KernelFault, sentence: "made up".to_owned() })
    } else {
        Outcome::Rows(&rows)
    };
    let item = WorkItem {
        call: call.call,
        layer: call.layer,
        mode: call.mode as u8,
        payload: sha256(&[payload]),
        rows: match answers {
            Answers::OtherCopy => CallResult::rows_digest(&Outcome::Rows(&vec![1; rows.len()])),
            _ => CallResult::rows_digest(&outcome),
        },
    };
    let length = CallResult { call: call.call, outcome: outcome.clone(), work_root: [0; 32] }.encode().len();
    book.record(&item, payload.len() as u64, length as u64, call.rows.into()).unwrap();
    let mut work_root = book.running_root().0;
    if answers == Answers::WrongRoot {
        work_root[0] ^= 1;
    }
    CallResult { call: call.call, outcome, work_root }.encode()
}
