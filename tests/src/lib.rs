//! What the tests of the whole share: where things lie, reference outputs, experts without a sandbox.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::path::{Path, PathBuf};

pub mod golden;
pub mod reference_experts;

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A program of this build, which lies beside the folder of the running test.
///
/// # Panics
/// Where it was not built: `cargo test --workspace` builds it, `cargo test -p kvasir-tests` alone does not.
pub fn program(name: &str) -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    let path = folder.join(name);
    assert!(path.exists(), "{} is missing: cargo build --workspace --bins", path.display());
    path
}
