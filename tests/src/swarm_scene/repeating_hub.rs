//! A hub that gives all of its sessions one number. It works with a backbone: it has that one's key.

use std::sync::mpsc;

use kvasir_link::{HubLink, Incoming, LinkError, LinkOptions};
use kvasir_merkle::{EMPTY_ROOT, Hash};
use kvasir_wire::frame::Kind;
use kvasir_wire::handshake::{Class, Features, Purpose, Welcome};
use kvasir_wire::id::{ModelDigest, Nonce, PluginDigest, SessionId, TicketDigest};
use kvasir_wire::message::{Countersign, ReceiptMessage};
use kvasir_wire::money::MeteredBytes;
use kvasir_wire::pairing::{PairRequest, Transcript, TranscriptEnd};
use kvasir_wire::receipt::{Counters, Receipt, ReceiptKeys, ReceiptSignatures, SignedReceipt, Terms};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::Role;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::lying_hub::admitted;
use super::{NETWORK, key, now, plugin, runtime};

/// The number of all sessions.
pub const SESSION: SessionId = SessionId([0x55; 32]);

/// The hub, and what came of each session.
pub struct RepeatingHub {
    pub address: String,
    /// Of each session in turn: a worker countersigned, or a backbone dialled; else the refusal.
    pub answers: mpsc::Receiver<Result<(), Refusal>>,
    _runtime: Runtime,
}

impl RepeatingHub {
    /// One that has the keys of the scene's hub, so that its tickets are good here.
    pub fn start() -> Self {
        let runtime = runtime();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = format!("ws://{}", listener.local_addr().unwrap());
        let (tell, answers) = mpsc::channel();
        runtime.spawn(serve(listener, tell));
        Self { address, answers, _runtime: runtime }
    }
}

/// Has a session with every worker that comes, and offers every backbone one worker twice.
async fn serve(listener: TcpListener, tell: mpsc::Sender<Result<(), Refusal>>) {
    // Who is cut off here begins anew.
    let options = LinkOptions { resume_within: std::time::Duration::ZERO, ..LinkOptions::default() };
    let begun = now();
    let mut control: Option<HubLink> = None;
    for round in 0.. {
        let mut link = admitted(&listener, &options).await;
        match link.admission.purpose {
            // Each receipt has the same number and another text.
            Purpose::Worker(_) => tell.send(session(&mut link, begun + round).await).unwrap(),
            Purpose::Control(_) => {
                link.sender.send(Kind::Pair, offer().encode()).unwrap();
                control = Some(link);
            }
            Purpose::Session(_) => {
                tell.send(Ok(())).unwrap();
                let what_to_do = "wait for the next offer";
                link.sender.refuse(Refusal::new(RefusalCode::PeerLost, "the worker is gone", what_to_do));
                let control = control.as_mut().unwrap();
                control.sender.send(Kind::Pair, offer().encode()).unwrap();
                tell.send(answer(control, Kind::Pair).await.map(drop)).unwrap();
            }
            Purpose::Resume(_) | Purpose::Bulk(_) => panic!("nothing goes on at this hub"),
        }
    }
}

/// A session in which nothing is computed, up to its first and last receipt, which ends at `to` (Unix seconds).
async fn session(link: &mut HubLink, to: u64) -> Result<(), Refusal> {
    let Purpose::Worker(offer) = link.admission.purpose.clone() else { unreachable!() };
    let (hub, backbone) = (key(1), key(20));
    let transcript = Transcript {
        version: link.admission.version,
        network: NETWORK.to_owned(),
        session: SESSION,
        worker: (&link.admission).into(),
        backbone: TranscriptEnd {
            key: backbone.public(),
            nonce: Nonce([3; 32]),
            ticket: TicketDigest([4; 32]),
        },
        plugin: offer.plugins[0],
        model: ModelDigest([5; 32]),
        class: offer.class,
        features: Features::NONE,
    };
    link.sender.send(Kind::Transcript, transcript.encode()).unwrap();
    answer(link, Kind::Sign).await?;
    let peer = backbone.sign(&transcript.signed_bytes(Role::Backbone));
    link.sender.send(Kind::Welcome, Welcome::Paired { peer }.encode()).unwrap();

    let keys = ReceiptKeys { hub: hub.public(), worker: link.admission.holder, backbone: backbone.public() };
    let terms = Terms {
        network: NETWORK.parse().unwrap(),
        session: SESSION,
        grant: Hash([6; 32]),
        hub: keys.hub.digest(),
        worker: keys.worker.digest(),
        backbone: keys.backbone.digest(),
        payee: link.admission.ticket.claims().wallet.unwrap(),
        model: transcript.model,
        plugin: transcript.plugin,
        class: transcript.class,
        price: Hash([7; 32]),
        from: to,
    };
    let nothing = MeteredBytes::ZERO;
    let counters = Counters { up: nothing, down: nothing, calls: 0, rows: 0, work: EMPTY_ROOT };
    let receipt = Receipt::first(terms, counters, to, true).unwrap();
    let (by_hub, by_backbone) = (receipt.sign(&hub), receipt.sign(&backbone));
    let proposal = ReceiptMessage::Proposal {
        text: receipt.text(),
        excluded: Vec::new(),
        hub: by_hub,
        backbone: by_backbone,
    };
    // Where the worker has refused by now, its refusal is the answer.
    let _ = link.sender.send(Kind::Receipt, proposal.encode());
    let countersign = answer(link, Kind::Countersign).await?;
    let Countersign::Worker { signature, .. } = Countersign::decode(&countersign).unwrap() else {
        panic!("a worker signs as a worker")
    };
    let signatures = ReceiptSignatures { hub: by_hub, worker: signature, backbone: by_backbone };
    let signed = SignedReceipt::assemble(receipt, &keys, &signatures).unwrap();
    let complete = ReceiptMessage::Complete { note: signed.note().to_string() };
    link.sender.send(Kind::Receipt, complete.encode()).unwrap();
    // With its last receipt the worker leaves.
    while link.receiver.next().await.is_ok() {}
    Ok(())
}

/// A worker for a backbone.
fn offer() -> PairRequest {
    PairRequest {
        session: SESSION,
        worker: key(40).public(),
        plugin: PluginDigest(plugin().digest().0),
        class: Class::Exact,
        formats: vec![8],
        memory_bytes: 1 << 30,
        payee: key(9).public().wallet_digest(),
        price: Hash([7; 32]),
    }
}

/// The payload of the kind `wanted`, or the refusal that comes instead.
async fn answer(link: &mut HubLink, wanted: Kind) -> Result<Vec<u8>, Refusal> {
    loop {
        match link.receiver.next().await {
            // What it says to the backbone, pings of the pair's stream among it.
            Ok(Incoming::Relay(_)) => {}
            Ok(Incoming::Own(payload)) if payload.kind == wanted => return Ok(payload.bytes.to_vec()),
            Ok(Incoming::Own(payload)) if payload.kind == Kind::Refuse => {
                return Err(Refusal::decode(&payload.bytes).unwrap());
            }
            Err(LinkError::Refused(refusal)) => return Err(refusal),
            other => panic!("neither {} nor a refusal: {other:?}", wanted.name()),
        }
    }
}
