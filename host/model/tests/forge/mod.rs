//! Writes model files for tests: a complete model of a few kilobytes as GGUF or as a folder, and variations of it.
//!
//! Independent of the reader under test: it only writes. Offsets of interesting bytes are remembered, so that a test can
//! damage exactly one of them.

#![allow(dead_code, unused_imports)] // each test file uses a part of it
#![allow(clippy::unwrap_used)] // a test that panics has failed

use std::io::Write as _;
use std::path::{Path, PathBuf};

mod folder;
mod gguf;

pub use folder::{Folder, Safetensors, small_tensors};
pub use gguf::{Gguf, Value, Written};

pub const F32: u32 = 0;
pub const F16: u32 = 1;
pub const Q4_0: u32 = 2;
pub const Q8_0: u32 = 8;
pub const Q4_K: u32 = 12;
pub const IQ2_XXS: u32 = 16;
pub const BF16: u32 = 30;

pub const HIDDEN: u64 = 32;
pub const EXPERTS: u64 = 2;
pub const WIDTH: u64 = 32;
pub const SHARED: u64 = 8;
pub const TOKENS: u64 = 260;

/// 256 bytes, two ends of text, a token made of two, an unused one: texts and ggml's types.
pub fn vocabulary() -> (Vec<String>, Vec<i32>) {
    let mut texts: Vec<String> = (0..=255u8).map(|byte| byte_character(byte).to_string()).collect();
    let mut kinds = vec![1; 256];
    for (text, kind) in [("<|endoftext|>", 3), ("<|im_end|>", 3), ("ab", 1), ("[PAD0]", 5)] {
        texts.push(text.to_owned());
        kinds.push(kind);
    }
    (texts, kinds)
}

/// The byte-level alphabet, written out anew.
fn byte_character(byte: u8) -> char {
    let plain = |b: u8| (0x21..=0x7e).contains(&b) || (0xa1..=0xac).contains(&b) || b >= 0xae;
    match plain(byte) {
        true => char::from(byte),
        false => char::from_u32(256 + (0..byte).filter(|b| !plain(*b)).count() as u32).unwrap(),
    }
}

/// A path in the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A model that is too large for the repository: under $KVASIR_MODELS, or in the folder shared/model beside the
/// checkout. Says so where it is absent.
pub fn large_model(path: &str) -> Option<PathBuf> {
    let places = [std::env::var_os("KVASIR_MODELS").map(PathBuf::from), Some(repository("../shared/model"))];
    let found = places.into_iter().flatten().map(|place| place.join(path)).find(|path| path.exists());
    if found.is_none() {
        // The handle itself: the macros' output is kept back where a test passes.
        let line = format!(
            "skipped: no larger models ({path} is neither under $KVASIR_MODELS nor in shared/model beside the checkout)\n"
        );
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    found
}
