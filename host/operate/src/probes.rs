//! Probes: public prompts that are computed between the steps of one's own text, through the same experts, so that
//! anybody may replay what workers answered.
//!
//! A probe text has its own sequence and cache; what it computes is thrown away, and no bit of one's own text depends on
//! it. On the link its calls are calls like any other: a prompt's rows first, then a row a step, at moments drawn by
//! chance. Nothing private goes into it: prompts are put together at random from a public list, tokens are drawn from
//! the model's own distribution, so that two probes are hardly ever the same.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvasir_backbone::{
    Backbone, BackboneError, Experts, Feed, Sampler, SamplerOptions, Sequence, TokenId, Wanted,
};
use kvasir_dispatch::ProbeSwitch;
use serde::Deserialize;

use crate::files;

/// Tokens written behind a probe's prompt; then another prompt begins.
const PROBE_TOKENS: usize = 32;
/// Lines that one probe's prompt is put together from, at most.
const PROMPT_LINES_MAX: u64 = 3;
/// A file of prompts may not be larger: it is read whole.
const PROMPTS_BYTES_MAX: u64 = 1024 * 1024;
/// A line of it may not be longer.
const PROMPT_LINE_BYTES_MAX: usize = 4096;
/// Prompts that come with the program: written for it, free of anybody's data.
const BUNDLED: &str = include_str!("probe_prompts.txt");

/// How many passes of probes there are for each pass of one's own text, on average: 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Deserialize)]
#[serde(try_from = "f64")]
pub struct ProbeRate(f64);

impl ProbeRate {
    /// Two passes in a hundred: what a network asks for unless somebody says otherwise.
    pub const DEFAULT: ProbeRate = ProbeRate(0.02);

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for ProbeRate {
    type Error = anyhow::Error;

    fn try_from(rate: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&rate) {
            bail!("a probe rate is between 0 and 1, such as 0.02 for two passes in a hundred; {rate} is not");
        }
        Ok(ProbeRate(rate))
    }
}

impl FromStr for ProbeRate {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse::<f64>().with_context(|| format!("{text:?} is no number"))?.try_into()
    }
}

/// What is probed and what is kept, as told on the command line or by the environment; the settings file fills the gaps.
#[derive(Debug, Clone, Default)]
pub struct ProbeOptions {
    /// Folder for the records of probes. Without one nothing is probed.
    pub folder: Option<PathBuf>,
    /// How often.
    pub rate: Option<ProbeRate>,
    /// Prompts instead of the bundled ones, one a line.
    pub prompts: Option<PathBuf>,
    /// Folder for the payer's records of all its calls.
    pub rows: Option<PathBuf>,
    /// Folder for evidence against workers; an empty path for none.
    pub evidence: Option<PathBuf>,
}

/// Reads the prompts of `path`, one a line, or the bundled ones.
///
/// # Errors
/// Where the file cannot be read, is too large, or holds no prompt.
pub fn prompts(path: Option<&Path>) -> Result<Vec<String>> {
    let Some(path) = path else { return lines(BUNDLED) };
    let text = files::read_text_bounded(path, PROMPTS_BYTES_MAX)
        .with_context(|| format!("cannot read the probe prompts {}", path.display()))?;
    lines(&text).with_context(|| format!("the probe prompts {}", path.display()))
}

fn lines(text: &str) -> Result<Vec<String>> {
    let lines: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if lines.is_empty() {
        bail!("there is no prompt in it: write one a line");
    }
    if let Some(at) = lines.iter().position(|line| line.len() > PROMPT_LINE_BYTES_MAX) {
        bail!("prompt {} is longer than {PROMPT_LINE_BYTES_MAX} bytes: shorten it", at + 1);
    }
    Ok(lines)
}

/// Turns a prompt into tokens, as one's own prompts are.
type Encode<'a> = Box<dyn FnMut(&str) -> Result<Vec<TokenId>> + 'a>;

/// Computes probes between the passes of a text.
pub struct Prober<'a> {
    rate: ProbeRate,
    prompts: Vec<String>,
    switch: ProbeSwitch,
    encode: Encode<'a>,
    random: Box<dyn FnMut() -> u64 + 'a>,
    text: Option<Text>,
    /// Passes computed.
    passes: u64,
    /// Time that they took.
    took: Duration,
}

/// The probe text that is being computed.
struct Text {
    sequence: Sequence,
    next: Vec<TokenId>,
    sampler: Sampler,
    left: usize,
}

