//! Sessions that are opened, used once, and then held open while somebody looks at a proxy's or a hub's memory.

use std::net::SocketAddr;

use anyhow::Context as _;
use futures_util::{StreamExt as _, stream};
use kvasir_link::{Connected, LinkOptions, TlsTrust, connect_worker};
use kvasir_wire::{
    handshake::{Class, Features, WorkerOffer},
    key::SecretKey,
};

use crate::{
    client::{self, Way, Wire},
    parties::{Ends, PLUGIN, ticket},
};

/// How many are opened at a time: below what an edge lets one address have in its handshake.
const AT_A_TIME: usize = 32;
/// Bytes of the one message before a session is left alone, and of the one in the end.
const ONE_MESSAGE: usize = 1024;
/// The tensor format that workers offer.
const FORMAT: u32 = 12;

/// What is held.
#[derive(Default)]
pub struct Crowd {
    wires: Vec<Wire>,
    workers: Vec<Connected>,
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
    pub async fn hold_at_hub(&mut self, address: SocketAddr, sessions: usize) -> anyhow::Result<()> {
        let url = format!("ws://{address}");
        let first = self.workers.len();
        let admitted = (first..first + sessions).map(|number| admitted(&url, number));
        let mut opening = stream::iter(admitted).buffer_unordered(AT_A_TIME);
        while let Some(admitted) = opening.next().await {
            let worker = admitted.with_context(|| format!("{} are admitted", self.workers.len()))?;
            self.workers.push(worker);
        }
        Ok(())
    }

    /// How many were opened.
    pub fn held(&self) -> usize {
        self.wires.len() + self.workers.len()
    }

    /// How many of them still answer.
    pub async fn alive(&mut self) -> usize {
        let mut alive = self.workers.iter().filter(|worker| worker.sender.is_open()).count();
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

async fn admitted(url: &str, number: usize) -> anyhow::Result<Connected> {
    let mut seed = [88; 32];
    seed[..8].copy_from_slice(&(number as u64).to_le_bytes());
    let key = SecretKey::from_seed(seed);
    let ticket = ticket(&key)?;
    let offer = WorkerOffer {
        plugins: vec![PLUGIN],
        formats: vec![FORMAT],
        memory_bytes: 1 << 30,
        class: Class::Exact,
    };
    let options = LinkOptions::default();
    let trust = TlsTrust::PlainText;
    Ok(connect_worker(url, &trust, &ticket, &key, offer, Features::NONE, &options).await?)
}
