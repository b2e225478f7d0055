//! A worker operator's walk through a real edge to a real hub and a backbone.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod front;
mod scene;

use std::sync::Arc;

use kvasir_gateway::{
    certificate::{self, Names},
    edge::{Certificates, Edge, EdgeOptions},
    stop::{Stopper, switch},
};
use kvasir_link::{
    LinkError, TlsTrust,
    doctor::{Deadlines, Hop, HopName, Outcome, Subject, examine},
};
use kvasir_wire::{
    frame::Kind,
    handshake::{Class, Purpose, WorkerOffer},
    id::PluginDigest,
    pairing::{Expectation, PairRequest},
    refusal::RefusalCode,
    ticket::{EdgeKey, Role, Ticket},
};

use scene::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::TlsAcceptor;

/// An edge in front of a scene's hub.
struct Front {
    gateway: String,
    authority: Vec<u8>,
    stop: Stopper,
}

impl Front {
    async fn of(hub: &str, edge_key: &EdgeKey) -> Front {
        let folder = tempfile::tempdir().unwrap();
        let files =
            certificate::make(folder.path(), &Names::parse(&["localhost".into()]).unwrap(), false).unwrap();
        let certificates = Certificates::load(&files.certificate, &files.key).unwrap();
        let options = EdgeOptions::new(([127, 0, 0, 1], 0).into(), hub.to_owned(), NETWORK.into());
        let edge = Edge::bind(options, edge_key.clone(), certificates).await.unwrap();
        let gateway = format!("wss://localhost:{}", edge.address().port());
        let (stop, stopped) = switch();
        tokio::spawn(edge.run(stopped));
        Front { gateway, authority: std::fs::read(&files.authority).unwrap(), stop }
    }

    /// The walk with this ticket of key 2, offering these plugins.
    async fn walk(&self, ticket: Ticket, plugins: Vec<PluginDigest>) -> Vec<Hop> {
        walk(self.gateway.clone(), self.authority.clone(), ticket, plugins).await
    }
}

/// The walk to a gateway whose certificate is by this authority.
async fn walk(gateway: String, authority: Vec<u8>, ticket: Ticket, plugins: Vec<PluginDigest>) -> Vec<Hop> {
    let offer = WorkerOffer { plugins, formats: vec![FORMAT], memory_bytes: 1 << 30, class: Class::Exact };
    let subject = Subject {
        gateway,
        trust: TlsTrust::CaFile(authority),
        ticket: Some(ticket),
        key: Some(key(2)),
        offer: Some(offer),
        proxy_variable: None,
        replace_worker: false,
    };
    patiently(examine(&subject, &Deadlines::default(), &mut |_| {})).await
}

/// A worker's ticket that allows two links.
fn of_two_sessions(scene: &Scene) -> Ticket {
    let mut claims = scene.claims(Role::Worker, key(2).public());
    claims.limits.sessions = 2;
    scene.issue(&claims)
}

fn outcomes(hops: &[Hop]) -> Vec<(HopName, Outcome)> {
    hops.iter().map(|hop| (hop.name, hop.outcome)).collect()
}

fn failed(hops: &[Hop]) -> &Hop {
    hops.iter().find(|hop| hop.outcome == Outcome::Failed).unwrap_or_else(|| panic!("{hops:#?}"))
}

#[tokio::test]
async fn the_whole_way_passes_and_no_session_begins() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let front = Front::of(&scene.hub.to_string(), &scene.edge_key).await;
    let mut control = scene.control(&key(3)).await;
    let walk = front.walk(of_two_sessions(&scene), vec![PLUGIN]);
    let backbone = async {
        let payload = expect(&mut control.receiver, Kind::Pair).await;
        let request = PairRequest::decode(&payload.bytes).unwrap();
        let link = scene.backbone(&key(3), Purpose::Session(request.session)).await.unwrap();
        let expectation = Expectation {
            plugins: vec![PLUGIN],
            model: Some(MODEL),
            class: Some(request.class),
            peer: Some(request.worker),
            session: Some(request.session),
        };
        patiently(link.pair(&key(3), &expectation)).await
    };
    let (hops, backbone) = tokio::join!(walk, backbone);
    assert!(hops.iter().all(|hop| hop.outcome == Outcome::Passed), "{hops:#?}");
    match backbone {
        Err(LinkError::Refused(refusal)) => assert_eq!(refusal.code, RefusalCode::Declined),
        other => panic!("{other:?}"),
    }
    assert!(scene.closed.lock().unwrap().is_empty(), "there was no session");
    front.stop.stop();
    scene.stop().await;
}

