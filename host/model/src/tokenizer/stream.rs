//! Decoding token by token: text leaves as soon as its characters are whole.

use super::{SpecialText, Tokenizer};
use crate::identity::TokenId;

/// A decoder that is given one token at a time and holds back the bytes of an unfinished character. Whatever it
/// returned, together with what `finish` returns, is the text of all tokens.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    special: SpecialText,
    /// Bytes of a character that is not finished: at most three.
    pending: Vec<u8>,
}

impl<'a> TextStream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, special: SpecialText) -> TextStream<'a> {
        TextStream { tokenizer, special, pending: Vec::new() }
    }

    /// Add a token; returns the text that is complete by now, which may be empty.
    pub fn push(&mut self, token: TokenId) -> String {
        if self.special == SpecialText::Hidden && self.tokenizer.is_special(token) {
            return String::new();
        }
        let bytes = self.tokenizer.token_bytes(token).unwrap_or("\u{fffd}".as_bytes());
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text.push_str(whole);
                    rest = &[];
                }
                Err(error) => {
                    let (whole, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(whole));
                    rest = after;
                    if let Some(wrong) = error.error_len() {
                        text.push(char::REPLACEMENT_CHARACTER);
                        rest = &rest[wrong..];
                        continue;
                    }
                }
            }
            break;
        }
        self.pending = rest.to_vec();
        text
    }

    /// End the text: an unfinished character becomes U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}
