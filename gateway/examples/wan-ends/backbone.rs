//! The backbone's end: takes the worker that the hub offers, calls, sends bulk, and keeps the books that receipts need.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kvasir_link::{Connected, LinkReceiver, LinkSender};
use kvasir_wire::frame::{HUB_STREAM, Kind, Lane};
use kvasir_wire::handshake::Features;
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::MAX_BULK_PAYLOAD_BYTES;
use kvasir_wire::message::{Countersign, CutRequest, ReceiptMessage};
use kvasir_wire::pairing::PairRequest;
use kvasir_wire::receipt::{Receipt, Terms};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::Role;
use kvasir_wire::work::{WorkBook, WorkItem};
use tokio::sync::oneshot;

use crate::holders::{BackboneHolder, holder};
use crate::parties::NETWORK;

/// A session with a worker, ready to be measured.
pub struct Backbone {
    sender: LinkSender,
    calls: Arc<Calls>,
    next_call: AtomicU32,
    bulk_on: Arc<AtomicBool>,
    /// Bytes of bulk payload handed to the link.
    bulk_bytes: Arc<AtomicU64>,
}

type Calls = Mutex<HashMap<u32, oneshot::Sender<Instant>>>;

impl Backbone {
    /// Dials the hub and waits for a worker.
    pub async fn start(hub: SocketAddr, features: Features) -> anyhow::Result<Backbone> {
        let ours = BackboneHolder::new(hub, NETWORK, features)?;
        let mut control = ours.control().await?;
        let first = tokio::time::timeout(Duration::from_secs(20), next_offer(&mut control)).await;
        let (session, terms) = ours.take(&first.context("no worker came within 20 s")??).await?;
        tokio::spawn(decline_others(control));
        let books = Books { key: holder(Role::Backbone), terms, work: WorkBook::new(), last: None };
        let calls = Arc::new(Calls::default());
        let receive = receive(session.receiver, session.sender.clone(), books, calls.clone());
        tokio::spawn(async move {
            if let Err(error) = receive.await {
                eprintln!("the backbone's end: {error:#}");
            }
        });
        Ok(Backbone {
            sender: session.sender,
            calls,
            next_call: AtomicU32::new(1),
            bulk_on: Arc::default(),
            bulk_bytes: Arc::default(),
        })
    }

    /// One call of `bytes` and its answer of as many; gives the time between.
    pub async fn echo(&self, bytes: usize) -> anyhow::Result<Duration> {
        let stream = self.next_call.fetch_add(1, Ordering::Relaxed) * 2;
        let (answer, answered) = oneshot::channel();
        lock(&self.calls).insert(stream, answer);
        let payload = vec![7; bytes];
        let began = Instant::now();
        self.sender.send(Kind::Call, stream, payload).await?;
        let at = tokio::time::timeout(Duration::from_secs(60), answered).await;
        Ok(at.context("no answer within 60 s")?.context("the session ended")? - began)
    }

    /// Sends bulk without end until [`Backbone::stop_bulk`].
    pub fn start_bulk(&self) {
        self.bulk_on.store(true, Ordering::Relaxed);
        let (sender, on, bytes) = (self.sender.clone(), self.bulk_on.clone(), self.bulk_bytes.clone());
        tokio::spawn(async move {
            while on.load(Ordering::Relaxed) {
                if sender.send_chunk(3, vec![1; MAX_BULK_PAYLOAD_BYTES], true).await.is_err() {
                    return;
                }
                bytes.fetch_add(MAX_BULK_PAYLOAD_BYTES as u64, Ordering::Relaxed);
            }
        });
    }

    /// Stops sending bulk and waits until what is queued has gone.
    pub async fn stop_bulk(&self) {
        self.bulk_on.store(false, Ordering::Relaxed);
        while self.sender.queued_bytes(Lane::Bulk) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // What is on its way still stands before the next call.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }

    /// Bytes of bulk that have left for the worker so far.
    pub fn bulk_sent(&self) -> u64 {
        self.bulk_bytes.load(Ordering::Relaxed).saturating_sub(self.sender.queued_bytes(Lane::Bulk) as u64)
    }
}

/// The worker that the hub offers next.
async fn next_offer(control: &mut Connected) -> anyhow::Result<Vec<u8>> {
    loop {
        let payload = control.receiver.recv().await?;
        if payload.kind == Kind::Pair {
            return Ok(payload.bytes);
        }
    }
}

/// Whoever else comes is not wanted: one worker has all the experts.
async fn decline_others(mut control: Connected) -> anyhow::Result<()> {
    loop {
        let offer = PairRequest::decode(&next_offer(&mut control).await?)?;
        let refusal = Refusal::new(RefusalCode::Declined, "the one place is taken", "wait until it is free");
        let refusal = refusal.retry_after(5).about(offer.session);
        control.sender.send(Kind::Refuse, HUB_STREAM, refusal.encode()).await?;
    }
}

/// Takes results and the hub's receipts until the session ends; then every waiting call fails.
async fn receive(
    mut receiver: LinkReceiver,
    sender: LinkSender,
    mut books: Books,
    calls: Arc<Calls>,
) -> anyhow::Result<()> {
    let ended = loop {
        let payload = match receiver.recv().await {
            Ok(payload) => payload,
            Err(error) => break error,
        };
        match payload.kind {
            Kind::Result => {
                let at = Instant::now();
                books.answered(payload.stream, payload.bytes.len())?;
                if let Some(answer) = lock(&calls).remove(&payload.stream) {
                    let _ = answer.send(at);
                }
            }
            Kind::Receipt => {
                if let ReceiptMessage::Cut(cut) = ReceiptMessage::decode(&payload.bytes)? {
                    let answer = books.countersign(cut)?;
                    sender.send(Kind::Countersign, HUB_STREAM, answer).await?;
                }
            }
            _ => {}
        }
    };
    eprintln!("the session ended: {ended}");
    lock(&calls).clear();
    Ok(())
}

fn lock(calls: &Calls) -> std::sync::MutexGuard<'_, HashMap<u32, oneshot::Sender<Instant>>> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The backbone's side of the receipts.
struct Books {
    key: SecretKey,
    terms: Terms,
    work: WorkBook,
    last: Option<Receipt>,
}

impl Books {
    fn answered(&mut self, stream: u32, bytes: usize) -> anyhow::Result<()> {
        let item =
            WorkItem { call: u64::from(stream / 2), layer: 0, mode: 0, payload: [0; 32], rows: [0; 32] };
        self.work.record(&item, bytes as u64, bytes as u64, 1)?;
        Ok(())
    }

    fn countersign(&mut self, cut: CutRequest) -> anyhow::Result<Vec<u8>> {
        let counters = self.work.counters_at(cut.results, &[])?;
        let receipt = match &self.last {
            Some(last) => last.next(counters, cut.to, cut.is_final)?,
            None => {
                let terms = Terms { from: cut.from, ..self.terms.clone() };
                Receipt::first(terms, counters, cut.to, cut.is_final)?
            }
        };
        let signature = receipt.sign(&self.key);
        let answer = Countersign::Backbone { text: receipt.text(), excluded: Vec::new(), signature };
        self.work.commit(cut.results, &[])?;
        self.last = Some(receipt);
        Ok(answer.encode())
    }
}
