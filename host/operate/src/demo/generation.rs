//! What one `kvasir run` reported, read back from its JSON and its file of logits.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use super::fields::{number, text};

/// One prompt's answer.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The prompt.
    pub prompt: String,
    /// Its continuation.
    pub text: String,
    /// The generated tokens.
    pub tokens: Vec<u64>,
}

/// What one `kvasir run` reported.
#[derive(Debug, Clone, Default)]
pub struct Generation {
    /// In the order of the prompts.
    pub answers: Vec<Answer>,
    /// Logits of every generated position of every prompt, one after the other.
    pub logits: Vec<f32>,
    /// Logits of one position.
    pub vocabulary: usize,
    /// Of the decode.
    pub tokens_per_second: f64,
    /// Calls answered by workers.
    pub remote_calls: u64,
    /// Calls that were computed locally because a worker did not answer well or in time.
    pub recomputed_calls: u64,
    /// Waits for a remote answer per generated token.
    pub round_trips_per_token: f64,
    /// Payload bytes of calls and results, as the backbone counted them.
    pub counted_bytes: u64,
    /// Sessions with workers.
    pub sessions: usize,
    /// The class of each session, by its transcript.
    pub classes: Vec<String>,
}

impl Generation {
    /// From the JSON report and the raw logits beside it.
    ///
    /// # Errors
    /// Where either does not hold what `kvasir run` writes.
    pub fn read(value: &Value, logits: &Path) -> Result<Generation> {
        let answers =
            value.get("answers").and_then(Value::as_array).ok_or_else(|| anyhow!("no answers in {value}"))?;
        let answers = answers
            .iter()
            .map(|answer| {
                let tokens = answer
                    .get("tokens")
                    .and_then(Value::as_array)
                    .map(|tokens| tokens.iter().filter_map(Value::as_u64).collect())
                    .unwrap_or_default();
                Ok(Answer { prompt: text(answer, "prompt")?, text: text(answer, "text")?, tokens })
            })
            .collect::<Result<Vec<_>>>()?;
        let bytes = fs::read(logits).with_context(|| format!("cannot read {}", logits.display()))?;
        let remote = value.get("remote").unwrap_or(&Value::Null);
        let count = |name: &str| remote.get(name).and_then(Value::as_u64).unwrap_or(0);
        Ok(Generation {
            answers,
            logits: bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect(),
            vocabulary: usize::try_from(number(value, "vocabulary")?)
                .context("a vocabulary beyond memory")?,
            tokens_per_second: value.get("tokens_per_second").and_then(Value::as_f64).unwrap_or(0.0),
            remote_calls: count("calls"),
            recomputed_calls: count("recomputed"),
            counted_bytes: count("bytes_up") + count("bytes_down"),
            sessions: remote.get("workers").and_then(Value::as_array).map_or(0, Vec::len),
            classes: remote
                .get("workers")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(|worker| text(worker, "class"))
                .collect::<Result<_>>()?,
            round_trips_per_token: remote.get("round_trips_per_token").and_then(Value::as_f64).unwrap_or(0.0),
        })
    }
}
