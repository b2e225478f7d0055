//! `audit`: the public log from outside, with no account and no database.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use kvasir_wire::key::PublicKey;
use kvasir_wire::money::NanoKvr;
use kvasir_wire::note::Verifier;
use serde_json::json;

use super::{NoVerdict, check::Progress, report, unix_now};
use crate::audit::{AuditError, AuditOptions, AuditReport, audit};
use crate::files::{Existing, Readers, read_regular, read_regular_text, write_whole};
use crate::log::{Checkpoint, MAX_CHECKPOINT_BYTES, MAX_POLICY_BYTES, Policy, source_at};

/// Verify a public log and recompute every balance from its files
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvasir-ledger audit https://ledger.example --log-key \"$(cat log.vkey)\"\n  \
                        kvasir-ledger audit /srv/mirror/log --policy policy.txt --state audited.checkpoint --json\n\n\
                        Exits with 0 where everything is as it says, with 1 where it is not, naming the first bad entry and why, and with 3\n\
                        where the log could not be read, so that nothing is known about it. A file that the log's signed head demands and\n\
                        that is missing where the log answers is a fault of the log.\n\
                        With --state the head that was found in order is remembered, and the next audit demands that the log\n\
                        extends it: only so a rolled back or forked log is seen, unless a policy asks for witnesses."
)]
pub(super) struct AuditLog {
    /// Address or folder of the log
    log: String,
    #[command(flatten)]
    trust: LogTrust,
    /// The only treasury key that the log may believe
    #[arg(long, value_name = "KEY")]
    treasury: Option<PublicKey>,
    /// File that remembers the last head in order
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Unix seconds as of which credit is pending or posted [default: now]
    #[arg(long, value_name = "SECONDS")]
    at: Option<u64>,
    /// Threads that verify signatures [default: as many as there are cores]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

/// Whom to believe about a log.
#[derive(Clone, Debug, Args)]
pub(super) struct LogTrust {
    /// Verifier key of the log, as `init` printed it
    #[arg(long, value_name = "VKEY", env = "KVASIR_LOG_KEY", required_unless_present = "policy")]
    log_key: Option<String>,
    /// Policy file (C2SP tlog-policy): logs, witnesses, quorum
    #[arg(long, value_name = "FILE", env = "KVASIR_LOG_POLICY", conflicts_with = "log_key")]
    policy: Option<PathBuf>,
}

impl LogTrust {
    pub(super) fn policy(&self) -> Result<Policy> {
        match (&self.policy, &self.log_key) {
            (Some(path), _) => {
                let text = read_regular_text(path, MAX_POLICY_BYTES as u64)
                    .with_context(|| format!("{}: cannot be read", path.display()))?;
                Policy::parse(&text).with_context(|| path.display().to_string())
            }
            (None, Some(key)) => {
                let log: Verifier = key.trim().parse().with_context(|| format!("log key `{key}`"))?;
                Ok(Policy::of_log(log))
            }
            (None, None) => bail!("give --log-key or --policy"),
        }
    }
}

impl AuditLog {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let began = Instant::now();
        let (audited, remembered) = match self.audit() {
            Ok(audited) => audited,
            Err(error) => {
                // Whatever else went wrong on the way accuses nobody.
                let Some(fault) = error.downcast_ref::<AuditError>().filter(|error| error.is_fault()) else {
                    return Err(error.context(NoVerdict));
                };
                if json {
                    let object =
                        json!({ "ok": false, "first_bad_index": fault.index(), "reason": fault.to_string() });
                    report(true, &object, "")?;
                }
                return Err(match fault {
                    AuditError::Entry { .. } => anyhow!("the log is wrong: {fault}"),
                    _ => error,
                });
            }
        };
        let mut object = serde_json::to_value(&audited)?;
        object["ok"] = json!(true);
        object["remembered"] = json!(remembered.map(|head| head.size));
        report(json, &object, &sentence(&audited, began.elapsed())).context(NoVerdict)
    }

    /// Audits, and remembers a head that is in order. Gives the one that was remembered before, too.
    fn audit(self) -> Result<(AuditReport, Option<Checkpoint>)> {
        let source = source_at(&self.log)?;
        let threads = match self.threads {
            Some(threads) => threads,
            None => std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        };
        let options = AuditOptions {
            policy: self.trust.policy()?,
            treasury: self.treasury,
            remembered: self.state.as_deref().map(remembered).transpose()?.flatten(),
            now: self.at.unwrap_or_else(unix_now),
            threads,
        };
        let mut progress = Progress::new();
        let verdict = audit(source.as_ref(), &options, &mut |done, all| progress.show(done, all));
        progress.clear();
        let audited = verdict?;
        if let Some(path) = &self.state {
            write_whole(path, audited.checkpoint.as_bytes(), Existing::Replace, Readers::Anyone)
                .with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        Ok((audited, options.remembered))
    }
}

fn remembered(path: &Path) -> Result<Option<Checkpoint>> {
    match read_regular(path, MAX_CHECKPOINT_BYTES as u64) {
        Ok(bytes) => {
            let note = kvasir_wire::note::Note::parse(&bytes).with_context(|| path.display().to_string())?;
            Ok(Some(Checkpoint::parse(note.text()).with_context(|| path.display().to_string())?))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{}: cannot be read", path.display())),
    }
}

fn sentence(audited: &AuditReport, time: Duration) -> String {
    let witnesses = match audited.witnesses.as_slice() {
        [] => "no witness".to_owned(),
        names => names.join(", "),
    };
    let mut text = format!(
        "{} is in order: {} entries, {} receipts, {} settlements ({} reversed), {} signatures verified in {:.1} s\n\
         root {}, cosigned by {witnesses}\n",
        audited.origin,
        audited.entries,
        audited.receipts,
        audited.settlements,
        audited.reversed,
        audited.signatures,
        time.as_secs_f32(),
        audited.root
    );
    for key in &audited.keys {
        text.push_str(&format!("believes {:<8} {} (entry {})\n", key.role, key.key, key.since));
    }
    for balance in &audited.balances {
        let amount = NanoKvr::new(balance.nanokvr);
        text.push_str(&format!("{:<8} {}  {amount} nanoKVR\n", balance.kind, balance.owner));
    }
    for (session, seq) in &audited.gaps {
        text.push_str(&format!("session {session} has no receipt {seq} (yet)\n"));
    }
    text
}
