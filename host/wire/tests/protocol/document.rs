//! `docs/protocol.md` holds byte vectors in blocks that begin with three back quotes and `vector NAME`. They are read
//! here and compared with what the crate makes, so document and code cannot drift apart; tables of numbers likewise.
//!
//! With `KVASIR_BLESS=1` the blocks are rewritten instead. Do that only for a change of the protocol that is meant.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvasir_wire::frame::{Frame, Kind, frames};
use kvasir_wire::handshake::Hello;
use kvasir_wire::refusal::RefusalCode;

use crate::samples;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md")
}

/// Every vector by name.
fn vectors() -> BTreeMap<&'static str, Vec<u8>> {
    let mut all: BTreeMap<_, _> = samples::payloads()
        .into_iter()
        .map(|(name, kind, stream, payload)| (name, samples::message(kind, stream, payload)))
        .collect();
    all.insert("ticket-worker", samples::worker_ticket().as_bytes().to_vec());
    all.insert("ticket-worker-digest", samples::worker_ticket().digest().0.to_vec());
    all.insert("ticket-backbone", samples::backbone_ticket().as_bytes().to_vec());
    all.insert("transcript-digest", samples::transcript().digest().to_vec());
    all.insert("public-key-worker", samples::worker().public().as_bytes().to_vec());
    all.insert("public-key-backbone", samples::backbone().public().as_bytes().to_vec());
    all.insert("public-key-hub", samples::hub().public().as_bytes().to_vec());
    all
}

fn block(bytes: &[u8]) -> String {
    let lines: Vec<String> = bytes.chunks(40).map(hex::encode).collect();
    lines.join("\n")
}

/// The document's blocks: name and hexadecimal text.
fn blocks(document: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = document;
    while let Some((_, after)) = rest.split_once("```vector ") {
        let (name, after) = after.split_once('\n').unwrap();
        let (body, after) = after.split_once("```").unwrap();
        found.push((name.to_owned(), body.trim_end().to_owned()));
        rest = after;
    }
    found
}

#[test]
fn every_vector_of_the_document_is_what_the_code_makes() {
    let mut document = std::fs::read_to_string(path()).unwrap();
    let vectors = vectors();
    let found = blocks(&document);
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    for name in vectors.keys() {
        assert_eq!(
            names.iter().filter(|n| *n == name).count(),
            1,
            "the document has one block `vector {name}`"
        );
    }
    if std::env::var_os("KVASIR_BLESS").is_some() {
        for (name, body) in &found {
            let old = format!("```vector {name}\n{body}{}```", if body.is_empty() { "" } else { "\n" });
            let new = format!("```vector {name}\n{}\n```", block(&vectors[name.as_str()]));
            assert!(document.contains(&old), "{name}");
            document = document.replace(&old, &new);
        }
        std::fs::write(path(), &document).unwrap();
    }
    for (name, body) in blocks(&document) {
        let bytes = vectors.get(name.as_str()).unwrap_or_else(|| panic!("no vector {name} in the code"));
        assert_eq!(body, block(bytes), "vector {name}");
    }
}

#[test]
fn every_frame_vector_is_read_back_and_every_kind_has_one() {
    let document = std::fs::read_to_string(path()).unwrap();
    let written: BTreeMap<_, _> = blocks(&document).into_iter().collect();
    let mut seen = Vec::new();
    for (name, kind, stream, payload) in samples::payloads() {
        let bytes = hex::decode(written[name].replace('\n', "")).unwrap();
        let all: Vec<Frame<'_>> = frames(&bytes).unwrap().map(Result::unwrap).collect();
        assert_eq!(all.len(), 1, "{name}");
        assert_eq!(
            (all[0].header.kind, all[0].header.stream, all[0].header.sequence),
            (kind, stream, 0),
            "{name}"
        );
        assert_eq!(all[0].payload, payload, "{name}");
        assert_eq!(samples::recode(kind, all[0].payload).as_deref(), Ok(&payload[..]), "{name}");
        seen.push(kind);
    }
    for kind in Kind::ALL {
        assert!(seen.contains(kind), "no vector for {}", kind.name());
    }
}

#[test]
fn the_ticket_text_in_the_document_is_the_vector() {
    let document = std::fs::read_to_string(path()).unwrap();
    let ticket = samples::worker_ticket();
    let hello = &samples::payloads()[0].3;
    assert_eq!(Hello::decode(hello).unwrap().ticket, ticket);
    let text = ticket.to_text();
    let (head, _) = text.split_at(40);
    assert!(document.contains(head), "the document shows how the text form begins: {head}");
}

