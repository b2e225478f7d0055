//! What `kvasir serve` may be told, and what follows from it: addresses, keys, names, memory, context.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use kvasir_backbone::SequenceCost;
use kvasir_model::{Config, Model};
use kvasir_serve::api::{ApiKeys, MAX_CHOICES, Origins};
use kvasir_serve::scheduler::{SchedulerOptions, WaveOptions};
use serde::Deserialize;

use crate::local::{ComputeOptions, Local};
use crate::memory::{MEBIBYTE, expert_bytes};
use crate::remote::RemoteOptions;
use crate::settings::Settings;

/// Where it listens unless somebody says otherwise: for this machine alone.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Names of a model, and origins of pages: more are a mistake.
const MOST_WORDS: usize = 64;
/// Bytes of a name or an origin.
const MOST_WORD_BYTES: usize = 256;
/// Where nobody says how long texts may be, one takes at most this part of the memory for texts.
const PART_OF_MEMORY: u64 = 4;
/// A context of fewer tokens is of no use.
const LEAST_CONTEXT: usize = 256;

/// What `kvasir serve` may be told; the settings file fills the gaps.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// Model, kernel, threads.
    pub compute: ComputeOptions,
    /// Workers behind a hub; none computes every expert here.
    pub remote: Option<RemoteOptions>,
    /// Measure this machine alone before serving.
    pub measure_local: bool,
    /// What the settings file may say too.
    pub told: ServeSettings,
}

/// The table `[serve]` of the settings file. Every field may be left out.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServeSettings {
    /// Address to listen on.
    pub listen: Option<SocketAddr>,
    /// File of the clients' keys.
    pub api_keys: Option<PathBuf>,
    /// Names of the model for clients; answers say the first.
    #[serde(default)]
    pub names: Vec<String>,
    /// Origins of pages that may use the service; `*` for all.
    #[serde(default)]
    pub cors_origins: Vec<String>,
    /// Texts written at once at most.
    pub max_texts: Option<usize>,
    /// Texts that may wait.
    pub max_queue: Option<usize>,
    /// Passes under way at most.
    pub max_waves: Option<usize>,
    /// Rows of prompts in a pass at most.
    pub prefill_rows: Option<usize>,
    /// Memory for texts, in MiB.
    pub text_memory: Option<u64>,
    /// Tokens that a prompt and its text may have together.
    pub context: Option<usize>,
}

impl ServeSettings {
    /// What was told, and what `other` says where nothing was.
    fn or(&self, other: &ServeSettings) -> ServeSettings {
        let list = |told: &Vec<String>, other: &Vec<String>| {
            if told.is_empty() { other.clone() } else { told.clone() }
        };
        ServeSettings {
            listen: self.listen.or(other.listen),
            api_keys: self.api_keys.clone().or_else(|| other.api_keys.clone()),
            names: list(&self.names, &other.names),
            cors_origins: list(&self.cors_origins, &other.cors_origins),
            max_texts: self.max_texts.or(other.max_texts),
            max_queue: self.max_queue.or(other.max_queue),
            max_waves: self.max_waves.or(other.max_waves),
            prefill_rows: self.prefill_rows.or(other.prefill_rows),
            text_memory: self.text_memory.or(other.text_memory),
            context: self.context.or(other.context),
        }
    }
}

/// What can be decided without the model.
pub(super) struct Decided {
    pub(super) listen: SocketAddr,
    pub(super) keys: Option<ApiKeys>,
    pub(super) origins: Origins,
    names: Vec<String>,
    waves: WaveOptions,
    queue: usize,
    context: Option<usize>,
}

/// How texts are scheduled.
pub(super) struct Scheduling {
    pub(super) options: SchedulerOptions,
    /// Tokens that a prompt and its text may have together.
    pub(super) context: usize,
}

impl Scheduling {
    /// Texts that may be written or wait.
    pub(super) fn texts(&self) -> usize {
        self.options.waves.texts.saturating_add(self.options.queue)
    }
}

