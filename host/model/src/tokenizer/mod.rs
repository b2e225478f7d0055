//! Text to tokens and back: byte-level BPE with Qwen's splitting, from a GGUF's own vocabulary and merges or from a
//! tokenizer.json. Both are read into `Parts`, checked, and built into one `tokenizers` tokenizer, so both give the
//! same tokens.
//!
//! Decoding is ours: a table of bytes per token, so that a stream can hold back half a character.

mod bytes;
mod json;
mod parts;
mod pieces;
mod stream;

pub(crate) use json::split_merge;
pub use parts::TokenizerError;
pub(crate) use parts::{AddedToken, Parts};
pub use stream::TextStream;

use crate::identity::TokenId;
use crate::limits;

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    tokens: Vec<Token>,
    /// Whether a text may be cut as `pieces` does, its tokens staying the same.
    may_be_cut: bool,
}

/// What a token decodes to.
#[derive(Clone)]
struct Token {
    bytes: Box<[u8]>,
    special: bool,
}

/// Whether special tokens show up as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// Write `<|im_end|>` and the like.
    Shown,
    /// Leave them out.
    Hidden,
}

/// Special tokens that end a text even where a file names another one: a turn ends with the first, a document with
/// the second, and files name only one of them.
const END_TEXTS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

impl Tokenizer {
    /// Tokens of `text`, none added. Special tokens spelt in the text become those tokens.
    ///
    /// # Errors
    /// A text, or a run of white space in it, longer than the limits.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        check_text(text)?;
        self.encode_checked(text)
    }

    /// The same tokens, if there are at most `limit`. Stops soon after it has found one more, so that a text far beyond
    /// a context costs no more than one that fills it.
    ///
    /// # Errors
    /// As `encode`; `TooManyTokensInText` beyond the limit, `WordTooLong` for a megabyte without a space, digit or line
    /// break, which is no text.
    pub fn encode_bounded(&self, text: &str, limit: usize) -> Result<Vec<TokenId>, TokenizerError> {
        check_text(text)?;
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(pieces::piece(rest, PIECE_BYTES));
            if piece.len() > PIECE_BYTES + limits::MAX_WORD_BYTES {
                return Err(TokenizerError::WordTooLong { limit: limits::MAX_WORD_BYTES });
            }
            // Where texts may not be cut, the whole is one piece.
            let (piece, after) = if self.may_be_cut { (piece, after) } else { (rest, "") };
            tokens.extend(self.encode_checked(piece)?);
            if tokens.len() > limit {
                return Err(TokenizerError::TooManyTokensInText { bytes: text.len(), limit });
            }
            rest = after;
        }
        Ok(tokens)
    }

    fn encode_checked(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, false).map_err(TokenizerError::library)?;
        Ok(encoding.get_ids().iter().copied().map(TokenId).collect())
    }

    /// Text of `tokens`, special tokens shown; bytes that are not UTF-8 and numbers outside the vocabulary become U+FFFD.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        let mut stream = self.text_stream(SpecialText::Shown);
        let mut text: String = tokens.iter().map(|token| stream.push(*token)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Decode token by token.
    pub fn text_stream(&self, special: SpecialText) -> TextStream<'_> {
        TextStream::new(self, special)
    }

    /// Number of tokens, unused ones included. At most the model's vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.tokens.len()
    }

    /// The token whose text is exactly `text`: for special tokens. (Ordinary tokens are kept in byte-level spelling.)
    pub fn token(&self, text: &str) -> Option<TokenId> {
        self.inner.token_to_id(text).map(TokenId)
    }

    /// Whether `token` is a special (control) token.
    pub fn is_special(&self, token: TokenId) -> bool {
        self.tokens.get(token.0 as usize).is_some_and(|token| token.special)
    }

    /// The same tokenizer, if every token has a row in an embedding of `vocabulary` rows.
    pub(crate) fn fitting(self, vocabulary: u32) -> Result<Tokenizer, TokenizerError> {
        let (tokens, vocabulary) = (self.tokens.len() as u64, u64::from(vocabulary));
        if tokens > vocabulary { Err(TokenizerError::TooManyTokens { tokens, vocabulary }) } else { Ok(self) }
    }

    /// Special tokens that end a text by their name.
    pub(crate) fn end_tokens(&self) -> impl Iterator<Item = TokenId> {
        END_TEXTS.iter().filter_map(|text| self.token(text)).filter(|token| self.is_special(*token))
    }

    /// The bytes of a token; `None` outside the vocabulary.
    pub fn token_bytes(&self, token: TokenId) -> Option<&[u8]> {
        self.tokens.get(token.0 as usize).map(|token| &*token.bytes)
    }
}

/// Bytes after which `encode_bounded` looks for a place to cut.
const PIECE_BYTES: usize = 64 << 10;

/// Refuse what is longer than the limits.
fn check_text(text: &str) -> Result<(), TokenizerError> {
    if text.len() > limits::MAX_TEXT_BYTES {
        return Err(TokenizerError::TextTooLong { bytes: text.len(), limit: limits::MAX_TEXT_BYTES });
    }
    let limit = limits::MAX_WHITE_SPACE_RUN;
    let mut run = 0;
    for character in text.chars() {
        run = if character.is_whitespace() { run + 1 } else { 0 };
        if run > limit {
            // The splitting expression looks ahead after white space; past a million steps its engine gives up
            // and would split the rest differently.
            return Err(TokenizerError::WhiteSpaceTooLong { limit });
        }
    }
    Ok(())
}
