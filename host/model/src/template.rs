//! The chat template: messages to the text that the model was trained to continue, by minijinja.
//!
//! Templates are code from a file, so what one may cost is bounded: what it may consist of (`template_scan`), what its
//! values may consist of (`template_values`), steps by fuel, output by length, the caller's patience by a clock. It sees
//! the messages, the tools, the names of special tokens and the time, and nothing of the machine.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, SystemTime};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value, context};
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::template_scan::{GUARD, REMOVED_FILTERS, REMOVED_FUNCTIONS, guarded};
use crate::template_time::format_time;
use crate::template_values::{TooLarge, check, guard};
use crate::visible::Visible;

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

/// A chat template.
pub struct ChatTemplate {
    source: String,
    /// `eos_token` and the like, by the names that templates use.
    named_tokens: BTreeMap<String, String>,
}

/// Why a template is refused or cannot be rendered. What is quoted from the file has its control characters escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The file's: longer than the limit.
    #[error("it has {bytes} bytes, the limit is {limit}")]
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The file's: it does not parse.
    #[error("it does not parse: {}", Visible(.0))]
    Syntax(String),
    /// Ours: a construct whose cost cannot be bounded, or that is not known here.
    #[error("it uses what is not supported: {}", Visible(.0))]
    Unsupported(String),
    /// The caller's: the template itself refused the messages (`raise_exception`).
    #[error("the template refuses these messages: {}", Visible(.0))]
    Refused(String),
    /// The file's or the caller's: rendering failed.
    #[error("rendering failed: {}", Visible(.0))]
    Render(String),
    /// The file's: it took more steps than a template may.
    #[error("rendering took more than {0} steps")]
    TooManySteps(u64),
    /// The file's: it took longer than a template may.
    #[error("rendering took more than {0} seconds")]
    TooLongTime(u64),
    /// The file's or the caller's: a value of more parts, bytes or levels than a template may make.
    #[error("it makes {0}")]
    TooLarge(String),
    /// The file's or the caller's: the result is longer than the limit.
    #[error("the rendered text is longer than {limit} bytes")]
    RenderedTooLong {
        /// The limit.
        limit: usize,
    },
    /// The machine's: no thread to render on.
    #[error("no thread to render on: {0}")]
    Thread(std::io::Error),
}

/// The only template in its environment.
const NAME: &str = "chat_template";

/// How `raise_exception` is told from the engine's own errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// A template, not looked at before it is rendered: a model whose template is bad is of use without it.
    /// `named_tokens` are the texts of special tokens by the names that templates use.
    pub fn new(source: String, named_tokens: BTreeMap<String, String>) -> ChatTemplate {
        ChatTemplate { source, named_tokens }
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Render `messages` (and `tools`, JSON schemas as the template takes them) now. With `add_generation_prompt` the
    /// text ends where the assistant's answer begins.
    ///
    /// # Errors
    /// A fault of the template, its refusal, a failure in it, or a bound that it hit.
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
        let source = guarded(&self.source, syntax()?)?;
        on_own_thread(move || render_guarded(source, all))
    }
}

/// As the reference implementation renders templates.
fn syntax() -> Result<SyntaxConfig, TemplateError> {
    (SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build())
        .map_err(|error| TemplateError::Syntax(error.to_string()))
}

/// The engine recurses over a template's tokens and a value's levels. Both are bounded, and the stack here holds what
/// the bounds allow; a caller's need not. A rendering that takes too long is left to run out of fuel by itself.
fn on_own_thread(
    task: impl FnOnce() -> Result<String, TemplateError> + Send + 'static,
) -> Result<String, TemplateError> {
    let (send, receive) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("chat template".to_owned())
        .stack_size(limits::TEMPLATE_STACK_BYTES)
        .spawn(move || {
            // Nobody may be waiting any more.
            let _ = send.send(task());
        })
        .map_err(TemplateError::Thread)?;
    match receive.recv_timeout(Duration::from_secs(limits::MAX_TEMPLATE_SECONDS)) {
        Ok(rendered) => rendered,
        Err(RecvTimeoutError::Timeout) => Err(TemplateError::TooLongTime(limits::MAX_TEMPLATE_SECONDS)),
        Err(RecvTimeoutError::Disconnected) => {
            Err(TemplateError::Render("the template engine panicked".to_owned()))
        }
    }
}

/// Parse and render a template that has its guards.
fn render_guarded(source: String, variables: Value) -> Result<String, TemplateError> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(method);
    environment.set_fuel(Some(limits::MAX_TEMPLATE_FUEL));
    for name in REMOVED_FILTERS {
        environment.remove_filter(name);
    }
    for name in REMOVED_FUNCTIONS {
        environment.remove_global(name);
    }
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", to_json);
    environment.add_filter(GUARD, guard);
    environment.add_template_owned(NAME, source).map_err(|error| TemplateError::Syntax(error.to_string()))?;
    let template = environment.get_template(NAME).map_err(failure)?;
    let mut out = Limited { bytes: Vec::new(), full: false };
    let rendered = template.render_captured_to(variables, &mut out).map(drop);
    if out.full {
        return Err(TemplateError::RenderedTooLong { limit: limits::MAX_RENDERED_BYTES });
    }
    rendered.map_err(failure)?;
    String::from_utf8(out.bytes).map_err(|error| TemplateError::Render(error.to_string()))
}

/// Takes bytes up to the limit of a rendered text.
struct Limited {
    bytes: Vec<u8>,
    full: bool,
}

impl std::io::Write for Limited {
    fn write(&mut self, part: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + part.len() > limits::MAX_RENDERED_BYTES {
            self.full = true;
            return Err(std::io::Error::other(format!("longer than {} bytes", limits::MAX_RENDERED_BYTES)));
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Python's methods, but for `format`, whose widths make text of any length.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, minijinja::Error> {
    if name == "format" {
        return Err(minijinja::Error::new(ErrorKind::UnknownMethod, "the method format is not supported"));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
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
        if let Some(TooLarge(why)) = inner.downcast_ref() {
            return TemplateError::TooLarge(why.clone());
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
fn to_json(state: &State<'_, '_>, value: Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    check(state, &value)?;
    let failed = |error: serde_json::Error| {
        minijinja::Error::new(ErrorKind::BadSerialization, "not JSON").with_source(error)
    };
    let indent: Option<usize> = options.get("indent")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let mut json = serde_json::to_value(&value).map_err(failed)?;
    if sort == Some(true) {
        json.sort_all_objects();
    }
    let mut out = Limited { bytes: Vec::new(), full: false };
    let written = match indent {
        // Depth and length are bounded; the width is not.
        Some(width) => {
            let spaces = vec![b' '; width.min(MAX_INDENT)];
            let formatter = serde_json::ser::PrettyFormatter::with_indent(&spaces);
            json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter))
        }
        None => json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, OneLine)),
    };
    written.map_err(failed)?;
    let text = String::from_utf8_lossy(&out.bytes);
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
