//! A worker's way to a backbone through relays that can be told to fail, and what the ledger bills in the end.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do
#![allow(dead_code)] // each test binary uses a part of it

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use kvasir_gateway::hub::{HubOptions, SessionClosed};
use kvasir_link::{Backoff, Connected, LinkError, LinkOptions, LinkReceiver, connect_worker};
use kvasir_wire::{
    handshake::{Features, Purpose},
    key::SecretKey,
    money::MeteredBytes,
    receipt::Receipt,
    ticket::Role,
};

use super::{front::Front, relay::Relay, scene::*};

/// Deadlines short enough for a test, long enough for a busy machine.
pub fn quick() -> LinkOptions {
    LinkOptions {
        ping_after: Duration::from_secs(1),
        dead_after: Duration::from_secs(3),
        write_stall: Duration::from_secs(2),
        close_linger: Duration::from_millis(500),
        ..LinkOptions::default()
    }
}

/// A worker's way to a backbone: relay, edge, relay, hub.
pub struct Rig {
    pub ledger: Arc<MemoryLedger>,
    pub scene: Scene,
    pub front: Front,
    pub relay: Relay,
    /// Before the hub, for the edge and for the backbone.
    pub hub_relay: Relay,
    pub control: Connected,
    pub worker: SecretKey,
    pub backbone: SecretKey,
    /// The worker's.
    options: LinkOptions,
    /// What both ends ask for.
    features: Features,
}

impl Rig {
    /// With what both ends ask for, and the deadlines of worker and hub.
    pub async fn start(features: Features, options: LinkOptions) -> Rig {
        Rig::start_with(features, options, |_| {}).await
    }

    /// With other options for the hub.
    pub async fn start_with(
        features: Features,
        options: LinkOptions,
        change: impl FnOnce(&mut HubOptions),
    ) -> Rig {
        let ledger = Arc::new(MemoryLedger::default());
        let of_hub = |hub: &mut HubOptions| {
            hub.link = options.clone();
            change(hub);
        };
        let mut scene = Scene::start_with(ledger.clone(), of_hub).await;
        scene.features = features;
        let hub_relay = Relay::start(scene.hub).await;
        scene.hub = hub_relay.address;
        let front = Front::start_with(&scene, |edge| edge.drain_time = Duration::from_millis(50)).await;
        let relay = Relay::start(front.address).await;
        let (worker, backbone) = (key(2), key(3));
        let control = scene.control(&backbone).await;
        Rig { ledger, scene, front, relay, hub_relay, control, worker, backbone, options, features }
    }

    /// Another hub takes the place of the one that is gone.
    pub async fn another_hub(&mut self, mut scene: Scene) -> Scene {
        scene.features = self.features;
        self.hub_relay.retarget(scene.hub);
        scene.hub = self.hub_relay.address;
        let old = std::mem::replace(&mut self.scene, scene);
        self.control = self.scene.control(&self.backbone).await;
        old
    }

    pub async fn dial(&self) -> Result<Connected, LinkError> {
        let Purpose::Worker(offer) = worker_purpose() else { panic!("a worker's purpose") };
        let ticket = self.scene.ticket(Role::Worker, &self.worker);
        let (url, trust) = (format!("wss://{}", self.relay.address), &self.front.trust);
        connect_worker(&url, trust, &ticket, &self.worker, offer, self.features, &self.options).await
    }

    /// Dials as a worker does: again and again, with jitter, until it is served.
    pub async fn redial(&self) -> Connected {
        patiently(async {
            let mut backoff = Backoff::new();
            loop {
                let error = match self.dial().await {
                    Ok(link) => return link,
                    Err(error) => error,
                };
                assert!(!error.is_permanent(), "no worker would try again: {error}");
                let asked = error.retry_after().map(|seconds| Duration::from_secs(seconds.into()));
                tokio::time::sleep(backoff.next_wait(getrandom_u64(), asked)).await;
            }
        })
        .await
    }

    /// A session of the worker, dialled until it is served.
    pub async fn pair(&mut self) -> (WorkerEnd, BackboneEnd) {
        let link = self.redial().await;
        let key = self.worker.clone();
        let pairing = tokio::spawn(async move { link.pair(&key, &worker_expectation()).await.unwrap() });
        let backbone = patiently(self.scene.take_offer(&mut self.control, &self.backbone)).await;
        (WorkerEnd { session: patiently(pairing).await.unwrap(), key: self.worker.clone() }, backbone)
    }

    /// Another session, whole, after what happened.
    pub async fn one_more_session(&mut self) {
        let (mut worker, mut backbone) = self.pair().await;
        whole_session(&mut worker, &mut backbone, &[(70, 30)]).await;
    }

    /// Bytes that the ledger bills over so many ended sessions. Each receipt is filed once, and what the ledger holds of a
    /// session is what the hub says was signed.
    pub async fn billed(&self, sessions: usize) -> Vec<u64> {
        let closed = self.scene.closed_sessions(sessions).await;
        assert_eq!(closed.len(), sessions, "each session is closed once");
        billed(&self.ledger, closed)
    }
}

/// Bytes that the ledger bills over the sessions of these lines.
pub fn billed(ledger: &MemoryLedger, closed: Vec<SessionClosed>) -> Vec<u64> {
    let mut seen = HashSet::new();
    let mut last: HashMap<String, MeteredBytes> = HashMap::new();
    for note in ledger.receipts.lock().unwrap().iter() {
        let receipt = Receipt::parse(note.text()).unwrap();
        let session = receipt.terms.session.to_string();
        assert!(seen.insert((session.clone(), receipt.seq)), "one receipt is filed twice");
        last.insert(session, receipt.billed());
    }
    let bill = |line: SessionClosed| {
        let billed = last.remove(&line.session).map_or(0, MeteredBytes::get);
        assert_eq!(billed, line.receipted_bytes);
        assert!(billed <= line.bytes_up + line.bytes_down, "more is billed than went through");
        billed
    };
    let bytes = closed.into_iter().map(bill).collect();
    assert!(last.is_empty(), "a session is billed that never ended");
    bytes
}

fn getrandom_u64() -> u64 {
    getrandom::u64().unwrap()
}

/// How a link ends, behind anything that still comes.
pub async fn ended(receiver: &mut LinkReceiver) -> LinkError {
    loop {
        if let Err(error) = patiently(receiver.recv()).await {
            return error;
        }
    }
}

/// A call that is answered and taken.
pub async fn one_call(worker: &mut WorkerEnd, backbone: &mut BackboneEnd, call: u64, up: usize, down: usize) {
    backbone.call(call, vec![1; up]).await;
    worker.answer(&vec![1; up], vec![2; down]).await;
    backbone.take(call, up, &vec![2; down]).await;
}