impl ServeOptions {
    /// Checks what was told and reads the keys. Warns where whoever reaches the address may ask.
    pub(super) fn decide(&self, settings: &Settings) -> Result<Decided> {
        let told = self.told.or(settings.serve());
        let listen = told.listen.unwrap_or(DEFAULT_LISTEN);
        let keys = told.api_keys.as_deref().map(ApiKeys::read).transpose()?;
        if keys.is_none() && !listen.ip().is_loopback() {
            tracing::warn!(
                "{listen} can be reached from other machines, and whoever reaches it may ask: name a file of keys with \
                 --api-keys, or listen on 127.0.0.1"
            );
        }
        let memory = match told.text_memory {
            Some(mebibytes) => mebibytes.saturating_mul(MEBIBYTE),
            // Experts may take half of what is free, texts a quarter.
            None => expert_bytes(None) / 2,
        };
        let usual = WaveOptions::new(memory);
        let waves = WaveOptions {
            texts: within("--max-texts", told.max_texts, usual.texts, WaveOptions::MOST_TEXTS)?,
            waves: within("--max-waves", told.max_waves, usual.waves, WaveOptions::MOST_WAVES)?,
            prefill_rows: within(
                "--prefill-rows",
                told.prefill_rows,
                usual.prefill_rows,
                WaveOptions::MOST_TEXTS,
            )?,
            memory,
        };
        let queue = told.max_queue.unwrap_or(SchedulerOptions::QUEUE);
        if queue > SchedulerOptions::MOST_QUEUED {
            bail!("--max-queue is {queue}; 0 to {} are allowed", SchedulerOptions::MOST_QUEUED);
        }
        if waves.texts.saturating_add(queue) < MAX_CHOICES {
            bail!(
                "{} texts and {queue} that wait are fewer than one request may ask for, {MAX_CHOICES}: raise --max-texts \
                 or --max-queue",
                waves.texts
            );
        }
        check_words("--name", &told.names)?;
        let origins = origins(&told.cors_origins)?;
        Ok(Decided { listen, keys, origins, names: told.names, waves, queue, context: told.context })
    }
}

impl Decided {
    /// The names that clients ask for: those that were told, else the model's own.
    pub(super) fn names(&self, model: &Model) -> Vec<String> {
        if self.names.is_empty() { vec![model.name().to_owned()] } else { self.names.clone() }
    }

    /// How texts of a model are scheduled.
    ///
    /// # Errors
    /// Where memory holds no text of the context that was asked for, or of any use; with the figures.
    pub(super) fn scheduling(&self, config: &Config) -> Result<Scheduling> {
        let context = context(config, self.waves.memory, self.context)?;
        Ok(Scheduling { options: SchedulerOptions { waves: self.waves, queue: self.queue }, context })
    }
}

/// A number that was told, from 1 to `most`.
fn within(flag: &str, told: Option<usize>, usual: usize, most: usize) -> Result<usize> {
    match told {
        None => Ok(usual),
        Some(number) if (1..=most).contains(&number) => Ok(number),
        Some(number) => bail!("{flag} is {number}; 1 to {most} are allowed"),
    }
}

fn check_words(flag: &str, words: &[String]) -> Result<()> {
    if words.len() > MOST_WORDS {
        bail!("{flag} was given {} times; {MOST_WORDS} are allowed", words.len());
    }
    match words.iter().find(|word| word.is_empty() || word.len() > MOST_WORD_BYTES) {
        Some(word) => bail!("{flag} has {} bytes; 1 to {MOST_WORD_BYTES} are allowed", word.len()),
        None => Ok(()),
    }
}

fn origins(told: &[String]) -> Result<Origins> {
    check_words("--cors-origin", told)?;
    if told.iter().any(|origin| origin == "*") {
        return Ok(Origins::Any);
    }
    for origin in told {
        let rest = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        let is_one = rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '?', '#', ' ', '*']));
        if !is_one {
            bail!("{origin:?} is no origin: write it as a browser does, https://chat.example, or * for all");
        }
    }
    Ok(if told.is_empty() { Origins::None } else { Origins::Listed(told.to_vec()) })
}

/// Tokens that a prompt and its text may have together, with so much memory for all texts.
fn context(config: &Config, memory: u64, named: Option<usize>) -> Result<usize> {
    let cost = SequenceCost::of(config);
    let longest = config.context_length as usize;
    let fits = |part: u64| {
        let tokens = (memory / part).saturating_sub(cost.fixed) / cost.token.max(1);
        usize::try_from(tokens).unwrap_or(usize::MAX).min(longest)
    };
    let figures = || {
        format!(
            "a text of this model takes {} bytes and {} a token, and there are {memory} bytes for texts",
            cost.fixed, cost.token
        )
    };
    match named {
        Some(0) => bail!("a context of 0 tokens holds nothing"),
        Some(tokens) if tokens > longest => {
            bail!("--context is {tokens}; the model was made for {longest} tokens")
        }
        Some(tokens) if tokens > fits(1) => {
            bail!("{}: a context of {tokens} tokens does not fit; raise --text-memory", figures())
        }
        Some(tokens) => Ok(tokens),
        None => {
            let least = LEAST_CONTEXT.min(longest);
            let tokens = fits(PART_OF_MEMORY).max(fits(1).min(least));
            if tokens < least {
                bail!("{}: not even {least} tokens fit; raise --text-memory", figures());
            }
            Ok(tokens)
        }
    }
}

