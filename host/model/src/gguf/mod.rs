//! GGUF version 3, little-endian: one file or a model split over several.
//!
//! Format: `ggml-org/ggml:docs/gguf.md`. The reader is stricter than that page: no duplicate keys or tensors, no
//! overlapping or misaligned tensors, no arrays of arrays, no dimension of zero.

mod configuration;
mod cursor;
mod formats;
mod header;
mod keys;
mod layout;
mod split;
mod value;
mod vocabulary;

use std::path::Path;
use std::sync::Arc;

pub(crate) use formats::format_name;

use header::Header;
use layout::GgufLayout;

use crate::assemble::assemble;
use crate::error::ModelError;
use crate::mapping::MappedFile;
use crate::model::Parts;
use crate::stored::Directory;
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Open a GGUF file, and the other parts of its model where it is split.
pub(crate) fn open(path: &Path) -> Result<Parts, ModelError> {
    let files = split::open_parts(path)?;
    let headers = files.iter().map(|file| Header::read(file)).collect::<Result<Vec<_>, _>>()?;
    split::check(&headers)?;
    let Some(Header { keys, .. }) = headers.first() else {
        return Err(ModelError::NotAModel { path: path.to_owned(), why: "it has no parts".to_owned() });
    };
    let mut directory = Directory::new(path);
    for (file, header) in files.iter().zip(&headers) {
        header.add_tensors(file, &mut directory)?;
    }

    let (mut config, predicting) = configuration::read(keys)?;
    let vocabulary = vocabulary::read(keys)?;
    let tokenizer = Tokenizer::new(vocabulary.parts)
        .and_then(|tokenizer| tokenizer.fitting(config.vocabulary))
        .map_err(|cause| ModelError::Tokenizer { file: path.to_owned(), cause })?;
    config.end_of_text = vocabulary.end_of_text;
    config.end_of_text.extend(tokenizer.end_tokens());
    config.end_of_text.sort();
    config.end_of_text.dedup();
    let chat_template = keys
        .optional_string("tokenizer.chat_template")?
        .map(|source| ChatTemplate::new(source.to_owned(), vocabulary.named));
    let name = match keys.optional_string("general.name")? {
        Some(name) => name.to_owned(),
        None => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let layout = GgufLayout { layers: config.layers, blocks: config.layers + predicting };
    let tensors = assemble(&layout, &config, directory)?;
    Ok(Parts { name, config, tokenizer, chat_template, tensors })
}

/// A mapped file, shared by the tensors in it.
type SharedFile = Arc<MappedFile>;
