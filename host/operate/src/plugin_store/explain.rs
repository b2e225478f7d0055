//! `kvasir plugin policy`: why a load would be refused or what it would be granted, and the policy that holds.

use anyhow::{Context, Result, bail};
use kvasir_plugin::{Grant, GrantReason, PluginDigest};
use kvasir_plugin_store::{Check, Explanation, Outcome, Subject};
use serde_json::{Value, json};

use super::{digest, read_package};
use crate::settings::Settings;
use crate::{output, quarantine, setup};

/// What is not asked, since it takes running the kernel.
const NOT_ASKED: &str = "Not asked here: its imports, contract and golden vectors. They are checked when it is loaded, and `kvasir \
                         plugin verify` shows them.";

/// `kvasir plugin policy explain`: `what` is a package file or an installed plugin's digest; none means the active one.
///
/// # Errors
/// Where there is no such package or plugin to ask about, or it would be refused; the checks are printed before that.
pub fn explain(settings: &Settings, what: Option<&str>, json: bool) -> Result<()> {
    let store = settings.store();
    let package;
    let subject = match what {
        None => Subject::Installed(
            store
                .active_digest()?
                .context("no kernel is active: name a package or a digest, or run `kvasir setup`")?,
        ),
        Some(text) if std::path::Path::new(text).exists() => {
            package = read_package(std::path::Path::new(text))?;
            Subject::Package(&package)
        }
        Some(text) => Subject::Installed(
            digest(&store, text).with_context(|| format!("there is no package file {text:?}"))?,
        ),
    };
    let mut told = store.explain(subject, setup::now())?;
    ask_quarantine(settings, &mut told);
    let failed = told.failed();
    if json {
        let outcome = |outcome| match outcome {
            Outcome::Passed => "passed",
            Outcome::Failed => "failed",
            Outcome::NotReached => "not_reached",
        };
        let checks: Vec<Value> = told
            .checks
            .iter()
            .map(|check| json!({"check": check.name, "outcome": outcome(check.outcome), "said": check.said}))
            .collect();
        output::object(&json!({
            "admitted": failed.is_none(), "failed": failed.map(|check| check.name), "checks": checks,
            "active": told.active, "plugin": told.plugin, "grant": told.grant.as_ref().map(grant_object),
            "not_asked": ["imports", "contract", "golden-vectors"],
        }))?;
        return refused(&told);
    }
    let mut lines = Vec::new();
    for check in &told.checks {
        let mark = match check.outcome {
            Outcome::Passed => "ok     ",
            Outcome::Failed => "REFUSED",
            Outcome::NotReached => continue,
        };
        lines.push(format!("{mark} {}: {}", check.name, check.said));
    }
    if failed.is_none() {
        let active = if told.active { "; it is active" } else { "" };
        lines.push(format!("{} passes every check above{active}. It would be granted", subject_of(&told)));
        lines.extend(told.grant.iter().flat_map(grant_lines));
        lines.push(NOT_ASKED.to_owned());
    }
    output::line(lines.join("\n"))?;
    refused(&told)
}

/// Adds the check that comes after those of the store: whether its kernels failed too often on this machine.
fn ask_quarantine(settings: &Settings, told: &mut Explanation) {
    let admitted = told.failed().is_none();
    let plugin = told.plugin.as_ref().filter(|_| admitted);
    let (outcome, said) = match plugin.and_then(|plugin| PluginDigest::from_hex(&plugin.plugin)) {
        None => (Outcome::NotReached, "not checked, since an earlier check failed".to_owned()),
        Some(plugin) => match quarantine::quarantined(settings, plugin) {
            (true, _) => (
                Outcome::Failed,
                format!(
                    "a worker does not run its WASM kernel (one with `--isolation none`, and `kvasir run`, do not ask): {}",
                    quarantine::remedy(plugin)
                ),
            ),
            (false, true) => (
                Outcome::Passed,
                format!("its WASM kernel may run, its shader not: {}", quarantine::remedy(plugin)),
            ),
            (false, false) => {
                (Outcome::Passed, "no kernel of it failed too often on this machine".to_owned())
            }
        },
    };
    if outcome == Outcome::Failed {
        told.grant = None;
    }
    told.checks.push(Check { name: "quarantine", outcome, said });
}

/// An error where a check failed, so that a script need not read the answer.
fn refused(told: &Explanation) -> Result<()> {
    match told.failed() {
        Some(check) => bail!("{} would be refused at the check {:?}", subject_of(told), check.name),
        None => Ok(()),
    }
}

fn subject_of(told: &Explanation) -> String {
    told.plugin.as_ref().map_or("the package".to_owned(), |plugin| {
        format!("{} {} (revision {})", plugin.name, plugin.version, plugin.revision)
    })
}

/// `kvasir plugin policy show`: the policy file, and what holds where it says nothing.
///
/// # Errors
/// Where there is a policy file that cannot be used.
pub fn show(settings: &Settings, json: bool) -> Result<()> {
    let store = settings.store();
    let policy = store.policy()?;
    let path = store.places().policy();
    let there = path.exists();
    if json {
        return output::object(
            &json!({"file": path.display().to_string(), "there": there, "policy": policy}),
        );
    }
    if !there {
        return output::line(format!(
            "there is no {}: a plugin gets what it asks for, within what is built in; no WASI",
            path.display()
        ));
    }
    let text = toml::to_string(&policy).context("the policy cannot be shown")?;
    output::line(format!("# {}\n{}", path.display(), text.trim_end()))
}

fn grant_object(grant: &Grant) -> Value {
    let reasons: Vec<Value> = grant
        .reasons
        .iter()
        .map(|reason| {
            json!({
                "name": reason.name, "asked": reason.asked, "allowed": reason.allowed, "granted": reason.granted,
                "source": reason.source.to_string(),
            })
        })
        .collect();
    json!({
        "memory_bytes": grant.limits.memory_bytes, "fuel_per_call": grant.limits.fuel_per_call,
        "rows_per_call": grant.limits.rows_per_call, "deadline_ms": grant.deadline.as_millis() as u64,
        "gpu": grant.gpu, "wasi_inert": grant.wasi_inert, "reasons": reasons,
    })
}

fn grant_lines(grant: &Grant) -> Vec<String> {
    let said = |reason: &GrantReason| {
        let asked = reason.asked.map_or("it cannot ask".to_owned(), |asked| format!("it asks for {asked}"));
        format!(
            "  {:<14} {}  ({asked}, {} allows {})",
            reason.name, reason.granted, reason.source, reason.allowed
        )
    };
    grant.reasons.iter().map(said).collect()
}