/// What answers say of the bits that they have: the same words for the same model and plugin.
///
/// # Errors
/// Where the model cannot be read.
pub(super) fn fingerprint(local: &Local) -> Result<String> {
    let model = local.model.digests().context("cannot read the model's digest")?.model.0;
    let both = kvasir_wire::id::sha256(&[&model, &local.plugin.digest().0]);
    let text: String = both.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("kv_{text}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn decide(told: ServeSettings, file: &str) -> Result<Decided> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("c.toml");
        fs::write(&path, file).unwrap();
        let settings = Settings::load(Some(&path), Some(home.path()))?;
        ServeOptions { told, ..ServeOptions::default() }.decide(&settings)
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let usual = decide(ServeSettings::default(), "").unwrap();
        assert_eq!((usual.listen, usual.queue), (DEFAULT_LISTEN, SchedulerOptions::QUEUE));
        assert!(usual.keys.is_none() && usual.origins == Origins::None);
        let file = "[serve]\nlisten = '[::1]:9'\nmax_texts = 20\ncors_origins = ['https://a.example']\n";
        let filed = decide(ServeSettings::default(), file).unwrap();
        assert_eq!((filed.listen.port(), filed.waves.texts), (9, 20));
        assert_eq!(filed.origins, Origins::Listed(vec!["https://a.example".to_owned()]));
        let told = ServeSettings {
            max_texts: Some(30),
            cors_origins: vec!["*".to_owned()],
            text_memory: Some(5),
            ..ServeSettings::default()
        };
        let told = decide(told, file).unwrap();
        assert_eq!((told.listen.port(), told.waves.texts, told.waves.memory), (9, 30, 5 << 20));
        assert_eq!(told.origins, Origins::Any);
    }

    #[test]
    fn what_is_out_of_bounds_is_refused_by_name() {
        let refused = |told: ServeSettings| format!("{:#}", decide(told, "").err().unwrap());
        let none = ServeSettings::default;
        assert!(
            refused(ServeSettings { max_waves: Some(0), ..none() }).contains("--max-waves is 0; 1 to 64")
        );
        assert!(refused(ServeSettings { max_texts: Some(usize::MAX), ..none() }).contains("--max-texts"));
        assert!(refused(ServeSettings { prefill_rows: Some(0), ..none() }).contains("--prefill-rows"));
        let few = ServeSettings { max_texts: Some(1), max_queue: Some(0), ..none() };
        assert!(refused(few).contains("fewer than one request may ask for"));
        let names = vec!["a".repeat(MOST_WORD_BYTES + 1)];
        assert!(refused(ServeSettings { names, ..none() }).contains("257 bytes"));
        let names = vec!["a".to_owned(); MOST_WORDS + 1];
        assert!(refused(ServeSettings { names, ..none() }).contains("65 times"));
        for origin in ["chat.example", "https://", "https://a.example/", "https://*.example"] {
            let cors_origins = vec![origin.to_owned()];
            assert!(refused(ServeSettings { cors_origins, ..none() }).contains("is no origin"), "{origin}");
        }
        let keys = ServeSettings { api_keys: Some(PathBuf::from("/not/there")), ..none() };
        assert!(refused(keys).contains("/not/there"));
        let error = format!("{:#}", decide(none(), "[serve]\nlisten_on = 'x'\n").err().unwrap());
        assert!(error.contains("listen_on"), "{error}");
    }

    #[test]
    fn a_context_that_memory_cannot_hold_is_refused_with_the_figures() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny/tiny-q8_0.gguf");
        let model = Model::open(&path).unwrap();
        let config = model.config();
        let (cost, longest) = (SequenceCost::of(config), config.context_length as usize);
        assert_eq!(context(config, 1 << 40, None).unwrap(), longest);
        assert_eq!(context(config, 1 << 40, Some(7)).unwrap(), 7);
        // One text may have all of the memory where it is asked for, a quarter of it where it is not.
        let memory = 4 * cost.bytes(longest / 2);
        assert_eq!(context(config, memory, None).unwrap(), longest / 2);
        assert_eq!(context(config, memory, Some(longest)).unwrap(), longest);
        for (memory, named) in [(0, None), (cost.bytes(8) - 1, Some(8)), (1 << 40, Some(longest + 1))] {
            let error = context(config, memory, named).unwrap_err().to_string();
            assert!(error.contains("--text-memory") || error.contains("--context"), "{error}");
        }
        assert!(context(config, 1 << 40, Some(0)).is_err());
    }
}
