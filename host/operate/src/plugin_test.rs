//! `kvasir plugin test`: the conformance suite, check by check.

use std::path::Path;

use anyhow::{Result, bail};
use kvasir_author::suite::{CHECKS, Check, Progress, Verdict, passed, suite};
use serde_json::{Value, json};

use crate::progress::Spinner;
use crate::{output, plugin_subject};

/// `kvasir plugin test --list`: what the checks are.
///
/// # Errors
/// Where standard output takes no more.
pub fn command_list(json: bool) -> Result<()> {
    if json {
        let checks: Vec<Value> =
            CHECKS.iter().map(|(name, asks)| json!({"name": name, "asks": asks})).collect();
        return output::object(&json!({ "checks": checks }));
    }
    let lines: Vec<String> = CHECKS.iter().map(|(name, asks)| format!("{name:22} {asks}")).collect();
    output::line(lines.join("\n"))
}

/// `kvasir plugin test`: every check, or those of `only`, on a folder or a package.
///
/// # Errors
/// Where there is no kernel to test, a name in `only` is no check, or a check fails; the report is printed before that.
pub fn command(target: &Path, only: &[String], json: bool) -> Result<()> {
    if let Some(unknown) = only.iter().find(|name| !CHECKS.iter().any(|(check, _)| check == name)) {
        bail!("there is no check {unknown:?}; `kvasir plugin test --list` shows them all");
    }
    let plugin = plugin_subject::read(target)?;
    let spinner = Spinner::new("testing");
    let mut written = Ok(());
    let checks = suite(
        &plugin,
        |name| only.is_empty() || only.iter().any(|wanted| wanted == name),
        |progress| match progress {
            Progress::Begins(name) => spinner.say(name),
            Progress::Ended(check) if !json && written.is_ok() => written = spinner.beside(|| line(check)),
            Progress::Ended(_) => {}
        },
    );
    drop(spinner);
    written?;
    if json {
        let checks: Vec<Value> = checks.iter().map(object).collect();
        output::object(&json!({
            "plugin": plugin.name(), "version": plugin.version().to_string(), "formats": plugin.manifest().formats,
            "passed": checks.iter().all(|check| check["result"] != "failed"), "checks": checks,
        }))?;
    }
    let failed: Vec<&str> = checks
        .iter()
        .filter(|check| matches!(check.verdict, Verdict::Failed(_)))
        .map(|check| check.name)
        .collect();
    if !passed(&checks) {
        bail!("{} of {} checks failed: {}", failed.len(), checks.len(), failed.join(", "));
    }
    if !json {
        let next = if target.is_dir() { "; next: kvasir plugin sign" } else { "" };
        output::line(format!(
            "{} {}: all {} checks passed{next}",
            plugin.name(),
            plugin.version(),
            checks.len()
        ))?;
    }
    Ok(())
}

fn line(check: &Check) -> Result<()> {
    let (word, text) = told(&check.verdict);
    output::line(format!("{word:8} {:22} {:6.2} s  {text}", check.name, check.seconds))
}

fn object(check: &Check) -> Value {
    let (word, text) = told(&check.verdict);
    json!({"name": check.name, "result": word, "text": text, "seconds": check.seconds})
}

fn told(verdict: &Verdict) -> (&'static str, &str) {
    match verdict {
        Verdict::Passed(text) => ("passed", text),
        Verdict::Failed(text) => ("failed", text),
        Verdict::Skipped(text) => ("skipped", text),
    }
}
