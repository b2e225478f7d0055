//! The trust store: a folder of keys loads whole or not at all.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::fs;
use std::path::Path;

use ed25519_dalek::SigningKey;
use kvasir_plugin::*;

fn line(seed: u8) -> String {
    PublisherKey { key: SigningKey::from_bytes(&[seed; 32]).verifying_key(), name: None }.line()
}

fn load(files: &[(&str, &str)]) -> Result<TrustStore, TrustError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    TrustStore::load_folder(folder.path())
}

#[test]
fn keys_are_read_with_names() {
    let one = format!("# the first publisher\n\n  {} Example Kernels  \n{}\n", line(1), line(2));
    let store = load(&[("example.pub", &one), ("other.pub", &line(3)), ("notes.txt", "no key")]).unwrap();
    let mut names: Vec<&str> = store.keys().map(|(_, key)| key.name.as_deref().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["Example Kernels", "example", "other"]);
    let id = KeyId::of(&SigningKey::from_bytes(&[1; 32]).verifying_key());
    assert_eq!(store.get(&id).unwrap().line(), format!("{} Example Kernels", line(1)));
    assert!(load(&[]).unwrap().is_empty());
}

#[test]
fn a_bad_line_is_an_error_with_its_place() {
    // The all-zero key is a point of small order: anyone can sign for it.
    let weak = format!("ed25519:{}", "0".repeat(64));
    let no_point = format!("ed25519:02{}", "0".repeat(62));
    for (text, expected) in [
        ("ed448:00", KeyTextError::Scheme),
        ("00", KeyTextError::Scheme),
        ("ed25519:00", KeyTextError::Digits),
        (&line(1).to_uppercase().replace("ED25519", "ed25519"), KeyTextError::Digits),
        (&weak, KeyTextError::Weak),
        (&no_point, KeyTextError::Point),
    ] {
        let error = load(&[("a.pub", &format!("# comment\n{text}"))]).unwrap_err();
        let TrustError::Line { path, line, reason } = error else { panic!("{text}: {error}") };
        assert_eq!(
            (path.file_name().unwrap().to_str(), line, reason),
            (Some("a.pub"), 2, expected),
            "{text}"
        );
    }
}

#[test]
fn stores_are_consistent_and_bounded() {
    let twice = load(&[("a.pub", &line(1)), ("b.pub", &line(1))]).unwrap_err();
    assert!(matches!(twice, TrustError::Duplicate { .. }));
    let large = "#".repeat(MAX_KEY_FILE_BYTES + 1);
    assert!(matches!(load(&[("a.pub", &large)]).unwrap_err(), TrustError::FileTooLarge { .. }));
    assert!(load(&[("a.pub", &large[1..])]).is_ok());
    let missing = TrustStore::load_folder(Path::new("/nonexistent/trust")).unwrap_err();
    assert!(matches!(missing, TrustError::Read { .. }));
    let key = |seed: usize| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        PublisherKey { key: SigningKey::from_bytes(&bytes).verifying_key(), name: None }
    };
    assert_eq!(TrustStore::from_keys((0..MAX_TRUSTED_KEYS).map(key)).unwrap().len(), MAX_TRUSTED_KEYS);
    let error = TrustStore::from_keys((0..=MAX_TRUSTED_KEYS).map(key)).unwrap_err();
    assert!(matches!(error, TrustError::TooManyKeys { limit: MAX_TRUSTED_KEYS }));
}
