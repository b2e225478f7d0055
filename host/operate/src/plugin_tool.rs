//! `kvasir plugin`: from a core module to a component, from a folder to a signed package, and the checks of one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kvasir_experts::{FormatDeviation, GpuError, GpuOptions, RunnerError};
use kvasir_plugin::{PackageContents, PublisherKey, Tolerance, TrustStore, VerifiedPlugin};
use serde_json::json;

use crate::files::{self, Replaceable};
use crate::local::verified_plugin;
use crate::settings::Settings;
use crate::shader_check::{self, ShaderCheck};
use crate::{key_file, output, setup};

/// Most bytes of a module, manifest, vector file or package that these commands read.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// `kvasir plugin component`: wrap a core module, which carries its WIT world in a custom section, as a component.
///
/// # Errors
/// Where the module is unreadable or was not built against a WIT world.
pub fn componentize(module: &Path, component: &Path, force: bool, json: bool) -> Result<()> {
    Replaceable {
        inputs: &[module],
        may: files::is_component,
        what: "component (--force replaces it)",
        force,
    }
    .check(component)?;
    let bytes = read(module)?;
    let encoded = wit_component::ComponentEncoder::default()
        .validate(true)
        .module(&bytes)
        .and_then(|encoder| encoder.encode())
        .with_context(|| format!("{} is no module built against a WIT world", module.display()))?;
    files::write_whole(component, &encoded)?;
    if json {
        output::object(&json!({"component": component.display().to_string(), "bytes": encoded.len()}))
    } else {
        output::line(format!("{}: {} bytes", component.display(), encoded.len()))
    }
}

/// What `kvasir plugin pack` may be told.
pub struct PackOptions {
    /// Holds plugin.toml, kernel.wasm, vectors/ and, where the manifest names a shader, shaders/.
    pub folder: PathBuf,
    /// Secret key file of the publisher.
    pub key: PathBuf,
    /// Package to write.
    pub out: PathBuf,
    /// Days until the signature expires.
    pub days: u32,
    /// Replace a file that is no package.
    pub force: bool,
}

/// `kvasir plugin pack`: sign the folder's plugin.toml, kernel.wasm, shaders/* and vectors/*, after the checks that `verify` makes.
///
/// # Errors
/// Where a file is missing, the manifest is malformed, or the kernel fails its own vectors; nothing is written then.
pub fn pack(options: &PackOptions, json: bool) -> Result<()> {
    let PackOptions { folder, out, days, .. } = options;
    let key = key_file::load(&options.key)?;
    let (manifest, component) = (folder.join("plugin.toml"), folder.join("kernel.wasm"));
    Replaceable {
        inputs: &[&options.key, &manifest, &component],
        may: files::is_package,
        what: "kernel package (--force replaces it)",
        force: options.force,
    }
    .check(out)?;
    let contents = PackageContents {
        manifest: read(&manifest)?,
        component: read(&component)?,
        shaders: read_folder(&folder.join("shaders"))?,
        vectors: read_folder(&folder.join("vectors"))?,
    };
    let unfit = || format!("{} cannot be packed", folder.display());
    let package = kvasir_plugin::pack(&contents, setup::validity(u64::from(*days)), key.signing_key())
        .with_context(unfit)?;
    let own = PublisherKey { key: key.signing_key().verifying_key(), name: None };
    let plugin =
        kvasir_plugin::verify(&package, &TrustStore::from_keys([own])?, setup::now()).with_context(unfit)?;
    let proven = kvasir_experts::conformance(&plugin).with_context(unfit)?;
    let checked = checked_shader(&plugin).with_context(unfit)?;
    files::write_whole(out, &package)?;
    if json {
        output::object(&json!({
            "package": out.display().to_string(), "bytes": package.len(), "publisher": key.public().to_string(),
            "plugin": plugin.digest().to_string(), "vectors": proven.vectors, "shader": shader_object(&plugin, checked.as_ref()),
        }))
    } else {
        output::line(format!(
            "{}: {} bytes, {} vectors agree bit for bit, {}, signed by {}",
            out.display(),
            package.len(),
            proven.vectors,
            plugin.shader().map_or("no shader".to_owned(), |shader| {
                format!("shader {} {}", shader.file(), checked_text(checked.as_ref()))
            }),
            key.public()
        ))
    }
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
    let checked = checked_shader(&plugin)?;
    if json {
        output::object(&json!({
            "package": path.display().to_string(), "name": plugin.name(), "version": plugin.version().to_string(),
            "plugin": plugin.digest().to_string(), "publisher": plugin.publisher().to_string(),
            "formats": plugin.manifest().formats, "vectors": report.vectors, "shader": shader_object(&plugin, checked.as_ref()),
        }))
    } else {
        output::line(format!(
            "{} {} {}\npublisher  {}\nformats    {}\nvectors    {} agree bit for bit\nshader     {}",
            plugin.name(),
            plugin.version(),
            plugin.digest(),
            plugin.publisher(),
            plugin.manifest().formats.join(", "),
            report.vectors,
            shader_text(&plugin, checked.as_ref())
        ))
    }
}

