//! Answers in OpenAI's JSON: whole ones, and the chunks of a stream, for both endpoints.

use serde_json::{Value, json};

use super::answer::{Delta, TokenText, Usage};
use super::asked::Endpoint;
use super::engine::Finish;

/// The least logarithm that is told: JSON has no infinity, and clients take this for one.
const LEAST_LOGPROB: f32 = -9999.0;

/// What is the same in everything that one request is told.
#[derive(Debug, Clone)]
pub(super) struct Form {
    pub(super) endpoint: Endpoint,
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) fingerprint: Option<String>,
    /// Whether probabilities were asked for.
    pub(super) logprobs: bool,
    /// Whether a stream ends with the usage.
    pub(super) include_usage: bool,
}

/// A whole text.
#[derive(Debug, Default)]
pub(super) struct Whole {
    text: String,
    tokens: Vec<TokenText>,
    finish: Option<Finish>,
}

impl Whole {
    /// Adds what came.
    pub(super) fn add(&mut self, delta: Delta) {
        self.text.push_str(&delta.text);
        self.tokens.extend(delta.tokens);
        self.finish = delta.finish.or(self.finish);
    }
}

impl Form {
    /// A whole answer.
    pub(super) fn whole(&self, texts: &[Whole], usage: Usage) -> Value {
        let choice = |(index, text): (usize, &Whole)| {
            let (logprobs, finish) = (self.logprobs(&text.tokens), finish_word(text.finish));
            match self.endpoint {
                Endpoint::Text => json!({
                    "index": index, "text": text.text, "logprobs": logprobs, "finish_reason": finish,
                }),
                Endpoint::Chat => json!({
                    "index": index, "message": {"role": "assistant", "content": text.text, "refusal": null},
                    "logprobs": logprobs, "finish_reason": finish,
                }),
            }
        };
        let object = match self.endpoint {
            Endpoint::Text => "text_completion",
            Endpoint::Chat => "chat.completion",
        };
        let choices: Vec<Value> = texts.iter().enumerate().map(choice).collect();
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": self.fingerprint, "choices": choices, "usage": usage_json(usage),
        })
    }

    /// What a stream begins with.
    pub(super) fn opening(&self, texts: usize) -> Vec<Value> {
        match self.endpoint {
            Endpoint::Text => Vec::new(),
            Endpoint::Chat => (0..texts)
                .map(|index| {
                    let delta = json!({"role": "assistant", "content": "", "refusal": null});
                    self.chunk(
                        json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]),
                    )
                })
                .collect(),
        }
    }

    /// The chunks of what came.
    pub(super) fn chunks(&self, delta: &Delta) -> Vec<Value> {
        let (index, logprobs) = (delta.choice, self.logprobs(&delta.tokens));
        let finish = delta.finish.map(|finish| finish_word(Some(finish)));
        match self.endpoint {
            Endpoint::Text => {
                let choice = json!({"index": index, "text": delta.text, "logprobs": logprobs, "finish_reason": finish});
                vec![self.chunk(json!([choice]))]
            }
            Endpoint::Chat => {
                let mut chunks = Vec::new();
                if !delta.text.is_empty() || !delta.tokens.is_empty() {
                    let content = json!({"content": delta.text});
                    chunks.push(self.chunk(
                        json!([{"index": index, "delta": content, "logprobs": logprobs, "finish_reason": null}]),
                    ));
                }
                if finish.is_some() {
                    chunks.push(self.chunk(
                        json!([{"index": index, "delta": {}, "logprobs": null, "finish_reason": finish}]),
                    ));
                }
                chunks
            }
        }
    }

    /// What a stream ends with, where the usage was asked for.
    pub(super) fn closing(&self, usage: Usage) -> Option<Value> {
        self.include_usage.then(|| {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage_json(usage);
            chunk
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        let object = match self.endpoint {
            Endpoint::Text => "text_completion",
            Endpoint::Chat => "chat.completion.chunk",
        };
        let mut chunk = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": self.fingerprint, "choices": choices,
        });
        // Where it is asked for, it is there in every chunk, and null in all but the last.
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn logprobs(&self, tokens: &[TokenText]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        match self.endpoint {
            Endpoint::Text => text_logprobs(tokens),
            Endpoint::Chat => chat_logprobs(tokens),
        }
    }
}

fn text_logprobs(tokens: &[TokenText]) -> Value {
    let top = |token: &TokenText| -> Value {
        token.top.iter().map(|(bytes, logprob)| (spelt(bytes), json!(told(*logprob)))).collect()
    };
    json!({
        "tokens": tokens.iter().map(|token| spelt(&token.bytes)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|token| told(token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": tokens.iter().map(|token| token.offset).collect::<Vec<_>>(),
    })
}

fn chat_logprobs(tokens: &[TokenText]) -> Value {
    let one = |bytes: &[u8], logprob: f32| json!({"token": String::from_utf8_lossy(bytes), "logprob": told(logprob), "bytes": bytes});
    let content = tokens.iter().map(|token| {
        let mut told = one(&token.bytes, token.logprob);
        told["top_logprobs"] = token.top.iter().map(|(bytes, logprob)| one(bytes, *logprob)).collect();
        told
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// A token's text; where its bytes are no text by themselves, the bytes, so that no two tokens are spelt alike.
fn spelt(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}")),
    }
}

fn told(logprob: f32) -> f32 {
    logprob.max(LEAST_LOGPROB)
}

fn finish_word(finish: Option<Finish>) -> &'static str {
    match finish {
        Some(Finish::Stop) => "stop",
        Some(Finish::Length) | None => "length",
    }
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt, "completion_tokens": usage.written,
        "total_tokens": usage.prompt + usage.written,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_are_no_text_are_spelt_by_their_bytes() {
        assert_eq!(spelt("é".as_bytes()), "é");
        assert_eq!(spelt(&[0xe2, 0x82]), "bytes:\\xe2\\x82");
        let half = TokenText {
            bytes: vec![0xe2],
            logprob: f32::NEG_INFINITY,
            top: vec![(vec![0xe2], -0.5)],
            offset: 3,
        };
        let told = text_logprobs(std::slice::from_ref(&half));
        assert_eq!(told["top_logprobs"][0]["bytes:\\xe2"], -0.5);
        assert_eq!((&told["token_logprobs"][0], &told["text_offset"][0]), (&json!(-9999.0), &json!(3)));
        let told = chat_logprobs(&[half]);
        assert_eq!(told["content"][0]["token"], "\u{fffd}");
        assert_eq!(told["content"][0]["top_logprobs"][0]["bytes"], json!([0xe2]));
    }
}
