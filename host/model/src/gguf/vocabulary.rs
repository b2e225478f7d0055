//! The tokenizer in a GGUF's keys: tokens, their types, merges, and which tokens end a text.

use std::collections::BTreeMap;

use super::keys::Keys;
use crate::error::ModelError;
use crate::identity::TokenId;
use crate::tokenizer::{AddedToken, Parts, TokenizerError, split_merge};

/// What the keys say about the vocabulary.
pub(super) struct Vocabulary {
    pub(super) parts: Parts,
    /// Tokens that the keys say end a text.
    pub(super) end_of_text: Vec<TokenId>,
    /// Texts of the special tokens that chat templates may name: `bos_token`, `eos_token`, `pad_token`.
    pub(super) named: BTreeMap<String, String>,
}

/// Token types of ggml.
const NORMAL: i128 = 1;
const UNKNOWN: i128 = 2;
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
const UNUSED: i128 = 5;
const BYTE: i128 = 6;

/// Read the vocabulary.
pub(super) fn read(keys: &Keys<'_>) -> Result<Vocabulary, ModelError> {
    let fault = |cause| ModelError::Tokenizer { file: keys.path().to_owned(), cause };
    let model = keys.string("tokenizer.ggml.model")?;
    if model != "gpt2" {
        return Err(
            keys.unsupported("tokenizer.ggml.model", format!("tokenizer model {model:?} (only gpt2 is)"))
        );
    }
    let pre = keys.string("tokenizer.ggml.pre")?;
    if pre != "qwen35" {
        return Err(fault(TokenizerError::UnknownPre(pre.to_owned())));
    }
    if keys.optional_bool("tokenizer.ggml.add_bos_token")? == Some(true) {
        let what = "a token before every text".to_owned();
        return Err(keys.unsupported("tokenizer.ggml.add_bos_token", what));
    }

    let texts = keys.strings("tokenizer.ggml.tokens")?;
    let types_key = "tokenizer.ggml.token_type";
    let types = keys.optional_integers(types_key)?.unwrap_or_else(|| vec![NORMAL; texts.len()]);
    if types.len() != texts.len() {
        let why = format!("must be one per token, {}", texts.len());
        return Err(keys.configuration(types_key, format!("{} types", types.len()), &why));
    }
    let mut tokens = Vec::with_capacity(texts.len());
    let mut added = Vec::new();
    for (id, (text, kind)) in (0u32..).zip(texts.iter().zip(&types)) {
        let add = |special| AddedToken {
            id,
            special,
            single_word: false,
            strip_left: false,
            strip_right: false,
            normalised: false,
        };
        match *kind {
            NORMAL | UNKNOWN | BYTE => {}
            CONTROL => added.push(add(true)),
            USER_DEFINED => added.push(add(false)),
            UNUSED => {
                tokens.push(None);
                continue;
            }
            other => {
                return Err(keys.configuration(types_key, other, &format!("token {id} has no such type")));
            }
        }
        tokens.push(Some((*text).to_owned()));
    }
    let merges = (keys.strings("tokenizer.ggml.merges")?.iter().enumerate())
        .map(|(index, merge)| split_merge(index, merge))
        .collect::<Result<_, _>>()
        .map_err(fault)?;

    let mut end_of_text = Vec::new();
    let mut named = BTreeMap::new();
    for (key, name, ends) in [
        ("tokenizer.ggml.eos_token_id", Some("eos_token"), true),
        ("tokenizer.ggml.eot_token_id", None, true),
        ("tokenizer.ggml.eom_token_id", None, true),
        ("tokenizer.ggml.bos_token_id", Some("bos_token"), false),
        ("tokenizer.ggml.padding_token_id", Some("pad_token"), false),
    ] {
        let Some(id) = keys.optional_integer(key)? else { continue };
        let Some(text) = usize::try_from(id).ok().and_then(|id| texts.get(id)) else {
            return Err(keys.configuration(key, id, &format!("the vocabulary has {} tokens", texts.len())));
        };
        if let Some(name) = name {
            named.insert(name.to_owned(), (*text).to_owned());
        }
        if ends {
            end_of_text.push(TokenId(id as u32));
        }
    }
    Ok(Vocabulary { parts: Parts { tokens, added, merges, compose: false }, end_of_text, named })
}
