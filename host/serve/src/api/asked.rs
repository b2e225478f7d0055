//! What a request asks for: both endpoints' parameters, checked one by one against named limits.

use std::sync::Arc;

use kvasir_backbone::SamplerOptions;
use kvasir_model::TokenId;
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, shown, wrong};
use super::language::{Chat, Language};
use super::messages;

/// Texts of one request: prompts times `n`.
pub const MAX_CHOICES: usize = 16;
/// Stop strings of one request.
pub const MAX_STOPS: usize = 16;
/// Bytes of one stop string.
pub const MAX_STOP_BYTES: usize = 256;
/// Most probable tokens that are told beside each chosen one.
pub const MAX_TOP_LOGPROBS: usize = 20;
/// Tools of one request.
pub const MAX_TOOLS: usize = 128;
/// Tokens of a completion that does not say how many.
const DEFAULT_COMPLETION_TOKENS: usize = 16;

/// The two endpoints that write texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// `/v1/completions`.
    Text,
    /// `/v1/chat/completions`.
    Chat,
}

impl Endpoint {
    /// A word for the figures.
    pub(super) fn word(self) -> &'static str {
        match self {
            Endpoint::Text => "completions",
            Endpoint::Chat => "chat_completions",
        }
    }

    fn prompt(self) -> &'static str {
        match self {
            Endpoint::Text => "prompt",
            Endpoint::Chat => "messages",
        }
    }
}

/// A request that was understood.
#[derive(Debug)]
pub(super) struct Asked {
    /// What is continued: 1 to [`MAX_CHOICES`] prompts.
    pub(super) prompts: Vec<Arc<[TokenId]>>,
    /// Texts for each prompt.
    pub(super) choices: usize,
    /// Tokens of a text at most; each prompt leaves room for one at least.
    pub(super) max_tokens: usize,
    /// How tokens are chosen; the seed is that of the first text.
    pub(super) sampler: SamplerOptions,
    /// What ends a text.
    pub(super) stops: Arc<[String]>,
    /// How many probable tokens are told beside each chosen one; `None`: no probabilities.
    pub(super) top_logprobs: Option<usize>,
    /// Whether the answer is told as it comes.
    pub(super) stream: bool,
    /// Whether a stream ends with the usage.
    pub(super) include_usage: bool,
}

impl Asked {
    /// Reads a request's body. It renders and tokenises, which takes a while for a long text.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(super) fn read(
        endpoint: Endpoint,
        body: &[u8],
        names: &[String],
        language: &dyn Language,
        context: usize,
    ) -> Result<Asked, ApiError> {
        let mut fields = Fields::parse(body)?;
        check_model(&fields.text("model")?.ok_or_else(|| ApiError::missing("model"))?, names)?;
        let sampler = sampler(&mut fields, language)?;
        let choices = fields.whole("n", 1..=MAX_CHOICES)?.unwrap_or(1);
        let stops = stops(fields.take("stop"))?;
        let stream = fields.flag("stream")?;
        let include_usage = include_usage(&mut fields, stream)?;
        refuse_what_the_sampler_has_not(&mut fields)?;
        let max_tokens = max_tokens(endpoint, &mut fields, context)?;
        let top_logprobs = top_logprobs(endpoint, &mut fields)?;
        let prompts = match endpoint {
            Endpoint::Text => {
                let prompts = prompts(&mut fields, choices)?;
                refuse_what_completions_have_not(&mut fields, choices)?;
                fields.finish()?;
                let encoded = prompts.into_iter().map(|prompt| prompt.encoded(endpoint, language, context));
                encoded.collect::<Result<Vec<_>, _>>()?
            }
            Endpoint::Chat => {
                let chat = chat(&mut fields)?;
                fields.finish()?;
                let text = language.render(&chat).map_err(|error| ApiError::of_template(&error))?;
                vec![Prompt::Text(text).encoded(endpoint, language, context)?]
            }
        };
        for prompt in &prompts {
            check_length(endpoint, prompt.len(), context)?;
        }
        let prompts = prompts.into_iter().map(Arc::from).collect();
        Ok(Asked { prompts, choices, max_tokens, sampler, stops, top_logprobs, stream, include_usage })
    }

    /// Texts in all.
    pub(super) fn texts(&self) -> usize {
        self.prompts.len() * self.choices
    }
}

fn check_model(asked: &str, names: &[String]) -> Result<(), ApiError> {
    if names.iter().any(|name| name == asked) {
        return Ok(());
    }
    Err(ApiError::no_such_model(asked, names.first().map_or("", String::as_str)))
}

fn check_length(endpoint: Endpoint, tokens: usize, context: usize) -> Result<(), ApiError> {
    match tokens {
        0 => Err(ApiError::invalid(endpoint.prompt(), "the prompt is empty: there is nothing to continue")),
        _ if tokens >= context => Err(ApiError::too_long(endpoint.prompt(), Some(tokens), 0, context)),
        _ => Ok(()),
    }
}

