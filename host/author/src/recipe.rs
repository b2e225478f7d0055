//! `kvasir-build.toml`: how a kernel's folder becomes a component. Read by the build and, for others, by the rebuild.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::AuthorError;
use crate::files;

/// The recipe's file name in a kernel's folder.
pub const RECIPE: &str = "kvasir-build.toml";
/// Largest recipe in bytes.
const MAX_RECIPE_BYTES: u64 = 16 << 10;
/// Most additional flags.
const MAX_FLAGS: usize = 64;

/// What the sources are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// A crate: `Cargo.toml` and `src`.
    Rust,
    /// Freestanding C11: every `src/*.c`.
    C,
}

/// The contents of the recipe. Unknown keys are refused, so that a rebuild never leaves out what the author meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// What the sources are written in.
    pub language: Language,
    /// Flags for the compiler after the fixed ones: `rustc`'s or `clang`'s.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

impl Recipe {
    /// Reads the recipe of `folder`.
    ///
    /// # Errors
    /// Where there is none, it is too large, or says what is not understood.
    pub fn read(folder: &Path) -> Result<Recipe, AuthorError> {
        let path = folder.join(RECIPE);
        let malformed = |reason: String| AuthorError::Malformed { file: path.clone(), reason };
        if !path.is_file() {
            return Err(AuthorError::NoProject { folder: folder.to_owned(), file: RECIPE });
        }
        let text = files::read_text(&path, MAX_RECIPE_BYTES)?;
        let recipe: Recipe = toml::from_str(&text).map_err(|error| malformed(error.to_string()))?;
        if recipe.flags.len() > MAX_FLAGS {
            return Err(malformed(format!("it has {} flags, the limit is {MAX_FLAGS}", recipe.flags.len())));
        }
        Ok(recipe)
    }
}

impl Language {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "Rust",
            Language::C => "C",
        }
    }
}
