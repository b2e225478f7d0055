//! Another connection for a link at the hub, by holders whose frames are made by hand.

use kvasir_link::{Accepted, HubLink, Incoming, LinkError};
use kvasir_wire::frame::Kind;
use kvasir_wire::handshake::{Features, Purpose, Resumption};
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::MAX_REPLAY_BYTES;
use kvasir_wire::message::Ack;
use kvasir_wire::refusal::RefusalCode;
use kvasir_wire::ticket::Role;
use tokio::io::DuplexStream;

use crate::parties::*;
use crate::raw_holder::RawHolder;

/// One on a link in a session; it has the welcome.
async fn in_session(key: &SecretKey) -> (RawHolder, HubLink) {
    let (holder, link, _) = RawHolder::admitted(Features::RESUME, key).await;
    (holder, link)
}

/// One that comes back and says that it has so many messages.
async fn back(key: &SecretKey, received: u64) -> (RawHolder, Accepted<DuplexStream>) {
    let resumption = Resumption { role: Role::Worker, session: SESSION, received };
    RawHolder::greeted(Purpose::Resume(resumption), Features::RESUME, key).await
}

#[tokio::test]
async fn a_holder_that_lacks_what_is_kept_no_longer_is_told_so_and_the_link_ends() {
    let worker = key(2);
    let (mut holder, mut link) = in_session(&worker).await;
    let resumer = link.resumable(SESSION).unwrap();
    // It reads all of that and acknowledges nothing.
    let mut read = 0;
    while read <= MAX_REPLAY_BYTES {
        link.sender.send(Kind::Receipt, vec![7; 10_000]).unwrap();
        read += holder.receive(Kind::Receipt).await.len();
    }
    let (late, accepted) = back(&worker, 1).await;
    let (resumed, refused) = tokio::join!(accepted.resume(&resumer, 1), late.refused());
    assert!(matches!(resumed, Err(LinkError::RefusedPeer(_))), "{resumed:?}");
    assert_eq!(refused, RefusalCode::UnknownSession);
    let ended = link.receiver.next().await.unwrap_err();
    assert!(matches!(ended, LinkError::Lost(_)), "{ended}");
}

#[tokio::test]
async fn a_holder_that_lacks_what_it_had_acknowledged_is_an_older_attempt_and_ends_nothing() {
    let worker = key(2);
    let (mut holder, mut link) = in_session(&worker).await;
    let resumer = link.resumable(SESSION).unwrap();
    link.sender.send(Kind::Receipt, vec![7; 100]).unwrap();
    holder.receive(Kind::Receipt).await;
    holder.send(Kind::Ack, &Ack { received: 2 }.encode()).await;
    holder.send(Kind::Countersign, &[7; 100]).await;
    assert!(matches!(link.receiver.next().await, Ok(Incoming::Own(_))), "and the ack before it");

    let (late, accepted) = back(&worker, 1).await;
    let (resumed, refused) = tokio::join!(accepted.resume(&resumer, 1), late.refused());
    assert!(resumed.is_err());
    assert_eq!(refused, RefusalCode::UnknownSession);
    link.sender.send(Kind::Receipt, vec![8; 100]).unwrap();
    assert_eq!(holder.receive(Kind::Receipt).await, [8; 100]);
}
