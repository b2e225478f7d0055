//! Where log lines go: standard error, so that standard output belongs to results alone.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::output;

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
        // It would say so on standard error, which is what failed.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
}

/// An error with its causes, each said once: many of ours name their cause already. Control characters, which may come from a
/// file or another machine, are shown as escapes.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if parts.iter().any(|part| part.contains(&cause)) {
            continue;
        }
        // A cause that says the same and more takes the place of what it repeats.
        if parts.last().is_some_and(|last| cause.starts_with(last.as_str())) {
            parts.pop();
        }
        parts.push(cause);
    }
    output::printable(&parts.join(": ")).into_owned()
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_sentence_says_each_cause_once() {
        let error = anyhow!("no such file").context("cannot read k: no such file").context("cannot read k");
        assert_eq!(sentence(&error), "cannot read k: no such file");
        let error = anyhow!("full").context("cannot write").context("failed");
        assert_eq!(sentence(&error), "failed: cannot write: full");
    }

    #[test]
    fn a_sentence_moves_no_cursor() {
        assert_eq!(sentence(&anyhow!("line\n\x1b]0;title\x07")), "line\n\\u{1b}]0;title\\u{7}");
    }
}
