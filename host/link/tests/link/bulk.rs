//! A second connection for bulk at the hub, by workers whose frames are made by hand.

use std::time::Duration;

use kvasir_link::{Connected, HubLink, Incoming, LinkError, LinkOptions};
use kvasir_wire::frame::{Header, Kind, frames};
use kvasir_wire::handshake::{BulkConnection, Features, Purpose, Welcome};
use kvasir_wire::message::{Ack, Ping, Reroute};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::parties::*;
use crate::raw_holder::RawHolder;

const BOTH: Features = Features::RESUME.with(Features::BULK_CONNECTION);

/// A worker's link in a session at the hub, and a backbone's whose bulk it is given.
struct Scene {
    worker: RawHolder,
    link: HubLink,
    backbone: Connected,
    from_backbone: HubLink,
}

impl Scene {
    async fn start() -> Scene {
        let (worker, link, welcome) = RawHolder::admitted(BOTH, &key(2)).await;
        assert!(matches!(Welcome::decode(&welcome).unwrap(), Welcome::BulkOffered { .. }));
        assert!(link.takes_bulk());
        let options = LinkOptions::default();
        let (backbone, from_backbone) = admitted(Purpose::Session(SESSION), &key(3), &options).await;
        Scene { worker, link, backbone, from_backbone }
    }

    /// Bulk turns to a second connection: gives the worker's end of it, and the hub's task.
    async fn second(&mut self, connection: u32) -> (RawHolder, JoinHandle<Result<(), LinkError>>) {
        let resumer = self.link.resumable(SESSION).unwrap();
        let purpose = Purpose::Bulk(BulkConnection { session: SESSION, connection });
        let (mut second, accepted) = RawHolder::greeted(purpose, BOTH, &key(2)).await;
        let carrying = tokio::spawn(async move { accepted.carry_bulk(&resumer, connection, || {}).await });
        let welcome = second.receive(Kind::Welcome).await;
        assert!(matches!(Welcome::decode(&welcome).unwrap(), Welcome::Admitted { .. }));
        assert_eq!(self.turn().await, Reroute { connection, received: 0 });
        (second, carrying)
    }

    /// What the worker reads on the first connection of where bulk goes.
    async fn turn(&mut self) -> Reroute {
        Reroute::decode(&self.worker.receive(Kind::Reroute).await).unwrap()
    }

    /// What the worker says of it.
    async fn answer(&mut self, connection: u32, received: u64) {
        self.worker.send(Kind::Reroute, &Reroute { connection, received }.encode()).await;
    }

    /// The hub passes the chunks of these numbers on, of one blob.
    async fn passes(&mut self, numbers: std::ops::Range<u8>) {
        for number in numbers {
            self.backbone.sender.send_chunk(3, vec![number; 1000], true).await.unwrap();
            let Incoming::Relay(relay) = self.from_backbone.receiver.next().await.unwrap() else {
                panic!("not for the other end")
            };
            self.link.sender.relay(relay).await.unwrap();
        }
    }

    /// How the link ends.
    async fn ends(&mut self) -> LinkError {
        self.link.receiver.next().await.unwrap_err()
    }
}

/// The worker takes the chunks of these numbers, which come next.
async fn takes(holder: &mut RawHolder, numbers: std::ops::Range<u8>) {
    for number in numbers {
        let bytes = holder.message().await;
        let all: Vec<_> = frames(&bytes).unwrap().map(Result::unwrap).collect();
        assert_eq!(all.len(), 1, "a message of its own");
        let Header { kind, sequence, .. } = all[0].header;
        assert_eq!((kind, sequence), (Kind::Chunk, u32::from(number)));
        assert!(all[0].payload.iter().all(|byte| *byte == number));
    }
}

