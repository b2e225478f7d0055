//! The chat template: messages to the text that the model was trained to continue, by minijinja.
//!
//! Templates are code from a file, so what one may cost is bounded: steps by fuel, output by length; it sees the
//! messages, the tools, the names of special tokens and the time, and nothing of the machine.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::template_time::format_time;

/// One message of a chat. Fields beside role and content pass through to the template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text, or a list of parts, as the template takes it.
    pub content: serde_json::Value,
    /// Further fields (`tool_calls`, `reasoning_content`, ...).
    #[serde(flatten)]
    pub further: serde_json::Map<String, serde_json::Value>,
}

impl Message {
    /// A message that is text.
    pub fn text(role: &str, content: &str) -> Message {
        Message {
            role: role.to_owned(),
            content: serde_json::Value::String(content.to_owned()),
            further: serde_json::Map::new(),
        }
    }
}

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    /// `eos_token` and the like, by the names that templates use.
    named_tokens: BTreeMap<String, String>,
}

/// Why a template is refused or cannot be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The file's: longer than the limit.
    #[error("it has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: u64,
    },
    /// The file's: it does not parse.
    #[error("it does not parse: {0}")]
    Syntax(String),
    /// The caller's: the template itself refused the messages (`raise_exception`).
    #[error("the template refuses these messages: {0}")]
    Refused(String),
    /// The file's or the caller's: rendering failed.
    #[error("rendering failed: {0}")]
    Render(String),
    /// The file's: it took more steps than a template may.
    #[error("rendering took more than {0} steps")]
    TooManySteps(u64),
    /// The file's or the caller's: the result is longer than the limit.
    #[error("the rendered text has {bytes} bytes, the limit is {limit}")]
    RenderedTooLong {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

/// The only template in its environment.
const NAME: &str = "chat_template";

/// How `raise_exception` is told from the engine's own errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compile a template. `named_tokens` are the texts of special tokens by the names that templates use.
    pub(crate) fn new(
        source: String,
        named_tokens: BTreeMap<String, String>,
    ) -> Result<ChatTemplate, TemplateError> {
        if source.len() as u64 > limits::MAX_STRING_BYTES {
            return Err(TemplateError::TooLong { bytes: source.len(), limit: limits::MAX_STRING_BYTES });
        }
        let mut environment = Environment::new();
        // As the reference implementation renders them.
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| TemplateError::Syntax(error.to_string()))?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(limits::MAX_TEMPLATE_FUEL));
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(NAME, source.clone())
            .map_err(|error| TemplateError::Syntax(error.to_string()))?;
        Ok(ChatTemplate { environment, source, named_tokens })
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Render `messages` (and `tools`, JSON schemas as the template takes them) now. With `add_generation_prompt` the
    /// text ends where the assistant's answer begins.
    ///
    /// # Errors
    /// The template's refusal, a failure in it, or a bound that it hit.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[serde_json::Value],
        add_generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let further = serde_json::Map::new();
        self.render_with(messages, tools, add_generation_prompt, &further, SystemTime::now())
    }

    /// The same with further variables (`enable_thinking`, ...) and a time for `strftime_now`, which is told in UTC.
    /// A variable of the same name as one of ours replaces it.
    pub fn render_with(
        &self,
        messages: &[Message],
        tools: &[serde_json::Value],
        add_generation_prompt: bool,
        further: &serde_json::Map<String, serde_json::Value>,
        now: SystemTime,
    ) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(failure)?;
        let strftime_now = Value::from_function(move |format: String| format_time(&format, now));
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(Serde(tools)) };
        let ours = context! {
            messages => Value::from(Serde(messages)),
            tools => tools,
            add_generation_prompt => add_generation_prompt,
            strftime_now => strftime_now,
        };
        // The first of two contexts that know a name wins.
        let all = context! {
            ..Value::from(Serde(further)),
            ..ours,
            ..Value::from(Serde(&self.named_tokens))
        };
        let text = template.render(all).map_err(failure)?;
        if text.len() > limits::MAX_RENDERED_BYTES {
            return Err(TemplateError::RenderedTooLong {
                bytes: text.len(),
                limit: limits::MAX_RENDERED_BYTES,
            });
        }
        Ok(text)
    }
}

fn failure(error: minijinja::Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooManySteps(limits::MAX_TEMPLATE_FUEL);
    }
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(Raised(why)) = inner.downcast_ref() {
            return TemplateError::Refused(why.clone());
        }
        if inner.downcast_ref().is_some_and(|inner: &minijinja::Error| inner.kind() == ErrorKind::OutOfFuel) {
            return TemplateError::TooManySteps(limits::MAX_TEMPLATE_FUEL);
        }
        cause = inner.source();
    }
    TemplateError::Render(error.to_string())
}

fn raise_exception(why: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, why.clone()).with_source(Raised(why)))
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it, which models saw in training: a space after
/// comma and colon, nothing escaped for HTML, keys in their own order.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let failed = |error: serde_json::Error| {
        minijinja::Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error)
    };
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut json = serde_json::to_value(value).map_err(failed)?;
    if sort == Some(true) {
        json.sort_all_objects();
    }
    let mut bytes = Vec::new();
    let written = match indent {
        // Depth is bounded by the engine; the width is not.
        Some(width) => {
            let spaces = vec![b' '; width.min(MAX_INDENT)];
            let formatter = serde_json::ser::PrettyFormatter::with_indent(&spaces);
            json.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter))
        }
        None => json.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, OneLine)),
    };
    written.map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(Value::from(if ascii == Some(true) { escape_non_ascii(&text) } else { text.into_owned() }))
}

/// Spaces of indentation that a template may ask for.
const MAX_INDENT: usize = 16;

/// Python's separators on one line: `, ` and `: `.
struct OneLine;

impl serde_json::ser::Formatter for OneLine {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

/// Non-ASCII characters stand only inside JSON strings, where `\uXXXX` may replace them.
fn escape_non_ascii(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            escaped.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    escaped
}
