//! What a second connection holds, and that it has bounds.

use std::sync::Arc;
use std::time::Duration;

use kvasir_wire::frame::Header;
use kvasir_wire::schedule::Scheduler;

use super::super::Resumable;
use super::super::kept::Budget;
use super::*;

/// Bytes of a message.
const LENGTH: usize = 16_000;

/// A link whose bulk goes over a second connection, with so many messages on it as have room.
fn full(budget: &'static Budget) -> (Arc<Shared>, usize) {
    let shared = Shared::new(Scheduler::new(), Some(Resumable::new(0, None)));
    shared.turn_bulk(1).unwrap();
    let mut outbox = shared.outbox();
    outbox.bulk = Some(BulkPath { share: Share::of(budget), ..BulkPath::new(1) });
    let header = Header { kind: Kind::Chunk, more: false, length: 0, stream: 3, sequence: 0 };
    let relay = || Relay { bytes: vec![7; LENGTH].into(), headers: vec![header] };
    let mut waiting = 0;
    while outbox.has_room(&relay()) {
        outbox.pass_on(relay());
        waiting += 1;
    }
    drop(outbox);
    (shared, waiting)
}

#[test]
fn what_was_written_and_did_not_come_takes_room_and_is_never_given_up() {
    let mut path = BulkPath::new(1);
    let chunk = || Bytes::from(vec![7; 16_000]);
    let mut held = 0;
    while path.has_room(16_000) {
        path.push(&chunk());
        assert!(path.pop().is_some());
        held += 1;
    }
    assert_eq!(held, MAX_REPLAY_BYTES / (16_000 + KEEPING_BYTES));
    path.acknowledge(1).unwrap();
    assert!(path.has_room(16_000));
    path.push(&chunk());
    assert!(!path.has_room(16_000));
    assert_eq!(path.missing(1).unwrap().0.len(), held, "what is kept, and what waits");
}

#[test]
fn what_waits_for_a_second_connection_lets_go_of_the_buffer_that_it_was_read_into() {
    let buffer = Bytes::from(vec![7; 60_000]);
    let mut path = BulkPath::new(1);
    path.push(&buffer.slice(100..200));
    let message = path.pop().unwrap();
    assert_eq!(message, buffer.slice(100..200));
    assert!(!buffer.as_ptr_range().contains(&message.as_ptr()));
}

#[test]
fn what_comes_back_is_counted_until_it_is_written() {
    static SMALL: Budget = Budget::of(8 * 1024 * 1024);
    let (shared, waiting) = full(&SMALL);
    assert_eq!(SMALL.kept(), waiting * (LENGTH + KEEPING_BYTES));
    for _ in 0..10 {
        assert!(matches!(shared.next_bulk(1), Next::Message(_)));
    }
    shared.turned_back(Reroute { connection: 1, received: 0 }).unwrap();
    assert_eq!(SMALL.kept(), waiting * LENGTH, "as it waits, so it is counted");
    let mut written = 0;
    while let Next::Message(message) = shared.next(0, Duration::ZERO) {
        written += usize::from(message.len() == LENGTH);
        assert_eq!(SMALL.kept(), (waiting - written) * LENGTH);
    }
    assert_eq!(written, waiting);
}

#[test]
fn what_a_second_connection_holds_goes_with_the_link() {
    static SMALL: Budget = Budget::of(8 * 1024 * 1024);
    let (shared, waiting) = full(&SMALL);
    assert!(waiting > 0 && SMALL.kept() > 0);
    shared.finish(LinkError::Ended);
    assert_eq!(SMALL.kept(), 0, "while a handle lives");
    assert!(matches!(shared.next_bulk(1), Next::Gone));
}

#[test]
fn who_pings_and_does_not_read_has_so_many_answers_queued_and_no_more() {
    let shared = Shared::new(Scheduler::new(), Some(Resumable::new(0, None)));
    shared.turn_bulk(1).unwrap();
    let mut made = 0;
    for _ in 0..2 * MAX_PONGS {
        let answer = || {
            made += 1;
            Ok(Bytes::new())
        };
        shared.answer_on_bulk(1, answer).unwrap();
    }
    assert_eq!(made, MAX_PONGS);
    assert!(matches!(shared.next_bulk(1), Next::Message(_)));
    shared.answer_on_bulk(1, || Ok(Bytes::new())).unwrap();
    shared.lose_bulk(1);
    assert!(matches!(shared.next_bulk(1), Next::Gone));
}
