//! `kvasir audit`: the ledger's log, and the work behind it computed again.

pub mod again;

use std::fmt;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvasir_model::Model;
use kvasir_replay::{
    AuditError, AuditReport, EngineKind, Limits, LogError, LogTrust, PublicLog, Replayer, Report, Survey,
    Verdict, statement, survey,
};
use kvasir_threads::Threads;
use kvasir_wire::account::AccountError;
use kvasir_wire::id::{KeyDigest, PluginDigest};
use kvasir_wire::key::{PublicKey, SecretKey};
use serde_json::{Value, json};

use crate::local::{open_model, threads};
use crate::output::ReaderGone;
use crate::progress::Spinner;
use crate::settings::Settings;
use crate::{files, key_file, logging, output, plugin_store, setup};

/// A log's key and a policy are a few lines; a checkpoint is one note.
const TRUST_BYTES_MAX: u64 = 64 * 1024;

/// What stands on the command line.
#[derive(Debug, Clone)]
pub struct AuditOptions {
    /// Folder or address of the log.
    pub log: String,
    /// The log's key, `name+hash+base64`, or a file that holds it.
    pub log_key: Option<String>,
    /// Policy file.
    pub policy: Option<PathBuf>,
    /// The only treasury key that the log may believe.
    pub treasury: Option<String>,
    /// Items to replay.
    pub replay: usize,
    /// Folder or address of probe records; none means the log's own.
    pub probes: Option<String>,
    /// A checkpoint that was kept.
    pub checkpoint: Option<PathBuf>,
    /// Model files.
    pub models: Vec<PathBuf>,
    /// Package of the kernel; none means the installed plugin that a receipt names.
    pub plugin: Option<PathBuf>,
    /// Folder of trusted publishers' keys.
    pub trust: Option<PathBuf>,
    /// Threads that compute.
    pub threads: Option<usize>,
    /// Wall clock for one expert in one engine.
    pub deadline: Option<Duration>,
    /// Multiplications of one call.
    pub max_work: Option<u64>,
    /// The auditor's key: findings are written as signed statements.
    pub sign_key: Option<PathBuf>,
    /// Where to.
    pub statements: PathBuf,
    /// Folder for a file of evidence of each conviction.
    pub evidence: Option<PathBuf>,
}

/// Nothing is known about log and work, since something that is needed to judge them could not be read or written.
#[derive(Debug)]
pub struct NoVerdict;

impl fmt::Display for NoVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no verdict")
    }
}

impl NoVerdict {
    /// Exit code, apart from that of a finding.
    pub const EXIT_CODE: u8 = 3;

    /// Whether `error` is of this kind.
    pub fn caused(error: &anyhow::Error) -> bool {
        error.is::<NoVerdict>()
    }
}

/// Why there is no verdict where nothing could be drawn.
const NOTHING: &str = "nothing to replay: no record is published for a receipt of this log";

/// What an audit came to.
#[derive(Debug, Default)]
struct Outcome {
    drawn: usize,
    right: usize,
    convicted: usize,
    plugin: usize,
    tolerance: usize,
    implausible: usize,
    unknown: usize,
    changed: usize,
    faulty: usize,
    statements: Vec<PathBuf>,
}

/// Audit, print, and give the exit code: 0 where all is well, 1 at a finding or where something drawn could not be judged, 3 where
/// there was nothing to draw from.
///
/// # Errors
/// Where the log is not in order, or a finding could not be written down; with [`NoVerdict`] where nothing wrong was found and
/// something could not be read or written.
pub fn command(settings: &Settings, options: &AuditOptions, json: bool) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let judged = judge(settings, options, json, &mut outcome);
    let Err(error) = judged else { return judged };
    if is_fault(&error) || outcome.found() {
        return Err(error);
    }
    if json && !ReaderGone::caused(&error) {
        output::object(&json!({ "well": null, "reason": logging::sentence(&error) }))?;
    }
    Err(error.context(NoVerdict))
}

/// Whether `error` says something about the log.
fn is_fault(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(LogError::is_fault)
        || error.downcast_ref().is_some_and(AuditError::is_fault)
}

