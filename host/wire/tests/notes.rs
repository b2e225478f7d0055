//! Signed notes: other projects' notes verify, every second spelling is refused, and strictness is CCTV's.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use std::io::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kvasir_wire::key::{PublicKey, SecretKey, Signature};
use kvasir_wire::note::{
    KeyName, MAX_NOTE_BYTES, MAX_NOTE_SIGNATURES, NetworkName, Note, NoteError, Signer, Verifier,
};
use proptest::prelude::*;

const NEUMANN: &str = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW";
const NEUMANN_NOTE: &str = "If you think cryptography is the answer to your problem,\n\
    then you don't know what your problem is.\n\n\
    \u{2014} PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n";
const TESSERA: &str = "example.com/log/testdata+33d7b496+AeHTu4Q3hEIMHNqc6fASMsq3rKNx280NI+oO5xCFkkSx";

#[test]
fn the_note_of_go_s_documentation_verifies() {
    let verifier: Verifier = NEUMANN.parse().unwrap();
    assert_eq!(verifier.to_string(), NEUMANN);
    let note = Note::parse(NEUMANN_NOTE.as_bytes()).unwrap();
    assert_eq!(note.verify(std::slice::from_ref(&verifier)), Ok(vec![0]));
    assert_eq!(note.to_string(), NEUMANN_NOTE);
    let bent = Note::parse(NEUMANN_NOTE.replace("problem is", "question is").as_bytes()).unwrap();
    assert!(matches!(bent.verify(&[verifier]), Err(NoteError::BadSignature { .. })));
}

#[test]
fn the_checkpoints_of_a_tessera_log_verify() {
    let Some(folder) = vectors() else { return };
    let verifier: Verifier = TESSERA.parse().unwrap();
    for size in 0..=15 {
        let bytes = std::fs::read(folder.join(format!("tessera-log/checkpoint.{size}"))).unwrap();
        let note = Note::parse(&bytes).unwrap();
        assert_eq!(note.verify_exactly(std::slice::from_ref(&verifier)), Ok(()), "size {size}");
        assert_eq!(note.to_string().as_bytes(), bytes);
        assert_eq!(note.text().lines().nth(1), Some(size.to_string().as_str()));
    }
}

#[test]
fn every_edge_case_of_cctv_is_judged_strictly() {
    #[derive(serde::Deserialize)]
    struct Case {
        number: u32,
        key: String,
        sig: String,
        msg: String,
        flags: Option<Vec<String>>,
    }
    let Some(folder) = vectors() else { return };
    let text = std::fs::read_to_string(folder.join("ed25519/ed25519vectors.json")).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 914);
    let mut accepted = 0;
    for case in cases {
        let refused = case.flags.iter().flatten().any(|flag| {
            flag.starts_with("non_canonical_")
                || ["low_order_A", "low_order_R", "low_order_residue", "reencoded_k"].contains(&flag.as_str())
        });
        let key: [u8; 32] = hex::decode(&case.key).unwrap().try_into().unwrap();
        let signature: [u8; 64] = hex::decode(&case.sig).unwrap().try_into().unwrap();
        let verdict = PublicKey::from_bytes(&key)
            .and_then(|key| key.verify(case.msg.as_bytes(), &Signature(signature)));
        assert_eq!(verdict.is_err(), refused, "case {} {:?}: {verdict:?}", case.number, case.flags);
        accepted += u32::from(verdict.is_ok());
    }
    assert_eq!(accepted, 43);
}

#[test]
fn a_second_spelling_of_a_note_is_refused() {
    let good = NEUMANN_NOTE;
    assert!(Note::parse(good.as_bytes()).is_ok());
    let line = good.lines().last().unwrap();
    let blob = line.rsplit(' ').next().unwrap();
    let urlsafe = blob.replace('/', "_").replace('+', "-");
    for (why, text) in [
        ("empty", String::new()),
        ("no signature", good.replace(&format!("{line}\n"), "")),
        ("no blank line", good.replace("\n\n", "\n")),
        ("no final line feed", good.trim_end().to_owned()),
        ("blank line after the signatures", format!("{good}\n")),
        ("carriage return", good.replace('\n', "\r\n")),
        ("tab", good.replace("answer to", "answer\tto")),
        ("delete", good.replace("answer to", "answer\u{7f}to")),
        ("zero byte", good.replace("answer to", "answer\0to")),
        ("hyphen for the dash", good.replace('\u{2014}', "-")),
        ("no space after the dash", good.replace("\u{2014} ", "\u{2014}")),
        ("two spaces", good.replace("PeterNeumann ", "PeterNeumann  ")),
        ("space at the end", good.replace(line, &format!("{line} "))),
        ("plus in the name", good.replace("PeterNeumann", "Peter+Neumann")),
        ("no name", good.replace("PeterNeumann ", "")),
        ("other base64 alphabet", good.replace(blob, &urlsafe)),
        ("no padding", good.replace(blob, blob.trim_end_matches('='))),
        ("spare bits set", good.replace("nAM=", "nAN=")),
        ("key id only", good.replace(blob, "x08gow==")),
        ("text between signatures", format!("{good}text\n")),
    ] {
        assert!(Note::parse(text.as_bytes()).is_err(), "{why} was accepted");
    }
    assert_eq!(Note::parse(b"\xff\n\n"), Err(NoteError::Characters(0)));
}

