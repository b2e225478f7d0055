//! Sessions that are opened, used once, and then held open while somebody looks at a proxy's memory; and workers and sessions
//! that are held open at a hub.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use futures_util::{StreamExt as _, stream};
use kvasir_link::{Connected, Session, TlsTrust};
use kvasir_wire::{frame::Kind, handshake::Features};
use tokio::sync::mpsc;

use crate::{
    client::{self, Way, Wire},
    holders::{BackboneHolder, join, one_of_many, worker_expectation},
    parties::{Ends, NETWORK},
};

/// How many are opened at a time: below what an edge lets one address have in its handshake.
const AT_A_TIME: usize = 32;
/// Bytes of the one message before a session is left alone, and of the one in the end.
const ONE_MESSAGE: usize = 1024;

/// What is held.
#[derive(Default)]
pub struct Crowd {
    wires: Vec<Wire>,
    workers: Vec<Connected>,
    /// The workers' ends of sessions, and the backbone's.
    sessions: Vec<[Session; 2]>,
    backbone: Option<Backbone>,
}

impl Crowd {
    /// Opens more connections to the upstream; each has one message answered.
    pub async fn hold(
        &mut self,
        ends: &Ends,
        way: Way,
        address: SocketAddr,
        sessions: usize,
    ) -> anyhow::Result<()> {
        let opened = (0..sessions).map(|_| used_once(ends, way, address));
        let mut opening = stream::iter(opened).buffer_unordered(AT_A_TIME);
        while let Some(opened) = opening.next().await {
            let wire = opened.with_context(|| format!("{} are open", self.wires.len()))?;
            self.wires.push(wire);
        }
        Ok(())
    }

    /// Has more workers admitted by a hub, each with a key of its own; there they wait for a backbone.
    pub async fn hold_at_hub(
        &mut self,
        address: SocketAddr,
        sessions: usize,
        features: Features,
    ) -> anyhow::Result<()> {
        let url = format!("ws://{address}");
        let first = self.workers.len();
        let admitted = (first..first + sessions).map(|number| admitted(&url, number, features));
        let mut opening = stream::iter(admitted).buffer_unordered(AT_A_TIME);
        while let Some(admitted) = opening.next().await {
            let worker = admitted.with_context(|| format!("{} are admitted", self.workers.len()))?;
            self.workers.push(worker);
        }
        Ok(())
    }

    /// Has a hub pair more workers, each with a key of its own, with one backbone. Both ends have signed, the grant has been sent,
    /// and nothing is called.
    pub async fn hold_sessions_at_hub(
        &mut self,
        address: SocketAddr,
        sessions: usize,
        features: Features,
    ) -> anyhow::Result<()> {
        let backbone = match &mut self.backbone {
            Some(backbone) => backbone,
            none => none.insert(Backbone::start(address, features).await?),
        };
        let url = format!("ws://{address}");
        let first = self.sessions.len();
        let paired = (first..first + sessions).map(|number| paired(&url, number, features));
        let mut pairing = stream::iter(paired).buffer_unordered(AT_A_TIME);
        while let Some(paired) = pairing.next().await {
            let worker = paired.with_context(|| format!("{} are in session", self.sessions.len()))?;
            let taken = backbone.taken.recv().await.context("the backbone ended")?;
            self.sessions.push([worker, taken.context("the backbone's end")?]);
        }
        Ok(())
    }

    /// How many were opened.
    pub fn held(&self) -> usize {
        self.wires.len() + self.workers.len() + self.sessions.len()
    }

    /// How many of them still answer.
    pub async fn alive(&mut self) -> usize {
        let mut alive = self.workers.iter().filter(|worker| worker.sender.is_open()).count();
        alive += self.sessions.iter().filter(|ends| ends.iter().all(|end| end.sender.is_open())).count();
        for wire in &mut self.wires {
            alive += usize::from(client::echo(wire, ONE_MESSAGE).await.is_ok());
        }
        alive
    }
}

async fn used_once(ends: &Ends, way: Way, address: SocketAddr) -> anyhow::Result<Wire> {
    let mut wire = client::open(ends, way, address).await?;
    client::echo(&mut wire, ONE_MESSAGE).await?;
    Ok(wire)
}

async fn admitted(url: &str, number: usize, features: Features) -> anyhow::Result<Connected> {
    join(url, &TlsTrust::PlainText, NETWORK, &one_of_many(number as u64), features).await
}

/// A worker's end of a session.
async fn paired(url: &str, number: usize, features: Features) -> anyhow::Result<Session> {
    let key = one_of_many(number as u64);
    let link = admitted(url, number, features).await?;
    let session = link.pair(&key, &worker_expectation()).await?;
    ensure!(session.transcript.features == features, "the session has other features than were asked for");
    Ok(session)
}

/// A backbone that takes every worker.
struct Backbone {
    /// Its ends of sessions, as they begin.
    taken: mpsc::UnboundedReceiver<anyhow::Result<Session>>,
}

impl Backbone {
    async fn start(hub: SocketAddr, features: Features) -> anyhow::Result<Backbone> {
        let holder = BackboneHolder::new(hub, NETWORK, features)?;
        let control = holder.control().await?;
        let (takes, taken) = mpsc::unbounded_channel();
        tokio::spawn(take_all(holder, control, takes));
        Ok(Backbone { taken })
    }
}

/// Takes what is offered until nobody wants it any more, or the hub ends the link.
async fn take_all(
    holder: BackboneHolder,
    mut control: Connected,
    takes: mpsc::UnboundedSender<anyhow::Result<Session>>,
) {
    loop {
        let payload = tokio::select! {
            payload = control.receiver.recv() => payload,
            () = takes.closed() => return,
        };
        match payload {
            Ok(offer) if offer.kind == Kind::Pair => {
                let (holder, takes) = (holder.clone(), takes.clone());
                tokio::spawn(async move {
                    let _ = takes.send(holder.take(&offer.bytes).await.map(|(session, _)| session));
                });
            }
            Ok(_) => {}
            Err(error) => {
                let _ = takes.send(Err(error.into()));
                return;
            }
        }
    }
}
