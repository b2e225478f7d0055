//! What the tests of the whole share: where things lie, the programs of this build, reference outputs, the released
//! plugin, the GPU, experts without a sandbox, a swarm in one process, HTTP, and how a test says that it was skipped.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::io::Write as _;
use std::path::{Path, PathBuf};

pub mod golden;
pub mod gpu;
pub mod http;
pub mod isolation;
mod programs;
pub mod reference_experts;
pub mod released_plugin;
#[allow(missing_docs, reason = "a scene of tests")]
pub mod swarm_scene;

pub use programs::{build_programs, program};

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Says that a test checks less than it could: one line `skipped: <reason> (<detail>)`, whose reason stands in
/// README.md under "What may be skipped, and why".
///
/// Written to the process's own standard error: what `eprintln!` writes is shown for failed tests alone.
pub fn skipped(reason: &str, detail: &str) {
    let line = format!("skipped: {reason} ({detail})\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
