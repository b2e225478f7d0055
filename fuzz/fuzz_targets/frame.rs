//! The frame reader, as the hub and both ends use it, and every payload's decoder behind it.
//!
//! The input is a list of WebSocket messages, each with its length as u32 before it, as in `tests/data/hostile-wire`. Each
//! receiver takes them all, until one is refused.
#![no_main]

use kvasir_wire::assemble::Assembler;
use kvasir_wire::frame::{FrameError, HUB_STREAM, Header, Kind, MessageClass, Party, classify, frames};
use kvasir_wire::handshake::{Challenge, Hello, Welcome};
use kvasir_wire::limits::{MAX_ASSEMBLY_BYTES, MAX_OPEN_STREAMS};
use kvasir_wire::message::{
    Ack, Assign, Call, CallResult, Cancel, Chunk, Countersign, Credit, Drain, Have, Pause, Ping,
    ReceiptMessage, Release, Report, Reroute, Want,
};
use kvasir_wire::meter::Meter;
use kvasir_wire::note::Note;
use kvasir_wire::pairing::{PairRequest, Transcript};
use kvasir_wire::refusal::Refusal;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let messages = split(bytes);
    at_hub(&messages);
    for sender in [Party::Worker, Party::Backbone] {
        at_end(&messages, Assembler::through_hub(sender));
        at_end(&messages, Assembler::from_peer(sender));
    }
    at_end(&messages, Assembler::from_peer(Party::Hub));
});

/// The messages; a length that is too long takes what is there.
fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (message, rest) = rest.split_at((u32::from_le_bytes(*length) as usize).min(rest.len()));
        messages.push(message);
        bytes = rest;
    }
    messages
}

/// An end, or the hub where it is spoken to: payloads are put together and read.
fn at_end(messages: &[&[u8]], mut assembler: Assembler) {
    for message in messages {
        let taken = frames(message).and_then(|mut walk| {
            walk.try_for_each(|frame| {
                let frame = frame?;
                let header = frame.header.encode();
                assert_eq!(Header::decode(&header), Ok(frame.header), "a header has one form");
                if let Some(payload) = assembler.accept(frame)? {
                    read(payload.kind, &payload.bytes);
                }
                Ok::<(), FrameError>(())
            })
        });
        assert!(assembler.held_bytes() <= MAX_ASSEMBLY_BYTES);
        assert!(assembler.open_streams() <= MAX_OPEN_STREAMS);
        if taken.is_err() {
            return;
        }
    }
}

/// The hub where it passes on: headers are looked at and metered. The messages come from both ends in turn.
fn at_hub(messages: &[&[u8]]) {
    let mut meter = Meter::new();
    let mut passed = 0;
    for (message, sender) in messages.iter().zip([Party::Backbone, Party::Worker].into_iter().cycle()) {
        let mut headers = Vec::new();
        let class = classify(message, sender, |header| {
            headers.push(*header);
            Ok(())
        });
        let Ok(class) = class else { return };
        let walked: Vec<Header> = frames(message)
            .expect("it was walked")
            .map(|frame| frame.expect("it was walked").header)
            .collect();
        assert_eq!(headers, walked);
        let own = headers.iter().all(|header| header.stream == HUB_STREAM);
        assert_eq!(class == MessageClass::Hub, own, "a message is the hub's or the pair's");
        if headers.iter().any(|header| meter.observe(header).is_err()) {
            return;
        }
        passed += headers.iter().map(|header| u64::from(header.length)).sum::<u64>();
        let totals = meter.totals();
        assert!(totals.up + totals.down <= passed, "no more is counted than went through");
    }
}

/// Reads a payload with its kind's decoder: what is accepted has one spelling.
fn read(kind: Kind, payload: &[u8]) {
    let again = match kind {
        Kind::Hello => Hello::decode(payload).ok().map(|value| value.encode()),
        Kind::Challenge => Challenge::decode(payload).ok().map(|value| value.encode()),
        Kind::Proof | Kind::Sign => None,
        Kind::Welcome => Welcome::decode(payload).ok().map(|value| value.encode()),
        Kind::Refuse => Refusal::decode(payload).ok().map(|value| value.encode()),
        Kind::Assign => Assign::decode(payload).ok().map(|value| value.encode()),
        Kind::Release => Release::decode(payload).ok().map(|value| value.encode()),
        Kind::Have => Have::decode(payload).ok().map(|value| value.encode()),
        Kind::Want => Want::decode(payload).ok().map(|value| value.encode()),
        Kind::Chunk => Chunk::decode(payload).ok().map(|value| value.encode()),
        Kind::Call => Call::decode(payload).ok().map(|value| value.encode().expect("it was read")),
        Kind::Result => CallResult::decode(payload).ok().map(|value| value.encode()),
        Kind::Cancel => Cancel::decode(payload).ok().map(|value| value.encode()),
        Kind::Ping | Kind::Pong => Ping::decode(payload).ok().map(|value| value.encode()),
        Kind::Credit => Credit::decode(payload).ok().map(|value| value.encode()),
        Kind::Ack => Ack::decode(payload).ok().map(|value| value.encode()),
        Kind::Pause => Pause::decode(payload).ok().map(|value| value.encode()),
        Kind::Reroute => Reroute::decode(payload).ok().map(|value| value.encode()),
        Kind::Drain => Drain::decode(payload).ok().map(|value| value.encode()),
        Kind::Receipt => ReceiptMessage::decode(payload).ok().map(|value| value.encode()),
        Kind::Countersign => Countersign::decode(payload).ok().map(|value| value.encode()),
        Kind::Report => Report::decode(payload).ok().map(|value| value.encode()),
        Kind::Pair => PairRequest::decode(payload).ok().map(|value| value.encode()),
        Kind::Grant => Note::parse(payload).ok().map(|value| value.to_string().into_bytes()),
        Kind::Transcript => Transcript::decode(payload).ok().map(|value| value.encode()),
    };
    if let Some(again) = again {
        assert_eq!(again, payload, "a {} has one spelling", kind.name());
    }
}
