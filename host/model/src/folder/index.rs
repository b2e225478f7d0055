//! Which safetensors files a folder holds: model.safetensors, or those that model.safetensors.index.json names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

use super::json::{damaged, read_file, stopped_at};
use super::safetensors::add_tensors;
use crate::error::ModelError;
use crate::limits;
use crate::mapping::{MappedFile, is_there};
use crate::stored::Directory;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Map the folder's safetensors files and read their headers.
pub(super) fn open_tensors(folder: &Path) -> Result<Directory, ModelError> {
    let mut directory = Directory::new(folder);
    let single = folder.join("model.safetensors");
    let index_path = folder.join("model.safetensors.index.json");
    if is_there(&single)? || !is_there(&index_path)? {
        add_tensors(&Arc::new(MappedFile::open(&single)?), &mut directory)?;
        return Ok(directory);
    }

    let text = read_file(&index_path, limits::MAX_LARGE_JSON_BYTES)?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|error| damaged(&index_path, stopped_at(&text, &error), format!("not an index: {error}")))?;
    let files: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    if files.len() as u64 > limits::MAX_SPLIT_FILES {
        let why = format!("it names {} files, the limit is {}", files.len(), limits::MAX_SPLIT_FILES);
        return Err(damaged(&index_path, 0, why));
    }
    let mut found = 0;
    for file in files {
        // A plain name only: an index must not lead out of its folder.
        let plain = !file.contains(['/', '\\', '\0']) && file.ends_with(".safetensors");
        if !plain {
            let why = format!("{file:?} is not the plain name of a .safetensors file");
            return Err(damaged(&index_path, 0, why));
        }
        for name in add_tensors(&Arc::new(MappedFile::open(&folder.join(file))?), &mut directory)? {
            found += 1;
            if index.weight_map.get(&name).map(String::as_str) != Some(file) {
                let why = format!("tensor {name} lies in {file}, which the index does not say");
                return Err(damaged(&index_path, 0, why));
            }
        }
    }
    if found != index.weight_map.len() {
        let missing = index.weight_map.keys().find(|name| !directory.contains(name));
        let tensor = missing.cloned().unwrap_or_default();
        return Err(ModelError::MissingTensor { file: folder.to_owned(), tensor });
    }
    Ok(directory)
}