fn judge(settings: &Settings, options: &AuditOptions, json: bool, outcome: &mut Outcome) -> Result<ExitCode> {
    let trust = log_trust(options)?;
    let key = options.sign_key.as_deref().map(key_file::load).transpose()?;
    let kept = options.checkpoint.as_deref().map(|path| read(path, "checkpoint")).transpose()?;
    let log = match PublicLog::open(&options.log, &trust, kept.map(String::into_bytes)) {
        Ok(log) => log,
        Err(error) => {
            if json && error.is_fault() {
                output::object(
                    &json!({ "first_bad_index": null, "reason": error.to_string(), "well": false }),
                )?;
            }
            return Err(error).with_context(|| format!("cannot audit {}", options.log));
        }
    };
    let spinner = Spinner::new("auditing the ledger");
    let threads = threads(settings, options.threads)?;
    let treasury = options.treasury.as_deref().map(str::parse::<PublicKey>).transpose();
    let treasury = treasury.context("--treasury")?;
    let audited = match log.audit(treasury, setup::now().0, threads) {
        Ok(audited) => audited,
        Err(error) => {
            drop(spinner);
            if !error.is_fault() {
                return Err(error).with_context(|| format!("the ledger of {} was not audited", log.origin()));
            }
            if json {
                let reason = error.to_string();
                output::object(&json!({
                    "log": log_object(&log), "first_bad_index": error.index(), "reason": reason, "well": false }))?;
            }
            return Err(error).with_context(|| format!("the ledger of {} is not in order", log.origin()));
        }
    };
    drop(spinner);
    if options.replay == 0 {
        if json {
            output::object(
                &json!({ "log": log_object(&log), "ledger": ledger_object(&audited), "well": true }),
            )?;
        } else {
            say_log(&log)?;
            say_ledger(&audited)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let probes = log.probes(options.probes.as_deref())?;
    let spinner = Spinner::new(format!("reading {} leaves", log.size()));
    let receipts = log.receipts(probes.list()?, &mut |_| {})?;
    spinner.say("checking probe records");
    let found = survey(probes.as_ref(), &receipts, &log.lot(), options.replay)?;
    drop(spinner);
    if !json {
        say_log(&log)?;
        say_ledger(&audited)?;
        say_survey(&found)?;
    }

    let models = models(settings, options)?;
    let threads = Threads::new(threads, "replay").context("no thread to compute on")?;
    let find = |digest| find_plugin(settings, options, digest).map_err(|error| format!("{error:#}"));
    let spinner = Spinner::new("digesting the model");
    let mut replayer = Replayer::new(models, &find, limits(options, threads.count()))?;
    drop(spinner);
    (outcome.drawn, outcome.faulty) = (found.drawn.len(), found.faulty);
    let (mut items, mut times) = (Vec::new(), [Duration::ZERO; 3]);
    let started = Instant::now();
    for place in &found.drawn {
        let report = threads.within(|| replayer.replay_at(probes.as_ref(), &receipts, *place))?;
        let report = match report {
            Ok(report) => report,
            Err(reason) => {
                outcome.changed += 1;
                let told = json!({ "session": place.name.session.to_string(), "seq": place.name.seq, "index": place.index,
                                   "verdict": "gone", "reason": reason });
                if !json {
                    let session = place.name.session;
                    output::line(format!("  gone       {session} item {}: {reason}", place.index))?;
                }
                items.push(told);
                continue;
            }
        };
        outcome.count(&report.verdict);
        report.times.iter().zip(&mut times).for_each(|((_, took), sum)| *sum += *took);
        let written = match &key {
            Some(key) => write_statement(&report, key, &log, &options.statements)?,
            None => None,
        };
        let (written, unwritten) = match written {
            Some(Ok(path)) => (Some(path), None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, None),
        };
        let evidence = match &options.evidence {
            Some(folder) => write_evidence(&report, folder)?,
            None => None,
        };
        if !json {
            output::line(sentence(&report))?;
            if let Some(path) = &written {
                output::line(format!("             statement: {}", path.display()))?;
            }
            if let Some(reason) = &unwritten {
                output::line(format!("             statement: none, {reason}"))?;
            }
            if let Some(path) = &evidence {
                output::line(format!("             evidence:  {}", path.display()))?;
            }
        }
        let mut told = object(&report, written.as_deref(), evidence.as_deref());
        if let Some(reason) = unwritten {
            told["statement_refused"] = json!(reason.to_string());
        }
        items.push(told);
        outcome.statements.extend(written);
    }
    let code = match outcome.well() {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => ExitCode::from(NoVerdict::EXIT_CODE),
    };
    if json {
        let speeds: serde_json::Map<String, Value> = EngineKind::ALL
            .iter()
            .zip(times)
            .map(|(kind, took)| (kind.name().to_owned(), json!(took.as_secs_f64())))
            .collect();
        let mut told = json!({
            "log": log_object(&log), "ledger": ledger_object(&audited), "files": found.files, "records": found.records, "work_items": found.work_items,
            "faults": found.faults.iter().map(|fault| json!({
                "file": fault.name.to_string(), "reason": fault.reason })).collect::<Vec<_>>(),
            "faulty": outcome.faulty, "drawn": items, "right": outcome.right, "convicted": outcome.convicted,
            "plugin": outcome.plugin, "tolerance": outcome.tolerance, "implausible": outcome.implausible, "unknown": outcome.unknown,
            "gone": outcome.changed, "seconds": speeds, "well": outcome.well(),
        });
        if outcome.well().is_none() {
            told["reason"] = json!(NOTHING);
        }
        output::object(&told)?;
    } else {
        output::line(outcome.sentence(started.elapsed()))?;
    }
    Ok(code)
}

impl Outcome {
    fn count(&mut self, verdict: &Verdict) {
        *match verdict {
            Verdict::Right => &mut self.right,
            Verdict::Convicted(_) => &mut self.convicted,
            Verdict::Plugin { .. } => &mut self.plugin,
            Verdict::Tolerance { plausible: true, .. } => &mut self.tolerance,
            Verdict::Tolerance { plausible: false, .. } => &mut self.implausible,
            Verdict::Failed | Verdict::Unknown { .. } => &mut self.unknown,
        } += 1;
    }

    /// Whether something wrong was found.
    fn found(&self) -> bool {
        self.convicted + self.plugin + self.implausible + self.changed + self.faulty > 0
    }

    /// Nothing seen is not nothing wrong: where nothing could be drawn, or not be judged, all is not well.
    fn is_well(&self) -> bool {
        self.drawn > 0 && self.drawn == self.right + self.tolerance && self.faulty == 0
    }

    /// The same, and nothing where there was nothing to judge: an empty folder of records accuses nobody.
    fn well(&self) -> Option<bool> {
        (self.drawn > 0 || self.found()).then(|| self.is_well())
    }

    fn sentence(&self, took: Duration) -> String {
        let Outcome {
            drawn, right, convicted, plugin, tolerance, implausible, unknown, changed, faulty, ..
        } = self;
        let mut parts = vec![format!("{right} right")];
        for (count, what) in [
            (convicted, "convicted"),
            (plugin, "where the plugin is not defined"),
            (tolerance, "of class tolerance, which bytes convict nobody of"),
            (implausible, "of class tolerance, too far from the right rows for any rounding"),
            (unknown, "not judged"),
            (changed, "gone since they were drawn"),
        ] {
            if *count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        let files = if *faulty > 0 { format!("; {faulty} files of records refused") } else { String::new() };
        let verdict = match (self.is_well(), drawn) {
            (_, 0) => NOTHING,
            (true, _) => "all is well",
            (false, _) => "all is not well",
        };
        format!("{verdict}: {drawn} drawn, {}{files}; {:.1} s", parts.join(", "), took.as_secs_f64())
    }
}

fn log_trust(options: &AuditOptions) -> Result<LogTrust> {
    match (&options.policy, &options.log_key) {
        (Some(policy), _) => Ok(LogTrust::Policy(read(policy, "policy")?)),
        // A key's name has slashes, too; whether it is a path shows in whether something lies there.
        (None, Some(key)) if Path::new(key).is_file() => {
            Ok(LogTrust::Key(read(Path::new(key), "log's key")?))
        }
        (None, Some(key)) => Ok(LogTrust::Key(key.clone())),
        (None, None) => bail!(
            "whom to believe? Name the log's key with --log-key (the ledger's `init` wrote it to log.vkey), or a policy file with \
             --policy"
        ),
    }
}

fn read(path: &Path, what: &str) -> Result<String> {
    files::read_text_bounded(path, TRUST_BYTES_MAX)
        .with_context(|| format!("cannot read the {what} {}", path.display()))
}

fn limits(options: &AuditOptions, lanes: usize) -> Limits {
    let usual = Limits::default();
    Limits {
        deadline: options.deadline.unwrap_or(usual.deadline),
        max_multiplications: options.max_work.unwrap_or(usual.max_multiplications),
        lanes: NonZeroUsize::new(lanes).unwrap_or(usual.lanes),
        ..usual
    }
}

fn models(settings: &Settings, options: &AuditOptions) -> Result<Vec<Model>> {
    if options.models.is_empty() {
        // The one that the settings name; without any, every item stays unknown, and says so.
        return Ok(settings
            .model(None)
            .ok()
            .map(|path| open_model(&path))
            .transpose()?
            .into_iter()
            .collect());
    }
    options.models.iter().map(|path| open_model(path)).collect()
}

/// The plugin of this digest: the package that is named, if it is the one, else an installed one.
fn find_plugin(
    settings: &Settings,
    options: &AuditOptions,
    digest: PluginDigest,
) -> Result<kvasir_plugin::VerifiedPlugin> {
    if options.plugin.is_some() || options.trust.is_some() {
        let named = plugin_store::verified(settings, options.plugin.as_deref(), options.trust.as_deref())?;
        if named.digest().0 == digest.0 {
            return Ok(named);
        }
    }
    let wanted = kvasir_plugin::PluginDigest(digest.0);
    // To compute old calls again is not to take a version into use.
    settings.store().examine(wanted, setup::now()).with_context(|| {
        format!("the receipt's plugin {digest} is not installed here; give its package with --plugin")
    })
}

/// Nothing where there is nothing to state; an error inside where this key may state nothing about the session: that is no
/// reason to judge the rest no more.
fn write_statement(
    report: &Report,
    key: &SecretKey,
    log: &PublicLog,
    folder: &Path,
) -> Result<Option<Result<PathBuf, AccountError>>> {
    match statement(report, key, log.head_digest(), setup::now().0) {
        Ok(None) => Ok(None),
        Ok(Some(note)) => {
            write_finding(report, folder, "audit", "note", &note.to_string()).map(|path| Some(Ok(path)))
        }
        Err(reason) => Ok(Some(Err(reason))),
    }
}

fn write_evidence(report: &Report, folder: &Path) -> Result<Option<PathBuf>> {
    let Some(evidence) = &report.evidence else { return Ok(None) };
    write_finding(report, folder, "work", "fraud", &evidence.to_string()).map(Some)
}

fn write_finding(report: &Report, folder: &Path, kind: &str, ending: &str, text: &str) -> Result<PathBuf> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let name = report.place.name;
    let file = format!("{kind}-{}-{}-{}.{ending}", name.session.short(), name.seq, report.place.index);
    let path = folder.join(file);
    files::write_whole(&path, text.as_bytes())?;
    Ok(path)
}

fn say_log(log: &PublicLog) -> Result<()> {
    let witnesses = match log.witnesses() {
        [] => "no witness".to_owned(),
        names => format!("witnesses: {}", names.join(", ")),
    };
    output::line(format!("log {}: {} leaves, root {}, {witnesses}", log.origin(), log.size(), log.root()))
}

fn say_ledger(audited: &AuditReport) -> Result<()> {
    let AuditReport { entries, receipts, settlements, reversed, signatures, balances, .. } = audited;
    output::line(format!(
        "ledger in order: {entries} entries, {receipts} receipts, {settlements} settlements ({reversed} reversed), {signatures} \
         signatures; {} balances recomputed (kvasir-ledger audit lists them)",
        balances.len()
    ))
}

fn ledger_object(audited: &AuditReport) -> Value {
    let AuditReport { entries, receipts, settlements, reversed, signatures, balances, .. } = audited;
    json!({
        "entries": entries, "receipts": receipts, "settlements": settlements, "reversed": reversed,
        "signatures": signatures,
        "balances": balances.iter().map(|balance| json!({
            "kind": balance.kind, "owner": balance.owner, "nanokvr": balance.nanokvr })).collect::<Vec<_>>(),
    })
}

fn log_object(log: &PublicLog) -> Value {
    json!({
        "origin": log.origin(), "size": log.size(), "root": log.root().to_string(),
        "checkpoint": log.head_digest().to_string(), "witnesses": log.witnesses(),
    })
}

fn say_survey(found: &Survey) -> Result<()> {
    let Survey { files, records, work_items, faulty, .. } = found;
    let rate = if *work_items == 0 { 0.0 } else { found.drawn.len() as f64 / *work_items as f64 * 100.0 };
    output::line(format!(
        "probe records: {files} files, {records} records of {work_items} work items; {} drawn ({rate:.2} % of the work)",
        found.drawn.len()
    ))?;
    for fault in &found.faults {
        output::line(format!("  refused    {}: {}", fault.name, fault.reason))?;
    }
    if *faulty > found.faults.len() {
        output::line(format!("  refused    {} more", faulty - found.faults.len()))?;
    }
    Ok(())
}

fn sentence(report: &Report) -> String {
    let what = explained(&report.verdict, report.receipt.terms.worker);
    format!(
        "  {:10} session {} receipt {} (leaf {}) item {}: layer {}, {} experts, {} rows{what}",
        report.verdict.name(),
        report.place.name.session.short(),
        report.place.name.seq,
        report.leaf,
        report.place.index,
        report.item.layer,
        report.experts,
        report.requests
    )
}

/// What follows a verdict's name in a sentence: a colon and the details, or nothing.
fn explained(verdict: &Verdict, worker: KeyDigest) -> String {
    match verdict {
        Verdict::Right => String::new(),
        Verdict::Convicted(found) => format!(
            ": worker {worker} signed {}, right is {}; {}",
            hex_of(&found.got),
            hex_of(&found.expected),
            found.first_difference
        ),
        Verdict::Plugin { answers, .. } => {
            let told: Vec<String> =
                answers.iter().map(|(kind, said)| format!("{} {said}", kind.name())).collect();
            format!(
                ": the engines differ, nobody is convicted; put the plugin into quarantine ({})",
                told.join(", ")
            )
        }
        Verdict::Tolerance { deviation, plausible } => {
            let beyond = if *plausible { "" } else { "; no rounding of a kernel is that far away" };
            format!(": {}{beyond}", deviation.as_deref().unwrap_or("rows of another length"))
        }
        Verdict::Failed => ": the worker claims no rows".to_owned(),
        Verdict::Unknown { reason } => format!(": {reason}"),
    }
}

fn object(report: &Report, written: Option<&Path>, evidence: Option<&Path>) -> Value {
    let (expected, got, reason) = match &report.verdict {
        Verdict::Convicted(found) => {
            (Some(hex_of(&found.expected)), Some(hex_of(&found.got)), Some(found.first_difference.clone()))
        }
        Verdict::Plugin { answers, .. } => {
            let told: Vec<String> =
                answers.iter().map(|(kind, said)| format!("{} {said}", kind.name())).collect();
            (None, None, Some(told.join(", ")))
        }
        Verdict::Tolerance { deviation, .. } => (None, None, deviation.clone()),
        Verdict::Unknown { reason } => (None, None, Some(reason.clone())),
        Verdict::Right | Verdict::Failed => (None, None, None),
    };
    let terms = &report.receipt.terms;
    json!({
        "session": report.place.name.session.to_string(), "seq": report.place.name.seq, "leaf": report.leaf,
        "index": report.place.index, "layer": report.item.layer, "mode": report.item.mode,
        "experts": report.experts, "rows": report.requests, "worker": terms.worker.to_string(),
        "model": terms.model.to_string(), "plugin": terms.plugin.to_string(), "class": terms.class.name(),
        "verdict": report.verdict.name(), "plausible": plausible(&report.verdict), "expected": expected, "got": got, "reason": reason,
        "statement": written.map(|path| path.display().to_string()),
        "evidence": evidence.map(|path| path.display().to_string()),
        "seconds": report.times.iter().map(|(kind, took)| (kind.name().to_owned(), json!(took.as_secs_f64())))
            .collect::<serde_json::Map<_, _>>(),
    })
}

/// Of class tolerance alone.
fn plausible(verdict: &Verdict) -> Option<bool> {
    match verdict {
        Verdict::Tolerance { plausible, .. } => Some(*plausible),
        _ => None,
    }
}

fn hex_of(digest: &[u8; 32]) -> String {
    kvasir_wire::id::SessionId(*digest).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_well_only_where_everything_drawn_was_judged() {
        let well = Outcome { drawn: 3, right: 2, tolerance: 1, ..Outcome::default() };
        assert!(well.is_well() && well.sentence(Duration::ZERO).starts_with("all is well: 3 drawn"));
        let cases = [
            Outcome::default(),
            Outcome { drawn: 3, right: 2, convicted: 1, ..Outcome::default() },
            Outcome { drawn: 3, right: 2, plugin: 1, ..Outcome::default() },
            Outcome { drawn: 3, right: 2, implausible: 1, ..Outcome::default() },
            Outcome { drawn: 3, right: 2, unknown: 1, ..Outcome::default() },
            Outcome { drawn: 3, right: 2, changed: 1, ..Outcome::default() },
            Outcome { drawn: 3, right: 3, faulty: 1, ..Outcome::default() },
        ];
        for outcome in cases {
            assert!(!outcome.is_well(), "{outcome:?}");
            assert_eq!(outcome.well(), (outcome.drawn > 0).then_some(false), "{outcome:?}");
            assert!(!outcome.sentence(Duration::ZERO).starts_with("all is well"));
        }
    }
}
