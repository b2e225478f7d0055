//! `kvasir inspect`: what a model file holds.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use kvasir_model::{ExpertIndex, LayerIndex};
use serde_json::json;

use crate::local::open_model;
use crate::output;
use crate::progress::Spinner;
use crate::settings::Settings;

/// Print shape, formats and digests of the model at `path`.
///
/// # Errors
/// Where the model cannot be used.
pub fn command(settings: &Settings, path: Option<&Path>, json: bool) -> Result<()> {
    let path = settings.model(path)?;
    let model = open_model(&path)?;
    let spinner = Spinner::new(format!("digesting {}", path.display()));
    let digests = model.digests().with_context(|| format!("cannot digest the model {}", path.display()))?;
    drop(spinner);
    let config = model.config();
    let mut formats: BTreeMap<String, u64> = BTreeMap::new();
    let mut expert_bytes = 0u64;
    for layer in 0..config.layers {
        for expert in 0..config.experts {
            let tensors = model.expert(LayerIndex(layer as u16), ExpertIndex(expert as u16))?;
            for tensor in [&tensors.gate, &tensors.up, &tensors.down] {
                let bytes = tensor.bytes().len() as u64;
                *formats.entry(tensor.format().name().to_owned()).or_default() += bytes;
                expert_bytes += bytes;
            }
        }
    }
    if json {
        let text = config.canonical_text();
        let configuration: BTreeMap<&str, &str> =
            text.lines().filter_map(|line| line.split_once(' ')).collect();
        output::object(&json!({
            "path": path.display().to_string(), "name": model.name(), "digest": digests.model.to_string(),
            "configuration": configuration, "expert_bytes": expert_bytes, "expert_bytes_by_format": formats,
            "chat_template": model.chat_template().is_some(),
        }))
    } else {
        let named: Vec<String> =
            formats.iter().map(|(name, bytes)| format!("{name} {bytes} bytes")).collect();
        output::line(format!(
            "{} ({})\ndigest   {}\nexperts  {} layers x {} = {expert_bytes} bytes ({})\n{}",
            output::name(model.name()),
            path.display(),
            digests.model,
            config.layers,
            config.experts,
            named.join(", "),
            config.canonical_text().trim_end()
        ))
    }
}
