//! `kvasir audit --evidence-file`: the calls in a file of evidence computed again, from that file, the model and the plugin alone.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kvasir_replay::{Evidence, MAX_EVIDENCE_BYTES, Replayer, Verdict, WorkFraud};
use kvasir_threads::Threads;
use serde_json::{Value, json};

use super::{AuditOptions, NoVerdict, explained, find_plugin, limits, models};
use crate::local::threads;
use crate::progress::Spinner;
use crate::settings::Settings;
use crate::{files, logging, output};

/// Compute again, print, and give the exit code: 0 where the work is right, 1 where its worker is convicted, and that of
/// [`NoVerdict`] where the engines say neither.
///
/// # Errors
/// With [`NoVerdict`], where the file is no evidence of work, or something that is needed cannot be read. A file that is wrong says
/// nothing about a worker.
pub fn command(settings: &Settings, options: &AuditOptions, file: &Path, json: bool) -> Result<ExitCode> {
    let (work, judged) = match replayed(settings, options, file) {
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
        let item = |(index, verdict): &(u64, Verdict)| json!({ "index": index, "verdict": verdict.name(), "says": explained(verdict, worker.digest()) });
        let items: Vec<Value> = judged.iter().map(item).collect();
        output::object(&json!({
            "convicted": convicted, "worker": worker.to_string(), "session": work.record.session.to_string(),
            "seq": work.record.seq, "items": items }))?;
    } else {
        for (index, verdict) in &judged {
            let says = explained(verdict, worker.digest());
            output::line(format!(
                "  {:10} session {} receipt {} item {index}{says}",
                verdict.name(),
                work.record.session.short(),
                work.record.seq
            ))?;
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

/// Whether somebody is convicted; nothing where that is open. One wrong call is enough, all must be right.
fn conclusion(judged: &[(u64, Verdict)]) -> Option<bool> {
    if judged.iter().any(|(_, verdict)| matches!(verdict, Verdict::Convicted(_))) {
        return Some(true);
    }
    let all_right = !judged.is_empty() && judged.iter().all(|(_, verdict)| *verdict == Verdict::Right);
    all_right.then_some(false)
}

fn replayed(
    settings: &Settings,
    options: &AuditOptions,
    file: &Path,
) -> Result<(WorkFraud, Vec<(u64, Verdict)>)> {
    let named = || format!("the evidence {}", file.display());
    let bytes = files::read_bounded(file, MAX_EVIDENCE_BYTES as u64)
        .with_context(|| format!("cannot read {}", named()))?;
    let Evidence::Work(work) = Evidence::parse(&bytes).with_context(named)? else {
        bail!("{} is about no work: `kvasir-ledger convict` judges it, from the file alone", named())
    };
    // Before a model is read, which takes a while.
    work.verified().with_context(named)?;
    let models = models(settings, options)?;
    let threads = threads(settings, options.threads)?;
    let threads = Threads::new(threads, "replay").context("no thread to compute on")?;
    let find = |digest| find_plugin(settings, options, digest).map_err(|error| format!("{error:#}"));
    let spinner = Spinner::new("digesting the model");
    let mut replayer = Replayer::new(models, &find, limits(options, threads.count()))?;
    drop(spinner);
    let judged = threads.within(|| replayer.replay_evidence(&work)).with_context(named)?;
    Ok((work, judged))
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
        assert_eq!(conclusion(&[]), None);
        assert_eq!(conclusion(&[(1, Verdict::Right), (2, Verdict::Right)]), Some(false));
        assert_eq!(conclusion(&[(1, Verdict::Right), (2, open())]), None);
        assert_eq!(conclusion(&[(1, Verdict::Failed)]), None);
        assert_eq!(conclusion(&[(1, Verdict::Tolerance { deviation: None, plausible: false })]), None);
        assert_eq!(conclusion(&[(1, open()), (2, wrong())]), Some(true));
    }
}
