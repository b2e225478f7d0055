//! Writes the seeds of the fuzz target `kernel`: the fixtures of `tests/data/hostile-plugin` as components.
//!
//!     cargo run -p kvasir-sandbox --example fuzz_seeds -- fuzz/seeds/kernel
#![allow(clippy::unwrap_used)] // A generator may stop at the first surprise.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::path::PathBuf;

/// Fixtures that differ in what they do, one of each kind.
const KERNELS: &[&str] =
    &["honest", "endless-when-told", "fault", "grows-memory-and-answers", "grows-table", "deep-recursion"];

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).expect("the folder to write to"));
    for name in KERNELS {
        std::fs::write(folder.join(format!("{name}.wasm")), plugin::kernel(name)).unwrap();
    }
}
