//! A worker that opens a second connection for bulk, at a hub that breaks rules on purpose.
//!
//! What a hub in order makes of it is tested with the gateway's.

use std::time::Duration;

use kvasir_link::{
    Accepted, HubLink, Incoming, LinkError, LinkOptions, Session, TlsTrust, accept, connect_worker,
    fresh_nonce, websocket_config,
};
use kvasir_wire::frame::Kind;
use kvasir_wire::handshake::{BulkConnection, Class, Features, Purpose, Welcome};
use kvasir_wire::id::ModelDigest;
use kvasir_wire::message::Reroute;
use kvasir_wire::pairing::{Expectation, Transcript, TranscriptEnd};
use kvasir_wire::ticket::Role;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use crate::parties::*;

const BOTH: Features = Features::RESUME.with(Features::BULK_CONNECTION);

/// A worker in a session, and its first connection at the hub.
struct Rig {
    session: Session,
    first: HubLink,
    listener: TcpListener,
}

impl Rig {
    async fn start() -> Rig {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let (key, options, trust) = (key(2), LinkOptions::default(), TlsTrust::PlainText);
        let ticket = ticket(Role::Worker, &key);
        let worker = async {
            let dial = connect_worker(&url, &trust, &ticket, &key, worker_offer(), BOTH, &options);
            let expectation = Expectation { plugins: vec![PLUGIN], ..Expectation::default() };
            dial.await.unwrap().pair(&key, &expectation).await.unwrap()
        };
        let (session, first) = tokio::join!(worker, paired(&listener));
        Rig { session, first, listener }
    }

    /// The worker's next second connection, which has this number, before its welcome.
    async fn second(&self, connection: u32) -> Accepted<TcpStream> {
        let accepted = accepted(&self.listener).await;
        let asked = Purpose::Bulk(BulkConnection { session: SESSION, connection });
        assert_eq!(accepted.admission.purpose, asked);
        accepted
    }

    /// Turns bulk to a second connection, or says so.
    fn turn(&self, connection: u32) {
        let turn = Reroute { connection, received: 0 };
        self.first.sender.send(Kind::Reroute, turn.encode()).unwrap();
    }

    /// Why the worker ends its link.
    async fn ends(&mut self) -> String {
        match self.session.receiver.recv().await.unwrap_err() {
            LinkError::Unexpected { found, expected } => format!("{found} where {expected}"),
            other => panic!("{other:?}"),
        }
    }
}

/// A connection on which the holder has proved its key.
async fn accepted(listener: &TcpListener) -> Accepted<TcpStream> {
    let (stream, _) = listener.accept().await.unwrap();
    #[allow(clippy::result_large_err)] // the callback's type is the library's
    let callback = |_: &Request, mut response: Response| {
        response.headers_mut().insert("sec-websocket-protocol", "kvasir.v1".parse().unwrap());
        Ok(response)
    };
    let config = Some(websocket_config());
    let socket = tokio_tungstenite::accept_hdr_async_with_config(stream, callback, config).await.unwrap();
    let options = LinkOptions { bulk_connection: true, ..LinkOptions::default() };
    accept(socket, &identity(), Role::Worker, None, fresh_nonce().unwrap(), &options).await.unwrap()
}

/// A worker's link that is admitted and paired with a backbone that there is not.
async fn paired(listener: &TcpListener) -> HubLink {
    let mut link = accepted(listener).await.admit().unwrap();
    let backbone = key(3);
    let transcript = Transcript {
        version: link.admission.version,
        network: NETWORK.to_owned(),
        session: SESSION,
        worker: (&link.admission).into(),
        backbone: TranscriptEnd {
            key: backbone.public(),
            nonce: fresh_nonce().unwrap(),
            ticket: ticket(Role::Backbone, &backbone).digest(),
        },
        plugin: PLUGIN,
        model: ModelDigest([0x22; 32]),
        class: Class::Exact,
        features: BOTH,
    };
    link.sender.send(Kind::Transcript, transcript.encode()).unwrap();
    let Incoming::Own(sign) = link.receiver.next().await.unwrap() else { panic!("a message for the pair") };
    assert_eq!(sign.kind, Kind::Sign);
    let peer = backbone.sign(&transcript.signed_bytes(Role::Backbone));
    link.sender.send(Kind::Welcome, Welcome::Paired { peer }.encode()).unwrap();
    link
}

#[tokio::test]
async fn the_hub_s_own_words_have_no_place_on_a_second_connection() {
    let mut rig = Rig::start().await;
    let second = rig.second(1).await.admit().unwrap();
    // Behind the welcome, and in another message.
    sleep(Duration::from_millis(50)).await;
    second.sender.send(Kind::Receipt, vec![7; 10]).unwrap();
    assert_eq!(rig.ends().await, "receipt on a bulk connection where a chunk or a pong");
}

#[tokio::test]
async fn calls_have_no_place_there_either() {
    let mut rig = Rig::start().await;
    let second = rig.second(1).await.admit().unwrap();
    let options = LinkOptions::default();
    let (backbone, mut from_backbone) = admitted(Purpose::Session(SESSION), &key(3), &options).await;
    backbone.sender.send(Kind::Call, 2, vec![7; 10]).await.unwrap();
    let Incoming::Relay(relay) = from_backbone.receiver.next().await.unwrap() else {
        panic!("not for the other end")
    };
    second.sender.relay(relay).await.unwrap();
    rig.turn(1);
    assert_eq!(rig.ends().await, "call where a chunk over the second connection");
}

#[tokio::test]
async fn bulk_turns_to_what_was_dialled_and_to_one_at_a_time() {
    let mut rig = Rig::start().await;
    let _second = rig.second(1).await.admit().unwrap();
    rig.turn(2);
    assert!(rig.ends().await.starts_with("reroute to bulk connection 2 where one of"));

    let mut rig = Rig::start().await;
    let _second = rig.second(1).await.admit().unwrap();
    rig.turn(1);
    rig.turn(1);
    assert!(rig.ends().await.starts_with("reroute to bulk connection 1 where none while"));
}

#[tokio::test]
async fn a_turn_to_a_connection_that_came_to_nothing_is_answered_and_another_is_dialled() {
    let mut rig = Rig::start().await;
    drop(rig.second(1).await);
    let _second = rig.second(2).await;
    rig.turn(1);
    // This hub has forgotten that it said so: what it makes of the answer shows that it came, behind what is for the backbone.
    let error = loop {
        if let Err(error) = rig.first.receiver.next().await {
            break error.to_string();
        }
    };
    assert!(error.contains("reroute of bulk connection 1"), "{error}");
}
