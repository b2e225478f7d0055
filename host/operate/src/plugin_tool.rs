//! `kvasir plugin component`: from a core module to a component; and how the words of `kvasir plugin` read files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kvasir_plugin::{MAX_FILES, MAX_PACKAGE_BYTES, MAX_VECTOR_BYTES};
use serde_json::json;

use crate::files::{self, Replaceable};
use crate::output;

/// Most bytes of a module, manifest, vector file or package that these commands read.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// `kvasir plugin component`: wrap a core module as a component, of the WIT world that it carries in a custom section or else of the
/// contract's.
///
/// # Errors
/// Where the module is unreadable or does not export what its world demands.
pub fn componentize(module: &Path, component: &Path, force: bool, json: bool) -> Result<()> {
    Replaceable {
        inputs: &[module],
        may: files::is_component,
        what: "component (--force replaces it)",
        force,
    }
    .check(component)?;
    let bytes = read(module)?;
    let encoded = kvasir_author::componentize(&bytes)
        .with_context(|| format!("{} is no module built against a WIT world", module.display()))?;
    files::write_whole(component, &encoded)?;
    if json {
        output::object(&json!({"component": component.display().to_string(), "bytes": encoded.len()}))
    } else {
        output::line(format!("{}: {} bytes", component.display(), encoded.len()))
    }
}

/// Every file of a folder by name; none where there is no such folder. No more than a package may hold is read.
pub(crate) fn read_folder(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let (mut contents, mut room) = (BTreeMap::new(), MAX_PACKAGE_BYTES);
    if folder.exists() {
        let unreadable = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(folder).with_context(unreadable)? {
            let path = entry.with_context(unreadable)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                bail!("{} has a name that is not UTF-8", path.display());
            };
            if contents.len() == MAX_FILES {
                bail!("{} holds more than {MAX_FILES} files, the most of a package", folder.display());
            }
            let bytes = files::read_bounded(&path, room.min(MAX_VECTOR_BYTES) as u64)
                .with_context(|| format!("cannot read {} into a package", path.display()))?;
            room -= bytes.len();
            contents.insert(name.to_owned(), bytes);
        }
    }
    Ok(contents)
}

/// A whole file of bounded size.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    files::read_bounded(path, FILE_BYTES_MAX).with_context(|| format!("cannot read {}", path.display()))
}
