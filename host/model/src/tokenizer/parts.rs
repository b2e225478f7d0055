//! What a vocabulary consists of, checked before the library sees it, and the library's tokenizer built from it.
//!
//! The checks are not pedantry: the library panics on a merge whose result is longer than every token, and drops bytes
//! that have no token.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

use super::{Token, Tokenizer, bytes, pieces};
use crate::limits;
use crate::visible::Visible;

/// The one way of splitting text that is known here: Qwen3.5's, which ggml calls `qwen35`. Words take their combining
/// marks along; digits stand alone.
pub(super) const QWEN35_PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// A token that is found in text before anything is split.
#[derive(Clone, Debug)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    pub(crate) special: bool,
    pub(crate) single_word: bool,
    pub(crate) strip_left: bool,
    pub(crate) strip_right: bool,
    pub(crate) normalised: bool,
}

/// A vocabulary as read.
pub(crate) struct Parts {
    /// Text by number, in byte-level spelling unless added; `None` where a number is unused.
    pub(crate) tokens: Vec<Option<String>>,
    pub(crate) added: Vec<AddedToken>,
    /// Pairs to merge, most urgent first.
    pub(crate) merges: Vec<(String, String)>,
    /// Whether text is brought to Unicode's composed form (NFC) first.
    pub(crate) compose: bool,
}

