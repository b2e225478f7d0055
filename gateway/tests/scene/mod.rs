//! A hub on a real socket, a ledger that remembers, and ends that speak the wire by hand.
//!
//! The ends compute nothing: payloads are bytes, work items are numbers. What is tested is the hub between them.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do
#![allow(dead_code)] // each test binary uses a part of it

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use kvasir_gateway::{
    hub::{
        HubControl, HubOptions, HubServer, SessionClosed,
        filing::{Ledger, LedgerError},
    },
    operations::Served,
    stop::{Stopper, switch},
};
use kvasir_link::{
    Connected, LinkError, LinkOptions, Payload, Session, TlsTrust, connect_backbone, connect_worker,
};
use kvasir_wire::{
    account::{Grant, Statement as _},
    frame::{HUB_STREAM, Kind},
    handshake::{BackboneOffer, Class, Features, HubIdentity, Purpose, WorkerOffer},
    id::{ModelDigest, PluginDigest, SessionId},
    key::{PublicKey, SecretKey},
    message::{Countersign, CutRequest, Drain, DrainReason, ReceiptMessage},
    money::MeteredBytes,
    note::Note,
    pairing::{Expectation, PairRequest},
    receipt::{Receipt, Terms},
    refusal::{Refusal, RefusalCode},
    ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits},
    work::{WorkBook, WorkItem},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};

/// How long anything may take before it counts as hanging. No figure of it is asserted.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const NETWORK: &str = "atlas";
pub const PLUGIN: PluginDigest = PluginDigest([5; 32]);
pub const MODEL: ModelDigest = ModelDigest([6; 32]);
pub const FORMAT: u32 = 12;

/// A ledger that keeps what it is given, or refuses it.
#[derive(Default)]
pub struct MemoryLedger {
    pub receipts: Mutex<Vec<Note>>,
    pub grants: Mutex<Vec<Note>>,
    pub refuse: bool,
    /// Receipts wait for somebody to do something.
    pub uncured: bool,
}

impl Ledger for MemoryLedger {
    fn post_receipt(&self, note: &Note) -> Result<(), LedgerError> {
        if self.refuse {
            return Err(LedgerError::Refused("no funds".into()));
        }
        if self.uncured {
            return Err(LedgerError::Curable("no delegation".into()));
        }
        self.receipts.lock().unwrap().push(note.clone());
        Ok(())
    }

    fn post_grant(&self, note: &Note) -> Result<(), LedgerError> {
        self.grants.lock().unwrap().push(note.clone());
        Ok(())
    }

    fn price(&self) -> Result<String, LedgerError> {
        Ok("77".repeat(32))
    }
}

impl MemoryLedger {
    pub fn last_receipt(&self) -> Receipt {
        Receipt::parse(self.receipts.lock().unwrap().last().expect("a receipt").text()).unwrap()
    }
}

/// A running hub.
pub struct Scene {
    pub hub: SocketAddr,
    pub hub_key: SecretKey,
    pub edge_key: EdgeKey,
    pub closed: Arc<Mutex<Vec<SessionClosed>>>,
    pub served: Arc<dyn Served>,
    pub control_of_hub: HubControl,
    pub stopper: Stopper,
    pub run: JoinHandle<()>,
    pub spool: tempfile::TempDir,
    /// What its backbones ask for.
    pub features: Features,
    /// Their deadlines.
    pub options: LinkOptions,
}

pub fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

impl Scene {
    pub async fn start(ledger: Arc<dyn Ledger>) -> Scene {
        Scene::start_with(ledger, |_| {}).await
    }

    /// A hub with other options than the usual ones.
    pub async fn start_with(ledger: Arc<dyn Ledger>, change: impl FnOnce(&mut HubOptions)) -> Scene {
        let (hub_key, edge_key) = (key(1), EdgeKey::from_bytes([4; 32]));
        let identity = HubIdentity { network: NETWORK.into(), key: hub_key.clone(), edge: edge_key.clone() };
        let spool = tempfile::tempdir().unwrap();
        let mut options = HubOptions::new(([127, 0, 0, 1], 0).into(), identity, spool.path().into());
        change(&mut options);
        let closed = Arc::new(Mutex::new(Vec::new()));
        let log = closed.clone();
        let log = Box::new(move |line: &SessionClosed| log.lock().unwrap().push(line.clone()));
        let server = HubServer::bind(options, ledger, log).await.unwrap();
        let hub = server.address();
        let (stopper, stop) = switch();
        let (served, control_of_hub) = (server.served(stop.clone()), server.control());
        let run = tokio::spawn(server.run(stop));
        let (features, options) = (Features::NONE, LinkOptions::default());
        Scene {
            hub,
            hub_key,
            edge_key,
            closed,
            served,
            control_of_hub,
            stopper,
            run,
            spool,
            features,
            options,
        }
    }

