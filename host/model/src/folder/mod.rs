//! A Hugging Face folder: config.json, safetensors in one file or several with an index, tokenizer.json, and where
//! they are there generation_config.json, tokenizer_config.json and chat_template.jinja.
//!
//! Flat (`model_type` qwen3_5_moe_text) and nested as published (`text_config`, `model.language_model.` names, vision
//! and multi-token-prediction tensors beside the text model's, which are left aside).

mod configuration;
mod index;
mod json;
mod layout;
mod safetensors;

use std::collections::BTreeMap;
use std::path::Path;

use crate::assemble::assemble;
use crate::config::Config;
use crate::error::ModelError;
use crate::identity::TokenId;
use crate::limits;
use crate::mapping::is_there;
use crate::model::Parts;
use crate::template::ChatTemplate;
use crate::tokenizer::{Parts as TokenizerParts, Tokenizer};
use json::{JsonFile, read_file, read_optional_file};
use layout::FolderLayout;

/// Open a folder.
pub(crate) fn open(path: &Path) -> Result<Parts, ModelError> {
    let config_path = path.join("config.json");
    if !is_there(&config_path)? {
        let why = "a folder with config.json, tokenizer.json and model.safetensors was expected".to_owned();
        return Err(ModelError::NotAModel { path: path.to_owned(), why });
    }
    let file = JsonFile::read(&config_path, limits::MAX_CONFIG_FILE_BYTES)?;
    let configuration::FolderConfig { mut config, tied, end_of_text } = configuration::read(&file)?;
    let tokenizer_path = path.join("tokenizer.json");
    let tokenizer = read_file(&tokenizer_path, limits::MAX_LARGE_JSON_BYTES)?;
    let tokenizer = TokenizerParts::from_json(&tokenizer)
        .and_then(Tokenizer::new)
        .and_then(|tokenizer| tokenizer.fitting(config.vocabulary))
        .map_err(|cause| ModelError::Tokenizer { file: tokenizer_path, cause })?;
    config.end_of_text = all_ends(path, &file, end_of_text, &tokenizer, &config)?;
    let chat_template = chat_template(path)?;

    let directory = index::open_tensors(path)?;
    let layout = FolderLayout::of(&directory, tied);
    let tensors = assemble(&layout, &config, directory)?;
    let name =
        path.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    Ok(Parts { name: name.unwrap_or_else(|| "model".to_owned()), config, tokenizer, chat_template, tensors })
}

/// The ends of text that config.json, generation_config.json and the vocabulary name.
fn all_ends(
    path: &Path,
    config_file: &JsonFile,
    mut ends: Vec<u64>,
    tokenizer: &Tokenizer,
    config: &Config,
) -> Result<Vec<TokenId>, ModelError> {
    let generation_path = path.join("generation_config.json");
    if is_there(&generation_path)? {
        let generation = JsonFile::read(&generation_path, limits::MAX_CONFIG_FILE_BYTES)?;
        ends.extend(generation.root()?.integers("eos_token_id")?);
    }
    let mut tokens: Vec<TokenId> = tokenizer.end_tokens().collect();
    for end in ends {
        if end >= u64::from(config.vocabulary) {
            let why = format!("the vocabulary has {} tokens", config.vocabulary);
            return Err(config_file.complaint("eos_token_id", end, why));
        }
        tokens.push(TokenId(end as u32));
    }
    tokens.sort();
    tokens.dedup();
    Ok(tokens)
}

/// chat_template.jinja, else `chat_template` of tokenizer_config.json; with the special tokens that the latter names.
fn chat_template(path: &Path) -> Result<Option<ChatTemplate>, ModelError> {
    let config_path = path.join("tokenizer_config.json");
    let jinja_path = path.join("chat_template.jinja");
    let jinja = read_optional_file(&jinja_path, limits::MAX_CONFIG_FILE_BYTES)?;
    let mut named = BTreeMap::new();
    let mut inline = None;
    if is_there(&config_path)? {
        let file = JsonFile::read(&config_path, limits::MAX_CONFIG_FILE_BYTES)?;
        let root = file.root()?;
        for name in ["bos_token", "eos_token", "pad_token"] {
            if let Some(text) = root.text_or_content(name)? {
                named.insert(name.to_owned(), text.to_owned());
            }
        }
        inline = root.chat_template()?.map(str::to_owned);
    }
    let source = match (jinja, inline) {
        (Some(bytes), _) => String::from_utf8(bytes).map_err(|error| {
            json::damaged(&jinja_path, error.utf8_error().valid_up_to() as u64, "not UTF-8".to_owned())
        })?,
        (None, Some(source)) => source,
        (None, None) => return Ok(None),
    };
    Ok(Some(ChatTemplate::new(source, named)))
}