fn sampler(fields: &mut Fields, language: &dyn Language) -> Result<SamplerOptions, ApiError> {
    let temperature = fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0) as f32;
    let top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0) as f32;
    let top_k = fields.whole("top_k", 0..=language.vocabulary())?.unwrap_or(0);
    let seed = match fields.take("seed") {
        // A generator without randomness of its own gives the same text again, which is no harm.
        None => getrandom::u64().unwrap_or_default(),
        Some(value) => value
            .as_i64()
            .map(i64::cast_unsigned)
            .or(value.as_u64())
            .ok_or_else(|| wrong("seed", &value, "a whole number of 64 bits"))?,
    };
    // The sampler wants a share above nothing; the smallest leaves the most probable token, as nothing would.
    Ok(SamplerOptions { temperature, top_k, top_p: top_p.max(f32::MIN_POSITIVE), seed })
}

fn stops(value: Option<Value>) -> Result<Arc<[String]>, ApiError> {
    let one = |value: Value| match value {
        Value::String(stop) if (1..=MAX_STOP_BYTES).contains(&stop.len()) => Ok(stop),
        Value::String(stop) => {
            let message =
                format!("a stop string has {} bytes; 1 to {MAX_STOP_BYTES} are allowed", stop.len());
            Err(ApiError::invalid("stop", message))
        }
        other => Err(wrong("stop", &other, "a string or an array of strings")),
    };
    match value {
        None => Ok(Arc::default()),
        Some(Value::Array(stops)) if stops.len() <= MAX_STOPS => stops.into_iter().map(one).collect(),
        Some(Value::Array(stops)) => {
            let message = format!("`stop` has {} strings; {MAX_STOPS} are allowed", stops.len());
            Err(ApiError::invalid("stop", message))
        }
        Some(value) => Ok(Arc::from([one(value)?])),
    }
}

fn include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(ApiError::invalid("stream_options", "`stream_options` goes with `stream` alone"));
    }
    match options.get("include_usage") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(wanted)) => Ok(*wanted),
        Some(other) => Err(wrong("stream_options.include_usage", other, "true or false")),
    }
}

fn refuse_what_the_sampler_has_not(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["presence_penalty", "frequency_penalty"] {
        if let Some(penalty) = fields.number(name, -2.0..=2.0)?
            && penalty != 0.0
        {
            return Err(ApiError::unsupported(
                name,
                format!("`{name}` is {penalty}: the sampler has no penalties"),
            ));
        }
    }
    let is_empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
    fields.neutral("logit_bias", is_empty, "the sampler has no biases")
}

fn refuse_what_completions_have_not(fields: &mut Fields, choices: usize) -> Result<(), ApiError> {
    fields.neutral("echo", |value| value.as_bool() == Some(false), "the prompt is not repeated")?;
    fields.neutral(
        "suffix",
        |value| value.as_str().is_some_and(str::is_empty),
        "the model writes forwards alone",
    )?;
    fields.neutral(
        "best_of",
        |value| value.as_u64() == Some(choices as u64),
        "all texts that are written are told: it must be `n`",
    )
}

fn max_tokens(endpoint: Endpoint, fields: &mut Fields, context: usize) -> Result<usize, ApiError> {
    let most = context.max(1);
    let tokens = fields.whole("max_tokens", 1..=most)?;
    match endpoint {
        Endpoint::Text => Ok(tokens.unwrap_or(DEFAULT_COMPLETION_TOKENS)),
        Endpoint::Chat => match (tokens, fields.whole("max_completion_tokens", 1..=most)?) {
            (Some(one), Some(other)) if one != other => {
                let message =
                    format!("`max_tokens` is {one} and `max_completion_tokens` {other}: give one of them");
                Err(ApiError::invalid("max_completion_tokens", message))
            }
            (one, other) => Ok(other.or(one).unwrap_or(most)),
        },
    }
}

fn top_logprobs(endpoint: Endpoint, fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    if endpoint == Endpoint::Text {
        return fields.whole("logprobs", 0..=MAX_TOP_LOGPROBS);
    }
    let wanted = fields.flag("logprobs")?;
    let top = fields.whole("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true"))
        }
    }
}

/// A prompt as it was given.
enum Prompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

impl Prompt {
    fn encoded(
        self,
        endpoint: Endpoint,
        language: &dyn Language,
        context: usize,
    ) -> Result<Vec<TokenId>, ApiError> {
        match self {
            // Twice as much as fits is counted, so that the error can say how much it is.
            Prompt::Text(text) => language
                .encode(&text, context.saturating_mul(2))
                .map_err(|error| ApiError::of_tokenizer(&error, endpoint.prompt(), context)),
            Prompt::Tokens(tokens) => {
                let vocabulary = language.vocabulary();
                match tokens.iter().find(|token| token.0 as usize >= vocabulary) {
                    Some(token) => {
                        let message = format!("token {token} is outside the vocabulary of {vocabulary}");
                        Err(ApiError::invalid("prompt", message))
                    }
                    None => Ok(tokens),
                }
            }
        }
    }
}

