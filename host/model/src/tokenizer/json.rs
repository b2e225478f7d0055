//! tokenizer.json, as far as Qwen's tokenizers use it. Anything else is refused by name: a part that is ignored would
//! give other tokens without a word.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::parts::QWEN35_PATTERN;
use super::{AddedToken, Parts, TokenizerError};
use crate::limits;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<FileAddedToken>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: FileModel,
}

#[derive(Deserialize)]
struct FileAddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct FileModel {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: BTreeMap<String, u32>,
    merges: Vec<FileMerge>,
}

/// Older files write a merge as one string.
#[derive(Deserialize)]
#[serde(untagged)]
enum FileMerge {
    Pair(String, String),
    Text(String),
}

impl Parts {
    /// Read tokenizer.json.
    pub(crate) fn from_json(text: &[u8]) -> Result<Parts, TokenizerError> {
        let file: File =
            serde_json::from_slice(text).map_err(|error| TokenizerError::Json(error.to_string()))?;
        check_model(&file.model)?;
        check_pre_tokenizer(file.pre_tokenizer.as_ref())?;
        check_post_processor(file.post_processor.as_ref())?;
        if kind(file.decoder.as_ref()) != Some("ByteLevel") {
            return Err(unsupported("decoder", file.decoder.as_ref(), "ByteLevel"));
        }
        let compose = match kind(file.normalizer.as_ref()) {
            None if file.normalizer.is_none() => false,
            Some("NFC") => true,
            _ => return Err(unsupported("normalizer", file.normalizer.as_ref(), "null, NFC")),
        };

        let mut tokens = Vec::new();
        for (text, id) in file.model.vocab {
            put(&mut tokens, id, text)?;
        }
        let mut added = Vec::with_capacity(file.added_tokens.len());
        for token in file.added_tokens {
            put(&mut tokens, token.id, token.content)?;
            added.push(AddedToken {
                id: token.id,
                special: token.special,
                single_word: token.single_word,
                strip_left: token.lstrip,
                strip_right: token.rstrip,
                normalised: token.normalized,
            });
        }
        let merges = (file.model.merges.into_iter().enumerate())
            .map(|(index, merge)| match merge {
                FileMerge::Pair(left, right) => Ok((left, right)),
                FileMerge::Text(text) => split_merge(index, &text),
            })
            .collect::<Result<_, _>>()?;
        Ok(Parts { tokens, added, merges, compose })
    }
}

/// `left right` to its halves.
pub(crate) fn split_merge(index: usize, text: &str) -> Result<(String, String), TokenizerError> {
    match text.split_once(' ') {
        Some((left, right)) if !right.contains(' ') => Ok((left.to_owned(), right.to_owned())),
        _ => Err(TokenizerError::Merge {
            index,
            merge: text.to_owned(),
            why: "not two tokens with one space between them",
        }),
    }
}

fn put(tokens: &mut Vec<Option<String>>, id: u32, text: String) -> Result<(), TokenizerError> {
    let bad = |why: String| TokenizerError::Token { id: u64::from(id), why };
    if u64::from(id) >= limits::MAX_VOCABULARY {
        return Err(bad(format!("its number is beyond the limit of {}", limits::MAX_VOCABULARY)));
    }
    let place = id as usize;
    if tokens.len() <= place {
        tokens.resize(place + 1, None);
    }
    match &tokens[place] {
        // An added token may stand in the vocabulary too.
        Some(there) if *there != text => Err(bad(format!("it is both {there:?} and {text:?}"))),
        _ => {
            tokens[place] = Some(text);
            Ok(())
        }
    }
}

fn check_model(model: &FileModel) -> Result<(), TokenizerError> {
    let other = |part: &'static str, found: String, known: &'static str| {
        Err(TokenizerError::Unsupported { part, found, known })
    };
    // Old files leave the type out; their shape is then BPE's, or reading failed above.
    if let Some(kind) = model.kind.as_ref().filter(|kind| *kind != "BPE") {
        return other("model.type", kind.clone(), "BPE");
    }
    if let Some(dropout) = model.dropout.filter(|dropout| *dropout != 0.0) {
        return other("model.dropout", dropout.to_string(), "null");
    }
    let set = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    for (part, text) in [
        ("model.unk_token", set(&model.unk_token)),
        ("model.continuing_subword_prefix", set(&model.continuing_subword_prefix)),
        ("model.end_of_word_suffix", set(&model.end_of_word_suffix)),
    ] {
        if let Some(text) = text {
            return other(part, text, "null");
        }
    }
    if model.byte_fallback || model.ignore_merges {
        return other("model.byte_fallback or model.ignore_merges", "true".to_owned(), "false");
    }
    Ok(())
}

fn check_pre_tokenizer(step: Option<&Value>) -> Result<(), TokenizerError> {
    let steps = step.and_then(|step| step.get("pretokenizers")).and_then(Value::as_array).map(Vec::as_slice);
    let Some([split, bytes]) = steps else {
        return Err(unsupported("pre_tokenizer", step, "a sequence of Split and ByteLevel"));
    };
    let pattern = split.get("pattern").and_then(|pattern| pattern.get("Regex")).and_then(Value::as_str);
    let isolated = split.get("behavior").and_then(Value::as_str) == Some("Isolated");
    let inverted = split.get("invert").and_then(Value::as_bool).unwrap_or(false);
    if kind(Some(split)) != Some("Split") || pattern != Some(QWEN35_PATTERN) || !isolated || inverted {
        return Err(unsupported("pre_tokenizer", Some(split), "Split with Qwen3.5's pattern, isolated"));
    }
    let prefix = bytes.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true);
    let own_pattern = bytes.get("use_regex").and_then(Value::as_bool).unwrap_or(true);
    if kind(Some(bytes)) != Some("ByteLevel") || prefix || own_pattern {
        return Err(unsupported("pre_tokenizer", Some(bytes), "ByteLevel without prefix space and pattern"));
    }
    Ok(())
}

/// Only what adds no token: Kvasir adds none when it encodes.
fn check_post_processor(step: Option<&Value>) -> Result<(), TokenizerError> {
    let adds_nothing = match kind(step) {
        None => step.is_none(),
        Some("ByteLevel") => true,
        Some("TemplateProcessing") => {
            let special = step.and_then(|step| step.get("special_tokens")).and_then(Value::as_object);
            special.is_some_and(serde_json::Map::is_empty)
        }
        Some(_) => false,
    };
    if adds_nothing { Ok(()) } else { Err(unsupported("post_processor", step, "one that adds no token")) }
}

fn kind(step: Option<&Value>) -> Option<&str> {
    step?.get("type")?.as_str()
}

fn unsupported(part: &'static str, found: Option<&Value>, known: &'static str) -> TokenizerError {
    let mut found = found.map_or_else(|| "null".to_owned(), Value::to_string);
    if let Some((at, _)) = found.char_indices().nth(200) {
        found.truncate(at);
        found.push('…');
    }
    TokenizerError::Unsupported { part, found, known }
}
