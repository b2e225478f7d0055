//! Text to tokens and back: byte-level BPE, from a GGUF's own vocabulary and merges or from tokenizer.json.

use crate::identity::TokenId;

/// A model's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
}

/// Whether special tokens show up as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// Write `<|im_end|>` and the like.
    Shown,
    /// Leave them out.
    Hidden,
}

/// Why a vocabulary is refused or a text cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.ggml.pre` names a way of splitting text that is not known here.
    #[error("tokenizer.ggml.pre = {0:?} is not supported yet; known: qwen35")]
    UnknownPre(String),
}

impl Tokenizer {
    /// Tokens of `text`. Special tokens spelt in the text become those tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        todo!("{text}")
    }

    /// Text of `tokens`, special tokens shown; bytes that are not UTF-8 and numbers outside the vocabulary become U+FFFD.
    pub fn decode(&self, tokens: &[TokenId]) -> String {
        todo!("{tokens:?}")
    }

    /// Decode token by token.
    pub fn text_stream(&self, special: SpecialText) -> TextStream<'_> {
        TextStream { tokenizer: self, special }
    }

    /// Number of tokens, unused ones included.
    pub fn vocabulary(&self) -> usize {
        todo!()
    }

    /// The token whose text is exactly `text`.
    pub fn token(&self, text: &str) -> Option<TokenId> {
        todo!("{text}")
    }

    /// Whether `token` is a special (control) token.
    pub fn is_special(&self, token: TokenId) -> bool {
        todo!("{token}")
    }
}

/// A decoder that is given one token at a time and holds back bytes of an incomplete character.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    special: SpecialText,
}

impl TextStream<'_> {
    /// Add a token; returns the text that is complete by now, which may be empty.
    pub fn push(&mut self, token: TokenId) -> String {
        todo!("{token} {:?} {:?}", self.special, self.tokenizer.vocabulary())
    }

    /// End the text: an unfinished character becomes U+FFFD.
    pub fn finish(self) -> String {
        todo!()
    }
}
