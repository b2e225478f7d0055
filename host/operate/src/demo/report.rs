//! What the demo says: steps while it works, then one table for people or one JSON object for machines.

use std::io::IsTerminal;

use anyhow::Result;
use kvasir_wire::money::{MeteredBytes, NanoKvr};
use serde::Serialize;
use serde_json::{Value, json};

use super::DemoOptions;
use super::audited::Audited;
use super::compare::Comparison;
use super::generation::Generation;
use super::network::{Account, WorkerKernel};
use crate::choices::DeviceChoice;
use crate::output;
use crate::progress::Spinner;

/// Steps of the demo, shown on standard error: a spinner on a terminal, plain lines elsewhere.
pub struct Steps {
    spinner: Spinner,
    lines: bool,
}

impl Steps {
    /// Start showing steps; quietly where a machine reads.
    pub fn new(json: bool) -> Steps {
        let terminal = std::io::stderr().is_terminal();
        Steps { spinner: Spinner::new(""), lines: !terminal && !json }
    }

    /// The next step begins.
    pub fn step(&self, what: &str) {
        self.spinner.say(what);
        if self.lines {
            output::remark(what);
        }
    }

    /// No more steps.
    pub fn finish(self) {
        drop(self.spinner);
    }
}

/// One prompt and both continuations.
#[derive(Debug, Serialize)]
struct PromptReport {
    prompt: String,
    local: String,
    remote: String,
    identical: bool,
}

/// Everything that the demo found.
pub struct DemoReport<'a> {
    options: &'a DemoOptions,
    prompts: Vec<PromptReport>,
    local: &'a Generation,
    remote: &'a Generation,
    comparison: &'a Comparison,
    account: &'a Account,
    kernels: &'a [WorkerKernel],
    audited: &'a Audited,
}

