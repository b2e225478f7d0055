//! `kvasir plugin verify`, and the checks of a plugin that go beyond its signature: golden vectors, and the shader's front door.

use std::path::Path;

use anyhow::{Context, Result};
use kvasir_experts::{
    ConformanceError, FormatDeviation, GpuError, GpuOptions, KernelError, PROOF_TIME, Report, RunnerError,
    SandboxError,
};
use kvasir_plugin::{Grant, Tolerance, VerifiedPlugin};
use serde_json::json;

use crate::local::verified_plugin;
use crate::settings::Settings;
use crate::shader_check::{self, ShaderCheck};
use crate::{output, plugin_rebuild, plugin_store};

/// What came of a plugin's own vectors.
pub struct Proven {
    /// Golden vectors that agreed bit for bit.
    pub vectors: usize,
    /// What `kvasir-gpu` said of the shader; none where there is no shader, or that program is not there.
    pub shader: Option<serde_json::Value>,
}

/// How a kernel that others made is tried.
pub struct Trial<'a> {
    /// Whether in a process of its own.
    pub settings: &'a Settings,
    /// Within what, and whether on the GPU too.
    pub grant: Grant,
}

/// Runs the golden vectors, on the shader too where there is one and a device. `trial` is given where others made the kernel: then it
/// runs within what the policy grants it, in a process as the settings file says, and otherwise in this one.
///
/// # Errors
/// Where the kernel or the shader fails them, or the shader is refused.
pub fn prove(plugin: &VerifiedPlugin, trial: Option<&Trial<'_>>) -> Result<Proven> {
    let report = match trial {
        Some(trial) => tried(plugin, trial)?,
        None => kvasir_experts::conformance(plugin).context("it fails its own vectors")?,
    };
    let gpu = trial.is_none_or(|trial| trial.grant.gpu);
    Ok(Proven { vectors: report.vectors, shader: checked_shader(plugin, gpu)? })
}

/// Runs the golden vectors of a kernel that others made, within what the policy grants it, and in a confined process unless the
/// settings file says `isolation = "none"`.
///
/// # Errors
/// Where the policy refuses it, the process cannot be started, or the kernel fails.
pub(crate) fn prove_foreign(settings: &Settings, plugin: &VerifiedPlugin) -> Result<Report> {
    tried(plugin, &Trial { settings, grant: settings.store().grant(plugin)? })
}

fn tried(plugin: &VerifiedPlugin, trial: &Trial<'_>) -> Result<Report> {
    let limits = plugin_store::limits_of(&trial.grant);
    let isolation = trial.settings.isolation(None).for_a_trial();
    kvasir_experts::conformance_within(plugin, &isolation, limits, PROOF_TIME).map_err(|error| {
        let what =
            if is_of_the_machine(&error) { "its kernel cannot be tried" } else { "it fails its own vectors" };
        anyhow::Error::from(error).context(what)
    })
}

/// Whether the failure says something about this machine or this program, and nothing about the kernel.
fn is_of_the_machine(error: &ConformanceError) -> bool {
    match error {
        ConformanceError::Sandbox(error) => matches!(error, SandboxError::Engine { .. }),
        ConformanceError::Process(error) => matches!(
            error,
            KernelError::NoProgram { .. }
                | KernelError::Start { .. }
                | KernelError::Setup { .. }
                | KernelError::Cache { .. }
                | KernelError::ForeignArtefact
                | KernelError::BrokenProtocol { .. }
        ),
        _ => false,
    }
}

/// `kvasir plugin verify`: signature, digests, imports, operators, golden vectors, and whether `source` builds to the same bytes.
///
/// # Errors
/// The first check that fails.
pub fn verify(
    settings: &Settings,
    package: Option<&Path>,
    trust: Option<&Path>,
    source: Option<&Path>,
    json: bool,
) -> Result<()> {
    let plugin = verified_plugin(settings, package, trust)?;
    let path = plugin_store::named_or_active(settings, package)?;
    let trial = Trial { settings, grant: settings.store().grant(&plugin)? };
    let proven = prove(&plugin, Some(&trial)).with_context(|| format!("{} is refused", path.display()))?;
    let publishers: Vec<String> = plugin.publishers().iter().map(ToString::to_string).collect();
    let checked = proven.shader.as_ref();
    let rebuilt = source.map(|source| plugin_rebuild::equal(&plugin, source)).transpose()?;
    if json {
        output::object(&json!({
            "package": path.display().to_string(), "name": plugin.name(), "version": plugin.version().to_string(),
            "kernel_revision": plugin.manifest().kernel_revision, "plugin": plugin.digest().to_string(),
            "publisher": plugin.publisher().to_string(), "publishers": publishers,
            "expires": plugin.validity().expires.0, "formats": plugin.manifest().formats, "vectors": proven.vectors,
            "shader": shader_object(&plugin, checked), "rebuilt": rebuilt,
        }))
    } else {
        output::line(format!(
            "{} {} {}\npublisher  {}\nformats    {}\nvectors    {} agree bit for bit\nshader     {}{}",
            plugin.name(),
            plugin.version(),
            plugin.digest(),
            publishers.join(", "),
            plugin.manifest().formats.join(", "),
            proven.vectors,
            shader_text(&plugin, checked),
            rebuilt.map_or(String::new(), |sha256| format!("\nrebuilt    the same bytes, sha256 {sha256}"))
        ))
    }
}

/// Puts the plugin's shader, if it has one, through the front door of `kvasir-gpu`; `None` also where that program is not there. That
/// parses it and runs nothing of it; it is run where it may use the GPU.
fn checked_shader(plugin: &VerifiedPlugin, gpu: bool) -> Result<Option<serde_json::Value>> {
    let Some(shader) = plugin.shader() else { return Ok(None) };
    match shader_check::check(shader)? {
        ShaderCheck::NotChecked => Ok(None),
        ShaderCheck::Accepted(mut report) => {
            report["proof"] = match gpu {
                true => shader_proof(plugin)?,
                false => json!({ "skipped": "the policy does not grant the GPU" }),
            };
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

pub(crate) fn checked_text(checked: Option<&serde_json::Value>) -> String {
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
pub(crate) fn shader_object(
    plugin: &VerifiedPlugin,
    checked: Option<&serde_json::Value>,
) -> serde_json::Value {
    let Some(shader) = plugin.shader() else { return serde_json::Value::Null };
    json!({
        "file": shader.file(), "bytes": shader.source().len(), "formats": shader.formats(),
        "tolerance": plugin.manifest().shader.as_ref().map(|table| &table.tolerance), "checked": checked,
    })
}