/// Puts the plugin's shader, if it has one, through the front door of `kvasir-gpu`; `None` also where that program is not there.
fn checked_shader(plugin: &VerifiedPlugin) -> Result<Option<serde_json::Value>> {
    let Some(shader) = plugin.shader() else { return Ok(None) };
    match shader_check::check(shader)? {
        ShaderCheck::NotChecked => Ok(None),
        ShaderCheck::Accepted(mut report) => {
            report["proof"] = shader_proof(plugin)?;
            Ok(Some(report))
        }
    }
}

/// Runs the golden vectors on the shader where there is a device: what deviated by how much, or why it was skipped.
fn shader_proof(plugin: &VerifiedPlugin) -> Result<serde_json::Value> {
    let report = match kvasir_experts::shader_conformance(plugin, GpuOptions::default()) {
        Ok(report) => report,
        Err(RunnerError::Gpu(GpuError::NoDevice { .. })) => {
            return Ok(json!({ "skipped": "no Vulkan device" }));
        }
        Err(error) => return Err(error).context("the shader fails the plugin's own vectors"),
    };
    let format = |format: &FormatDeviation| {
        json!({
            "format": format.format, "values": format.values, "differing": format.differing,
            "max_abs": format.max_abs, "max_rel": format.max_rel, "cosine": format.cosine,
        })
    };
    let formats: Vec<_> = report.formats.iter().map(format).collect();
    Ok(
        json!({ "vectors": report.vectors, "rows": report.rows, "equal_integer_sums": report.sums, "formats": formats }),
    )
}

fn checked_text(checked: Option<&serde_json::Value>) -> String {
    let Some(report) = checked else {
        return "not checked: the program kvasir-gpu is not beside this one".to_owned();
    };
    let count = report["entry_points"].as_array().map_or(0, Vec::len);
    let proof = &report["proof"];
    let proven = match (proof["vectors"].as_u64(), proof["skipped"].as_str()) {
        (Some(vectors), _) => {
            format!(
                "{vectors} vectors within its tolerance, {} integer sums equal",
                proof["equal_integer_sums"]
            )
        }
        (None, reason) => format!("skipped: {}", reason.unwrap_or("not proven")),
    };
    format!("passes the front door with {count} entry points; {proven}")
}

/// The shader for people: file, size, and each format with its tolerance.
fn shader_text(plugin: &VerifiedPlugin, checked: Option<&serde_json::Value>) -> String {
    let Some(shader) = plugin.shader() else { return "none".to_owned() };
    let mut text = format!("{}, {} bytes, {}", shader.file(), shader.source().len(), checked_text(checked));
    for format in shader.formats() {
        if let Some(Tolerance { max_abs, max_rel, cosine }) = shader.tolerance(format) {
            text += &format!(
                "\n           {format}: within {max_abs} + {max_rel} of the value, cosine at least {cosine}"
            );
        }
    }
    text
}

/// The shader for programs, null where there is none; `checked` is null where `kvasir-gpu` is not there to ask.
fn shader_object(plugin: &VerifiedPlugin, checked: Option<&serde_json::Value>) -> serde_json::Value {
    let Some(shader) = plugin.shader() else { return serde_json::Value::Null };
    json!({
        "file": shader.file(), "bytes": shader.source().len(), "formats": shader.formats(),
        "tolerance": plugin.manifest().shader.as_ref().map(|table| &table.tolerance), "checked": checked,
    })
}

/// Every file of a folder by name; none where there is no such folder.
fn read_folder(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut contents = BTreeMap::new();
    if folder.exists() {
        let unreadable = || format!("cannot read {}", folder.display());
        for entry in fs::read_dir(folder).with_context(unreadable)? {
            let path = entry.with_context(unreadable)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                bail!("{} has a name that is not UTF-8", path.display());
            };
            contents.insert(name.to_owned(), read(&path)?);
        }
    }
    Ok(contents)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    files::read_bounded(path, FILE_BYTES_MAX).with_context(|| format!("cannot read {}", path.display()))
}
