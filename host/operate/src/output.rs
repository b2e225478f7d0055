//! What goes to standard output and standard error: results that must arrive, remarks that need not, and nothing that moves a
//! terminal's cursor although it came out of a file or from another machine.
//!
//! A result that cannot be written is an error. Where the reader went away (`kvasir inspect | head -1`) the error is
//! [`ReaderGone`], and the program ends without a word, with the exit code of one that SIGPIPE ended. The signal itself stays
//! ignored: it would also end a program whose network connection breaks.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result};
use serde_json::Value;

/// Whoever read standard output is gone.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl std::error::Error for ReaderGone {}

impl ReaderGone {
    /// The exit code that a shell shows for a program that SIGPIPE ended: 128 + 13.
    pub const EXIT_CODE: u8 = 141;

    /// Whether `error` came of this.
    pub fn caused(error: &anyhow::Error) -> bool {
        error.downcast_ref::<ReaderGone>().is_some() || error.chain().any(|cause| cause.is::<ReaderGone>())
    }
}

/// Write `text` and a line feed to standard output. Control characters are shown as escapes, line feeds and tabs excepted.
///
/// # Errors
/// Where standard output takes no more.
pub fn line(text: impl AsRef<str>) -> Result<()> {
    bytes(format!("{}\n", printable(text.as_ref())).as_bytes())
}

/// Write a JSON object on one line to standard output.
///
/// # Errors
/// Where standard output takes no more.
pub fn object(value: &Value) -> Result<()> {
    bytes(format!("{}\n", json_text(value)).as_bytes())
}

/// Write generated text to standard output as it comes: as it is, but to a terminal without control characters other than line
/// feeds and tabs.
///
/// # Errors
/// Where standard output takes no more.
pub fn piece(text: &str) -> Result<()> {
    let text = if io::stdout().is_terminal() { without_controls(text) } else { Cow::Borrowed(text) };
    bytes(text.as_bytes())
}

/// Write bytes to standard output, at once.
///
/// # Errors
/// Where standard output takes no more.
pub fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    written(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Say something on standard error; where nobody hears it, so be it.
pub fn remark(text: impl AsRef<str>) {
    let _ = io::stderr().lock().write_all(format!("{}\n", printable(text.as_ref())).as_bytes());
}

/// `text` with control characters as escapes, line feeds and tabs excepted.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_unwelcome(c) && c != '\n' && c != '\t')
}

/// A name out of a file or from another machine, fit for one line: every control character as an escape.
pub fn name(text: &str) -> Cow<'_, str> {
    escaped(text, is_unwelcome)
}

/// A control character, or one that changes the direction of what stands around it (Unicode's bidirectional formatting characters):
/// with either, a line can show something else than it says.
pub fn is_unwelcome(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, unwelcome: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(unwelcome) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if unwelcome(c) {
            clean.extend(c.escape_default());
        } else {
            clean.push(c);
        }
    }
    Cow::Owned(clean)
}

fn without_controls(text: &str) -> Cow<'_, str> {
    let unwelcome = |c: char| is_unwelcome(c) && c != '\n' && c != '\t';
    if text.contains(unwelcome) {
        Cow::Owned(text.replace(unwelcome, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// JSON escapes control characters up to U+001F; a terminal obeys U+007F to U+009F too, and characters that change the direction of what
/// is around them, and JSON allows them escaped.
fn json_text(value: &Value) -> String {
    let mut text = String::new();
    for c in value.to_string().chars() {
        if is_unwelcome(c) {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

fn written(result: io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        other => other.context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b[2Jb\u{9b}c\x7fd\re\n\tf";

    #[test]
    fn lines_and_names_show_control_characters_instead_of_sending_them() {
        assert_eq!(printable(HOSTILE), "a\\u{1b}[2Jb\\u{9b}c\\u{7f}d\\re\n\tf");
        assert_eq!(name("x\ny\tz"), "x\\ny\\tz");
        assert!(matches!(printable("Die Hauptstadt — 東京"), Cow::Borrowed(_)));
    }

    #[test]
    fn streamed_text_loses_control_characters_but_keeps_its_lines() {
        assert_eq!(without_controls(HOSTILE), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}e\n\tf");
    }

    #[test]
    fn json_for_a_terminal_reads_back_as_the_same_value() {
        let value = serde_json::json!({ "text": format!("{HOSTILE}\u{202e}gpj\u{2066}") });
        let text = json_text(&value);
        assert!(!text.contains(is_unwelcome), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }

    #[test]
    fn a_reader_that_is_gone_is_told_from_other_failures() {
        let gone = written(Err(io::ErrorKind::BrokenPipe.into())).unwrap_err().context("while answering");
        assert!(ReaderGone::caused(&gone));
        let full = written(Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert!(!ReaderGone::caused(&full) && full.to_string().contains("standard output"));
    }
}