#[tokio::test]
async fn a_worker_with_a_ticket_of_one_session_keeps_its_place() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let front = Front::of(&scene.hub.to_string(), &scene.edge_key).await;
    let worker = scene.worker(&key(2)).await.unwrap();
    let hops = front.walk(scene.ticket(Role::Worker, &key(2)), vec![PLUGIN]).await;
    let (last, before) = hops.split_last().unwrap();
    assert!(before.iter().all(|hop| hop.outcome == Outcome::Passed), "{hops:#?}");
    assert_eq!((last.name, last.outcome), (HopName::Backbone, Outcome::NotReached));
    // The hub still answers it, so that it was not sent away.
    worker.sender.round_trip_to_hub(PATIENCE).await.unwrap();
    front.stop.stop();
    scene.stop().await;
}

#[tokio::test]
async fn refusals_of_edge_and_hub_are_named_at_their_hops() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let front = Front::of(&scene.hub.to_string(), &scene.edge_key).await;
    let forged = scene.claims(Role::Worker, key(2).public());
    let forged = Ticket::issue(&forged, &scene.hub_key, &EdgeKey::from_bytes([9; 32])).unwrap();
    let hops = front.walk(forged, vec![PLUGIN]).await;
    assert_eq!(failed(&hops).name, HopName::Ticket, "{hops:#?}");

    let _control = scene.control(&key(3)).await;
    let hops = front.walk(of_two_sessions(&scene), vec![PluginDigest([8; 32])]).await;
    let hop = failed(&hops);
    assert_eq!(hop.name, HopName::Backbone, "{hops:#?}");
    assert!(hop.seen.contains("nothing_in_common"), "{hop:?}");

    // An edge whose hub is away.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = gone.local_addr().unwrap().to_string();
    drop(gone);
    let front_of_nobody = Front::of(&nobody, &scene.edge_key).await;
    let hops = front_of_nobody.walk(of_two_sessions(&scene), vec![PLUGIN]).await;
    assert_eq!(failed(&hops).name, HopName::Hub, "{hops:#?}");
    assert!(outcomes(&hops).contains(&(HopName::Ticket, Outcome::Passed)), "{hops:#?}");
    front_of_nobody.stop.stop();
    front.stop.stop();
    scene.stop().await;
}

#[tokio::test]
async fn a_proxy_that_drops_the_upgrade_is_named_where_it_stands() {
    let scene = Scene::start(Arc::new(MemoryLedger::default())).await;
    let edge = front::Front::start(&scene).await;

    // It ends TLS before the edge, and hands Upgrade and Connection on to nobody, as nginx does unless it is told to.
    let folder = tempfile::tempdir().unwrap();
    let files =
        certificate::make(folder.path(), &Names::parse(&["localhost".into()]).unwrap(), false).unwrap();
    let certificates = Certificates::load(&files.certificate, &files.key).unwrap();
    let acceptor = TlsAcceptor::from(certificates.server_config().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gateway = format!("wss://localhost:{}", listener.local_addr().unwrap().port());
    let proxy = patiently(async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut client = acceptor.accept(stream).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let goes_on = |line: &&str| {
            let line = line.to_ascii_lowercase();
            !line.starts_with("upgrade:") && !line.starts_with("connection:")
        };
        let passed: Vec<&str> = head.trim_end().split("\r\n").filter(goes_on).collect();
        assert!(passed.len() < head.trim_end().split("\r\n").count(), "there was an upgrade: {head}");
        let request = format!("{}\r\nConnection: close\r\n\r\n", passed.join("\r\n"));
        let mut behind = edge.dial(edge.client_config()).await;
        behind.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        behind.read_to_end(&mut answer).await.unwrap();
        client.write_all(&answer).await.unwrap();
        // Whoever has read the answer may be gone.
        let _ = client.shutdown().await;
    });
    let authority = std::fs::read(&files.authority).unwrap();
    let walk = walk(gateway, authority, of_two_sessions(&scene), vec![PLUGIN]);
    let (hops, ()) = tokio::join!(walk, proxy);

    let hop = failed(&hops);
    assert_eq!(hop.name, HopName::Upgrade, "{hops:#?}");
    assert!(hop.seen.contains("426") && hop.seen.contains("upgrade_required"), "{hop:?}");
    let remedy = hop.remedy.as_ref().unwrap();
    assert!(remedy.contains("a proxy in front of the gateway") && remedy.contains("Upgrade"), "{hop:?}");
    // It is the way that is wrong, and nothing is said of the ticket.
    for (name, outcome) in [(HopName::Tls, Outcome::Passed), (HopName::Ticket, Outcome::NotReached)] {
        assert!(outcomes(&hops).contains(&(name, outcome)), "{hops:#?}");
    }
    scene.stop().await;
}
