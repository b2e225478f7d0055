//! `kvasir audit --evidence-file`: the calls in a file of evidence computed again, from that file, the model and the plugin alone. Where
//! a log is named too, the file's receipt has to stand in it, and what is found can be stated for it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kvasir_replay::{Evidence, LoggedReceipt, MAX_EVIDENCE_BYTES, PublicLog, Replayer, Verdict, WorkFraud};
use kvasir_threads::Threads;
use kvasir_wire::account::AccountError;
use serde_json::{Value, json};

use super::{
    AuditOptions, NoVerdict, explained, find_plugin, limits, log_object, log_trust, models, read,
    write_statement,
};
use crate::local::threads;
use crate::progress::Spinner;
use crate::settings::Settings;
use crate::{files, key_file, logging, output};

/// What came of one call.
struct Judged {
    index: u64,
    verdict: Verdict,
    /// The note that states it, or why this key may state nothing.
    statement: Option<Result<PathBuf, AccountError>>,
}

/// What came of a file.
struct Replayed {
    work: WorkFraud,
    /// The log in which its receipt stands.
    log: Option<PublicLog>,
    judged: Vec<Judged>,
}

/// Compute again, print, and give the exit code: 0 where the work is right, 1 where its worker is convicted, and that of
/// [`NoVerdict`] where the engines say neither.
///
/// # Errors
/// With [`NoVerdict`], where the file is no evidence of work, its receipt is not in the log that is named, or something that is needed
/// cannot be read. A file that is wrong says nothing about a worker.
pub fn command(settings: &Settings, options: &AuditOptions, file: &Path, json: bool) -> Result<ExitCode> {
    let Replayed { work, log, judged } = match replayed(settings, options, file) {
        Ok(replayed) => replayed,
        Err(error) => {
            if json {
                output::object(&json!({ "convicted": null, "reason": logging::sentence(&error) }))?;
            }
            return Err(error.context(NoVerdict));
        }
    };
    let worker = work.keys.worker;
    let convicted = conclusion(&judged);
    if json {
        let items: Vec<Value> = judged.iter().map(|judged| object(judged, &work)).collect();
        output::object(&json!({
            "convicted": convicted, "worker": worker.to_string(), "session": work.record.session.to_string(),
            "seq": work.record.seq, "log": log.as_ref().map(log_object), "items": items }))?;
    } else {
        for Judged { index, verdict, statement } in &judged {
            let says = explained(verdict, worker.digest());
            output::line(format!(
                "  {:10} session {} receipt {} item {index}{says}",
                verdict.name(),
                work.record.session.short(),
                work.record.seq
            ))?;
            match statement {
                Some(Ok(path)) => output::line(format!("             statement: {}", path.display()))?,
                Some(Err(reason)) => output::line(format!("             statement: none, {reason}"))?,
                None => {}
            }
        }
        output::line(match convicted {
            Some(true) => format!("convicted: worker {worker}"),
            Some(false) => "the work is right: nobody is convicted".to_owned(),
            None => "no verdict: nobody is convicted".to_owned(),
        })?;
    }
    Ok(match convicted {
        Some(true) => ExitCode::FAILURE,
        Some(false) => ExitCode::SUCCESS,
        None => ExitCode::from(NoVerdict::EXIT_CODE),
    })
}

fn object(Judged { index, verdict, statement }: &Judged, work: &WorkFraud) -> Value {
    let mut told = json!({
        "index": index, "verdict": verdict.name(), "says": explained(verdict, work.keys.worker.digest()),
        "statement": statement.as_ref().and_then(|written| written.as_ref().ok()).map(|path| path.display().to_string()) });
    if let Some(Err(reason)) = statement {
        told["statement_refused"] = json!(reason.to_string());
    }
    told
}

/// Whether somebody is convicted; nothing where that is open. One wrong call is enough, all must be right.
fn conclusion(judged: &[Judged]) -> Option<bool> {
    if judged.iter().any(|judged| matches!(judged.verdict, Verdict::Convicted(_))) {
        return Some(true);
    }
    let all_right = !judged.is_empty() && judged.iter().all(|judged| judged.verdict == Verdict::Right);
    all_right.then_some(false)
}

