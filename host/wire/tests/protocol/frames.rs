//! Headers, assembly, scheduling, credit and the meter: rules kept, limits reached, round trips.

use std::time::Duration;

use kvasir_wire::assemble::{Assembler, Payload};
use kvasir_wire::credit::ReceiveCredit;
use kvasir_wire::frame::{
    Frame, FrameError, HUB_STREAM, Header, Kind, Lane, MessageClass, PAIR_STREAM, Party, classify, frames,
};
use kvasir_wire::limits::*;
use kvasir_wire::meter::{Meter, Totals};
use kvasir_wire::schedule::{Outgoing, Scheduler, SendError};
use proptest::prelude::*;

fn header(kind: Kind, stream: u32, sequence: u32, length: usize, more: bool) -> Header {
    Header { kind, more, length: length as u32, stream, sequence }
}

fn accept(assembler: &mut Assembler, header: Header, payload: &[u8]) -> Result<Option<Payload>, FrameError> {
    assembler.accept(Frame { header, payload })
}

fn worker_side() -> Assembler {
    Assembler::through_hub(Party::Backbone)
}

fn deliver(message: &[u8], assembler: &mut Assembler) -> Vec<Payload> {
    frames(message).unwrap().filter_map(|frame| assembler.accept(frame.unwrap()).unwrap()).collect()
}

