//! Hostile and unsupported files: each in tests/data/hostile-model/ is refused with the error that says what is wrong.
//!
//! The corpus is written by this file (`cargo test -p kvasir-model --test hostile -- --ignored write`), and a test
//! checks that the committed files are the ones written. Each case damages one thing of a small valid model.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod configuration;
mod file_kinds;
mod folders;
#[path = "../forge/mod.rs"]
mod forge;
mod header;
mod safetensors;
mod split;
mod tensors;
mod tokenizers;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forge::{Folder, Gguf, repository};
use kvasir_model::{Model, ModelError};

struct Case {
    name: &'static str,
    /// Path under the case's name, bytes. An empty path is the case itself as a file.
    files: Vec<(String, Vec<u8>)>,
    /// What to open under the case's name.
    open: &'static str,
    variant: &'static str,
    /// What the message must say.
    says: &'static [&'static str],
}

#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn file(
        &mut self,
        name: &'static str,
        bytes: Vec<u8>,
        variant: &'static str,
        says: &'static [&'static str],
    ) {
        self.0.push(Case { name, files: vec![(String::new(), bytes)], open: "", variant, says });
    }

    /// A GGUF whose configuration is at fault. Tensors are left out: the configuration is checked before them.
    fn config(
        &mut self,
        name: &'static str,
        change: impl FnOnce(&mut Gguf),
        variant: &'static str,
        says: &'static [&'static str],
    ) {
        let mut gguf = Gguf::small();
        gguf.tensors.clear();
        change(&mut gguf);
        self.file(name, gguf.write().bytes, variant, says);
    }

    /// A GGUF whose tensors are at fault.
    fn tensors(
        &mut self,
        name: &'static str,
        change: impl FnOnce(&mut Gguf),
        variant: &'static str,
        says: &'static [&'static str],
    ) {
        let mut gguf = quiet();
        change(&mut gguf);
        self.file(name, gguf.write().bytes, variant, says);
    }

    fn folder(
        &mut self,
        name: &'static str,
        folder: Folder,
        variant: &'static str,
        says: &'static [&'static str],
    ) {
        let files = folder.files.into_iter().collect();
        self.0.push(Case { name, files, open: "", variant, says });
    }
}

/// The small model with weights of zero, which take no room in a repository.
fn quiet() -> Gguf {
    let mut gguf = Gguf::small();
    for tensor in &mut gguf.tensors {
        tensor.data.fill(0);
    }
    gguf
}

fn long(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

fn all_cases() -> Vec<Case> {
    let mut cases = Cases::default();
    header::header_cases(&mut cases);
    configuration::config_cases(&mut cases);
    vocabulary::vocabulary_cases(&mut cases);
    tensors::tensor_cases(&mut cases);
    split::split_cases(&mut cases);
    folders::folder_cases(&mut cases);
    tokenizers::tokenizer_cases(&mut cases);
    safetensors::safetensors_cases(&mut cases);
    cases.0
}

fn corpus() -> PathBuf {
    repository("tests/data/hostile-model")
}

fn path_of(case: &Case, file: &str) -> PathBuf {
    let place = corpus().join(case.name);
    if file.is_empty() { place } else { place.join(file) }
}

fn variant(error: &ModelError) -> &'static str {
    match error {
        ModelError::Unreadable { .. } => "Unreadable",
        ModelError::NotAModel { .. } => "NotAModel",
        ModelError::Damaged { .. } => "Damaged",
        ModelError::OverLimit { .. } => "OverLimit",
        ModelError::Unsupported { .. } => "Unsupported",
        ModelError::MissingKey { .. } => "MissingKey",
        ModelError::WrongType { .. } => "WrongType",
        ModelError::Configuration { .. } => "Configuration",
        ModelError::MissingTensor { .. } => "MissingTensor",
        ModelError::UnknownTensor { .. } => "UnknownTensor",
        ModelError::WrongShape { .. } => "WrongShape",
        ModelError::RowFormatsDiffer { .. } => "RowFormatsDiffer",
        ModelError::Weights { .. } => "Weights",
        ModelError::Tokenizer { .. } => "Tokenizer",
        _ => "another",
    }
}