impl<'a> Prober<'a> {
    /// Probes with `prompts`, at least one. `switch` is that of the experts that will be given; `random` must be nobody's
    /// to foresee.
    pub fn new(
        rate: ProbeRate,
        prompts: Vec<String>,
        switch: ProbeSwitch,
        encode: impl FnMut(&str) -> Result<Vec<TokenId>> + 'a,
        random: impl FnMut() -> u64 + 'a,
    ) -> Self {
        let (encode, random) = (Box::new(encode), Box::new(random));
        Self { rate, prompts, switch, encode, random, text: None, passes: 0, took: Duration::ZERO }
    }

    /// One pass of one's own text is over: computes a pass of a probe, or does not, as chance has it. A probe that fails is
    /// forgotten; what made it fail will show in one's own text if it lasts.
    pub fn between(&mut self, backbone: &Backbone, experts: &mut dyn Experts) {
        // 53 bits: what a f64 between 0 and 1 holds.
        let draw = ((self.random)() >> 11) as f64 / (1u64 << 53) as f64;
        if draw >= self.rate.get() {
            return;
        }
        let began = Instant::now();
        self.switch.set(true);
        let done = self.pass(backbone, experts);
        self.switch.set(false);
        self.took += began.elapsed();
        if let Err(error) = done {
            tracing::debug!(%error, "a probe came to nothing");
            self.text = None;
        }
    }

    /// Passes so far, and the time that they took.
    pub fn cost(&self) -> (u64, Duration) {
        (self.passes, self.took)
    }

    fn pass(&mut self, backbone: &Backbone, experts: &mut dyn Experts) -> Result<()> {
        let mut text = match self.text.take() {
            Some(text) => text,
            None => self.begin(backbone)?,
        };
        let Text { sequence, next, sampler, left } = &mut text;
        let mut feeds = [Feed { sequence, tokens: next, logits: Wanted::Last }];
        let logits = backbone.forward(&mut feeds, experts)?;
        self.passes += 1;
        let token = logits.first().and_then(|logits| logits.last()).map(|logits| sampler.choose(logits));
        let Some(token) = token else { return Ok(()) };
        *next = vec![token];
        *left = left.saturating_sub(1);
        let ended = backbone.model().config().end_of_text.contains(&token);
        if !ended && *left > 0 && sequence.len() < sequence.limit() {
            self.text = Some(text);
        }
        Ok(())
    }

    fn begin(&mut self, backbone: &Backbone) -> Result<Text> {
        let lines = 1 + (self.random)() % PROMPT_LINES_MAX;
        let chosen: Vec<&str> = (0..lines)
            .filter_map(|_| {
                let at = (self.random)() % self.prompts.len().max(1) as u64;
                self.prompts.get(at as usize).map(String::as_str)
            })
            .collect();
        let mut next = (self.encode)(&chosen.join(" "))?;
        next.truncate(backbone.context_limit());
        if next.is_empty() {
            return Err(BackboneError::PromptEmpty.into());
        }
        let sampler = SamplerOptions { temperature: 1.0, seed: (self.random)(), ..SamplerOptions::default() };
        Ok(Text { sequence: backbone.start(), next, sampler: Sampler::new(sampler)?, left: PROBE_TOKENS })
    }
}

/// A number that nobody can foresee. Without randomness from the system nothing is probed: no draw is below any rate.
pub fn unforeseeable() -> u64 {
    getrandom::u64().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_between_nothing_and_as_many_again() {
        assert_eq!("0.02".parse::<ProbeRate>().unwrap(), ProbeRate::DEFAULT);
        assert_eq!("1".parse::<ProbeRate>().unwrap().get(), 1.0);
        for wrong in ["", "-0.1", "1.01", "NaN", "inf", "2%"] {
            assert!(wrong.parse::<ProbeRate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn prompts_are_lines_and_bounded() {
        let bundled = prompts(None).unwrap();
        assert!(bundled.len() >= 32 && bundled.iter().all(|prompt| prompt.len() < 80));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prompts");
        std::fs::write(&path, "one\n\n  two \n").unwrap();
        assert_eq!(prompts(Some(&path)).unwrap(), ["one", "two"]);
        for (text, said) in [
            ("\n \n".to_owned(), "no prompt"),
            ("x".repeat(PROMPT_LINE_BYTES_MAX + 1), "4096"),
            ("x\n".repeat(PROMPTS_BYTES_MAX as usize / 2 + 1), "1048576"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = format!("{:#}", prompts(Some(&path)).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
    }
}
