//! How long payloads between an end and the hub may be: what their readers take, and no more.

use kvasir_wire::assemble::{Assembler, Payload};
use kvasir_wire::frame::{Frame, FrameError, HUB_STREAM, Header, Kind, Lane, Party};
use kvasir_wire::id::SessionId;
use kvasir_wire::key::Signature;
use kvasir_wire::limits::*;
use kvasir_wire::message::{Countersign, ReceiptMessage, Report};
use kvasir_wire::refusal::{Refusal, RefusalCode};

fn accept(
    assembler: &mut Assembler,
    kind: Kind,
    sequence: u32,
    more: bool,
    payload: &[u8],
) -> Result<Option<Payload>, FrameError> {
    let header = Header { kind, more, length: payload.len() as u32, stream: HUB_STREAM, sequence };
    assembler.accept(Frame { header, payload })
}

/// The hub's side of an end that has signed a transcript.
fn signed(party: Party) -> Assembler {
    let mut assembler = Assembler::from_peer(party);
    assert!(matches!(accept(&mut assembler, Kind::Sign, 0, false, &[0; 64]), Ok(Some(_))));
    assembler
}

/// What a sender is told who never finishes a payload, and what the receiver holds by then.
fn unfinished(mut assembler: Assembler, kind: Kind, mut sequence: u32) -> (FrameError, usize) {
    loop {
        match accept(&mut assembler, kind, sequence, true, &[0; 1000]) {
            Ok(_) => sequence += 1,
            Err(error) => return (error, assembler.held_bytes()),
        }
    }
}

#[test]
fn an_unfinished_payload_is_held_up_to_what_its_kind_can_say() {
    use Party::{Backbone, Hub, Worker};
    let cases = [
        // Who waits has little to say,
        (Assembler::from_peer(Worker), Kind::Hello, 0, MAX_HELLO_BYTES),
        (Assembler::from_peer(Worker), Kind::Report, 0, MAX_HUB_PAYLOAD_BYTES),
        (Assembler::from_peer(Worker), Kind::Countersign, 0, MAX_HUB_PAYLOAD_BYTES),
        (Assembler::from_peer(Worker), Kind::Ping, 0, MAX_HUB_PAYLOAD_BYTES),
        (Assembler::from_peer(Backbone), Kind::Countersign, 0, MAX_HUB_PAYLOAD_BYTES),
        (Assembler::from_peer(Backbone), Kind::Grant, 0, MAX_HUB_PAYLOAD_BYTES),
        (Assembler::from_peer(Backbone), Kind::Report, 0, MAX_REPORT_BYTES),
        // and in a session as much as its readers take.
        (signed(Worker), Kind::Report, 1, MAX_REPORT_BYTES),
        (signed(Worker), Kind::Countersign, 1, MAX_HUB_PAYLOAD_BYTES),
        (signed(Backbone), Kind::Countersign, 1, MAX_RECEIPT_BYTES),
        (signed(Backbone), Kind::Grant, 1, MAX_NOTE_BYTES),
        (Assembler::from_peer(Hub), Kind::Receipt, 0, MAX_RECEIPT_BYTES),
        (Assembler::through_hub(Backbone), Kind::Receipt, 0, MAX_RECEIPT_BYTES),
        (Assembler::through_hub(Backbone), Kind::Drain, 0, MAX_HUB_PAYLOAD_BYTES),
    ];
    for (assembler, kind, sequence, limit) in cases {
        let (error, held) = unfinished(assembler, kind, sequence);
        assert_eq!(error, FrameError::PayloadTooLong { lane: Lane::Control, limit }, "{}", kind.name());
        assert!(held <= limit && held > limit - 1000, "{}: {held} bytes", kind.name());
    }
}

#[test]
fn the_longest_that_a_kind_can_say_has_room() {
    let sentence = "s".repeat(MAX_SENTENCE_BYTES);
    let (code, session, signature) = (RefusalCode::ProtocolError, SessionId([1; 32]), Signature([7; 64]));
    let refusal = Refusal::new(code, sentence.clone(), sentence.clone()).about(session);
    let text = "t".repeat(MAX_NOTE_BYTES);
    let excluded: Vec<u64> = (1..=MAX_EXCLUDED_CALLS as u64).collect();
    let countersign = Countersign::Backbone { text: text.clone(), excluded: excluded.clone(), signature };
    let proposal = ReceiptMessage::Proposal { text, excluded, hub: signature, backbone: signature };
    let report = Report { session, call: 1, code, sentence, evidence: vec![9; MAX_EVIDENCE_BYTES] };
    // What stands around ticket, plugins and formats is far below 512 bytes.
    let hello = MAX_TICKET_BYTES + 32 * MAX_OFFERED_PLUGINS + 4 * MAX_OFFERED_FORMATS + 512;
    for (what, length, limit) in [
        ("refuse", refusal.encode().len(), MAX_HUB_PAYLOAD_BYTES),
        ("countersign", countersign.encode().len(), MAX_RECEIPT_BYTES),
        ("receipt", proposal.encode().len(), MAX_RECEIPT_BYTES),
        ("report", report.encode().len(), MAX_REPORT_BYTES),
        ("hello", hello, MAX_HELLO_BYTES),
    ] {
        assert!(length <= limit, "{what}: {length} bytes of {limit}");
    }
}