    pub fn claims(&self, role: Role, holder: PublicKey) -> TicketClaims {
        TicketClaims {
            network: NETWORK.into(),
            role,
            holder,
            hub: self.hub_key.public(),
            wallet: (role == Role::Worker).then(|| key(9).public().wallet_digest()),
            plugins: vec![PLUGIN],
            publishers: Vec::new(),
            limits: TicketLimits { sessions: 1, session_bytes: 0 },
            issued: now() - 10,
            expires: now() + 3600,
        }
    }

    pub fn ticket(&self, role: Role, holder: &SecretKey) -> Ticket {
        self.issue(&self.claims(role, holder.public()))
    }

    pub fn issue(&self, claims: &TicketClaims) -> Ticket {
        Ticket::issue(claims, &self.hub_key, &self.edge_key).unwrap()
    }

    pub fn url(&self) -> String {
        format!("ws://{}", self.hub)
    }

    /// A worker's link straight to the hub.
    pub async fn worker(&self, key: &SecretKey) -> Result<Connected, LinkError> {
        let ticket = self.ticket(Role::Worker, key);
        worker_at(&self.url(), &TlsTrust::PlainText, &ticket, key, vec![PLUGIN]).await
    }

    pub async fn backbone(&self, key: &SecretKey, purpose: Purpose) -> Result<Connected, LinkError> {
        let ticket = self.ticket(Role::Backbone, key);
        connect_backbone(&self.url(), &ticket, key, purpose, self.features, &self.options).await
    }

    pub async fn control(&self, key: &SecretKey) -> Connected {
        self.backbone(key, control_purpose()).await.unwrap()
    }

    /// What the backbone does when it is offered a worker.
    pub async fn take_offer(&self, control: &mut Connected, key: &SecretKey) -> BackboneEnd {
        let payload = expect(&mut control.receiver, Kind::Pair).await;
        self.answer_offer(&payload, key).await.unwrap()
    }

    /// The data link and the session for an offer; one that is too old comes to nothing.
    pub async fn answer_offer(&self, offer: &Payload, key: &SecretKey) -> Result<BackboneEnd, LinkError> {
        let request = PairRequest::decode(&offer.bytes).unwrap();
        let link = self.backbone(key, Purpose::Session(request.session)).await?;
        let expectation = Expectation {
            plugins: vec![request.plugin],
            model: Some(MODEL),
            class: Some(request.class),
            peer: Some(request.worker),
            session: Some(request.session),
        };
        let session = link.pair(key, &expectation).await?;
        Ok(BackboneEnd::new(session, key.clone(), &request))
    }

    /// A paired worker and backbone, and the backbone's control link.
    pub async fn pair(
        &self,
        worker: &SecretKey,
        backbone: &SecretKey,
    ) -> (WorkerEnd, BackboneEnd, Connected) {
        let mut control = self.control(backbone).await;
        let link = self.worker(worker).await.unwrap();
        let worker_key = worker.clone();
        let pairing =
            tokio::spawn(async move { link.pair(&worker_key, &worker_expectation()).await.unwrap() });
        let backbone = self.take_offer(&mut control, backbone).await;
        let session = pairing.await.unwrap();
        (WorkerEnd { session, key: worker.clone() }, backbone, control)
    }

