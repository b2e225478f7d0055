//! What the program `kvasir` does, apart from its command line: settings, keys, the local model, the demo.
//!
//! The command line (`host/kvasir`) turns words into the option structs found here and prints what comes back. Other
//! programs (gateway, ledger) are driven as processes, through the same `--json` that people can use.

pub mod delay;
pub mod key_file;
pub mod process;
pub mod settings;

/// Nanoseconds and units belong to names: this is the version that every command reports.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