impl<'a> DemoReport<'a> {
    /// Gather what is shown.
    pub fn new(
        options: &'a DemoOptions,
        local: &'a Generation,
        remote: &'a Generation,
        comparison: &'a Comparison,
        account: &'a Account,
        kernels: &'a [WorkerKernel],
        audited: &'a Audited,
    ) -> DemoReport<'a> {
        let prompts = local
            .answers
            .iter()
            .zip(&remote.answers)
            .map(|(local, remote)| PromptReport {
                prompt: local.prompt.clone(),
                local: local.text.clone(),
                remote: remote.text.clone(),
                identical: local.tokens == remote.tokens,
            })
            .collect();
        DemoReport { options, prompts, local, remote, comparison, account, kernels, audited }
    }

    /// Whether the wallets were credited exactly what the metered bytes are worth, and hub and backbone counted alike (where
    /// a call was recomputed the backbone also counts bytes that are not paid).
    pub fn credit_is_exact(&self) -> bool {
        self.account.metered_bytes > 0
            && u128::from(self.account.credited_nanokvr) == 7 * u128::from(self.account.metered_bytes)
            && (self.remote.recomputed_calls > 0 || self.remote.counted_bytes == self.account.metered_bytes)
    }

    /// Whether every session was of this class, by what the backbone signed.
    pub fn classes_are(&self, class: &str) -> bool {
        !self.remote.classes.is_empty() && self.remote.classes.iter().all(|found| found == class)
    }

    /// Print the report on standard output.
    ///
    /// # Errors
    /// Where standard output takes no more.
    pub fn print(&self, json: bool) -> Result<()> {
        if json { output::object(&self.value()?) } else { output::line(self.for_people().join("\n")) }
    }

    fn value(&self) -> Result<Value> {
        let text =
            |pick: fn(&PromptReport) -> &String| self.prompts.first().map(pick).cloned().unwrap_or_default();
        Ok(json!({
            "texts": {"local": text(|p| &p.local), "remote": text(|p| &p.remote)},
            "prompts": self.prompts,
            "identical_tokens": self.comparison.identical_tokens,
            "equal_tokens": self.comparison.equal_tokens,
            "tokens_compared": self.comparison.tokens,
            "identical_logits": self.comparison.identical_logits,
            "cosine": self.comparison.cosine,
            "logits_compared": self.comparison.logits,
            "first_difference": self.comparison.first_difference,
            "remote_calls": self.remote.remote_calls,
            "recomputed_calls": self.remote.recomputed_calls,
            "metered_bytes": self.account.metered_bytes,
            "units": units(self.account.metered_bytes),
            "counted_by_backbone_bytes": self.remote.counted_bytes,
            "credited_nanokvr": self.account.credited_nanokvr,
            "wallets": self.account.wallets,
            "tokens_per_second": {"local": self.local.tokens_per_second, "remote": self.remote.tokens_per_second},
            "round_trips_per_token": self.remote.round_trips_per_token,
            "round_trip_ms": self.options.round_trip.map_or(0.0, |rtt| rtt.as_secs_f64() * 1e3),
            "workers": self.options.workers,
            "device": self.options.device.name(),
            "classes": self.remote.classes,
            "kernels": self.kernels,
            "audit": self.audited,
            "remote_layers": self.options.remote_layers,
            "control": if self.options.flip_bit { Some("flip-bit") } else { None },
        }))
    }

    fn for_people(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for prompt in &self.prompts {
            lines.push(prompt.prompt.clone());
            lines.push(format!("  local   {}", prompt.local.replace('\n', "\\n")));
            lines.push(format!("  remote  {}", prompt.remote.replace('\n', "\\n")));
        }
        let yes = |same: bool| if same { "identical" } else { "DIFFERENT" };
        lines.push(String::new());
        lines.push(format!(
            "tokens        {} ({} of {})",
            yes(self.comparison.identical_tokens),
            self.comparison.equal_tokens,
            self.comparison.tokens
        ));
        lines.push(format!(
            "logits        {} ({} values compared bit for bit; lowest cosine of a position {:.9})",
            match (self.comparison.identical_logits, self.options.device) {
                (false, DeviceChoice::Gpu) => "within the tolerance of a GPU, not identical",
                (same, _) => yes(same),
            },
            self.comparison.logits,
            self.comparison.cosine
        ));
        if let Some(first) = &self.comparison.first_difference {
            lines.push(format!(
                "              first at position {}, token {}: {} locally, {} remotely",
                first.position, first.token, first.local, first.remote
            ));
        }
        for kernel in self.kernels.iter().filter(|_| self.options.device == DeviceChoice::Gpu) {
            let device = kernel.device.as_deref().unwrap_or("no device");
            let software = if kernel.software { "; software, no GPU" } else { "" };
            lines.push(format!(
                "worker        class {}, on {}{software}",
                kernel.class,
                output::name(device)
            ));
        }
        lines.push(format!(
            "remote calls  {} ({} recomputed locally), {:.2} round trips a token",
            self.remote.remote_calls, self.remote.recomputed_calls, self.remote.round_trips_per_token
        ));
        lines.push(format!(
            "tokens/s      {:.0} local, {:.0} remote",
            self.local.tokens_per_second, self.remote.tokens_per_second
        ));
        lines.push(format!(
            "metered       {} bytes = {} units",
            self.account.metered_bytes,
            units(self.account.metered_bytes)
        ));
        for wallet in &self.account.wallets {
            lines.push(format!(
                "credited      {} nanoKVR = {} to wallet {}… ({} bytes, pending)",
                wallet.nanokvr,
                NanoKvr::new(i64::try_from(wallet.nanokvr).unwrap_or(i64::MAX)).kvr(),
                wallet.wallet.get(..12).unwrap_or(&wallet.wallet),
                wallet.bytes
            ));
        }
        if !self.credit_is_exact() {
            lines.push(format!("credit        DOES NOT MATCH: {} nanoKVR", self.account.credited_nanokvr));
        }
        lines.push(format!(
            "audit         {} of {} calls drawn and computed again on three engines: {}",
            self.audited.drawn,
            self.audited.records,
            match (self.audited.convicted, self.audited.tolerance) {
                (0, 0) if self.audited.is_well() => "all right, bit for bit".to_owned(),
                (0, count) if self.audited.is_well() =>
                    format!("{count} of class tolerance, which bytes convict nobody of"),
                (0, _) => format!("{} RIGHT", self.audited.right),
                (count, _) => format!("{count} WRONG"),
            }
        ));
        if let Some(finding) = &self.audited.first_finding {
            lines.push(format!("              {finding}"));
        }
        if self.options.flip_bit {
            lines.push(format!(
                "control       one bit of one remote result was flipped, and it {}",
                if self.comparison.identical() { "WAS NOT NOTICED" } else { "shows above" }
            ));
        }
        lines
    }
}

/// Bytes as units, without rounding.
fn units(bytes: u64) -> String {
    MeteredBytes::new(bytes).unwrap_or(MeteredBytes::MAX).units().to_string()
}
