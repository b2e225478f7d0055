//! Handshakes that fail: both sides learn why, with the same code.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_link::{LinkError, LinkOptions, accept, connect_over, fresh_nonce};
use kvasir_wire::frame::{HUB_STREAM, Kind, frames};
use kvasir_wire::handshake::{Features, HolderHandshake, HubIdentity, Purpose};
use kvasir_wire::id::Nonce;
use kvasir_wire::key::SecretKey;
use kvasir_wire::pairing::Expectation;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::schedule::{Outgoing, Scheduler};
use kvasir_wire::ticket::{EdgeKey, Role, Ticket};
use tokio_tungstenite::tungstenite::Message;

use crate::parties::*;

/// Connects a holder to a hub; gives both errors.
async fn both(
    ticket: &Ticket,
    holder: &SecretKey,
    purpose: Purpose,
    hub: &HubIdentity,
    door: Role,
    header: Option<&Ticket>,
) -> (LinkError, LinkError) {
    let options = LinkOptions::default();
    let (client, server) = sockets(32 * 1024).await;
    let (holder, hub) = tokio::join!(
        connect_over(client, ticket, holder, purpose, Features::NONE, &options),
        accept(server, hub, door, header, fresh_nonce().unwrap(), &options),
    );
    (holder.map(|_| ()).unwrap_err(), hub.map(|_| ()).unwrap_err())
}

