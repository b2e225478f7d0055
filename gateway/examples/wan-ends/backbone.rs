//! The backbone's end: takes the worker that the hub offers, calls, sends bulk, and keeps the books that receipts need.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use kvasir_link::{Connected, LinkOptions, LinkReceiver, LinkSender, connect_backbone, unix_now};
use kvasir_wire::account::{Grant, Statement as _};
use kvasir_wire::frame::{HUB_STREAM, Kind, Lane};
use kvasir_wire::handshake::{BackboneOffer, Class, Features, Purpose};
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::MAX_BULK_PAYLOAD_BYTES;
use kvasir_wire::message::{Countersign, CutRequest, ReceiptMessage};
use kvasir_wire::money::MeteredBytes;
use kvasir_wire::pairing::{Expectation, PairRequest};
use kvasir_wire::receipt::{Receipt, Terms};
use kvasir_wire::ticket::Role;
use kvasir_wire::work::{WorkBook, WorkItem};
use tokio::sync::oneshot;

use crate::parties::{FORMAT, MODEL, NETWORK, PLUGIN, SECONDS, holder, ticket};

/// A session with a worker, ready to be measured.
pub struct Backbone {
    sender: LinkSender,
    calls: Arc<Calls>,
    next_call: AtomicU32,
    bulk_on: Arc<AtomicBool>,
    /// Bytes of bulk payload handed to the link.
    bulk_bytes: Arc<AtomicU64>,
    _control: Connected,
}

type Calls = Mutex<HashMap<u32, oneshot::Sender<Instant>>>;

impl Backbone {
    /// Dials the hub and waits for a worker.
    pub async fn start(hub: SocketAddr, features: Features) -> anyhow::Result<Backbone> {
        let (url, key, ticket) = (format!("ws://{hub}"), holder(Role::Backbone), ticket(Role::Backbone)?);
        let options = LinkOptions::default();
        let dial = |purpose| connect_backbone(&url, &ticket, &key, purpose, features, &options);
        let offer = BackboneOffer {
            model: MODEL,
            plugins: vec![PLUGIN],
            formats: vec![FORMAT],
            accepts: Class::Exact,
        };
        let mut control = dial(Purpose::Control(offer)).await?;
        let payload = tokio::time::timeout(Duration::from_secs(20), control.receiver.recv()).await;
        let payload = payload.context("no worker came within 20 s")??;
        if payload.kind != Kind::Pair {
            bail!("a {} came where a worker was to be offered", payload.kind.name());
        }
        let request = PairRequest::decode(&payload.bytes)?;
        let expectation = Expectation {
            plugins: vec![request.plugin],
            model: Some(MODEL),
            class: Some(request.class),
            peer: Some(request.worker),
            session: Some(request.session),
        };
        let link = dial(Purpose::Session(request.session)).await?;
        let session = link.pair(&key, &expectation).await?;
        let hub = session.admission.ticket.claims().hub.digest();
        let books = Books::begin(&request, hub, key, &session.sender).await?;
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
            _control: control,
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
    /// Sends the session's grant, which must come before the first call.
    async fn begin(
        request: &PairRequest,
        hub: kvasir_wire::id::KeyDigest,
        key: SecretKey,
        sender: &LinkSender,
    ) -> anyhow::Result<Books> {
        let network: kvasir_wire::note::NetworkName = NETWORK.parse()?;
        let grant = Grant {
            network: network.clone(),
            session: Some(request.session),
            hub,
            worker: Some(request.worker.digest()),
            backbone: key.public(),
            price: request.price,
            bytes: MeteredBytes::new(1 << 40)?,
            from: unix_now() - 60,
            until: unix_now() + SECONDS,
        };
        let note = grant.sign(&key)?;
        sender.send(Kind::Grant, HUB_STREAM, note.to_string().into_bytes()).await?;
        let terms = Terms {
            network,
            session: request.session,
            grant: note.leaf_hash(),
            hub,
            worker: request.worker.digest(),
            backbone: key.public().digest(),
            payee: request.payee,
            model: MODEL,
            plugin: request.plugin,
            class: request.class,
            price: request.price,
            from: 0,
        };
        Ok(Books { key, terms, work: WorkBook::new(), last: None })
    }

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
