//! The bill of materials of a build, as CycloneDX 1.5: the component, every source file, every crate, compiler and linker. The same
//! build gives the same text: no time, no random number.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kvasir_plugin::Manifest;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::AuthorError;
use crate::files;
use crate::recipe::RECIPE;

/// Most source files of a kernel.
const MAX_SOURCES: usize = 1_000;
/// Deepest folder under `src`.
const MAX_DEPTH: usize = 16;
/// Largest source file in bytes.
const MAX_SOURCE_BYTES: u64 = 4 << 20;

/// What compiled and linked.
pub(crate) struct Tools<'a> {
    pub compiler: &'a str,
    pub linker: Option<&'a str>,
}

/// The text of the bill for `component`, built from `folder`.
pub(crate) fn bill(
    folder: &Path,
    manifest: &Manifest,
    component: &[u8],
    tools: &Tools<'_>,
) -> Result<Vec<u8>, AuthorError> {
    let mut components: Vec<Value> = source_digests(folder)?
        .into_iter()
        .map(|(file, digest)| json!({"type": "file", "name": file, "hashes": [{"alg": "SHA-256", "content": digest}]}))
        .collect();
    components.extend(crates(folder)?);
    let tool = |name: &str, version: &str| json!({"type": "application", "name": name, "version": version});
    let mut used = vec![tool("compiler", tools.compiler)];
    used.extend(tools.linker.map(|linker| tool("linker", linker)));
    let mut about = json!({
        "type": "library", "name": manifest.name, "version": manifest.version.to_string(),
        "hashes": [{"alg": "SHA-256", "content": hex::encode(Sha256::digest(component))}],
    });
    if let Some(license) = &manifest.license {
        about["licenses"] = json!([{"expression": license}]);
    }
    let bill = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": about, "tools": {"components": used}},
        "components": components,
    });
    let mut text = serde_json::to_vec_pretty(&bill).unwrap_or_default();
    text.push(b'\n');
    Ok(text)
}

/// SHA-256 of every file that a build reads, by its path in the folder.
pub(crate) fn source_digests(folder: &Path) -> Result<BTreeMap<String, String>, AuthorError> {
    let mut found = Vec::new();
    for name in [RECIPE, "Cargo.toml", "Cargo.lock"] {
        if folder.join(name).exists() {
            found.push(PathBuf::from(name));
        }
    }
    below(folder, Path::new("src"), 0, &mut found)?;
    let mut digests = BTreeMap::new();
    for file in found {
        let bytes = files::read(&folder.join(&file), MAX_SOURCE_BYTES)?;
        digests.insert(file.to_string_lossy().into_owned(), hex::encode(Sha256::digest(bytes)));
    }
    Ok(digests)
}

fn below(folder: &Path, part: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), AuthorError> {
    let over = |what: &str, value: usize, limit: usize| AuthorError::OverLimit {
        what: format!("{what} of {}", folder.join("src").display()),
        value: value as u64,
        limit: limit as u64,
    };
    if depth > MAX_DEPTH {
        return Err(over("the depth", depth, MAX_DEPTH));
    }
    let path = folder.join(part);
    for entry in fs::read_dir(&path).map_err(AuthorError::file("read", &path))? {
        let entry = entry.map_err(AuthorError::file("read", &path))?;
        let part = part.join(entry.file_name());
        let kind = entry.file_type().map_err(AuthorError::file("read", folder.join(&part)))?;
        if kind.is_dir() {
            below(folder, &part, depth + 1, files)?;
        } else {
            files.push(part);
        }
        if files.len() > MAX_SOURCES {
            return Err(over("the number of files", files.len(), MAX_SOURCES));
        }
    }
    Ok(())
}

