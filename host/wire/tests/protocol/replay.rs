//! Two sides of a link that is cut wherever it pleases: each message arrives once and in order.

use std::collections::VecDeque;

use kvasir_wire::limits::{
    ACK_AFTER_BYTES, HEADER_BYTES, MAX_BULK_PAYLOAD_BYTES, MAX_BULK_WINDOW_BYTES, MAX_REPLAY_BYTES,
};
use kvasir_wire::replay::{KEEPING_BYTES, Replay, ReplayError};
use proptest::prelude::*;

/// First byte of a message that acknowledges; those of an application have another one.
const ACK: u8 = 0xac;

/// One side: what it still has to send, and what it was given.
struct Side {
    replay: Replay<Vec<u8>>,
    queue: VecDeque<Vec<u8>>,
    asked: u32,
    got: Vec<u32>,
}

impl Side {
    fn new(limit: usize) -> Side {
        Side { replay: Replay::new(0, limit), queue: VecDeque::new(), asked: 0, got: Vec::new() }
    }

    /// An application sends a message of this length.
    fn send(&mut self, length: usize) {
        let mut message = vec![0; length.max(5)];
        message[1..5].copy_from_slice(&self.asked.to_le_bytes());
        self.asked += 1;
        self.queue.push_back(message);
    }

    /// What goes onto the connection next.
    fn write(&mut self) -> Option<Vec<u8>> {
        if let Some(message) = self.replay.again() {
            return Some(message);
        }
        let message = self.queue.pop_front()?;
        self.replay.push(message.clone());
        Some(message)
    }

    /// A message came off the connection.
    fn take(&mut self, message: &[u8]) {
        if self.replay.receive(message.len()) {
            let received = self.replay.tell();
            self.queue.push_front([&[ACK][..], &received.to_le_bytes()].concat());
        }
        match message[0] {
            ACK => self.replay.acknowledge(u64::from_le_bytes(message[1..9].try_into().unwrap())).unwrap(),
            _ => self.got.push(u32::from_le_bytes(message[1..5].try_into().unwrap())),
        }
    }
}

/// Both sides and what is on its way between them.
struct Pair {
    sides: [Side; 2],
    /// From side 0 to side 1, and back.
    on_the_way: [VecDeque<Vec<u8>>; 2],
}

impl Pair {
    fn new(limit: usize) -> Pair {
        Pair { sides: [Side::new(limit), Side::new(limit)], on_the_way: Default::default() }
    }

    /// Side `from` writes up to `count` messages.
    fn write(&mut self, from: usize, count: usize) {
        for _ in 0..count {
            let Some(message) = self.sides[from].write() else { return };
            self.on_the_way[from].push_back(message);
        }
    }

    /// Up to `count` messages of side `from` arrive.
    fn deliver(&mut self, from: usize, count: usize) {
        for _ in 0..count {
            let Some(message) = self.on_the_way[from].pop_front() else { return };
            self.sides[1 - from].take(&message);
        }
    }

    /// What is on its way is lost; another connection begins.
    fn cut(&mut self) -> Result<(), ReplayError> {
        self.on_the_way = Default::default();
        let told = [self.sides[0].replay.tell(), self.sides[1].replay.tell()];
        self.sides[0].replay.resume(told[1])?;
        self.sides[1].replay.resume(told[0])
    }

    fn settle(&mut self) {
        loop {
            self.write(0, usize::MAX);
            self.write(1, usize::MAX);
            if self.on_the_way.iter().all(VecDeque::is_empty) {
                return;
            }
            self.deliver(0, usize::MAX);
            self.deliver(1, usize::MAX);
        }
    }

    /// Each side has what the other sent: once, in order; at the end all of it.
    fn check(&self, all: bool) {
        for (side, other) in [(0, 1), (1, 0)] {
            let got = &self.sides[side].got;
            let expected: Vec<u32> = (0..got.len() as u32).collect();
            assert_eq!(*got, expected, "once and in order");
            assert!(!all || got.len() as u32 == self.sides[other].asked, "nothing is missing");
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send { from: usize, length: usize },
    Write { from: usize, count: usize },
    Deliver { from: usize, count: usize },
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..2usize, 0..40_000usize).prop_map(|(from, length)| Step::Send { from, length }),
        4 => (0..2usize, 0..6usize).prop_map(|(from, count)| Step::Write { from, count }),
        4 => (0..2usize, 0..6usize).prop_map(|(from, count)| Step::Deliver { from, count }),
        1 => Just(Step::Cut),
    ]
}

fn play(pair: &mut Pair, steps: &[Step]) -> Result<(), ReplayError> {
    for step in steps {
        match *step {
            Step::Send { from, length } => pair.sides[from].send(length),
            Step::Write { from, count } => pair.write(from, count),
            Step::Deliver { from, count } => pair.deliver(from, count),
            Step::Cut => pair.cut()?,
        }
        pair.check(false);
    }
    Ok(())
}

