//! Who holds tickets in the benchmarks: keys from fixed seeds, so that processes agree on them, tickets, offers, a worker's way to
//! the hub and a backbone's into a session. Not part of the product: the keys are numbers that everybody knows.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use kvasir_link::{Connected, LinkOptions, Session, TlsTrust, connect_backbone, connect_worker, unix_now};
use kvasir_wire::account::{Grant, Statement as _};
use kvasir_wire::frame::{HUB_STREAM, Kind};
use kvasir_wire::handshake::{BackboneOffer, Class, Features, Purpose, WorkerOffer};
use kvasir_wire::id::{ModelDigest, PluginDigest};
use kvasir_wire::key::SecretKey;
use kvasir_wire::money::MeteredBytes;
use kvasir_wire::note::NetworkName;
use kvasir_wire::pairing::{Expectation, PairRequest};
use kvasir_wire::receipt::Terms;
use kvasir_wire::ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketLimits};
use rustls::{ClientConfig, ClientConnection, RootCertStore, client::Resumption};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};

/// The plugin that all tickets allow.
const PLUGIN: PluginDigest = PluginDigest([5; 32]);
/// The model of the backbones.
const MODEL: ModelDigest = ModelDigest([6; 32]);
/// The tensor format that all have.
const FORMAT: u32 = 12;
/// Longer than any run.
const SECONDS: u64 = 12 * 3600;

/// The hub's key.
pub fn hub_key() -> SecretKey {
    SecretKey::from_seed([1; 32])
}

/// The key that hub and edge share.
pub fn edge_key() -> EdgeKey {
    EdgeKey::from_bytes([4; 32])
}

/// The key of the one worker, or of the one backbone.
pub fn holder(role: Role) -> SecretKey {
    SecretKey::from_seed(if role == Role::Worker { [2; 32] } else { [3; 32] })
}

/// The key of one of many workers.
pub fn one_of_many(number: u64) -> SecretKey {
    let mut seed = [88; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    SecretKey::from_seed(seed)
}

/// A ticket for one session at a time.
pub fn ticket(network: &str, role: Role, holder: &SecretKey) -> anyhow::Result<Ticket> {
    let wallet = SecretKey::from_seed([9; 32]).public().wallet_digest();
    let claims = TicketClaims {
        network: network.to_owned(),
        role,
        holder: holder.public(),
        hub: hub_key().public(),
        wallet: (role == Role::Worker).then_some(wallet),
        plugins: vec![PLUGIN],
        publishers: Vec::new(),
        limits: TicketLimits { sessions: 1, session_bytes: 0 },
        issued: unix_now() - 10,
        expires: unix_now() + SECONDS,
    };
    Ok(Ticket::issue(&claims, &hub_key(), &edge_key())?)
}

/// TLS as workers speak it, for connections that are made by hand: trusts one authority, PEM, and pays the whole handshake each
/// time.
pub fn client_tls(authority: &[u8]) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority).context("the authority's certificate")?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// A whole ClientHello that asks for `name`.
pub fn client_hello(config: &Arc<ClientConfig>, name: ServerName<'static>) -> anyhow::Result<Vec<u8>> {
    let mut connection = ClientConnection::new(config.clone(), name)?;
    let mut hello = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut hello)?;
    }
    Ok(hello)
}

/// What a worker brings.
pub fn worker_offer() -> WorkerOffer {
    WorkerOffer { plugins: vec![PLUGIN], formats: vec![FORMAT], memory_bytes: 1 << 30, class: Class::Exact }
}

/// What a worker demands of a session.
pub fn worker_expectation() -> Expectation {
    Expectation { plugins: vec![PLUGIN], ..Expectation::default() }
}

/// A worker's link, admitted by the hub.
pub async fn join(
    url: &str,
    trust: &TlsTrust,
    network: &str,
    key: &SecretKey,
    features: Features,
) -> anyhow::Result<Connected> {
    let ticket = ticket(network, Role::Worker, key)?;
    let options = LinkOptions::default();
    Ok(connect_worker(url, trust, &ticket, key, worker_offer(), features, &options).await?)
}

/// The one backbone, and the hub that it dials.
#[derive(Clone)]
pub struct BackboneHolder {
    url: String,
    network: NetworkName,
    key: SecretKey,
    ticket: Ticket,
    features: Features,
    options: LinkOptions,
}

impl BackboneHolder {
    /// Nothing is dialled yet. `features` are what it asks for in each session.
    pub fn new(hub: SocketAddr, network: &str, features: Features) -> anyhow::Result<Self> {
        let key = holder(Role::Backbone);
        Ok(BackboneHolder {
            url: format!("ws://{hub}"),
            network: network.parse()?,
            ticket: ticket(network, Role::Backbone, &key)?,
            key,
            features,
            options: LinkOptions::default(),
        })
    }

    /// The control link, on which workers are offered.
    pub async fn control(&self) -> anyhow::Result<Connected> {
        let offer = BackboneOffer {
            model: MODEL,
            plugins: vec![PLUGIN],
            formats: vec![FORMAT],
            accepts: Class::Exact,
        };
        self.dial(Purpose::Control(offer)).await
    }

    /// Takes a worker that was offered: the data link, the transcript, and the grant, which must come first.
    pub async fn take(&self, offer: &[u8]) -> anyhow::Result<(Session, Terms)> {
        let request = PairRequest::decode(offer)?;
        let expectation = Expectation {
            plugins: vec![request.plugin],
            model: Some(MODEL),
            class: Some(request.class),
            peer: Some(request.worker),
            session: Some(request.session),
        };
        let link = self.dial(Purpose::Session(request.session)).await?;
        let session = link.pair(&self.key, &expectation).await?;
        let features = session.transcript.features;
        ensure!(
            features == self.features,
            "the session has features {:#x}, not {:#x}",
            features.0,
            self.features.0
        );
        let hub = session.admission.ticket.claims().hub.digest();
        let grant = Grant {
            network: self.network.clone(),
            session: Some(request.session),
            hub,
            worker: Some(request.worker.digest()),
            backbone: self.key.public(),
            price: request.price,
            bytes: MeteredBytes::new(1 << 40)?,
            from: unix_now() - 60,
            until: unix_now() + SECONDS,
        };
        let note = grant.sign(&self.key)?;
        let terms = Terms {
            network: self.network.clone(),
            session: request.session,
            grant: note.leaf_hash(),
            hub,
            worker: request.worker.digest(),
            backbone: self.key.public().digest(),
            payee: request.payee,
            model: MODEL,
            plugin: request.plugin,
            class: request.class,
            price: request.price,
            from: 0,
        };
        let sent = session.sender.send(Kind::Grant, HUB_STREAM, note.to_string().into_bytes()).await;
        sent.context("sending the grant")?;
        Ok((session, terms))
    }

    async fn dial(&self, purpose: Purpose) -> anyhow::Result<Connected> {
        let BackboneHolder { url, key, ticket, features, options, .. } = self;
        Ok(connect_backbone(url, ticket, key, purpose, *features, options).await?)
    }
}
