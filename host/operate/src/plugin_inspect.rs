//! `kvasir plugin inspect`: what is in a package and what it asks for, before anybody trusts it.
//!
//! Nothing is verified and nothing is run. The component goes through the sandbox's scan, the shader through the front door of
//! `kvasir-gpu`; what they say is shown, a refusal as well.

use std::path::Path;

use anyhow::{Context, Result};
use kvasir_plugin::{PackageContents, Unverified};
use serde_json::{Value, json};

use crate::settings::Settings;
use crate::shader_check::{self, ShaderCheck};
use crate::{output, plugin_pack, plugin_store};

/// Show the package at `path`, the installed one where none is named.
///
/// # Errors
/// Where it has not the form of a package.
pub fn command(settings: &Settings, package: Option<&Path>, json: bool) -> Result<()> {
    let path = plugin_store::named_or_active(settings, package)?;
    let bytes = plugin_pack::read_package(&path)?;
    let found =
        Unverified::read(&bytes).with_context(|| format!("{} is no kernel package", path.display()))?;
    let kernel = kernel(&found.contents);
    let shader = shader(&found);
    if json { as_object(&path, &found, &kernel, &shader) } else { as_text(&path, &found, &kernel, &shader) }
}

fn as_object(path: &Path, found: &Unverified, kernel: &Value, shader: &Value) -> Result<()> {
    let files: Vec<Value> = found
        .files
        .iter()
        .map(|file| json!({"name": file.name, "bytes": file.bytes, "sha256": file.sha256.hex()}))
        .collect();
    let claims = found.claims.as_ref().map(|claims| {
        json!({
            "plugin": claims.digest, "signed_by": claims.signed_by, "not_before": claims.validity.not_before.0,
            "expires": claims.validity.expires.0, "misfit": claims.misfit.as_ref().map(ToString::to_string),
        })
    });
    output::object(&json!({
        "package": path.display().to_string(), "verified": false, "image": found.image, "manifest": found.manifest,
        "files": files, "claims": claims, "kernel": kernel, "shader": shader,
    }))
}

fn as_text(path: &Path, found: &Unverified, kernel: &Value, shader: &Value) -> Result<()> {
    let manifest = &found.manifest;
    let limits = &manifest.limits;
    let mut text = format!(
        "{} {} (kernel revision {}), not verified: {}\nimage     {}\nworld     {}\nclass     {}\nformats   {}\nneeds     host {} or newer\n\
         asks for  {} bytes of memory, {} of fuel a call, {} rows a call{}\n",
        manifest.name,
        manifest.version,
        manifest.kernel_revision,
        output::name(&path.display().to_string()),
        found.image,
        output::name(&manifest.world),
        serde_json::to_value(manifest.class)?.as_str().unwrap_or_default(),
        output::name(&manifest.formats.join(", ")),
        manifest.min_host,
        limits.memory_bytes,
        limits.fuel_per_call,
        limits.rows_per_call,
        if manifest.wasi_inert { ", inert WASI" } else { "" },
    );
    match &found.claims {
        None => text += "signed    by nobody: kvasir plugin sign\n",
        Some(claims) => {
            let keys: Vec<String> = claims.signed_by.iter().map(ToString::to_string).collect();
            let fit = claims.misfit.as_ref().map_or("fits the files".to_owned(), ToString::to_string);
            let fit = output::name(&fit);
            text += &format!(
                "plugin    {}\nsigned    by {} (whether the signatures hold: kvasir plugin verify)\nvalid     from {} until {}\n\
                 statement {fit}\n",
                claims.digest,
                keys.join(", "),
                claims.validity.not_before,
                claims.validity.expires,
            );
        }
    }
    text += &match kernel["refused"].as_str() {
        Some(reason) => format!("kernel    refused by the sandbox: {}\n", output::name(reason)),
        None => format!(
            "kernel    imports nothing, exports {}, {} functions\n",
            output::name(&kernel["exports"].to_string()),
            kernel["functions"]
        ),
    };
    text += &match (shader["refused"].as_str(), shader["file"].as_str()) {
        (_, None) => "shader    none\n".to_owned(),
        (Some(reason), _) => format!("shader    refused: {}\n", output::name(reason)),
        (None, Some(file)) => {
            let entry_points = shader["checked"]["entry_points"].as_array().map(Vec::len);
            let checked = entry_points
                .map_or("not checked, kvasir-gpu is not beside this program".to_owned(), |count| {
                    format!("passes the front door with {count} entry points")
                });
            format!("shader    {}: {checked}\n", output::name(file))
        }
    };
    for file in &found.files {
        text += &format!("{:>10}  {}  {}\n", file.bytes, file.sha256.hex(), file.name);
    }
    output::line(text.trim_end())
}

/// What the sandbox's scan says of the component.
fn kernel(contents: &PackageContents) -> Value {
    match kvasir_sandbox::inspect(&contents.component) {
        Ok(facts) => json!({
            "imports": [], "exports": facts.exports, "functions": facts.functions, "modules": facts.modules,
            "data_bytes": facts.data_bytes, "relaxed_dots": facts.relaxed_dots, "refused": null,
        }),
        Err(refusal) => json!({"imports": null, "refused": refusal.to_string()}),
    }
}

/// What the front door says of the shader; null where there is none.
fn shader(found: &Unverified) -> Value {
    let Some(table) = &found.manifest.shader else { return Value::Null };
    let facts = |checked: Value, refused: Option<String>| json!({"file": table.file, "formats": table.formats, "tolerance": table.tolerance, "checked": checked, "refused": refused});
    let Some(source) = found.contents.shaders.get(&table.file) else {
        return facts(Value::Null, Some("the package lacks it".to_owned()));
    };
    match std::str::from_utf8(source)
        .context("it is not UTF-8")
        .and_then(|text| shader_check::check_source(&table.file, text))
    {
        Ok(ShaderCheck::Accepted(report)) => facts(report, None),
        Ok(ShaderCheck::NotChecked) => facts(Value::Null, None),
        Err(error) => facts(Value::Null, Some(format!("{error:#}"))),
    }
}
