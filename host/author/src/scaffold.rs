//! `kvasir plugin new`: a small kernel project that passes the conformance suite as it is.

use std::fs;
use std::path::{Path, PathBuf};

use kvasir_plugin::{MAX_NAME_BYTES, Manifest};

use crate::error::AuthorError;
use crate::recipe::Language;

/// The namespace of a kernel whose author named none.
const NAMESPACE: &str = "local";

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scaffold {
    /// The project's folder.
    pub folder: PathBuf,
    /// The plugin's name, with its namespace.
    pub plugin: String,
    /// Files in it, by their path in the folder.
    pub files: Vec<String>,
}

/// Makes the folder `parent/NAME` with a kernel in `language`. `name` is a plugin's name, with or without a namespace before a
/// colon; the folder is called by what stands after it.
///
/// # Errors
/// A name that no plugin can have, a folder that is there already, or files that cannot be written.
pub fn scaffold(parent: &Path, name: &str, language: Language) -> Result<Scaffold, AuthorError> {
    let (namespace, short) = name.split_once(':').unwrap_or((NAMESPACE, name));
    let plugin = format!("{namespace}:{short}");
    let fill = |text: &str| text.replace("{{name}}", short).replace("{{plugin}}", &plugin);
    let wrong_name = || AuthorError::Name { name: name.to_owned(), limit: MAX_NAME_BYTES };
    Manifest::parse(fill(MANIFEST).as_bytes()).map_err(|_| wrong_name())?;
    let folder = parent.join(short);
    let made = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => AuthorError::Exists(folder.clone()),
        _ => AuthorError::file("make", &folder)(error),
    };
    fs::create_dir(&folder).map_err(made)?;
    let own = match language {
        Language::Rust => RUST,
        Language::C => C,
    };
    let mut files = Vec::new();
    for (file, text) in own.iter().chain(COMMON) {
        let path = folder.join(file);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(AuthorError::file("make", parent))?;
        }
        fs::write(&path, fill(text)).map_err(AuthorError::file("write", &path))?;
        files.push((*file).to_owned());
    }
    files.sort();
    Ok(Scaffold { folder, plugin, files })
}

const MANIFEST: &str = include_str!("../templates/plugin.toml");

const COMMON: &[(&str, &str)] = &[
    ("plugin.toml", MANIFEST),
    ("README.md", include_str!("../templates/README.md")),
    (".gitignore", include_str!("../templates/gitignore")),
];

const RUST: &[(&str, &str)] = &[
    ("Cargo.toml", include_str!("../templates/rust/Cargo.toml.template")),
    ("Cargo.lock", include_str!("../templates/rust/Cargo.lock.template")),
    ("kvasir-build.toml", include_str!("../templates/rust/kvasir-build.toml")),
    ("src/lib.rs", include_str!("../templates/rust/src/lib.rs")),
    ("src/exact.rs", include_str!("../templates/rust/src/exact.rs")),
    ("src/contract.rs", include_str!("../templates/rust/src/contract.rs")),
];

const C: &[(&str, &str)] = &[
    ("kvasir-build.toml", include_str!("../templates/c/kvasir-build.toml")),
    ("src/kernel.h", include_str!("../templates/c/src/kernel.h")),
    ("src/kernel.c", include_str!("../templates/c/src/kernel.c")),
    ("src/exact.c", include_str!("../templates/c/src/exact.c")),
    ("src/contract.c", include_str!("../templates/c/src/contract.c")),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn a_scaffold_is_a_project_in_its_own_folder_with_the_name_filled_in() {
        let place = tempfile::tempdir().unwrap();
        for (name, language) in [("fast", Language::Rust), ("acme:slow-2", Language::C)] {
            let made = scaffold(place.path(), name, language).unwrap();
            assert_eq!(Recipe::read(&made.folder).unwrap().language, language);
            let manifest = Manifest::parse(&fs::read(made.folder.join("plugin.toml")).unwrap()).unwrap();
            assert_eq!(manifest.name, made.plugin);
            for file in &made.files {
                let text = fs::read_to_string(made.folder.join(file)).unwrap();
                assert!(!["{{name}}", "{{plugin}}"].iter().any(|place| text.contains(place)), "{file}");
            }
        }
        assert!(place.path().join("slow-2/src/kernel.c").is_file());
    }

    #[test]
    fn a_folder_that_is_there_stays_and_a_name_that_leads_elsewhere_is_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("there")).unwrap();
        let error = scaffold(place.path(), "there", Language::C).unwrap_err();
        assert!(matches!(error, AuthorError::Exists(_)), "{error}");
        for name in ["", "../up", "a/b", "Upper", "a:b:c", "-x", "7up", &"x".repeat(MAX_NAME_BYTES)] {
            let error = scaffold(place.path(), name, Language::C).unwrap_err();
            assert!(matches!(error, AuthorError::Name { .. }), "{name}: {error}");
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
