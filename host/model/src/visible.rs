//! Text from a file as it may be shown to a person: a terminal acts on control characters, so an error that quotes a
//! file shows them escaped.

use std::fmt::{self, Display, Write};

/// Shows what it wraps with every control character as Rust spells it in a literal (`\n`, `\u{1b}`).
pub(crate) struct Visible<T>(pub(crate) T);

impl<T: Display> Display for Visible<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| self.write_char(character))
    }

    fn write_char(&mut self, character: char) -> fmt::Result {
        if changes_the_display(character) {
            write!(self.0, "{}", character.escape_default())
        } else {
            self.0.write_char(character)
        }
    }
}

/// A name with U+FFFD in place of every control character.
pub(crate) fn without_controls(name: &str) -> String {
    let shown =
        |character| if changes_the_display(character) { char::REPLACEMENT_CHARACTER } else { character };
    name.chars().map(shown).collect()
}

/// Control characters, and the invisible ones that reorder what stands beside them.
fn changes_the_display(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelt_out() {
        assert_eq!(Visible("a\x1b[31m\n\u{9b}é\u{202e}").to_string(), r"a\u{1b}[31m\n\u{9b}é\u{202e}");
        assert_eq!(without_controls("a\x1b]0;x\x07b é"), "a\u{fffd}]0;x\u{fffd}b é");
    }
}
