//! Where log lines go: standard error, so that standard output belongs to results alone.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The variable that picks levels by crate, as `RUST_LOG` does elsewhere.
const VARIABLE: &str = "KVASIR_LOG";

/// Start logging. `verbose` counts the -v flags; KVASIR_LOG, where set, decides instead.
pub fn start(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info,kvasir=debug",
        (false, _) => "debug",
    };
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
}

/// An error with its causes, each said once: many of ours name their cause already.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