/// All faults are reported together: one change of a message breaks several.
#[test]
fn every_file_is_refused_for_its_reason() {
    let mut wrong = Vec::new();
    for case in all_cases() {
        match Model::open(&path_of(&case, case.open)) {
            Ok(_) => wrong.push(format!("{}: opened", case.name)),
            Err(error) => {
                let text = error.to_string();
                let silent: Vec<_> = case.says.iter().filter(|part| !text.contains(**part)).collect();
                if variant(&error) != case.variant || !silent.is_empty() {
                    wrong.push(format!(
                        "{}: {} says {text:?}, without {silent:?}",
                        case.name,
                        variant(&error)
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_corpus_is_what_this_file_writes() {
    let mut expected = BTreeMap::new();
    for case in all_cases() {
        for (file, bytes) in &case.files {
            let twice = expected.insert(path_of(&case, file), bytes.clone());
            assert!(twice.is_none(), "two cases are called {}", case.name);
        }
    }
    for (path, bytes) in &expected {
        assert!(
            std::fs::read(path).ok().as_ref() == Some(bytes),
            "{} differs: write the corpus again",
            path.display()
        );
    }
    let found = files_under(&corpus());
    let strange: Vec<_> = found.iter().filter(|path| !expected.contains_key(*path)).collect();
    assert!(strange.iter().all(|path| path.ends_with("README.md")), "no case writes {strange:?}");
}

/// Faults of a file's name or size, which a corpus cannot or should not hold.
#[test]
fn names_and_sizes_that_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let message = |path: &Path| Model::open(path).err().unwrap().to_string();
    for (name, says) in [
        ("m-00001-of-01000.gguf", "counts parts wrongly (at most 999)"),
        ("m-00000-of-00002.gguf", "counts parts wrongly"),
        ("m-00003-of-00002.gguf", "counts parts wrongly"),
    ] {
        let path = place.path().join(name);
        std::fs::write(&path, header::header().write().bytes).unwrap();
        assert!(message(&path).contains(says));
    }
    assert!(message(&place.path().join("absent.gguf")).contains("cannot read"));
    for (file, bytes, says) in [
        ("config.json", 4 << 20, "config.json: length in bytes is 4194305, the limit is 4194304"),
        ("tokenizer.json", 64 << 20, "tokenizer.json: length in bytes is 67108865, the limit is 67108864"),
        ("chat_template.jinja", 4 << 20, "chat_template.jinja: length in bytes is 4194305"),
    ] {
        let folder = place.path().join(file.replace('.', "-"));
        Folder::small().write(&folder);
        // A hole: long, but without a byte on the disk.
        std::fs::File::create(folder.join(file)).unwrap().set_len(bytes + 1).unwrap();
        let text = message(&folder);
        assert!(text.contains(says), "{text}");
    }
}

/// The models that the cases are made from are sound: a case fails for what it changes.
#[test]
fn the_undamaged_models_open() {
    let folder = tempfile::tempdir().unwrap();
    for (name, gguf) in [("small.gguf", Gguf::small()), ("quiet.gguf", quiet())] {
        let path = folder.path().join(name);
        std::fs::write(&path, gguf.write().bytes).unwrap();
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(model.name(), "small");
    }
    Folder::small().write(&folder.path().join("folder"));
    assert_eq!(Model::open(&folder.path().join("folder")).unwrap().name(), "folder");
}

#[test]
#[ignore = "writes the corpus"]
fn write() {
    for case in all_cases() {
        for (file, bytes) in &case.files {
            let path = path_of(&case, file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
}

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_under(&path));
        } else {
            files.push(path);
        }
    }
    files
}
