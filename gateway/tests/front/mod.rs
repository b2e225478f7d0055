//! An edge in front of a scene's hub, on a real socket with a certificate of its own.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do
#![allow(dead_code)] // each test binary uses a part of it

use std::{net::SocketAddr, sync::Arc};

use kvasir_gateway::{
    certificate::{self, CertificatePaths, Names},
    edge::{Certificates, Edge, EdgeOptions},
    operations::Served,
    stop::{Stopper, switch},
};
use kvasir_link::{Connected, LinkError, LinkOptions, TlsTrust, connect_worker};
use kvasir_wire::{
    handshake::{Features, Purpose},
    key::SecretKey,
    ticket::{EdgeKey, Ticket},
};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio::{net::TcpStream, task::JoinHandle};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::scene::{NETWORK, Scene, patiently, worker_purpose};

/// A running edge.
pub struct Front {
    pub address: SocketAddr,
    /// What whoever dials it has to trust.
    pub trust: TlsTrust,
    pub files: CertificatePaths,
    /// What it tells an operator.
    pub served: Arc<dyn Served>,
    options: EdgeOptions,
    edge_key: EdgeKey,
    stop: Stopper,
    run: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Front {
    pub async fn start(scene: &Scene) -> Front {
        Front::start_with(scene, |_| {}).await
    }

    /// An edge with other options than the usual ones.
    pub async fn start_with(scene: &Scene, change: impl FnOnce(&mut EdgeOptions)) -> Front {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::parse(&["127.0.0.1".into(), "localhost".into()]).unwrap();
        let files = certificate::make(folder.path(), &names, false).unwrap();
        let mut options = EdgeOptions::new(([127, 0, 0, 1], 0).into(), scene.hub.to_string(), NETWORK.into());
        change(&mut options);
        let trust = TlsTrust::CaFile(std::fs::read(&files.authority).unwrap());
        let edge_key = scene.edge_key.clone();
        let (address, served, stop, run) = run(&options, &edge_key, &files).await;
        options.listen = address;
        Front { address, trust, files, served, options, edge_key, stop, run, _folder: folder }
    }

    /// A client's TLS settings that trust the edge.
    pub fn client_config(&self) -> Arc<rustls::ClientConfig> {
        let TlsTrust::CaFile(pem) = &self.trust else { panic!("a certificate file") };
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }

    /// A connection that has said nothing behind its TLS handshake.
    pub async fn dial(&self, config: Arc<rustls::ClientConfig>) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(config).connect(name, stream).await.unwrap()
    }

    /// Stops the edge; [`Front::again`] starts it on the same address.
    pub async fn stop(&mut self) {
        self.stop.stop();
        patiently(&mut self.run).await.unwrap();
    }

    pub async fn again(&mut self) {
        (self.address, self.served, self.stop, self.run) =
            run(&self.options, &self.edge_key, &self.files).await;
    }
}

async fn run(
    options: &EdgeOptions,
    edge_key: &EdgeKey,
    files: &CertificatePaths,
) -> (SocketAddr, Arc<dyn Served>, Stopper, JoinHandle<()>) {
    let certificates = Certificates::load(&files.certificate, &files.key).unwrap();
    let edge = Edge::bind(options.clone(), edge_key.clone(), certificates).await.unwrap();
    let address = edge.address();
    let (stop, stopped) = switch();
    let served = edge.served(stopped.clone());
    (address, served, stop, tokio::spawn(edge.run(stopped)))
}

/// A worker's link through the edge, by way of `address` if something lies between.
pub async fn worker_through(
    address: SocketAddr,
    trust: &TlsTrust,
    ticket: &Ticket,
    key: &SecretKey,
    options: &LinkOptions,
) -> Result<Connected, LinkError> {
    let Purpose::Worker(offer) = worker_purpose() else { panic!("a worker's purpose") };
    let url = format!("wss://{address}");
    connect_worker(&url, trust, ticket, key, offer, Features::NONE, options).await
}
