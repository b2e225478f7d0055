//! `audit`: the public log from outside, with no account and no database.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use kvasir_wire::key::PublicKey;
use kvasir_wire::money::NanoKvr;
use kvasir_wire::note::{Note, Verifier};
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
                    // Whether anybody reads it or not: the fault decides the exit code.
                    let _ = report(true, &object, "");
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
            // Who asks for a time to come says that it will have come.
            clock: self.at.unwrap_or_default().max(unix_now()),
            threads,
        };
        let mut progress = Progress::new();
        let verdict = audit(source.as_ref(), &options, &mut |done, all| progress.show(done, all));
        progress.clear();
        let audited = verdict?;
        if let Some(path) = &self.state {
            remember(path, &audited.checkpoint)?;
        }
        Ok((audited, options.remembered))
    }
}

/// Keeps a head, unless another audit has kept a larger one of this log meanwhile.
fn remember(path: &Path, checkpoint: &str) -> Result<()> {
    // What a link leads to is what is meant, not the link.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // From the look to the replacing. Where a folder cannot be held, there is a moment left in between.
    let folder = std::fs::File::open(folder).ok().filter(|folder| folder.lock().is_ok());
    let own = Checkpoint::parse(Note::parse(checkpoint.as_bytes())?.text())?;
    if let Some(kept) = remembered(path)?.filter(|kept| kept.origin == own.origin) {
        if kept.size == own.size && kept.root != own.root {
            let (size, found) = (own.size, own.root);
            return Err(AuditError::SplitView { size, found, remembered: kept.root }.into());
        }
        if kept.size >= own.size {
            return Ok(());
        }
    }
    write_whole(path, checkpoint.as_bytes(), Existing::Replace, Readers::Anyone)
        .with_context(|| format!("{}: cannot be written", path.display()))?;
    drop(folder);
    Ok(())
}

fn remembered(path: &Path) -> Result<Option<Checkpoint>> {
    match read_regular(path, MAX_CHECKPOINT_BYTES as u64) {
        Ok(bytes) => {
            let note = Note::parse(&bytes).with_context(|| path.display().to_string())?;
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

#[cfg(test)]
mod tests {
    use kvasir_merkle::Hash;
    use kvasir_wire::key::SecretKey;

    use super::*;

    fn head(origin: &str, size: u64, root: u8) -> String {
        let checkpoint = Checkpoint { origin: origin.parse().unwrap(), size, root: Hash([root; 32]) };
        checkpoint.sign(&SecretKey::from_seed([1; 32])).unwrap().note().to_string()
    }

    #[test]
    fn of_two_audits_that_overlap_the_larger_head_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen");
        let kept = || std::fs::read_to_string(&path).unwrap();
        for (given, expected) in [(8, 8), (9, 9), (8, 9), (9, 9), (10, 10)] {
            remember(&path, &head("x.example", given, given as u8)).unwrap();
            assert_eq!(kept(), head("x.example", expected, expected as u8));
        }
        // Of one size there is one root: whoever audited the other one saw another log.
        let error = remember(&path, &head("x.example", 10, 11)).unwrap_err();
        assert!(error.downcast_ref::<AuditError>().is_some_and(AuditError::is_fault), "{error}");
        assert_eq!(kept(), head("x.example", 10, 10));
    }
}