#[tokio::test]
async fn what_did_not_come_over_the_second_connection_comes_over_the_first_and_nothing_twice() {
    let mut scene = Scene::start().await;
    scene.passes(0..2).await;
    takes(&mut scene.worker, 0..2).await;
    let (mut second, carrying) = scene.second(1).await;
    scene.passes(2..7).await;
    takes(&mut second, 2..7).await;
    second.send(Kind::Ack, &Ack { received: 1 }.encode()).await;
    // It says that it has three of the five.
    drop(second);
    carrying.await.unwrap().unwrap();
    scene.passes(7..9).await;
    scene.link.sender.send(Kind::Receipt, vec![7; 10]).unwrap();
    scene.worker.receive(Kind::Receipt).await;
    scene.answer(1, 3).await;
    let Scene { worker, link, .. } = &mut scene;
    // The hub's side works while it is awaited.
    tokio::select! {
        () = takes(worker, 5..9) => {}
        ended = link.receiver.next() => panic!("{ended:?}"),
    }
    // And the next one takes over from there.
    let (mut third, _carrying) = scene.second(2).await;
    scene.passes(9..11).await;
    takes(&mut third, 9..11).await;
}

#[tokio::test]
async fn a_connection_of_which_nothing_came_gives_all_back() {
    let mut scene = Scene::start().await;
    let (second, carrying) = scene.second(1).await;
    drop(second);
    carrying.await.unwrap().unwrap();
    scene.passes(0..3).await;
    scene.answer(1, 0).await;
    let Scene { worker, link, .. } = &mut scene;
    tokio::select! {
        () = takes(worker, 0..3) => {}
        ended = link.receiver.next() => panic!("{ended:?}"),
    }
}

#[tokio::test]
async fn pings_are_answered_behind_the_bulk_that_waits() {
    let mut scene = Scene::start().await;
    let (mut second, _carrying) = scene.second(1).await;
    scene.passes(0..3).await;
    second.send(Kind::Ping, &Ping { number: 9 }.encode()).await;
    takes(&mut second, 0..3).await;
    assert_eq!(Ping::decode(&second.receive(Kind::Pong).await).unwrap().number, 9);
}

#[tokio::test]
async fn one_at_a_time_and_numbers_count_up() {
    let mut scene = Scene::start().await;
    let resumer = scene.link.resumable(SESSION).unwrap();
    let (second, carrying) = scene.second(3).await;
    let refused = async |connection| {
        let purpose = Purpose::Bulk(BulkConnection { session: SESSION, connection });
        let (late, accepted) = RawHolder::greeted(purpose, BOTH, &key(2)).await;
        let (result, code) =
            tokio::join!(accepted.carry_bulk(&resumer, connection, not_taken), late.refused());
        assert!(matches!(result, Err(LinkError::RefusedPeer(_))), "{result:?}");
        code
    };
    assert_eq!(refused(4).await, RefusalCode::LimitReached);
    drop(second);
    carrying.await.unwrap().unwrap();
    // Gone, and nobody has said what came.
    assert_eq!(refused(4).await, RefusalCode::LimitReached);
    scene.answer(3, 0).await;
    scene.worker.send(Kind::Countersign, &[7; 100]).await;
    assert!(matches!(scene.link.receiver.next().await, Ok(Incoming::Own(_))), "and the answer before it");
    assert_eq!(refused(3).await, RefusalCode::ProtocolError);
    let _fourth = scene.second(4).await;
}

fn not_taken() {
    panic!("it is taken");
}