    /// Waits until the hub has said that so many sessions ended.
    pub async fn closed_sessions(&self, count: usize) -> Vec<SessionClosed> {
        patiently(async {
            loop {
                let closed = self.closed.lock().unwrap().clone();
                if closed.len() >= count {
                    return closed;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
    }

    pub async fn stop(self) {
        drop(self.stop_and_keep_spool().await);
    }

    /// Stops the hub; its spool folder lives as long as what is given back.
    pub async fn stop_and_keep_spool(self) -> tempfile::TempDir {
        self.stopper.stop();
        patiently(self.run).await.unwrap();
        self.spool
    }
}

pub async fn worker_at(
    url: &str,
    trust: &TlsTrust,
    ticket: &Ticket,
    key: &SecretKey,
    plugins: Vec<PluginDigest>,
) -> Result<Connected, LinkError> {
    worker_of_class(url, trust, ticket, key, plugins, Class::Exact).await
}

pub async fn worker_of_class(
    url: &str,
    trust: &TlsTrust,
    ticket: &Ticket,
    key: &SecretKey,
    plugins: Vec<PluginDigest>,
    class: Class,
) -> Result<Connected, LinkError> {
    let offer = WorkerOffer { plugins, formats: vec![FORMAT], memory_bytes: 1 << 30, class };
    connect_worker(url, trust, ticket, key, offer, Features::NONE, &LinkOptions::default()).await
}

pub fn control_purpose() -> Purpose {
    control_accepting(Class::Exact)
}

pub fn control_accepting(accepts: Class) -> Purpose {
    Purpose::Control(BackboneOffer { model: MODEL, plugins: vec![PLUGIN], formats: vec![FORMAT], accepts })
}

pub fn worker_expectation() -> Expectation {
    Expectation { plugins: vec![PLUGIN], ..Expectation::default() }
}

pub async fn patiently<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("nothing happened for a minute")
}

/// What comes next, but for news of the other end's connection.
pub async fn expect(receiver: &mut kvasir_link::LinkReceiver, kind: Kind) -> Payload {
    loop {
        let payload = patiently(receiver.recv()).await.unwrap();
        if payload.kind != Kind::Pause {
            assert_eq!(payload.kind, kind);
            return payload;
        }
    }
}

/// The refusal with which a link ends.
pub async fn refused(receiver: &mut kvasir_link::LinkReceiver) -> Refusal {
    loop {
        match patiently(receiver.recv()).await {
            Ok(_) => {}
            Err(LinkError::Refused(refusal)) => return refusal,
            Err(other) => panic!("ended without a refusal: {other}"),
        }
    }
}

pub fn refusal_code(result: Result<Connected, LinkError>) -> RefusalCode {
    match result {
        Err(LinkError::Refused(refusal)) => refusal.code,
        Err(other) => panic!("failed without a refusal: {other}"),
        Ok(_) => panic!("admitted"),
    }
}

/// Bytes with a pattern.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|index| ((index + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// A worker in a session that answers with bytes of the asked length.
pub struct WorkerEnd {
    pub session: Session,
    pub key: SecretKey,
}

impl WorkerEnd {
    /// Takes the next call and checks its bytes; answers.
    pub async fn answer(&mut self, call: &[u8], result: Vec<u8>) {
        let payload = expect(&mut self.session.receiver, Kind::Call).await;
        assert!(payload.bytes == call, "the call arrived changed");
        self.session.sender.send(Kind::Result, payload.stream, result).await.unwrap();
    }

    /// Signs the proposal that comes next; gives the receipt.
    pub async fn countersign(&mut self) -> Receipt {
        let payload = expect(&mut self.session.receiver, Kind::Receipt).await;
        let ReceiptMessage::Proposal { text, .. } = ReceiptMessage::decode(&payload.bytes).unwrap() else {
            panic!("a proposal")
        };
        let receipt = Receipt::parse(&text).unwrap();
        let countersign = Countersign::Worker { seq: receipt.seq, signature: receipt.sign(&self.key) };
        self.session.sender.send(Kind::Countersign, HUB_STREAM, countersign.encode()).await.unwrap();
        receipt
    }

    pub async fn complete(&mut self) -> Note {
        complete(&mut self.session.receiver).await
    }
}

pub async fn complete(receiver: &mut kvasir_link::LinkReceiver) -> Note {
    let payload = expect(receiver, Kind::Receipt).await;
    let ReceiptMessage::Complete { note } = ReceiptMessage::decode(&payload.bytes).unwrap() else {
        panic!("a complete note")
    };
    Note::parse(note.as_bytes()).unwrap()
}

/// A backbone's grant for a session that it was offered, for an hour and more bytes than any test moves.
pub fn grant_for(request: &PairRequest, backbone: &SecretKey, hub: &PublicKey) -> Note {
    let grant = Grant {
        network: NETWORK.parse().unwrap(),
        session: Some(request.session),
        hub: hub.digest(),
        worker: Some(request.worker.digest()),
        backbone: backbone.public(),
        price: request.price,
        bytes: MeteredBytes::new(1 << 40).unwrap(),
        from: now() - 60,
        until: now() + 3600,
    };
    grant.sign(backbone).unwrap()
}

/// A backbone in a session.
pub struct BackboneEnd {
    pub session: Session,
    pub key: SecretKey,
    terms: Terms,
    work: WorkBook,
    last: Option<Receipt>,
    grant: Note,
}

impl BackboneEnd {
    fn new(session: Session, key: SecretKey, request: &PairRequest) -> Self {
        let hub = session.admission.ticket.claims().hub;
        let note = grant_for(request, &key, &hub);
        let (network, hub) = (NETWORK.parse().unwrap(), hub.digest());
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
        BackboneEnd { session, key, terms, work: WorkBook::new(), last: None, grant: note }
    }

    pub fn id(&self) -> SessionId {
        self.terms.session
    }

    /// Makes the grant anew, for so many bytes and seconds from now on.
    pub fn regrant(&mut self, bytes: u64, seconds: u64) {
        let grant = Grant::parse(self.grant.text()).unwrap();
        let grant = Grant { bytes: MeteredBytes::new(bytes).unwrap(), until: now() + seconds, ..grant };
        self.grant = grant.sign(&self.key).unwrap();
        self.terms.grant = self.grant.leaf_hash();
    }

    /// Sends the session's grant, which must be the first thing.
    pub async fn grant(&mut self) {
        let note = self.grant.to_string().into_bytes();
        self.session.sender.send(Kind::Grant, HUB_STREAM, note).await.unwrap();
    }

    pub async fn call(&mut self, call: u64, payload: Vec<u8>) {
        self.session.sender.send(Kind::Call, (call * 2) as u32, payload).await.unwrap();
    }

    /// Takes the result that comes next and books it.
    pub async fn take(&mut self, call: u64, up: usize, result: &[u8]) {
        let payload = expect(&mut self.session.receiver, Kind::Result).await;
        assert_eq!(payload.stream, (call * 2) as u32);
        assert!(payload.bytes == result, "the result arrived changed");
        self.book(call, up, result.len());
    }

    /// Books a result that was taken otherwise.
    pub fn book(&mut self, call: u64, up: usize, down: usize) {
        let item = WorkItem { call, layer: 0, mode: 0, payload: [0; 32], rows: [0; 32] };
        self.work.record(&item, up as u64, down as u64, 1).unwrap();
    }

    /// The cut that comes next.
    pub async fn cut(&mut self) -> CutRequest {
        let payload = expect(&mut self.session.receiver, Kind::Receipt).await;
        match ReceiptMessage::decode(&payload.bytes).unwrap() {
            ReceiptMessage::Cut(cut) => cut,
            other => panic!("a cut, not {other:?}"),
        }
    }

    /// Answers a cut as an honest backbone does, after `change`.
    pub async fn countersign(
        &mut self,
        cut: CutRequest,
        excluded: &[u64],
        change: impl FnOnce(&mut Receipt),
    ) -> Receipt {
        let counters = self.work.counters_at(cut.results, excluded).unwrap();
        let mut receipt = match &self.last {
            Some(last) => last.next(counters, cut.to, cut.is_final).unwrap(),
            None => {
                let terms = Terms { from: cut.from, ..self.terms.clone() };
                Receipt::first(terms, counters, cut.to, cut.is_final).unwrap()
            }
        };
        change(&mut receipt);
        let answer = Countersign::Backbone {
            text: receipt.text(),
            excluded: excluded.to_vec(),
            signature: receipt.sign(&self.key),
        };
        self.session.sender.send(Kind::Countersign, HUB_STREAM, answer.encode()).await.unwrap();
        self.work.commit(cut.results, excluded).unwrap();
        self.last = Some(receipt.clone());
        receipt
    }

    pub async fn complete(&mut self) -> Note {
        complete(&mut self.session.receiver).await
    }

    pub async fn ask_to_drain(&mut self) {
        let drain = Drain { reason: DrainReason::Finished, reconnect_in_ms: 0, try_for_ms: 0 };
        self.session.sender.send(Kind::Drain, HUB_STREAM, drain.encode()).await.unwrap();
    }
}

/// One whole session through which `calls` of (up, down) bytes pass, ended by the backbone; gives the final receipt.
pub async fn whole_session(
    worker: &mut WorkerEnd,
    backbone: &mut BackboneEnd,
    calls: &[(usize, usize)],
) -> Receipt {
    backbone.grant().await;
    for (index, (up, down)) in calls.iter().enumerate() {
        let number = index as u64 + 1;
        let (call, result) = (pattern(*up, number), pattern(*down, number + 1000));
        backbone.call(number, call.clone()).await;
        worker.answer(&call, result.clone()).await;
        backbone.take(number, *up, &result).await;
    }
    backbone.ask_to_drain().await;
    loop {
        let cut = backbone.cut().await;
        let receipt = backbone.countersign(cut, &[], |_| {}).await;
        assert_eq!(worker.countersign().await, receipt);
        let note = backbone.complete().await;
        assert_eq!(worker.complete().await.to_string(), note.to_string());
        if cut.is_final {
            return receipt;
        }
    }
}

/// Ends a session in order; gives the final receipt.
pub async fn finish(worker: &mut WorkerEnd, backbone: &mut BackboneEnd) -> Receipt {
    backbone.ask_to_drain().await;
    loop {
        let cut = backbone.cut().await;
        let receipt = backbone.countersign(cut, &[], |_| {}).await;
        assert_eq!(worker.countersign().await, receipt);
        tokio::join!(worker.complete(), backbone.complete());
        if cut.is_final {
            return receipt;
        }
    }
}

pub fn worker_purpose() -> Purpose {
    Purpose::Worker(WorkerOffer {
        plugins: vec![PLUGIN],
        formats: vec![FORMAT],
        memory_bytes: 1 << 30,
        class: Class::Exact,
    })
}

/// The hub's whole HTTP answer.
pub async fn get(hub: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(hub).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: hub\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    patiently(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}