fn codes((holder, hub): (LinkError, LinkError)) -> (RefusalCode, RefusalCode) {
    match (holder, hub) {
        (LinkError::Refused(at_holder), LinkError::RefusedPeer(at_hub)) => {
            assert_eq!(at_holder, at_hub, "both read the same");
            (at_holder.code, at_hub.code)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_hub_s_refusals_reach_the_holder_word_for_word() {
    let holder = key(2);
    let good = ticket(Role::Worker, &holder);
    let same = |code| (code, code);

    let other_edge = HubIdentity { edge: EdgeKey::from_bytes([9; 32]), ..identity() };
    let refused = both(&good, &holder, worker_purpose(), &other_edge, Role::Worker, None).await;
    assert_eq!(codes(refused), same(RefusalCode::BadTicket));

    let other_network = HubIdentity { network: "other".to_owned(), ..identity() };
    let refused = both(&good, &holder, worker_purpose(), &other_network, Role::Worker, None).await;
    assert_eq!(codes(refused), same(RefusalCode::UnknownNetwork));

    let refused = both(&good, &holder, worker_purpose(), &identity(), Role::Backbone, None).await;
    assert_eq!(codes(refused), same(RefusalCode::WrongRole));

    let other_ticket = ticket(Role::Worker, &key(9));
    let refused =
        both(&good, &holder, worker_purpose(), &identity(), Role::Worker, Some(&other_ticket)).await;
    assert_eq!(codes(refused), same(RefusalCode::BadTicket));
}

#[tokio::test]
async fn a_holder_does_not_send_a_ticket_that_is_not_its_own() {
    let options = LinkOptions { close_linger: Duration::from_millis(50), ..LinkOptions::default() };
    let (client, _server) = sockets(32 * 1024).await;
    let ticket = ticket(Role::Worker, &key(2));
    let error = connect_over(client, &ticket, &key(9), worker_purpose(), Features::NONE, &options).await;
    match error {
        Err(LinkError::RefusedPeer(refusal)) => assert_eq!(refusal.code, RefusalCode::WrongKey),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_thief_s_proof_and_a_second_answer_are_refused() {
    for (second, expected) in [(false, RefusalCode::WrongKey), (true, RefusalCode::ReplayedAnswer)] {
        // The client does not answer the close; nobody needs to wait for it here.
        let options = LinkOptions { close_linger: Duration::from_millis(50), ..LinkOptions::default() };
        let (mut client, server) = sockets(32 * 1024).await;
        let hub =
            tokio::spawn(async move { accept_for_test(server, Role::Worker, &options).await.map(|_| ()) });
        let holder = key(2);
        let ticket = ticket(Role::Worker, &holder);
        let now = kvasir_link::unix_now();
        let nonce = Nonce([7; 32]);
        let (state, hello) =
            HolderHandshake::start(&ticket, &holder, worker_purpose(), Features::NONE, nonce, now).unwrap();
        let mut scheduler = Scheduler::new();
        scheduler.push(Outgoing::new(Kind::Hello, HUB_STREAM, hello)).unwrap();
        client.send(Message::Binary(scheduler.next_message().unwrap().into())).await.unwrap();
        let Message::Binary(challenge) = client.next().await.unwrap().unwrap() else {
            panic!("no challenge")
        };
        let challenge = frames(&challenge).unwrap().next().unwrap().unwrap().payload.to_vec();
        let signer = if second { key(2) } else { key(9) };
        let (_, proof) = state.challenge(&challenge, &signer).unwrap();
        for _ in 0..=usize::from(second) {
            scheduler.push(Outgoing::new(Kind::Proof, HUB_STREAM, proof.clone())).unwrap();
        }
        client.send(Message::Binary(scheduler.next_message().unwrap().into())).await.unwrap();
        match hub.await.unwrap() {
            Err(LinkError::RefusedPeer(refusal)) => assert_eq!(refusal.code, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_hub_can_refuse_after_its_own_checks() {
    let options = LinkOptions::default();
    let (client, server) = sockets(32 * 1024).await;
    let holder = key(2);
    let ticket = ticket(Role::Worker, &holder);
    let refusal = Refusal::new(RefusalCode::NoBackbone, "no backbone is here", "try again").retry_after(30);
    let (error, _) = tokio::join!(
        connect_over(client, &ticket, &holder, worker_purpose(), Features::NONE, &options),
        async {
            accept_for_test(server, Role::Worker, &options).await.unwrap().refuse(refusal.clone()).await
        },
    );
    match error {
        Err(LinkError::Refused(read)) => assert_eq!(read, refusal),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_end_that_does_not_want_the_plugin_tells_the_hub() {
    let options = LinkOptions::default();
    let worker_key = key(2);
    let (worker, mut hub) = admitted(worker_purpose(), &worker_key, &options).await;
    let transcript = kvasir_wire::pairing::Transcript {
        version: hub.admission.version,
        network: NETWORK.to_owned(),
        session: SESSION,
        worker: (&hub.admission).into(),
        backbone: kvasir_wire::pairing::TranscriptEnd { key: key(3).public(), ..(&hub.admission).into() },
        plugin: kvasir_wire::id::PluginDigest([0xee; 32]),
        model: kvasir_wire::id::ModelDigest([0x22; 32]),
        class: kvasir_wire::handshake::Class::Exact,
        features: Features::NONE,
    };
    hub.sender.send(Kind::Transcript, transcript.encode()).unwrap();
    let expectation = Expectation { plugins: vec![PLUGIN], ..Expectation::default() };
    let (at_worker, at_hub) = tokio::join!(worker.pair(&worker_key, &expectation), hub.receiver.next());
    let (at_worker, at_hub) = match (at_worker, at_hub) {
        (Err(LinkError::RefusedPeer(at_worker)), Err(LinkError::Refused(at_hub))) => (at_worker, at_hub),
        other => panic!("{other:?}"),
    };
    assert_eq!(at_worker, at_hub);
    assert_eq!((at_hub.code, at_hub.session), (RefusalCode::TranscriptMismatch, Some(SESSION)));
}

#[tokio::test(start_paused = true)]
async fn a_side_that_says_nothing_is_not_waited_for() {
    let options = LinkOptions::default();
    let (client, _silent) = sockets(32 * 1024).await;
    let holder = key(2);
    let ticket = ticket(Role::Worker, &holder);
    let error = connect_over(client, &ticket, &holder, worker_purpose(), Features::NONE, &options).await;
    assert!(matches!(error, Err(LinkError::TimedOut { within, .. }) if within == Duration::from_secs(10)));
    let (_silent, server) = sockets(32 * 1024).await;
    let error = accept_for_test(server, Role::Worker, &options).await.map(|_| ());
    assert!(matches!(error, Err(LinkError::TimedOut { .. })));
}
