//! Where log lines go: standard error, so that standard output belongs to results alone.

use std::ffi::OsStr;
use std::io::IsTerminal;

use anyhow::{Context, Result, bail};
use tracing_subscriber::EnvFilter;

use crate::output;

/// The variable that picks levels by crate, as `RUST_LOG` does elsewhere.
const VARIABLE: &str = "KVASIR_LOG";

/// Start logging. `verbose` counts the -v flags; KVASIR_LOG, where set, decides instead.
///
/// # Errors
/// Where KVASIR_LOG is no filter.
pub fn start(verbose: u8, quiet: bool) -> Result<()> {
    let level = match (quiet, verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info,kvasir=debug",
        (false, _) => "debug",
    };
    let filter = filter(std::env::var_os(VARIABLE).as_deref(), level)?;
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // It would say so on standard error, which is what failed.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .try_init();
    Ok(())
}

/// The filter that the variable holds, `level` where it is not set or empty.
fn filter(named: Option<&OsStr>, level: &str) -> Result<EnvFilter> {
    let Some(named) = named.filter(|named| !named.is_empty()) else { return Ok(EnvFilter::new(level)) };
    let Some(text) = named.to_str() else { bail!("{VARIABLE} is not UTF-8") };
    EnvFilter::try_new(text).with_context(|| {
        format!("{VARIABLE}={text:?} is no filter: it takes error, warn, info or debug, or levels by crate, as info,kvasir_worker=debug")
    })
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
    fn a_filter_that_is_none_is_said_and_none_is_the_level() {
        let read = |text: &str| filter(Some(OsStr::new(text)), "warn");
        assert_eq!(filter(None, "warn").unwrap().to_string(), "warn");
        assert_eq!(read("").unwrap().to_string(), "warn");
        let both = read("info,kvasir_worker=debug").unwrap().to_string();
        assert!(both.contains("kvasir_worker=debug") && both.contains("info"), "{both}");
        let error = read("a=b=c").unwrap_err().to_string();
        assert!(error.contains("KVASIR_LOG") && error.contains("a=b=c"), "{error}");
    }

    #[test]
    fn a_sentence_moves_no_cursor() {
        assert_eq!(sentence(&anyhow!("line\n\x1b]0;title\x07")), "line\n\\u{1b}]0;title\\u{7}");
    }
}
