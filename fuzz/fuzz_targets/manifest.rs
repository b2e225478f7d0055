//! `plugin.toml`, and the other documents that say what a plugin may do: a policy, a root, revocations.
//!
//! The first byte chooses the document, the rest is its text.
#![no_main]

use kvasir_plugin::{CONTRACTS, Manifest, Policy, UnixSeconds, VerifiedRoot, negotiate};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&document, text)) = bytes.split_first() else { return };
    match document {
        b'p' => {
            let _ = Policy::parse(text);
        }
        b'r' => {
            let _ = VerifiedRoot::initial(text, UnixSeconds(1_800_000_000));
        }
        _ => manifest(text),
    }
});

fn manifest(text: &[u8]) {
    let Ok(manifest) = Manifest::parse(text) else { return };
    // What was read says the same when it is written and read again.
    let written = toml::to_string(&manifest).expect("a manifest that was read can be written");
    assert_eq!(Manifest::parse(written.as_bytes()).expect("what was written can be read"), manifest);
    let _ = negotiate(&manifest.world, CONTRACTS);
}