#[test]
fn the_tables_name_every_kind_and_every_refusal() {
    let document = std::fs::read_to_string(path()).unwrap();
    for kind in Kind::ALL {
        let row = format!("| {} | `{}` | {} |", kind.number(), kind.name(), kind.lane().number());
        assert!(document.contains(&row), "missing row: {row}");
    }
    for code in RefusalCode::ALL {
        let row = format!("| {} | `{}` | {} |", *code as u16, code.name(), code.http_status());
        assert!(document.contains(&row), "missing row: {row}");
    }
}

/// The document's table of limits against the constants.
#[test]
fn the_table_of_limits_holds_the_constants() {
    use kvasir_wire::limits as l;
    let document = std::fs::read_to_string(path()).unwrap();
    let table: &[(&str, u64)] = &[
        ("MAX_MESSAGE_BYTES", l::MAX_MESSAGE_BYTES as u64),
        ("MAX_FRAME_PAYLOAD_BYTES", l::MAX_FRAME_PAYLOAD_BYTES as u64),
        ("MAX_BULK_PAYLOAD_BYTES", l::MAX_BULK_PAYLOAD_BYTES as u64),
        ("MAX_PAYLOAD_BYTES", l::MAX_PAYLOAD_BYTES as u64),
        ("MAX_CONTROL_PAYLOAD_BYTES", l::MAX_CONTROL_PAYLOAD_BYTES as u64),
        ("MAX_HUB_PAYLOAD_BYTES", l::MAX_HUB_PAYLOAD_BYTES as u64),
        ("MAX_HELLO_BYTES", l::MAX_HELLO_BYTES as u64),
        ("MAX_RECEIPT_BYTES", l::MAX_RECEIPT_BYTES as u64),
        ("MAX_REPORT_BYTES", l::MAX_REPORT_BYTES as u64),
        ("MAX_OPEN_STREAMS", l::MAX_OPEN_STREAMS as u64),
        ("MAX_ASSEMBLY_BYTES", l::MAX_ASSEMBLY_BYTES as u64),
        ("DISPATCH_WINDOW_BYTES", l::DISPATCH_WINDOW_BYTES),
        ("BULK_WINDOW_BYTES", l::BULK_WINDOW_BYTES),
        ("MAX_CREDIT_BYTES", l::MAX_CREDIT_BYTES),
        ("MAX_CONTROL_BACKLOG_BYTES", l::MAX_CONTROL_BACKLOG_BYTES as u64),
        ("MAX_REPLAY_BYTES", l::MAX_REPLAY_BYTES as u64),
        ("ACK_AFTER_BYTES", l::ACK_AFTER_BYTES as u64),
        ("MAX_CALL_ID", l::MAX_CALL_ID),
        ("MAX_CALL_ROWS", l::MAX_CALL_ROWS.into()),
        ("MAX_CALL_EXPERTS", l::MAX_CALL_EXPERTS.into()),
        ("MAX_CALL_REQUESTS", l::MAX_CALL_REQUESTS as u64),
        ("MAX_COLUMNS", l::MAX_COLUMNS as u64),
        ("MAX_EXPERTS_PER_MESSAGE", l::MAX_EXPERTS_PER_MESSAGE as u64),
        ("MAX_BLOB_BYTES", l::MAX_BLOB_BYTES),
        ("MAX_CANCELS", l::MAX_CANCELS as u64),
        ("MAX_NETWORK_BYTES", l::MAX_NETWORK_BYTES as u64),
        ("MAX_TICKET_BYTES", l::MAX_TICKET_BYTES as u64),
        ("MAX_TICKET_ALLOWED", l::MAX_TICKET_ALLOWED as u64),
        ("MAX_TICKET_SECONDS", l::MAX_TICKET_SECONDS),
        ("CLOCK_SKEW_SECONDS", l::CLOCK_SKEW_SECONDS),
        ("MAX_OFFERED_PLUGINS", l::MAX_OFFERED_PLUGINS as u64),
        ("MAX_OFFERED_FORMATS", l::MAX_OFFERED_FORMATS as u64),
        ("MAX_SENTENCE_BYTES", l::MAX_SENTENCE_BYTES as u64),
        ("MAX_NOTE_BYTES", l::MAX_NOTE_BYTES as u64),
        ("MAX_EXCLUDED_CALLS", l::MAX_EXCLUDED_CALLS as u64),
        ("MAX_EVIDENCE_BYTES", l::MAX_EVIDENCE_BYTES as u64),
        ("MAX_METERED_CALLS", l::MAX_METERED_CALLS as u64),
        ("MAX_PROBE_FILE_BYTES", kvasir_wire::probe::MAX_PROBE_FILE_BYTES as u64),
        ("MAX_PROBE_RECORDS", kvasir_wire::probe::MAX_PROBE_RECORDS as u64),
        ("MAX_PROBE_INDEX_BYTES", kvasir_wire::probe::MAX_PROBE_INDEX_BYTES as u64),
    ];
    for (name, value) in table {
        let row = format!("| `{name}` | {value} |");
        assert!(document.contains(&row), "missing row: {row}");
    }
}
