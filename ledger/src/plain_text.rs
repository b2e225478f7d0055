//! Text from outside on its way to a terminal or a log: control characters are shown, not obeyed. The gateway uses it
//! too.

use std::borrow::Cow;
use std::io::{self, Write};

/// Text in which every control character but the line feed is escaped, and every character that turns the reading
/// direction around.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape(text, |character| character == '\n')
}

/// The same with line feeds escaped too: one line for ever.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// A log's way to a stream: each write is one event, and one line comes out, whatever was logged. A stream that cannot be
/// written is no reason to stop the program.
#[derive(Debug)]
pub struct LineWriter<W>(pub W);

impl<W: Write> Write for LineWriter<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = one_line(text.strip_suffix('\n').unwrap_or(&text));
        let _ = self.0.write_all(format!("{line}\n").as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

fn escape(text: &str, allowed: impl Fn(char) -> bool) -> Cow<'_, str> {
    let bad = |character: char| !allowed(character) && (character.is_control() || turns_around(character));
    if !text.contains(bad) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if bad(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Line and paragraph separators, and marks that change the order in which text is shown.
fn turns_around(character: char) -> bool {
    matches!(character, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_never_obeyed() {
        let forged = "a\u{1b}[2J\nFAKE\r\u{7f}\u{9b}\u{61c}\u{202e}\u{e4}";
        assert_eq!(one_line(forged), "a\\u{1b}[2J\\nFAKE\\r\\u{7f}\\u{9b}\\u{61c}\\u{202e}\u{e4}");
        assert_eq!(printable("a\nb\t"), "a\nb\\t");
        let mut out = Vec::new();
        LineWriter(&mut out).write_all(b"one\ntwo \xff\n").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "one\\ntwo \u{fffd}\n");
    }
}
