//! Bytes that a hostile peer would send, kept as files in `tests/data/hostile-wire`, each with the error it must give.
//!
//! `index.txt` there: file name, how it is read, the error (or the beginning of it). Read as `messages SENDER`, the file
//! is a list of WebSocket messages, each with its length as u32 before it, taken by the receiver of that sender's
//! frames; as `payload KIND`, a payload; as `ticket`, a ticket's bytes. The last thing in the file must be refused, and
//! all before it taken.

use std::path::PathBuf;

use kvasir_wire::assemble::Assembler;
use kvasir_wire::frame::{Kind, Party, frames};
use kvasir_wire::ticket::Ticket;

use crate::samples;

#[test]
fn every_file_is_refused_for_its_reason() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/hostile-wire");
    let index = std::fs::read_to_string(folder.join("index.txt")).unwrap();
    let mut seen = Vec::new();
    for line in index.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut fields = line.split('|').map(str::trim);
        let (name, how, expected) = (fields.next().unwrap(), fields.next().unwrap(), fields.next().unwrap());
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let error = match how.split_once(' ') {
            Some(("messages", sender)) => take_messages(&bytes, sender),
            Some(("payload", kind)) => {
                let kind = Kind::ALL.iter().find(|k| k.name() == kind).unwrap();
                samples::recode(*kind, &bytes).err()
            }
            _ => Ticket::from_bytes(&bytes).err().map(|error| error.to_string()),
        };
        let error = error.unwrap_or_else(|| panic!("{name} was taken"));
        assert!(error.starts_with(expected), "{name}: expected `{expected}`, got `{error}`");
        seen.push(name.to_owned());
    }
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".bin"))
        .collect();
    files.sort();
    seen.sort();
    assert_eq!(files, seen, "every file has its line in index.txt");
    assert!(seen.len() >= 40, "the corpus is there");
}

/// Takes the messages one after the other; gives the error of the last.
fn take_messages(mut bytes: &[u8], sender: &str) -> Option<String> {
    let mut assembler = match sender {
        "hub" => Assembler::from_peer(Party::Hub),
        "backbone" => Assembler::through_hub(Party::Backbone),
        "worker" => Assembler::through_hub(Party::Worker),
        other => panic!("unknown sender {other}"),
    };
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>().unwrap();
        let (message, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        bytes = rest;
        let result = frames(message)
            .and_then(|mut walk| walk.try_for_each(|frame| assembler.accept(frame?).map(|_| ())));
        match result {
            Ok(()) => {}
            Err(error) => {
                assert!(bytes.is_empty(), "only the last message is refused, not an earlier one: {error}");
                return Some(error.to_string());
            }
        }
    }
    None
}
