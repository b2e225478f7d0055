//! The words of the command line: pairs of an option and its value.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use kvasir_operate::choices::VerifyChoice;
use kvasir_operate::local::ComputeOptions;
use kvasir_operate::memory::expert_bytes;
use kvasir_operate::probes::ProbeOptions;
use kvasir_operate::remote::{LayerSelection, PlacementChoice, RemoteOptions};
use kvasir_serve::scheduler::WaveOptions;

use crate::streams::Plan;

/// Streams, rows and rounds beyond this are a typing error.
const MOST: usize = 1 << 20;

/// What was told.
pub struct Arguments {
    /// Folder of settings, keys and packages.
    pub home: PathBuf,
    /// Model and threads.
    pub compute: ComputeOptions,
    /// The swarm.
    pub remote: Option<RemoteOptions>,
    /// Numbers of streams, one after the other.
    pub streams: Vec<usize>,
    /// How often each is measured.
    pub rounds: usize,
    /// How each is measured.
    pub plan: Plan,
    /// Rows of the calls that are measured alone.
    pub dispatch: Vec<usize>,
}

impl Arguments {
    /// # Errors
    /// The first word that is not understood.
    pub fn read(words: impl Iterator<Item = String>) -> Result<Arguments> {
        let mut words = Words::read(words)?;
        let threads = words.take("threads").map(|text| text.parse::<usize>()).transpose();
        let memory = words.take("memory").map(|text| text.parse::<u64>()).transpose();
        let compute = ComputeOptions {
            model: words.take("model").map(PathBuf::from),
            threads: threads.context("--threads wants a number")?,
            memory_mebibytes: memory.context("--memory wants a number of MiB")?,
            ..ComputeOptions::default()
        };
        let arguments = Arguments {
            home: words.take("home").map(PathBuf::from).context("--home is missing")?,
            remote: words.remote()?,
            streams: words.list("streams", "1")?,
            rounds: words.number("rounds", 1)?,
            plan: Plan {
                prompt: words.number("prompt", 16)?,
                tokens: words.number("tokens", 32)?,
                seconds: words.number("seconds", 1.0)?,
                waves: words.number("max-waves", WaveOptions::WAVES)?,
                // Experts may take half of what is free, texts a quarter, as in `kvasir serve`.
                memory: expert_bytes(None) / 2,
            },
            dispatch: words.list("dispatch", "")?,
            compute,
        };
        words.end()?;
        let Plan { prompt, tokens, seconds, .. } = arguments.plan;
        let counts = arguments.streams.iter().chain(&arguments.dispatch);
        if counts.copied().chain([arguments.rounds, prompt, tokens]).any(|count| !(1..=MOST).contains(&count))
        {
            bail!("streams, rows, rounds, prompt and tokens are from 1 to {MOST}");
        }
        if !(0.0..=3600.0).contains(&seconds) {
            bail!("--seconds {seconds} is not between 0 and an hour");
        }
        Ok(arguments)
    }
}

struct Words(BTreeMap<String, String>);

impl Words {
    fn read(mut words: impl Iterator<Item = String>) -> Result<Words> {
        let mut found = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").with_context(|| format!("{word:?} is no option"))?;
            let value = words.next().with_context(|| format!("{word} wants a value"))?;
            found.insert(name.to_owned(), value);
        }
        Ok(Words(found))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn number<T: FromStr<Err: Error + Send + Sync + 'static>>(&mut self, name: &str, usual: T) -> Result<T> {
        match self.take(name) {
            None => Ok(usual),
            Some(text) => text.parse::<T>().with_context(|| format!("--{name} {text}")),
        }
    }

    fn list(&mut self, name: &str, usual: &str) -> Result<Vec<usize>> {
        let text = self.take(name).unwrap_or_else(|| usual.to_owned());
        let parts = text.split(',').filter(|part| !part.is_empty());
        parts.map(|part| part.parse::<usize>().with_context(|| format!("--{name} {text}"))).collect()
    }

    fn remote(&mut self) -> Result<Option<RemoteOptions>> {
        let Some(hub) = self.take("hub") else { return Ok(None) };
        let file = |path: Option<String>, name: &str| {
            path.map(PathBuf::from).with_context(|| format!("--{name} is missing"))
        };
        let layers = self.take("remote-layers").unwrap_or_else(|| "all".to_owned());
        // Not the first 256 answers: what is measured is how it goes on.
        let verify = self.take("verify").unwrap_or_else(|| "0,64".to_owned());
        Ok(Some(RemoteOptions {
            hub,
            ticket: file(self.take("ticket"), "ticket")?,
            key: file(self.take("key"), "key")?,
            workers: self.number("workers", 1)?,
            layers: layers.parse::<LayerSelection>()?,
            placement: match self.take("placement").as_deref() {
                None | Some("layers") => PlacementChoice::Layers,
                Some("experts") => PlacementChoice::Experts,
                Some(other) => bail!("--placement {other}: layers or experts"),
            },
            copies: self.number("copies", 0)?,
            experts: None,
            deadline: None,
            accept: None,
            verify: Some(verify.parse::<VerifyChoice>()?),
            probes: ProbeOptions::default(),
        }))
    }

    fn end(self) -> Result<()> {
        match self.0.into_keys().next() {
            Some(name) => bail!("--{name} is not known, or needs --hub"),
            None => Ok(()),
        }
    }
}
