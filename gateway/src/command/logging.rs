//! What is logged: as a flag or `KVASIR_LOG` says, else as the file says, which may change while the program runs.

use std::sync::Arc;

use anyhow::Context as _;
use kvasir_ledger::plain_text::LineWriter;
use tracing_subscriber::{EnvFilter, filter::ParseError, reload};

/// Unless told otherwise.
const DEFAULT_FILTER: &str = "info";

/// The log's filter; clones are the same.
#[derive(Clone)]
pub(super) struct LogFilter {
    /// Whether a flag or the environment has said it: then the file is not asked.
    given: bool,
    change: Arc<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
}

impl LogFilter {
    /// Starts logging to standard error; `given` is what the flag or the environment says.
    pub(super) fn start(given: Option<&str>) -> Result<Self, ParseError> {
        let builder = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::try_new(given.unwrap_or(DEFAULT_FILTER))?)
            .with_writer(|| LineWriter(std::io::stderr()))
            .with_ansi(false)
            .log_internal_errors(false)
            .with_filter_reloading();
        let handle = builder.reload_handle();
        builder.init();
        Ok(LogFilter { given: given.is_some(), change: Arc::new(move |filter| handle.reload(filter)) })
    }

    /// The filter that a file with this `log` asks for; none where the file is not asked.
    pub(super) fn of_file(&self, log: Option<&str>) -> anyhow::Result<Option<EnvFilter>> {
        if self.given {
            return Ok(None);
        }
        let text = log.unwrap_or(DEFAULT_FILTER);
        EnvFilter::try_new(text).map(Some).with_context(|| format!("log in gateway.toml, {text:?}"))
    }

    /// From now on this one.
    pub(super) fn change(&self, filter: Option<EnvFilter>) -> anyhow::Result<()> {
        match filter {
            Some(filter) => (self.change)(filter).context("changing what is logged"),
            None => Ok(()),
        }
    }
}
