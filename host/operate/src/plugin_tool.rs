//! `kvasir plugin`: from a core module to a component, from a folder to a signed package, and the checks of one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kvasir_plugin::PackageContents;
use serde_json::json;

use crate::local::verified_plugin;
use crate::settings::Settings;
use crate::{key_file, setup};

/// Most bytes of a module, manifest, vector file or package that these commands read.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// `kvasir plugin component`: wrap a core module, which carries its WIT world in a custom section, as a component.
///
/// # Errors
/// Where the module is unreadable or was not built against a WIT world.
pub fn componentize(module: &Path, component: &Path, json: bool) -> Result<()> {
    let bytes = read(module)?;
    let encoded = wit_component::ComponentEncoder::default()
        .validate(true)
        .module(&bytes)
        .and_then(|encoder| encoder.encode())
        .with_context(|| format!("{} is no module built against a WIT world", module.display()))?;
    setup::write_whole(component, &encoded)?;
    if json {
        println!("{}", json!({"component": component, "bytes": encoded.len()}));
    } else {
        println!("{}: {} bytes", component.display(), encoded.len());
    }
    Ok(())
}

/// `kvasir plugin pack`: sign the folder's plugin.toml, kernel.wasm and vectors/*.
///
/// # Errors
/// Where a file is missing or the manifest is malformed.
pub fn pack(folder: &Path, key: &Path, out: &Path, days: u32, json: bool) -> Result<()> {
    let key = key_file::load(key)?;
    let mut vectors = BTreeMap::new();
    let vector_folder = folder.join("vectors");
    if vector_folder.exists() {
        for entry in fs::read_dir(&vector_folder)
            .with_context(|| format!("cannot read {}", vector_folder.display()))?
        {
            let path = entry.with_context(|| format!("cannot read {}", vector_folder.display()))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                bail!("{} has a name that is not UTF-8", path.display());
            };
            vectors.insert(name.to_owned(), read(&path)?);
        }
    }
    let contents = PackageContents {
        manifest: read(&folder.join("plugin.toml"))?,
        component: read(&folder.join("kernel.wasm"))?,
        vectors,
    };
    let package = kvasir_plugin::pack(&contents, setup::validity(u64::from(days)), key.signing_key())?;
    setup::write_whole(out, &package)?;
    if json {
        println!(
            "{}",
            json!({"package": out, "bytes": package.len(), "publisher": key.public().to_string()})
        );
    } else {
        println!("{}: {} bytes, signed by {}", out.display(), package.len(), key.public());
    }
    Ok(())
}

/// `kvasir plugin verify`: signature, digests, imports, operators, golden vectors.
///
/// # Errors
/// The first check that fails.
pub fn verify(settings: &Settings, package: Option<&Path>, trust: Option<&Path>, json: bool) -> Result<()> {
    let path = settings.plugin(package);
    let plugin = verified_plugin(settings, package, trust)?;
    let report = kvasir_experts::conformance(&plugin)
        .with_context(|| format!("{} fails its own vectors", path.display()))?;
    if json {
        println!(
            "{}",
            json!({
                "package": path, "name": plugin.name(), "version": plugin.version().to_string(),
                "plugin": plugin.digest().to_string(), "publisher": plugin.publisher().to_string(),
                "formats": plugin.manifest().formats, "vectors": report.vectors,
            })
        );
    } else {
        println!("{} {} {}", plugin.name(), plugin.version(), plugin.digest());
        println!("publisher  {}", plugin.publisher());
        println!("formats    {}", plugin.manifest().formats.join(", "));
        println!("vectors    {} agree bit for bit", report.vectors);
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let size = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
    if size > FILE_BYTES_MAX {
        bail!("{} has {size} bytes; at most {FILE_BYTES_MAX} are read", path.display());
    }
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
