//! A Hugging Face folder.
use std::path::Path;

use crate::error::ModelError;
use crate::model::Parts;

pub(crate) fn open(path: &Path) -> Result<Parts, ModelError> {
    Err(ModelError::NotAModel { path: path.to_owned(), why: "folders are not read yet".to_owned() })
}