#[tokio::test]
async fn a_count_that_cannot_be_ends_the_link() {
    // On the first connection: more than was written,
    let mut scene = Scene::start().await;
    let (mut second, _carrying) = scene.second(1).await;
    scene.passes(0..2).await;
    takes(&mut second, 0..2).await;
    scene.answer(1, 3).await;
    let error = scene.ends().await;
    assert!(error.to_string().contains("it can have 0 to 2"), "{error}");

    // less than was acknowledged,
    let mut scene = Scene::start().await;
    let (mut second, carrying) = scene.second(1).await;
    scene.passes(0..2).await;
    takes(&mut second, 0..2).await;
    second.send(Kind::Ack, &Ack { received: 2 }.encode()).await;
    second.send(Kind::Ping, &Ping { number: 1 }.encode()).await;
    second.receive(Kind::Pong).await;
    scene.answer(1, 1).await;
    let error = scene.ends().await;
    assert!(error.to_string().contains("it can have 2 to 2"), "{error}");
    carrying.await.unwrap().unwrap();

    // and on the second one.
    let mut scene = Scene::start().await;
    let (mut second, _carrying) = scene.second(1).await;
    second.send(Kind::Ack, &Ack { received: 1 }.encode()).await;
    let error = scene.ends().await;
    assert!(error.to_string().contains("it can have 0 to 0"), "{error}");
}

#[tokio::test]
async fn what_does_not_belong_on_a_second_connection_ends_the_link() {
    let mut scene = Scene::start().await;
    let (mut second, _carrying) = scene.second(1).await;
    second.send(Kind::Countersign, &[7; 100]).await;
    let error = scene.ends().await;
    assert!(error.to_string().contains("countersign on stream 0 of a bulk connection"), "{error}");
}

#[tokio::test]
async fn a_worker_that_refuses_a_second_connection_loses_that_alone() {
    let mut scene = Scene::start().await;
    let (mut second, carrying) = scene.second(1).await;
    scene.passes(0..2).await;
    let refusal = Refusal::new(RefusalCode::TimedOut, "no welcome came", "nothing");
    second.send(Kind::Refuse, &refusal.encode()).await;
    carrying.await.unwrap().unwrap();
    scene.answer(1, 0).await;
    let Scene { worker, link, .. } = &mut scene;
    tokio::select! {
        () = takes(worker, 0..2) => {}
        ended = link.receiver.next() => panic!("{ended:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_never_says_what_came_loses_its_link() {
    let mut scene = Scene::start().await;
    let (second, carrying) = scene.second(1).await;
    drop(second);
    carrying.await.unwrap().unwrap();
    let Scene { worker, link, .. } = &mut scene;
    let alive = async {
        for number in 0.. {
            sleep(Duration::from_secs(5)).await;
            worker.send(Kind::Ping, &Ping { number }.encode()).await;
        }
    };
    let error = tokio::select! {
        ended = link.receiver.next() => ended.unwrap_err(),
        () = alive => unreachable!("it goes on for ever"),
    };
    assert!(matches!(error, LinkError::TimedOut { .. }), "{error}");
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_ends_the_link() {
    let mut scene = Scene::start().await;
    scene.answer(1, 0).await;
    let error = scene.ends().await;
    assert!(matches!(error, LinkError::Unexpected { .. }), "{error}");
}

#[tokio::test]
async fn a_worker_that_does_not_ask_is_offered_nothing() {
    // Without resumption there is nobody to keep what a second connection loses.
    for (features, counts) in [(Features::RESUME, true), (Features::BULK_CONNECTION, false)] {
        let (_worker, link, welcome) = RawHolder::admitted(features, &key(2)).await;
        let welcome = Welcome::decode(&welcome).unwrap();
        assert_eq!(matches!(welcome, Welcome::Resumable { .. }), counts, "{welcome:?}");
        assert_eq!(matches!(welcome, Welcome::Admitted { .. }), !counts, "{welcome:?}");
        assert!(!link.takes_bulk());
    }
}

#[tokio::test]
async fn an_end_that_dialled_no_second_connection_is_turned_to_none() {
    let (mut connected, link) = admitted(worker_purpose(), &key(2), &LinkOptions::default()).await;
    link.sender.send(Kind::Reroute, Reroute { connection: 1, received: 0 }.encode()).unwrap();
    let error = connected.receiver.recv().await.unwrap_err();
    assert!(matches!(error, LinkError::Unexpected { .. }), "{error}");
}
