//! `kvasir run`: answer prompts, with local experts or with workers behind a hub.

use std::io::{IsTerminal, Read};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use kvasir_backbone::{Event, Experts, Finish, GenerateOptions, Sampler, SamplerOptions, generate_between};
use kvasir_model::{Message, SpecialText, TokenId, TokenizerError};
use serde::Serialize;
use serde_json::json;

use crate::local::{ComputeOptions, Local};
use crate::logits::LogitsFile;
use crate::output;
use crate::plugin_store;
use crate::probes::{ProbeRate, Prober, prompts as prompts_of, unforeseeable};
use crate::remote::{Membership, RemoteOptions, RemoteReport};
use crate::settings::Settings;

/// Most bytes of a prompt that are read from standard input.
const PROMPT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// A progress line appears where reading the prompt takes longer than this.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

/// What `kvasir run` may be told.
pub struct RunOptions {
    /// Model, kernel, threads.
    pub compute: ComputeOptions,
    /// Answered in turn; `-` reads one from standard input.
    pub prompts: Vec<String>,
    /// Most tokens to generate for each.
    pub tokens: usize,
    /// 0 is greedy.
    pub temperature: f32,
    /// Sample among the k likeliest.
    pub top_k: Option<usize>,
    /// Sample among the likeliest that make up this much probability.
    pub top_p: Option<f32>,
    /// Seed of the sampler.
    pub seed: u64,
    /// Prompt tokens computed at once.
    pub prefill_chunk: usize,
    /// Apply the model's chat template to the prompt.
    pub chat: bool,
    /// File for raw logits.
    pub logits: Option<PathBuf>,
    /// Workers behind a hub; none computes every expert here.
    pub remote: Option<RemoteOptions>,
}

/// One prompt's answer.
#[derive(Debug, Serialize)]
struct Answer {
    prompt: String,
    text: String,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    finish: &'static str,
    #[serde(skip)]
    prefill: Duration,
    #[serde(skip)]
    decode: Duration,
}

/// `kvasir run`.
///
/// # Errors
/// The first prompt that cannot be answered, with what to do about it.
pub fn command(settings: &Settings, options: &RunOptions, json: bool) -> Result<()> {
    let prompts = options.prompts.iter().map(|prompt| read_prompt(prompt)).collect::<Result<Vec<_>>>()?;
    let local = Local::open(settings, &options.compute)?;
    let encoded =
        prompts.iter().map(|prompt| encode(&local, prompt, options.chat)).collect::<Result<Vec<_>>>()?;
    let generate_options = generate_options(&local, options)?;
    let mut logits =
        options.logits.as_deref().map(|path| logits_file(path, settings, options)).transpose()?;

    let probes = options.remote.as_ref().map(|remote| settings.probes(&remote.probes)).unwrap_or_default();
    let public = probes.folder.as_ref().map(|_| prompts_of(probes.prompts.as_deref())).transpose()?;

    let membership =
        options.remote.as_ref().map(|remote| Membership::join(settings, remote, &local)).transpose()?;
    let (mut experts, mut prober): (Box<dyn Experts>, Option<Prober<'_>>) = match &membership {
        Some(membership) => {
            let experts = membership.experts(&local);
            let switch = experts.probe_switch();
            let prober = public.map(|prompts| {
                let encode = |prompt: &str| encode(&local, prompt, options.chat);
                Prober::new(probes.rate.unwrap_or(ProbeRate::DEFAULT), prompts, switch, encode, unforeseeable)
            });
            (Box::new(experts), prober)
        }
        None => (Box::new(local.experts()), None),
    };
    let mut answers = Vec::new();
    let failed: Result<()> = prompts.iter().zip(&encoded).try_for_each(|(prompt, tokens)| {
        let echo = !json && !options.chat;
        let prompt = (prompt.as_str(), tokens.as_slice());
        let how = (json, echo);
        let experts: (&mut dyn Experts, _) = (experts.as_mut(), prober.as_mut());
        answers.push(answer(&local, prompt, &generate_options, experts, logits.as_mut(), how)?);
        Ok(())
    });
    drop(experts);
    let cost = prober.as_ref().map_or((0, Duration::ZERO), Prober::cost);
    // Also after a failure: the workers are owed a last receipt.
    let generated = answers.iter().map(|answer| answer.tokens.len()).sum();
    let remote = membership.map(|membership| membership.finish(generated, cost));
    failed?;
    if let Some(logits) = logits {
        logits.finish()?;
    }
    report(&local, &answers, remote.as_ref(), json)
}

/// Where logits go, which is none of the files that are read.
fn logits_file(path: &Path, settings: &Settings, options: &RunOptions) -> Result<LogitsFile> {
    let model = settings.model(options.compute.model.as_deref())?;
    let plugin = plugin_store::named_or_active(settings, options.compute.plugin.as_deref())?;
    let mut inputs = vec![plugin.as_path()];
    if let Some(remote) = &options.remote {
        inputs.extend([remote.ticket.as_path(), &remote.key]);
    }
    LogitsFile::create(path, &model, &inputs)
}

/// Checked before anything is computed or printed.
fn generate_options(local: &Local, options: &RunOptions) -> Result<GenerateOptions> {
    let sampler = SamplerOptions {
        temperature: options.temperature,
        top_k: options.top_k.unwrap_or(SamplerOptions::default().top_k),
        top_p: options.top_p.unwrap_or(SamplerOptions::default().top_p),
        seed: options.seed,
    };
    Sampler::new(sampler)?;
    Ok(GenerateOptions {
        prefill_chunk: NonZeroUsize::new(options.prefill_chunk)
            .context("a prefill chunk has at least 1 token")?,
        sampler,
        ..GenerateOptions::greedy(&local.backbone, options.tokens)
    })
}

