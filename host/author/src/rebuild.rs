//! `kvasir plugin verify --rebuild`: whether a component comes of the sources that are said to be its own.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::build::compile;
use crate::error::AuthorError;
use crate::products::Products;
use crate::sbom::source_digests;

/// What came of building the sources again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// SHA-256 of the component that was built, hex.
    pub found: String,
    /// SHA-256 of the component that was to come out, hex.
    pub due: String,
    /// Compiler and linker that the bill of materials names and that are others here: as (there, here).
    pub other_tools: Vec<(String, String)>,
    /// Sources that the bill of materials names with other digests, or that only one side has.
    pub other_sources: Vec<String>,
}

impl Rebuilt {
    /// Whether the bytes are the same.
    pub fn is_equal(&self) -> bool {
        self.found == self.due
    }
}

/// Builds the kernel in `source` anew in a folder of its own and compares it with `component`. `bill` is the bill of materials that
/// came with the component; it tells why the bytes differ where they do.
///
/// This runs the build of `source`, build scripts and procedural macros included, with the rights of whoever calls it.
///
/// # Errors
/// As [`crate::build()`].
pub fn rebuild(source: &Path, component: &[u8], bill: &[u8]) -> Result<Rebuilt, AuthorError> {
    let source = source.canonicalize().map_err(AuthorError::file("read", source))?;
    let products = Products::new().map_err(AuthorError::file("make", std::env::temp_dir()))?;
    let (bytes, compiler, linker) = compile(&source, products.path())?;
    let bill: Value = serde_json::from_slice(bill).unwrap_or_default();
    let hex_of = |bytes: &[u8]| hex::encode(Sha256::digest(bytes));
    Ok(Rebuilt {
        found: hex_of(&bytes),
        due: hex_of(component),
        other_tools: other_tools(&bill, &compiler, linker.as_deref()),
        other_sources: other_sources(&bill, &source_digests(&source)?),
    })
}

fn other_tools(bill: &Value, compiler: &str, linker: Option<&str>) -> Vec<(String, String)> {
    let named = |name: &str| {
        let tools = bill["metadata"]["tools"]["components"].as_array()?;
        tools.iter().find(|tool| tool["name"] == name)?["version"].as_str().map(str::to_owned)
    };
    [("compiler", Some(compiler)), ("linker", linker)]
        .into_iter()
        .filter_map(|(name, here)| Some((named(name)?, here.unwrap_or("the compiler's own").to_owned())))
        .filter(|(there, here)| there != here)
        .collect()
}

fn other_sources(bill: &Value, here: &BTreeMap<String, String>) -> Vec<String> {
    let components = bill["components"].as_array().map(Vec::as_slice).unwrap_or_default();
    let there: BTreeMap<&str, &str> = components
        .iter()
        .filter(|component| component["type"] == "file")
        .filter_map(|file| Some((file["name"].as_str()?, file["hashes"][0]["content"].as_str()?)))
        // A bill that was written without the sources lists the package's files instead.
        .filter(|(name, _)| name.starts_with("src/") || here.contains_key(*name))
        .collect();
    if there.is_empty() {
        return Vec::new();
    }
    let changed = here.iter().filter(|(name, digest)| there.get(name.as_str()) != Some(&digest.as_str()));
    let missing = there.keys().filter(|name| !here.contains_key(**name));
    let mut names: Vec<String> =
        changed.map(|(name, _)| name.clone()).chain(missing.map(|name| (*name).to_owned())).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bill_tells_which_tools_and_sources_are_others() {
        let file =
            |name: &str, digest: &str| json!({"type": "file", "name": name, "hashes": [{"content": digest}]});
        let bill = json!({
            "metadata": {"tools": {"components": [
                {"name": "compiler", "version": "clang 14"}, {"name": "linker", "version": "LLD 14"},
            ]}},
            "components": [file("src/a.c", "11"), file("src/gone.c", "22"), file("vectors/q.vector", "33")],
        });
        assert_eq!(
            other_tools(&bill, "clang 15", Some("LLD 14")),
            [("clang 14".to_owned(), "clang 15".to_owned())]
        );
        let here = [("src/a.c", "11"), ("src/new.c", "44")]
            .map(|(name, digest)| (name.to_owned(), digest.to_owned()));
        assert_eq!(other_sources(&bill, &here.into()), ["src/gone.c", "src/new.c"]);
        assert!(other_sources(&json!({}), &BTreeMap::new()).is_empty());
        assert!(other_tools(&Value::Null, "clang 15", None).is_empty());
    }
}