fn replayed(settings: &Settings, options: &AuditOptions, file: &Path) -> Result<Replayed> {
    let named = || format!("the evidence {}", file.display());
    let bytes = files::read_bounded(file, MAX_EVIDENCE_BYTES as u64)
        .with_context(|| format!("cannot read {}", named()))?;
    let Evidence::Work(work) = Evidence::parse(&bytes).with_context(named)? else {
        bail!("{} is about no work: `kvasir-ledger convict` judges it, from the file alone", named())
    };
    // Before a model is read, which takes a while.
    work.verified().with_context(named)?;
    let key = options.sign_key.as_deref().map(key_file::load).transpose()?;
    let found = if options.log.is_empty() { None } else { Some(logged(options, &work).with_context(named)?) };
    let models = models(settings, options)?;
    let threads = threads(settings, options.threads)?;
    let threads = Threads::new(threads, "replay").context("no thread to compute on")?;
    let find = |digest| find_plugin(settings, options, digest).map_err(|error| format!("{error:#}"));
    let spinner = Spinner::new("digesting the model");
    let mut replayer = Replayer::new(models, &find, limits(options, threads.count()))?;
    drop(spinner);
    let Some((log, receipt)) = found else {
        let judged = threads.within(|| replayer.replay_evidence(&work)).with_context(named)?;
        let judged = judged.into_iter().map(|(index, verdict)| Judged { index, verdict, statement: None });
        return Ok(Replayed { judged: judged.collect(), work, log: None });
    };
    let mut judged = Vec::with_capacity(work.record.records.len());
    for record in &work.record.records {
        let report = threads.within(|| replayer.replay(&receipt, work.record.size, record));
        let report = report.map_err(anyhow::Error::msg).with_context(named)?;
        let statement = match &key {
            Some(key) => write_statement(&report, key, &log, &options.statements)?,
            None => None,
        };
        judged.push(Judged { index: record.index, verdict: report.verdict, statement });
    }
    Ok(Replayed { work, log: Some(log), judged })
}

/// The log, and the file's receipt as it stands there. Whether the ledger is in order is for an audit of the log to say.
fn logged(options: &AuditOptions, work: &WorkFraud) -> Result<(PublicLog, LoggedReceipt)> {
    let kept = options.checkpoint.as_deref().map(|path| read(path, "checkpoint")).transpose()?;
    let log = PublicLog::open(&options.log, &log_trust(options)?, kept.map(String::into_bytes))
        .with_context(|| format!("cannot read {}", options.log))?;
    let name = work.record.name();
    let spinner = Spinner::new(format!("reading {} leaves", log.size()));
    let receipts = log.receipts([name], &mut |_| {})?;
    drop(spinner);
    let receipt = receipts.get(&name).map_err(anyhow::Error::msg)?.clone();
    if receipt.signed.receipt().id() != work.record.receipt {
        bail!("the log has another receipt {} of session {}", name.seq, name.session);
    }
    Ok((log, receipt))
}

#[cfg(test)]
mod tests {
    use kvasir_replay::Conviction;

    use super::*;

    #[test]
    fn one_wrong_call_convicts_and_only_right_ones_clear() {
        let wrong = || {
            Verdict::Convicted(Conviction {
                expected: [1; 32],
                got: [2; 32],
                first_difference: "row 1".to_owned(),
            })
        };
        let open = || Verdict::Unknown { reason: "no model".to_owned() };
        let concluded = |verdicts: Vec<Verdict>| {
            let judged = |verdict| Judged { index: 1, verdict, statement: None };
            conclusion(&verdicts.into_iter().map(judged).collect::<Vec<_>>())
        };
        assert_eq!(concluded(vec![]), None);
        assert_eq!(concluded(vec![Verdict::Right, Verdict::Right]), Some(false));
        assert_eq!(concluded(vec![Verdict::Right, open()]), None);
        assert_eq!(concluded(vec![Verdict::Failed]), None);
        assert_eq!(concluded(vec![Verdict::Tolerance { deviation: None, plausible: false }]), None);
        assert_eq!(concluded(vec![open(), wrong()]), Some(true));
    }
}