/// Answers one prompt (its text and tokens). Output: nothing as it comes under `json`; else the continuation, after the
/// prompt where `echo` is set.
fn answer(
    local: &Local,
    (prompt, tokens): (&str, &[TokenId]),
    options: &GenerateOptions,
    (experts, mut prober): (&mut dyn Experts, Option<&mut Prober<'_>>),
    mut logits: Option<&mut LogitsFile>,
    (json, echo): (bool, bool),
) -> Result<Answer> {
    let mut stream = local.model.tokenizer().text_stream(SpecialText::Hidden);
    let mut text = String::new();
    let mut failed = None;
    let progress = Progress::new();
    if echo {
        output::piece(prompt)?;
    }
    let mut sequence = local.backbone.start();
    let mut between = |experts: &mut dyn Experts| {
        if let Some(prober) = &mut prober {
            prober.between(&local.backbone, experts);
        }
    };
    let mut on_event = |event: Event<'_>| {
        match event {
            Event::Read { done, of } => progress.read(done, of),
            Event::Chosen { token, logits: values } => {
                let piece = stream.push(token);
                text.push_str(&piece);
                let written = logits.as_mut().map_or(Ok(()), |file| file.write(values));
                let said = written.and_then(|()| if json { Ok(()) } else { output::piece(&piece) });
                if let Err(error) = said {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    };
    let generation = generate_between(
        &local.backbone,
        &mut sequence,
        tokens,
        options,
        experts,
        &mut on_event,
        &mut between,
    )
    .with_context(|| format!("cannot answer the prompt {:?}", shortened(prompt)))?;
    if let Some(error) = failed {
        return Err(error);
    }
    let rest = stream.finish();
    text.push_str(&rest);
    if !json {
        output::piece(&format!("{rest}\n"))?;
    }
    Ok(Answer {
        prompt: prompt.to_owned(),
        text,
        tokens: generation.tokens.iter().map(|token| token.0).collect(),
        prompt_tokens: generation.prompt_tokens,
        finish: match generation.finish {
            Finish::Stop(_) => "stop",
            Finish::Length => "length",
            Finish::ContextFull => "context",
            Finish::Cancelled => "cancelled",
        },
        prefill: generation.prefill,
        decode: generation.decode,
    })
}

/// Rates over all prompts. The first generated token of a prompt comes out of its prefill.
fn report(local: &Local, answers: &[Answer], remote: Option<&RemoteReport>, json: bool) -> Result<()> {
    let rate =
        |count: usize, time: Duration| if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() };
    let decoded = answers.iter().map(|answer| answer.tokens.len().saturating_sub(1)).sum();
    let decode = rate(decoded, answers.iter().map(|answer| answer.decode).sum());
    let read = answers.iter().map(|answer| answer.prompt_tokens).sum();
    let prefill = rate(read, answers.iter().map(|answer| answer.prefill).sum());
    if json {
        output::object(&json!({
            "model": local.model.name(), "plugin": local.plugin.digest().to_string(),
            "device": local.runner.adapter().map_or_else(|| "cpu".to_owned(), |adapter| adapter.to_string()),
            "threads": local.backbone.threads(), "vocabulary": local.model.config().vocabulary,
            "answers": answers, "tokens_per_second": decode, "prefill_tokens_per_second": prefill, "remote": remote,
        }))
    } else {
        output::remark(format!("{read} tokens read at {prefill:.0}/s, {decoded} written at {decode:.0}/s"));
        if let Some(remote) = remote {
            output::remark(remote.to_string());
        }
        Ok(())
    }
}

fn read_prompt(prompt: &str) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    std::io::stdin()
        .take(PROMPT_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .context("cannot read the prompt from standard input (it must be UTF-8)")?;
    if text.len() as u64 > PROMPT_BYTES_MAX {
        bail!("the prompt on standard input is longer than {PROMPT_BYTES_MAX} bytes");
    }
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}

fn encode(local: &Local, prompt: &str, chat: bool) -> Result<Vec<TokenId>> {
    if prompt.is_empty() {
        bail!("the prompt is empty: give at least one character");
    }
    let text = if chat {
        let template =
            local.model.chat_template().context("the model has no chat template: leave out --chat")?;
        template.render(&[user_message(prompt)], &[], true).context("the model's chat template failed")?
    } else {
        prompt.to_owned()
    };
    let limit = local.backbone.context_limit();
    // A text far beyond the context is not tokenised to its end.
    match local.model.tokenizer().encode_bounded(&text, limit) {
        Err(TokenizerError::TooManyTokensInText { .. }) => bail!(
            "the prompt {:?} has more tokens than the model's context holds, {limit}: shorten it",
            shortened(prompt)
        ),
        tokens => Ok(tokens?),
    }
}

fn user_message(prompt: &str) -> Message {
    Message { role: "user".to_owned(), content: prompt.into(), further: serde_json::Map::new() }
}

fn shortened(prompt: &str) -> String {
    let mut short: String = prompt.chars().take(40).collect();
    if short.len() < prompt.len() {
        short.push('…');
    }
    short
}

/// A progress line on a terminal, for prompts that take long to read.
struct Progress {
    bar: ProgressBar,
    begun: std::time::Instant,
}

impl Progress {
    fn new() -> Progress {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::no_length() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("reading {bar:30} {pos}/{len} tokens ({per_sec})") {
            bar.set_style(style);
        }
        Progress { bar, begun: std::time::Instant::now() }
    }

    fn read(&self, done: usize, of: usize) {
        if done == of {
            self.bar.finish_and_clear();
        } else if self.begun.elapsed() > PROGRESS_AFTER {
            self.bar.set_length(of as u64);
            self.bar.set_position(done as u64);
        }
    }
}