/// The crates that `Cargo.lock` fixes, but for the kernel's own.
fn crates(folder: &Path) -> Result<Vec<Value>, AuthorError> {
    let path = folder.join("Cargo.lock");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = files::read_text(&path, MAX_SOURCE_BYTES)?;
    let table: toml::Table = toml::from_str(&text)
        .map_err(|error| AuthorError::Malformed { file: path, reason: error.to_string() })?;
    let packages = table.get("package").and_then(|list| list.as_array()).cloned().unwrap_or_default();
    let entry = |package: &toml::Value| {
        let text = |key: &str| package.get(key).and_then(|value| value.as_str());
        text("source")?;
        let (name, version) = (text("name")?, text("version")?);
        let mut entry = json!({
            "type": "library", "name": name, "version": version, "purl": format!("pkg:cargo/{name}@{version}"),
        });
        if let Some(checksum) = text("checksum") {
            entry["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        Some(entry)
    };
    Ok(packages.iter().filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Language;

    #[test]
    fn a_bill_names_every_source_and_crate_and_is_the_same_each_time() {
        let place = tempfile::tempdir().unwrap();
        let made = crate::scaffold(place.path(), "demo", Language::Rust).unwrap();
        let lock = made.folder.join("Cargo.lock");
        let more = "\n[[package]]\nname = \"libm\"\nversion = \"0.2.16\"\nsource = \"registry+x\"\nchecksum = \"ab\"\n";
        fs::write(&lock, fs::read_to_string(&lock).unwrap() + more).unwrap();
        let manifest = Manifest::parse(&fs::read(made.folder.join("plugin.toml")).unwrap()).unwrap();
        let tools = Tools { compiler: "rustc 1.95.0", linker: None };
        let text = bill(&made.folder, &manifest, b"component", &tools).unwrap();
        assert_eq!(text, bill(&made.folder, &manifest, b"component", &tools).unwrap());
        let bill: Value = serde_json::from_slice(&text).unwrap();
        let names: Vec<&str> =
            bill["components"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
        let due =
            ["Cargo.lock", "Cargo.toml", RECIPE, "src/contract.rs", "src/exact.rs", "src/lib.rs", "libm"];
        assert_eq!(names, due);
        assert_eq!(
            bill["metadata"]["component"]["hashes"][0]["content"],
            hex::encode(Sha256::digest(b"component"))
        );
    }

    #[test]
    fn a_source_file_over_its_limit_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let made = crate::scaffold(place.path(), "demo", Language::C).unwrap();
        let large = fs::File::create(made.folder.join("src/table.c")).unwrap();
        large.set_len(MAX_SOURCE_BYTES + 1).unwrap();
        let error = source_digests(&made.folder).unwrap_err();
        assert!(matches!(error, AuthorError::OverLimit { .. }), "{error}");
    }

    #[test]
    fn a_source_that_is_a_pipe_or_a_device_is_refused_before_a_compiler_meets_it() {
        let place = tempfile::tempdir().unwrap();
        for (index, language) in [Language::C, Language::Rust].into_iter().enumerate() {
            let made = crate::scaffold(place.path(), &format!("demo{index}"), language).unwrap();
            let extra = made.folder.join("src/extra.c");
            let refused = || {
                let options = crate::BuildOptions { folder: &made.folder, vectors: &[] };
                let built = crate::build(&options).unwrap_err();
                let rebuilt = crate::rebuild(&made.folder, b"", b"").unwrap_err();
                for error in [built, rebuilt] {
                    assert!(error.to_string().contains("no plain file"), "{error}");
                }
            };
            assert!(std::process::Command::new("mkfifo").arg(&extra).status().unwrap().success());
            refused();
            fs::remove_file(&extra).unwrap();
            std::os::unix::fs::symlink("/dev/zero", &extra).unwrap();
            refused();
        }
    }

    #[test]
    fn too_many_source_files_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let made = crate::scaffold(place.path(), "demo", Language::C).unwrap();
        for number in 0..=MAX_SOURCES {
            fs::write(made.folder.join(format!("src/{number}.h")), b"").unwrap();
        }
        let error = source_digests(&made.folder).unwrap_err();
        assert!(matches!(error, AuthorError::OverLimit { .. }), "{error}");
    }
}
