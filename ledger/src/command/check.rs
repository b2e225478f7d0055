//! `verify`: on the ledger's file, also while it is served.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use kvasir_wire::money::NanoKvr;
use rusqlite::ErrorCode;
use serde_json::json;

use super::{NoVerdict, report};
use crate::config::ConfigFlags;
use crate::refusal::LedgerError;
use crate::store::{Store, VerifyError, open_for_reading};

/// Nothing is shown on a check that is faster than this.
const QUIET: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger verify --config /var/lib/kvasir-ledger/ledger.toml --json\n\n\
                        Exits with 1 and names the first bad index where anything is wrong, with 3 where there is no ledger to \
                        read. Keep\n`entries` and `root` elsewhere: only they show later that nothing was cut off at the end."
)]
pub(super) struct Verify {
    #[command(flatten)]
    config: ConfigFlags,
}

impl Verify {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let settings = self.config.settings().context(NoVerdict)?;
        let mut progress = Progress::new();
        let verdict = match open_for_reading(&settings.store, &settings.network) {
            Ok(connection) => Store::verify(
                &connection,
                &settings.store,
                &settings.network,
                &settings.keys,
                &mut |done, all| progress.show(done, all),
            ),
            Err(error) if is_damage(&error) => Err(VerifyError::from(error)),
            Err(error) => return Err(anyhow!(error).context(NoVerdict)),
        };
        progress.clear();
        match verdict {
            Ok(verified) => {
                let mut object = serde_json::to_value(&verified)?;
                object["ok"] = json!(true);
                let mut sentence = format!(
                    "all {} entries are in order: {} receipts, {} settlements, {} conflicts kept\nroot {}\n",
                    verified.entries,
                    verified.receipts,
                    verified.settlements,
                    verified.conflicts,
                    verified.root
                );
                for balance in &verified.balances {
                    let amount = NanoKvr::new(balance.nanokvr);
                    sentence.push_str(&format!("{:<8} {}  {amount} nanoKVR\n", balance.kind, balance.owner));
                }
                report(json, &object, &sentence).context(NoVerdict)
            }
            Err(error) if !error.is_fault() => Err(anyhow!(error).context(NoVerdict)),
            Err(error) => {
                let index = match &error {
                    VerifyError::Entry { index, .. } => Some(*index),
                    _ => None,
                };
                if json {
                    let object =
                        json!({ "ok": false, "first_bad_index": index, "message": error.to_string() });
                    // Whether anybody reads it or not: the fault decides the exit code.
                    let _ = report(json, &object, "");
                }
                Err(anyhow!(error).context("the ledger is NOT in order"))
            }
        }
    }
}

/// Whether a ledger could not be opened since it is damaged, which is a verdict; what is no database at all is nobody's ledger.
fn is_damage(error: &LedgerError) -> bool {
    let LedgerError::Database { source, .. } = error else { return false };
    source.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt)
}

/// Says on a terminal how far a long check has come.
pub(super) struct Progress {
    began: Instant,
    shown: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), shown: None }
    }

    pub(super) fn show(&mut self, done: u64, all: u64) {
        let due = self.shown.map_or(self.began + QUIET, |shown| shown + QUIET / 10);
        if Instant::now() >= due && std::io::stderr().is_terminal() {
            self.shown = Some(Instant::now());
            eprint!("\rverified {done} of {all} entries");
            let _ = std::io::stderr().flush();
        }
    }

    pub(super) fn clear(&self) {
        if self.shown.is_some() {
            eprintln!();
        }
    }
}