#[test]
fn sizes_are_bounded() {
    let line = format!("{}\n", NEUMANN_NOTE.lines().last().unwrap());
    let at_limit = format!("x\n\n{}", line.repeat(MAX_NOTE_SIGNATURES));
    assert!(Note::parse(at_limit.as_bytes()).is_ok());
    let above = format!("{at_limit}{line}");
    assert_eq!(Note::parse(above.as_bytes()), Err(NoteError::TooManySignatures));
    let long = format!("{}\n\n{line}", "x".repeat(MAX_NOTE_BYTES));
    assert_eq!(Note::parse(long.as_bytes()), Err(NoteError::TooLong(long.len())));
    assert!(Note::unsigned("x".repeat(MAX_NOTE_BYTES)).is_err());
    // Signing must not grow a note beyond what can be read back.
    let mut full = Note::unsigned(format!("{}\n", "x".repeat(MAX_NOTE_BYTES - 10))).unwrap();
    assert!(matches!(full.sign(name("a"), &key(1)), Err(NoteError::TooLong(_))));
    assert!(full.signatures().is_empty());
}

#[test]
fn known_keys_must_verify_and_unknown_ones_are_ignored() {
    let known = Verifier::new(name("known"), key(1).public());
    let mut note = Note::unsigned("text\n").unwrap();
    note.sign(name("stranger"), &key(2)).unwrap();
    assert_eq!(note.verify(std::slice::from_ref(&known)), Err(NoteError::NotSigned));
    note.sign(name("known"), &key(1)).unwrap();
    assert_eq!(note.verify(std::slice::from_ref(&known)), Ok(vec![0]));

    // A valid line beside a forged one of a known key does not save the note.
    let other = Verifier::new(name("other"), key(3).public());
    let mut forged = vec![0; 64];
    forged[..32].copy_from_slice(other.key().as_bytes());
    let blob = STANDARD.encode([&other.id().0[..], &forged].concat());
    let note = Note::parse(format!("{note}\u{2014} other {blob}\n").as_bytes()).unwrap();
    let refused = NoteError::BadSignature { name: name("other") };
    assert_eq!(note.verify(&[known.clone(), other]), Err(refused));

    let mut twice = Note::unsigned("text\n").unwrap();
    twice.sign(name("known"), &key(1)).unwrap();
    twice.sign(name("known"), &key(1)).unwrap();
    assert_eq!(twice.verify(&[known]), Err(NoteError::SignedTwice { name: name("known") }));
}

#[test]
fn a_signature_stays_in_its_network_and_role() {
    let (atlas, other): (NetworkName, NetworkName) = ("atlas".parse().unwrap(), "other".parse().unwrap());
    let mut note = Note::unsigned("text\n").unwrap();
    note.sign(Signer::Hub.key_name(&atlas), &key(1)).unwrap();
    assert_eq!(note.verify_exactly(&[Signer::Hub.verifier(&atlas, key(1).public())]), Ok(()));
    for (network, role) in [(&other, Signer::Hub), (&atlas, Signer::Worker), (&atlas, Signer::Treasury)] {
        let result = note.verify_exactly(&[role.verifier(network, key(1).public())]);
        assert!(matches!(result, Err(NoteError::Signers { line: 1, .. })));
    }
    for bad in ["", "Atlas", "at las", "atlas/hub", "atl+as", "at\nlas", &"a".repeat(65)] {
        assert!(bad.parse::<NetworkName>().is_err(), "{bad}");
    }
}

#[test]
fn verifier_keys_have_one_form() {
    for bad in [
        "PeterNeumann",
        "PeterNeumann+c74f20a3",
        "PeterNeumann+c74f20a4+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        "PeterNeumann+C74F20A3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10",
        "PeterNeumann+c74f20a3+AhpC2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
        // The weak key of all zeros.
        "x+00000000+AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ] {
        assert!(bad.parse::<Verifier>().is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn what_parses_is_written_back_byte_for_byte(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(note) = Note::parse(&bytes) {
            let written = note.to_string();
            prop_assert_eq!(written.as_bytes(), &bytes[..]);
        }
    }

    #[test]
    fn a_note_bent_in_one_byte_does_not_verify(place in any::<prop::sample::Index>(), mask in 1u8..) {
        let verifier: Verifier = NEUMANN.parse().unwrap();
        let mut bytes = NEUMANN_NOTE.as_bytes().to_vec();
        let place = place.index(bytes.len());
        bytes[place] ^= mask;
        let verdict = Note::parse(&bytes).and_then(|note| note.verify(&[verifier]));
        prop_assert!(verdict.is_err());
    }

    #[test]
    fn signed_texts_survive_the_trip(text in "[^\\p{Cc}]{0,40}(\n[^\\p{Cc}]{0,40}){0,5}\n", signers in 1usize..5) {
        let mut note = Note::unsigned(text).unwrap();
        let names: Vec<KeyName> = (0..signers).map(|number| name(&format!("signer-{number}"))).collect();
        for (number, name) in names.iter().enumerate() {
            note.sign(name.clone(), &key(number as u8)).unwrap();
        }
        let read = Note::parse(note.to_string().as_bytes()).unwrap();
        prop_assert_eq!(&read, &note);
        let verifiers: Vec<Verifier> = names.into_iter().enumerate()
            .map(|(number, name)| Verifier::new(name, key(number as u8).public())).collect();
        prop_assert_eq!(read.verify_exactly(&verifiers), Ok(()));
    }
}

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed([number; 32])
}

fn name(text: &str) -> KeyName {
    text.parse().unwrap()
}

fn vectors() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors");
    let folder = std::env::var_os("KVASIR_VECTORS").map_or(beside, PathBuf::from);
    if !folder.is_dir() {
        // The handle itself: the macros' output is kept back where a test passes.
        let line = format!("skipped: no vectors ({} is not there)\n", folder.display());
        std::io::stderr().write_all(line.as_bytes()).unwrap();
        return None;
    }
    Some(folder)
}