/// Why a vocabulary is refused or a text cannot be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file's: `tokenizer.ggml.pre` names a way of splitting text that is not known here.
    #[error("tokenizer.ggml.pre = {0:?} is not supported yet; known: qwen35")]
    UnknownPre(String),
    /// Ours: a part of the tokenizer that is valid but not known here.
    #[error("{part} = {} is not supported yet; known: {known}", Visible(found))]
    Unsupported {
        /// Which part, by its name in the file.
        part: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        known: &'static str,
    },
    /// The file's: not the JSON of a tokenizer.
    #[error("not a tokenizer: {}", Visible(.0))]
    Json(String),
    /// The file's: a token that cannot be.
    #[error("token {id}: {}", Visible(why))]
    Token {
        /// Its number.
        id: u64,
        /// What is wrong.
        why: String,
    },
    /// The file's: a merge that cannot be.
    #[error("merge {index} ({merge:?}): {why}")]
    Merge {
        /// Its place in the list, from 0.
        index: usize,
        /// The merge.
        merge: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The file's: some byte could not be encoded.
    #[error("no token for byte {0:#04x}: text that holds it could not be encoded")]
    MissingByte(u8),
    /// The file's: more tokens than rows of the embedding.
    #[error("{tokens} tokens, but the embedding has {vocabulary} rows")]
    TooManyTokens {
        /// Tokens.
        tokens: u64,
        /// Rows of the embedding.
        vocabulary: u64,
    },
    /// The caller's: a text beyond the limit.
    #[error("a text of {bytes} bytes; the limit is {limit}")]
    TextTooLong {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The caller's: white space beyond the limit.
    #[error("more than {limit} characters of white space in a row")]
    WhiteSpaceTooLong {
        /// The limit.
        limit: usize,
    },
    /// The caller's: more tokens than asked for.
    #[error("a text of {bytes} bytes has more than {limit} tokens")]
    TooManyTokensInText {
        /// Its bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The caller's: no text, but one endless word.
    #[error("more than {limit} bytes without a space, a digit or a line break")]
    WordTooLong {
        /// The limit.
        limit: usize,
    },
    /// The library refused what passed our checks.
    #[error("{}", Visible(.0))]
    Library(String),
}

impl TokenizerError {
    pub(super) fn library(error: tokenizers::Error) -> TokenizerError {
        TokenizerError::Library(error.to_string())
    }
}

impl Tokenizer {
    /// Check the parts and build a tokenizer of them.
    pub(crate) fn new(parts: Parts) -> Result<Tokenizer, TokenizerError> {
        let vocabulary = parts.check()?;
        let mut tokens: Vec<Token> = (parts.tokens.iter())
            .map(|text| Token { bytes: bytes::of_token(text.as_deref().unwrap_or("")), special: false })
            .collect();
        let mut added = Vec::with_capacity(parts.added.len());
        let mut may_be_cut = true;
        for token in &parts.added {
            let text = parts.text(token.id);
            may_be_cut &= pieces::may_be_cut(token, text);
            tokens[token.id as usize] = Token { bytes: text.as_bytes().into(), special: token.special };
            added.push(
                tokenizers::AddedToken::from(text, token.special)
                    .single_word(token.single_word)
                    .lstrip(token.strip_left)
                    .rstrip(token.strip_right)
                    .normalized(token.normalised),
            );
        }

        let model = BPE::builder()
            .vocab_and_merges(vocabulary, parts.merges)
            .build()
            .map_err(TokenizerError::library)?;
        let pattern = SplitPattern::Regex(QWEN35_PATTERN.to_owned());
        let split =
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(TokenizerError::library)?;
        let steps: Vec<PreTokenizerWrapper> = vec![split.into(), ByteLevel::new(false, true, false).into()];
        let mut inner = tokenizers::Tokenizer::new(model);
        if parts.compose {
            inner.with_normalizer(Some(NFC)).map_err(TokenizerError::library)?;
        }
        inner.with_pre_tokenizer(Some(Sequence::new(steps)));
        inner.add_tokens(added).map_err(TokenizerError::library)?;
        Ok(Tokenizer { inner, tokens, may_be_cut })
    }
}

impl Parts {
    fn text(&self, id: u32) -> &str {
        self.tokens.get(id as usize).and_then(Option::as_deref).unwrap_or("")
    }

    /// The vocabulary by text, if everything refers to what exists.
    fn check(&self) -> Result<Vocab, TokenizerError> {
        let bad = |id: usize, why: String| TokenizerError::Token { id: id as u64, why };
        if self.tokens.len() as u64 > limits::MAX_VOCABULARY {
            let why = format!("more than {} tokens", limits::MAX_VOCABULARY);
            return Err(bad(self.tokens.len(), why));
        }
        let mut first: HashMap<&str, usize> = HashMap::with_capacity(self.tokens.len());
        for (id, text) in self.tokens.iter().enumerate() {
            let Some(text) = text else { continue };
            if text.is_empty() {
                return Err(bad(id, "its text is empty".to_owned()));
            }
            if text.len() as u64 > limits::MAX_TOKEN_BYTES {
                return Err(bad(
                    id,
                    format!("its text has {} bytes, the limit is {}", text.len(), limits::MAX_TOKEN_BYTES),
                ));
            }
            if let Some(other) = first.insert(text, id) {
                return Err(bad(id, format!("its text {text:?} is also that of token {other}")));
            }
        }
        for token in &self.added {
            if self.text(token.id).is_empty() {
                return Err(bad(token.id as usize, "an added token without text".to_owned()));
            }
        }
        if let Some(byte) = (0..=255)
            .find(|&byte| !first.contains_key(bytes::character(byte).encode_utf8(&mut [0; 4]) as &str))
        {
            return Err(TokenizerError::MissingByte(byte));
        }
        let mut joined = String::new();
        for (index, (left, right)) in self.merges.iter().enumerate() {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let why = if left.is_empty() || right.is_empty() {
                "one half is empty"
            } else if !first.contains_key(left.as_str()) || !first.contains_key(right.as_str()) {
                "one half is not a token"
            } else if !first.contains_key(joined.as_str()) {
                "the result is not a token"
            } else {
                continue;
            };
            return Err(TokenizerError::Merge { index, merge: format!("{left} {right}"), why });
        }
        Ok(first.into_iter().map(|(text, id)| (text.to_owned(), id as u32)).collect())
    }
}