proptest! {
    /// Cuts at any point, any number of them, cuts in the middle of a repetition among them.
    #[test]
    fn every_message_arrives_once_and_in_order(steps in prop::collection::vec(step(), 0..200)) {
        let mut pair = Pair::new(MAX_REPLAY_BYTES * 4);
        play(&mut pair, &steps).unwrap();
        pair.settle();
        pair.check(true);
        for side in &pair.sides {
            prop_assert!(side.replay.kept_bytes() < 2 * ACK_AFTER_BYTES, "what arrived is not kept for long");
        }
    }

    /// With little memory a cut may find that too much was given up. Then it says so; it never goes on with a gap.
    #[test]
    fn what_is_not_kept_ends_the_link_and_never_leaves_a_gap(
        steps in prop::collection::vec(step(), 0..200),
        limit in 0..200_000usize,
    ) {
        let mut pair = Pair::new(limit);
        match play(&mut pair, &steps) {
            Ok(()) => {
                pair.settle();
                pair.check(true);
            }
            Err(error) => {
                prop_assert!(matches!(error, ReplayError::Forgotten { .. }), "{error}");
                pair.check(false);
            }
        }
        for side in &pair.sides {
            prop_assert!(side.replay.kept_bytes() <= limit);
        }
    }
}

#[test]
fn more_than_the_limit_is_not_kept_and_a_cut_says_from_where_on() {
    let mut replay: Replay<Vec<u8>> = Replay::new(0, MAX_REPLAY_BYTES);
    let messages = MAX_REPLAY_BYTES as u64 / 65_536 + 3;
    for _ in 0..messages {
        replay.push(vec![0; 65_536 - KEEPING_BYTES]);
    }
    assert_eq!(replay.kept_bytes(), MAX_REPLAY_BYTES);
    assert_eq!(replay.resume(2), Err(ReplayError::Forgotten { received: 2, kept: 3 }));
    replay.resume(3).unwrap();
    assert_eq!(std::iter::from_fn(|| replay.again()).count() as u64, messages - 3);
}

#[test]
fn who_is_to_keep_less_gives_the_oldest_up() {
    let mut replay: Replay<Vec<u8>> = Replay::new(0, MAX_REPLAY_BYTES);
    for byte in 0..10 {
        replay.push(vec![byte; 100]);
    }
    replay.keep_at_most(3 * (100 + KEEPING_BYTES) + 1);
    assert_eq!(replay.kept_bytes(), 3 * (100 + KEEPING_BYTES));
    assert_eq!(replay.resume(6), Err(ReplayError::Forgotten { received: 6, kept: 7 }));
    replay.resume(7).unwrap();
    assert_eq!(replay.again(), Some(vec![7; 100]));
    replay.keep_at_most(0);
    assert_eq!(replay.kept_bytes(), 2 * (100 + KEEPING_BYTES), "what is not written again yet stays");
    assert_eq!((replay.again(), replay.again()), (Some(vec![8; 100]), Some(vec![9; 100])));
    replay.keep_at_most(0);
    assert_eq!((replay.kept_bytes(), replay.again()), (0, None));
}

#[test]
fn a_full_bulk_window_that_nobody_has_acknowledged_is_kept_whole() {
    let frame = HEADER_BYTES + MAX_BULK_PAYLOAD_BYTES;
    let mut replay: Replay<Vec<u8>> = Replay::new(0, MAX_REPLAY_BYTES);
    for _ in 0..MAX_BULK_WINDOW_BYTES.div_ceil(frame as u64) {
        replay.push(vec![7; frame]);
    }
    replay.push(vec![8; ACK_AFTER_BYTES]);
    replay.resume(0).unwrap();
}

#[test]
fn a_link_that_ends_keeps_nothing_and_writes_nothing_again() {
    let mut replay: Replay<Vec<u8>> = Replay::new(0, MAX_REPLAY_BYTES);
    for byte in 0..3 {
        replay.push(vec![byte; 100]);
    }
    replay.resume(1).unwrap();
    replay.clear();
    assert_eq!((replay.kept_bytes(), replay.again()), (0, None));
    // Its last words, and news that come late.
    replay.push(vec![9; 10]);
    replay.acknowledge(2).unwrap();
    assert_eq!(replay.kept_bytes(), 10 + KEEPING_BYTES);
}

#[test]
fn counts_that_cannot_be_are_refused() {
    let mut replay: Replay<Vec<u8>> = Replay::new(1, 1000);
    for byte in 0..4 {
        replay.push(vec![byte; 10]);
    }
    assert_eq!(replay.acknowledge(5), Err(ReplayError::Impossible { received: 5, least: 0, most: 4 }));
    replay.acknowledge(3).unwrap();
    replay.acknowledge(1).unwrap();
    assert_eq!(replay.kept_bytes(), 10 + KEEPING_BYTES);
    assert_eq!(replay.resume(2), Err(ReplayError::Impossible { received: 2, least: 3, most: 4 }));
    assert_eq!(replay.resume(5), Err(ReplayError::Impossible { received: 5, least: 3, most: 4 }));
    replay.resume(3).unwrap();
    // What is not written again yet cannot have arrived.
    assert_eq!(replay.acknowledge(4), Err(ReplayError::Impossible { received: 4, least: 3, most: 3 }));
    assert_eq!(replay.again(), Some(vec![3; 10]));
    assert_eq!(replay.again(), None);
    replay.acknowledge(4).unwrap();
    assert_eq!(replay.kept_bytes(), 0);
}

#[test]
fn the_other_side_is_told_after_64_kib_and_whenever_it_is_asked_for() {
    let mut replay: Replay<Vec<u8>> = Replay::new(1, 1000);
    assert!(!replay.is_untold());
    assert!(!replay.receive(ACK_AFTER_BYTES - KEEPING_BYTES - 1));
    assert!(replay.is_untold());
    assert!(replay.receive(1));
    assert_eq!(replay.tell(), 3);
    assert!(!replay.is_untold() && !replay.receive(1));
}