/// One text, several, one list of tokens, or several.
fn prompts(fields: &mut Fields, choices: usize) -> Result<Vec<Prompt>, ApiError> {
    let expected = "a string, an array of strings, an array of tokens, or an array of such arrays";
    let prompts = match fields.take("prompt") {
        None => return Err(ApiError::missing("prompt")),
        Some(Value::String(text)) => vec![Prompt::Text(text)],
        Some(Value::Array(values)) if values.first().is_some_and(Value::is_number) => vec![tokens(&values)?],
        Some(Value::Array(values)) => {
            check_count(values.len(), choices)?;
            let prompts = values.into_iter().map(|value| match value {
                Value::String(text) => Ok(Prompt::Text(text)),
                Value::Array(values) => tokens(&values),
                other => Err(wrong("prompt", &other, expected)),
            });
            prompts.collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong("prompt", &other, expected)),
    };
    check_count(prompts.len(), choices)?;
    Ok(prompts)
}

fn check_count(prompts: usize, choices: usize) -> Result<(), ApiError> {
    if (1..=MAX_CHOICES / choices).contains(&prompts) {
        return Ok(());
    }
    let message =
        format!("{prompts} prompts with `n` = {choices}; 1 to {MAX_CHOICES} texts in all are allowed");
    Err(ApiError::invalid("prompt", message))
}

fn tokens(values: &[Value]) -> Result<Prompt, ApiError> {
    let token = |value: &Value| {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.map(TokenId).ok_or_else(|| wrong("prompt", value, "a token's number in a list of tokens"))
    };
    values.iter().map(token).collect::<Result<_, _>>().map(Prompt::Tokens)
}

/// What the chat template is to render.
fn chat(fields: &mut Fields) -> Result<Chat, ApiError> {
    let messages = messages::read(fields.take("messages"))?;
    let mut tools = fields.array("tools", MAX_TOOLS)?.unwrap_or_default();
    for (at, tool) in tools.iter().enumerate() {
        let is_function = tool["type"] == "function" && tool["function"]["name"].is_string();
        if !is_function {
            return Err(ApiError::invalid(format!("tools[{at}]"), "a tool must be a function with a name"));
        }
    }
    let mut further = fields.object("chat_template_kwargs")?.unwrap_or_default();
    if let Some(name) =
        ["messages", "tools", "add_generation_prompt"].iter().find(|name| further.contains_key(**name))
    {
        let message = format!("`{name}` is not for the client to set");
        return Err(ApiError::invalid("chat_template_kwargs", message));
    }
    if let Some(choice) = fields.take("tool_choice") {
        check_tool_choice(&choice, &tools)?;
        if choice == "none" {
            tools.clear();
        }
        further.insert("tool_choice".to_owned(), choice);
    }
    if let Some(effort) = fields.text("reasoning_effort")? {
        further.insert("reasoning_effort".to_owned(), Value::String(effort));
    }
    let is_text = |value: &Value| value["type"] == "text";
    fields.neutral("response_format", is_text, "answers have no form but text")?;
    let is_text = |value: &Value| value.as_array().is_some_and(|all| all.len() == 1 && all[0] == "text");
    fields.neutral("modalities", is_text, "answers are text alone")?;
    for (name, instead) in [("functions", "tools"), ("function_call", "tool_choice")] {
        fields.neutral(name, |_| false, &format!("it is not supported; `{instead}` is"))?;
    }
    Ok(Chat { messages, tools, further })
}

/// A choice goes to the template as it is. Nothing forces the model to follow it.
fn check_tool_choice(choice: &Value, tools: &[Value]) -> Result<(), ApiError> {
    let named = choice["function"]["name"].as_str();
    let known = match choice {
        Value::String(word) => ["none", "auto", "required"].contains(&word.as_str()),
        _ => named.is_some(),
    };
    if !known {
        return Err(wrong("tool_choice", choice, "none, auto, required or a function's name in an object"));
    }
    if named.is_some_and(|name| !tools.iter().any(|tool| tool["function"]["name"] == name)) {
        let message =
            format!("`tool_choice` names {}, which is not among `tools`", shown(&choice["function"]["name"]));
        return Err(ApiError::invalid("tool_choice", message));
    }
    if tools.is_empty() && choice != "none" && choice != "auto" {
        return Err(ApiError::invalid("tool_choice", "`tool_choice` needs `tools`"));
    }
    Ok(())
}