/// A kind that may go from a backbone to a worker, with a stream and a size that fit it.
fn outgoing() -> impl Strategy<Value = Outgoing> {
    let big = 0..200_000usize;
    prop_oneof![
        (big.clone(), any::<u8>()).prop_map(|(n, b)| Outgoing::new(Kind::Assign, PAIR_STREAM, vec![b; n])),
        (big, any::<u8>()).prop_map(|(n, b)| Outgoing::new(Kind::Call, 0, vec![b; n])),
        (0..=MAX_BULK_PAYLOAD_BYTES, any::<u8>()).prop_map(|(n, b)| Outgoing::new(
            Kind::Chunk,
            3,
            vec![b; n]
        )),
        (0..100usize).prop_map(|n| Outgoing::new(Kind::Cancel, PAIR_STREAM, vec![1; n])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_scheduled_arrives_whole_and_in_order_of_its_lane(
        mut all in prop::collection::vec(outgoing(), 1..20)
    ) {
        let mut call = 0;
        for outgoing in &mut all {
            if outgoing.kind == Kind::Call {
                call += 2;
                outgoing.stream = call;
            }
        }
        let mut scheduler = Scheduler::new();
        let mut sent = Vec::new();
        for outgoing in all {
            // What finds no room stays out; the bulk queue is small.
            if scheduler.push(outgoing.clone()).is_ok() {
                sent.push(outgoing);
            }
        }
        let mut assembler = worker_side();
        let mut credit = ReceiveCredit::default();
        let mut arrived = Vec::new();
        loop {
            let Some(message) = scheduler.next_message() else {
                prop_assert!(scheduler.is_empty());
                break;
            };
            prop_assert!(message.len() <= MAX_MESSAGE_BYTES);
            for frame in frames(&message).unwrap() {
                let frame = frame.unwrap();
                credit.received(frame.header.lane(), frame.header.length).unwrap();
                if let Some(payload) = assembler.accept(frame).unwrap() {
                    if let Some(bytes) = credit.consumed(payload.lane(), payload.cost, Duration::ZERO) {
                        scheduler.grant(payload.lane(), bytes).unwrap();
                    }
                    arrived.push(payload);
                }
            }
        }
        prop_assert_eq!(assembler.open_streams(), 0);
        prop_assert_eq!(assembler.held_bytes(), 0);
        for lane in Lane::ALL {
            let sent: Vec<_> = sent.iter().filter(|o| o.kind.lane() == lane)
                .map(|o| (o.kind, o.stream, o.bytes.clone())).collect();
            let arrived: Vec<_> = arrived.iter().filter(|p| p.lane() == lane)
                .map(|p| (p.kind, p.stream, p.bytes.clone())).collect();
            prop_assert_eq!(sent, arrived);
        }
    }

    #[test]
    fn headers_are_read_back_or_refused_and_never_read_otherwise(bytes in any::<[u8; HEADER_BYTES]>()) {
        if let Ok(header) = Header::decode(&bytes) {
            prop_assert_eq!(header.encode(), bytes);
        }
    }

    #[test]
    fn random_messages_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut assembler = worker_side();
        if let Ok(walk) = frames(&bytes) {
            for frame in walk {
                let Ok(frame) = frame else { break };
                let _ = assembler.accept(frame);
            }
        }
    }
}

#[test]
fn a_higher_lane_goes_first_at_every_message() {
    let mut scheduler = Scheduler::new();
    for _ in 0..4 {
        scheduler
            .push(Outgoing { kind: Kind::Chunk, stream: 3, more: true, bytes: vec![0; 16_000] })
            .unwrap();
    }
    let first = |message: Vec<u8>| frames(&message).unwrap().next().unwrap().unwrap().header.kind;
    assert_eq!(first(scheduler.next_message().unwrap()), Kind::Chunk);
    scheduler.push(Outgoing::new(Kind::Call, 2, vec![0; 200_000])).unwrap();
    assert_eq!(first(scheduler.next_message().unwrap()), Kind::Call);
    // The call has begun; control still overtakes it, and the call overtakes the chunks that wait longer.
    scheduler.push(Outgoing::new(Kind::Cancel, PAIR_STREAM, vec![0; 2])).unwrap();
    assert_eq!(first(scheduler.next_message().unwrap()), Kind::Cancel);
    assert_eq!(first(scheduler.next_message().unwrap()), Kind::Call);
}

#[test]
fn a_bulk_frame_has_a_message_of_its_own() {
    // In one message with a chunk a call would be handed over only once the chunk is there as well.
    let mut scheduler = Scheduler::new();
    for more in [true, false] {
        scheduler.push(Outgoing { kind: Kind::Chunk, stream: 3, more, bytes: vec![0; 100] }).unwrap();
    }
    scheduler.push(Outgoing::new(Kind::Call, 2, vec![0; 100])).unwrap();
    scheduler.push(Outgoing::new(Kind::Cancel, PAIR_STREAM, vec![0; 2])).unwrap();
    let mut kinds = || {
        let message = scheduler.next_message().unwrap();
        frames(&message).unwrap().map(|frame| frame.unwrap().header.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(), [Kind::Cancel, Kind::Call]);
    assert_eq!(kinds(), [Kind::Chunk]);
    assert_eq!(kinds(), [Kind::Chunk]);
}

#[test]
fn small_frames_share_a_message_but_not_with_the_hub_s() {
    let mut scheduler = Scheduler::new();
    scheduler.push(Outgoing::new(Kind::Ping, HUB_STREAM, vec![0; 8])).unwrap();
    scheduler.push(Outgoing::new(Kind::Ping, HUB_STREAM, vec![1; 8])).unwrap();
    scheduler.push(Outgoing::new(Kind::Cancel, PAIR_STREAM, vec![0; 2])).unwrap();
    scheduler.push(Outgoing::new(Kind::Call, 2, vec![0; 100])).unwrap();
    let hub = scheduler.next_message().unwrap();
    assert_eq!(classify(&hub, Party::Backbone, |_| Ok(())), Ok(MessageClass::Hub));
    assert_eq!(frames(&hub).unwrap().count(), 2);
    let pair = scheduler.next_message().unwrap();
    assert_eq!(classify(&pair, Party::Backbone, |_| Ok(())), Ok(MessageClass::Pair));
    assert_eq!(frames(&pair).unwrap().count(), 2);
    let mixed = [hub, pair].concat();
    assert_eq!(classify(&mixed, Party::Backbone, |_| Ok(())), Err(FrameError::MixedMessage));
}

#[test]
fn a_lane_without_credit_waits_and_the_others_go_on() {
    let mut scheduler = Scheduler::new();
    let mut sent = 0;
    while sent + 16_016 <= BULK_WINDOW_BYTES {
        scheduler
            .push(Outgoing { kind: Kind::Chunk, stream: 3, more: true, bytes: vec![0; 16_000] })
            .unwrap();
        scheduler.next_message().unwrap();
        sent += 16_016;
    }
    scheduler.push(Outgoing { kind: Kind::Chunk, stream: 3, more: true, bytes: vec![0; 16_000] }).unwrap();
    assert_eq!(scheduler.next_message(), None);
    assert!(scheduler.is_stalled());
    scheduler.push(Outgoing::new(Kind::Call, 2, vec![0; 100])).unwrap();
    assert!(scheduler.next_message().is_some());
    scheduler.grant(Lane::Bulk, 16_016).unwrap();
    assert!(scheduler.next_message().is_some());
    assert!(scheduler.is_empty());
}

#[test]
fn what_has_not_begun_can_be_withdrawn() {
    let mut scheduler = Scheduler::new();
    scheduler.push(Outgoing::new(Kind::Call, 2, vec![0; 200_000])).unwrap();
    scheduler.push(Outgoing::new(Kind::Call, 4, vec![0; 100])).unwrap();
    scheduler.next_message().unwrap();
    assert!(!scheduler.withdraw(2), "it has begun");
    assert!(scheduler.withdraw(4));
    assert!(!scheduler.withdraw(4));
    let mut assembler = worker_side();
    let mut count = 0;
    while let Some(message) = scheduler.next_message() {
        count += frames(&message).unwrap().count();
    }
    assert_eq!(count, 3, "the rest of the first call");
    assert_eq!(scheduler.queued_bytes(Lane::Dispatch), 0);
    assert!(accept(&mut assembler, header(Kind::Call, 4, 0, 0, false), &[]).is_ok());
}

#[test]
fn queues_and_payloads_have_limits() {
    let mut scheduler = Scheduler::new();
    let error = scheduler.push(Outgoing::new(Kind::Call, 2, vec![0; MAX_PAYLOAD_BYTES + 1])).unwrap_err();
    assert!(matches!(error, SendError::PayloadTooLong { limit: MAX_PAYLOAD_BYTES, .. }));
    let error =
        scheduler.push(Outgoing::new(Kind::Chunk, 3, vec![0; MAX_BULK_PAYLOAD_BYTES + 1])).unwrap_err();
    assert!(matches!(error, SendError::PayloadTooLong { limit: MAX_BULK_PAYLOAD_BYTES, .. }));
    let assign = |n| Outgoing::new(Kind::Assign, PAIR_STREAM, vec![0; n]);
    let error = scheduler.push(assign(MAX_CONTROL_PAYLOAD_BYTES + 1)).unwrap_err();
    assert!(matches!(error, SendError::PayloadTooLong { limit: MAX_CONTROL_PAYLOAD_BYTES, .. }));
    for _ in 0..MAX_CONTROL_QUEUE_BYTES / MAX_CONTROL_PAYLOAD_BYTES {
        scheduler.push(assign(MAX_CONTROL_PAYLOAD_BYTES)).unwrap();
    }
    let error = scheduler.push(assign(1)).unwrap_err();
    assert_eq!(error, SendError::QueueFull { lane: Lane::Control, limit: MAX_CONTROL_QUEUE_BYTES });
    for (outgoing, what) in [
        (Outgoing::new(Kind::Call, 3, vec![]), "a call on a blob's stream"),
        (Outgoing::new(Kind::Credit, HUB_STREAM, vec![]), "credit to the hub"),
        (Outgoing { kind: Kind::Call, stream: 2, more: true, bytes: vec![] }, "more of a call"),
    ] {
        assert!(matches!(scheduler.push(outgoing), Err(SendError::WrongStream { .. })), "{what}");
    }
}

#[test]
fn the_largest_payload_passes_within_the_window() {
    let mut scheduler = Scheduler::new();
    scheduler.push(Outgoing::new(Kind::Call, 2, vec![7; MAX_PAYLOAD_BYTES])).unwrap();
    let mut assembler = worker_side();
    let mut credit = ReceiveCredit::default();
    let mut arrived = Vec::new();
    while let Some(message) = scheduler.next_message() {
        for frame in frames(&message).unwrap() {
            let frame = frame.unwrap();
            credit.received(frame.header.lane(), frame.header.length).unwrap();
        }
        arrived.extend(deliver(&message, &mut assembler));
    }
    assert!(scheduler.is_empty());
    assert_eq!(arrived.len(), 1);
    assert_eq!(arrived[0].bytes.len(), MAX_PAYLOAD_BYTES);
}

#[test]
fn a_payload_beyond_its_lane_s_limit_is_refused_before_it_is_held() {
    let part = vec![0; MAX_FRAME_PAYLOAD_BYTES];
    for (kind, stream, limit) in
        [(Kind::Call, 2, MAX_PAYLOAD_BYTES), (Kind::Assign, PAIR_STREAM, MAX_CONTROL_PAYLOAD_BYTES)]
    {
        let mut assembler = worker_side();
        let mut sequence = 0;
        let error = loop {
            match accept(&mut assembler, header(kind, stream, sequence, part.len(), true), &part) {
                Ok(None) => sequence += 1,
                other => break other,
            }
        };
        assert_eq!(error, Err(FrameError::PayloadTooLong { lane: kind.lane(), limit }));
        assert!(assembler.held_bytes() <= limit);
    }
}

#[test]
fn open_streams_and_their_memory_are_limited() {
    let mut assembler = worker_side();
    for call in 1..=MAX_OPEN_STREAMS as u32 {
        accept(&mut assembler, header(Kind::Call, call * 2, 0, 1, true), &[0]).unwrap();
    }
    let next = (MAX_OPEN_STREAMS as u32 + 1) * 2;
    let error = accept(&mut assembler, header(Kind::Call, next, 0, 1, true), &[0]);
    assert_eq!(error, Err(FrameError::TooManyStreams { limit: MAX_OPEN_STREAMS }));

    let mut assembler = worker_side();
    let part = vec![0; MAX_FRAME_PAYLOAD_BYTES];
    let error = 'full: {
        for call in 1.. {
            for sequence in 0..500 {
                match accept(&mut assembler, header(Kind::Call, call * 2, sequence, part.len(), true), &part)
                {
                    Ok(_) => assert!(assembler.held_bytes() <= MAX_ASSEMBLY_BYTES),
                    Err(error) => break 'full error,
                }
            }
        }
        unreachable!()
    };
    assert_eq!(error, FrameError::AssemblyFull { limit: MAX_ASSEMBLY_BYTES });
    let held = assembler.held_bytes();
    assembler.forget(2);
    assert_eq!(assembler.held_bytes(), held - 500 * MAX_FRAME_PAYLOAD_BYTES);
}

#[test]
fn sequence_kind_sender_and_reuse_are_checked() {
    let mut assembler = worker_side();
    let mut take =
        |kind, stream, sequence, more| accept(&mut assembler, header(kind, stream, sequence, 1, more), &[0]);
    assert!(take(Kind::Call, 2, 0, true).unwrap().is_none());
    let gap = FrameError::SequenceGap { stream: 2, expected: 1, found: 2 };
    assert_eq!(take(Kind::Call, 2, 2, true), Err(gap));
    assert!(take(Kind::Call, 2, 1, false).unwrap().is_some());
    assert_eq!(take(Kind::Call, 2, 0, false), Err(FrameError::StreamReused { stream: 2, last: 2 }));
    assert_eq!(
        take(Kind::Call, 2, 2, false),
        Err(FrameError::SequenceGap { stream: 2, expected: 0, found: 2 })
    );
    // A result comes from a worker, not from a backbone; only the hub sends a challenge.
    let wrong = FrameError::WrongSender { kind: Kind::Result, sender: Party::Backbone };
    assert_eq!(take(Kind::Result, 4, 0, false), Err(wrong));
    let wrong = FrameError::WrongSender { kind: Kind::Proof, sender: Party::Hub };
    assert_eq!(take(Kind::Proof, HUB_STREAM, 0, false), Err(wrong));
    // On the lasting streams sequence numbers go on from payload to payload.
    assert!(take(Kind::Assign, PAIR_STREAM, 0, true).unwrap().is_none());
    let changed = FrameError::KindChanged { stream: 1, expected: Kind::Assign, found: Kind::Release };
    assert_eq!(take(Kind::Release, PAIR_STREAM, 1, false), Err(changed));
    assert!(take(Kind::Assign, PAIR_STREAM, 1, false).unwrap().is_some());
    assert!(take(Kind::Release, PAIR_STREAM, 2, false).unwrap().is_some());
    assert!(take(Kind::Release, PAIR_STREAM, 0, false).is_err());
}

#[test]
fn chunks_are_handed_over_one_by_one_until_the_range_ends() {
    let mut assembler = worker_side();
    let mut chunk = |sequence, more| accept(&mut assembler, header(Kind::Chunk, 3, sequence, 1, more), &[0]);
    assert!(chunk(0, true).unwrap().unwrap().more);
    assert!(chunk(1, true).unwrap().unwrap().more);
    assert!(!chunk(2, false).unwrap().unwrap().more);
    // The stream has ended: the next range on it counts anew.
    assert_eq!(chunk(3, false), Err(FrameError::SequenceGap { stream: 3, expected: 0, found: 3 }));
    assert!(chunk(0, false).is_ok());
}

#[test]
fn a_sender_beyond_its_credit_is_found_out() {
    let mut credit = ReceiveCredit::default();
    let frame = MAX_BULK_PAYLOAD_BYTES as u32;
    let cost = u64::from(frame) + HEADER_BYTES as u64;
    for _ in 0..BULK_WINDOW_BYTES / cost {
        credit.received(Lane::Bulk, frame).unwrap();
    }
    assert!(matches!(
        credit.received(Lane::Bulk, frame),
        Err(FrameError::CreditExceeded { lane: Lane::Bulk, .. })
    ));
    assert_eq!(credit.received(Lane::Control, frame), Ok(()), "control needs no credit");
    // The first credit is larger than the window at first: nothing is granted until the difference was taken.
    let more = BULK_WINDOW_BYTES - START_BULK_WINDOW_BYTES;
    let mut taken = cost;
    let mut granted = credit.consumed(Lane::Bulk, cost, Duration::ZERO);
    while granted.is_none() {
        taken += cost;
        granted = credit.consumed(Lane::Bulk, cost, Duration::ZERO);
    }
    assert_eq!(granted.map(u64::from), Some(taken - more));
    let granted = credit.consumed(Lane::Bulk, cost, Duration::ZERO).unwrap();
    assert_eq!(u64::from(granted), cost, "a small window is granted chunk by chunk");
    assert_eq!(credit.received(Lane::Bulk, frame), Ok(()));
}

#[test]
fn too_much_credit_is_an_error() {
    let mut scheduler = Scheduler::new();
    let granted = BULK_WINDOW_BYTES + u64::from(u32::MAX);
    assert_eq!(
        scheduler.grant(Lane::Bulk, u32::MAX),
        Err(FrameError::CreditTooLarge { lane: Lane::Bulk, granted, limit: MAX_CREDIT_BYTES })
    );
    assert_eq!(scheduler.credit(Lane::Bulk), Some(BULK_WINDOW_BYTES));
}

#[test]
fn the_hub_refuses_what_a_sender_may_not_send() {
    let result = crate::samples::message(Kind::Result, 2, vec![0; 4]);
    assert!(classify(&result, Party::Worker, |_| Ok(())).is_ok());
    let error = FrameError::WrongSender { kind: Kind::Result, sender: Party::Backbone };
    assert_eq!(classify(&result, Party::Backbone, |_| Ok(())), Err(error));
}

#[test]
fn the_meter_counts_answered_calls_and_nothing_else() {
    let mut meter = Meter::new();
    let mut see = |kind, stream, length, more| meter.observe(&header(kind, stream, 0, length, more));
    see(Kind::Call, 2, 1000, true).unwrap();
    assert_eq!(
        see(Kind::Result, 2, 5, false),
        Err(FrameError::ResultWithoutCall { stream: 2 }),
        "not complete"
    );
    see(Kind::Call, 2, 500, false).unwrap();
    see(Kind::Call, 4, 70, false).unwrap();
    see(Kind::Chunk, 3, 9000, false).unwrap();
    see(Kind::Ping, PAIR_STREAM, 8, false).unwrap();
    assert_eq!(see(Kind::Result, 2, 40, true), Ok(None));
    let answered = see(Kind::Result, 2, 2, false).unwrap().unwrap();
    assert_eq!((answered.call, answered.up, answered.down), (1, 1500, 42));
    assert_eq!(
        see(Kind::Result, 2, 2, false),
        Err(FrameError::ResultWithoutCall { stream: 2 }),
        "a second one"
    );
    assert_eq!(meter.totals(), Totals { results: 1, up: 1500, down: 42 });
    assert_eq!(meter.open_calls(), 1);
}

#[test]
fn the_meter_s_memory_is_limited() {
    let mut meter = Meter::new();
    for call in 1..=MAX_METERED_CALLS as u32 {
        meter.observe(&header(Kind::Call, call * 2, 0, 1, false)).unwrap();
    }
    let next = (MAX_METERED_CALLS as u32 + 1) * 2;
    let error = meter.observe(&header(Kind::Call, next, 0, 1, false));
    assert_eq!(error, Err(FrameError::TooManyCalls { limit: MAX_METERED_CALLS }));
}
