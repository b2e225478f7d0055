//! Names that are not files: pipes, devices, folders, links that lead nowhere. None is waited for or passed over; and
//! what a file says to a terminal.

use std::path::Path;
use std::process::Command;

use super::forge::{Folder, Gguf};
use kvasir_model::{Model, ModelError};

const FOLDER_FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "model.safetensors",
];

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A small folder without that file.
fn folder_without(place: &Path, file: &str) -> std::path::PathBuf {
    let path = place.join(format!("without-{file}"));
    Folder::small().write(&path);
    let _ = std::fs::remove_file(path.join(file));
    path
}

fn refused(path: &Path) -> ModelError {
    Model::open(path).err().unwrap_or_else(|| panic!("{} opened", path.display()))
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_folders_are_refused() {
    let make: [fn(&Path); 4] = [
        make_pipe,
        |path| std::os::unix::fs::symlink("/dev/zero", path).unwrap(),
        |path| std::os::unix::fs::symlink("/dev/null", path).unwrap(),
        |path| std::fs::create_dir(path).unwrap(),
    ];
    for make in make {
        for file in FOLDER_FILES {
            let place = tempfile::tempdir().unwrap();
            let folder = folder_without(place.path(), file);
            make(&folder.join(file));
            let error = refused(&folder);
            assert!(
                matches!(&error, ModelError::NotAModel { path, .. } if path.ends_with(file)),
                "{file}: {error}"
            );
        }
    }
    let place = tempfile::tempdir().unwrap();
    for name in ["m.gguf", "m-00001-of-00002.gguf"] {
        make_pipe(&place.path().join(name));
        assert!(matches!(refused(&place.path().join(name)), ModelError::NotAModel { .. }));
    }
    assert!(matches!(refused(Path::new("/dev/zero")), ModelError::NotAModel { .. }));
    // A later part, and a file that an index names.
    let first = place.path().join("s-00001-of-00002.gguf");
    std::fs::write(&first, Gguf::small().write().bytes).unwrap();
    make_pipe(&place.path().join("s-00002-of-00002.gguf"));
    assert!(matches!(refused(&first), ModelError::NotAModel { .. }));
    let folder = folder_without(place.path(), "model.safetensors");
    std::fs::write(folder.join("model.safetensors.index.json"), r#"{"weight_map": {"a": "b.safetensors"}}"#)
        .unwrap();
    make_pipe(&folder.join("b.safetensors"));
    assert!(matches!(refused(&folder), ModelError::NotAModel { .. }));
}

#[cfg(unix)]
#[test]
fn links_that_lead_nowhere_are_not_passed_over() {
    for file in FOLDER_FILES {
        let place = tempfile::tempdir().unwrap();
        let folder = folder_without(place.path(), file);
        std::os::unix::fs::symlink("nowhere", folder.join(file)).unwrap();
        let error = refused(&folder);
        assert!(
            matches!(&error, ModelError::Unreadable { path, .. } if path.ends_with(file)),
            "{file}: {error}"
        );
    }
}

#[cfg(unix)]
#[test]
fn links_to_files_are_followed() {
    let place = tempfile::tempdir().unwrap();
    Folder::small().write(&place.path().join("there"));
    let links = place.path().join("links");
    std::fs::create_dir(&links).unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        std::os::unix::fs::symlink(format!("../there/{file}"), links.join(file)).unwrap();
    }
    Model::open(&links).unwrap();
}

#[test]
fn control_characters_are_not_shown() {
    let place = tempfile::tempdir().unwrap();
    let open = |gguf: &Gguf| {
        let path = place.path().join("m.gguf");
        std::fs::write(&path, gguf.write().bytes).unwrap();
        Model::open(&path)
    };
    let mut named = Gguf::small();
    named.text("general.name", "a\x1b]0;owned\x07\nb");
    assert_eq!(open(&named).unwrap().name(), "a\u{fffd}]0;owned\u{fffd}\u{fffd}b");

    let mut typed = Gguf::small();
    typed.text("general.architecture", "x\x1b[31m");
    let mut tokenised = Gguf::small();
    tokenised.text("tokenizer.ggml.pre", "\x1b[31m");
    let mut tensor = Gguf::small();
    let mut extra = Gguf::small().tensors.remove(0);
    extra.name = "evil\x1b[31m".to_owned();
    tensor.tensors.push(extra);
    for gguf in [typed, tokenised, tensor] {
        let error = open(&gguf).err().unwrap();
        let text = error.to_string();
        assert!(!text.contains('\x1b') && text.contains("\\u{1b}"), "{text:?}");
        // The message is whole: nothing is told again as its cause.
        assert!(std::error::Error::source(&error).is_none());
    }
}
