//! The shader of a plugin: the table `[shader]` of `plugin.toml`, and what a verified package carries of it.
//!
//! Only the package's side is looked at here: names, sizes, encoding, tolerances. What the WGSL may consist of is checked where
//! it is used, in the GPU's own process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::PluginError;
use crate::files::{SHADERS, is_shader_name};

/// Largest [`Tolerance::max_abs`] that a plugin may claim. Expert outputs are sums of the order of one; a wider claim would
/// let any result pass.
pub const MAX_TOLERANCE_ABS: f64 = 1.0;
/// Largest [`Tolerance::max_rel`] that a plugin may claim.
pub const MAX_TOLERANCE_REL: f64 = 0.1;
/// Smallest [`Tolerance::cosine`] that a plugin may claim.
pub const MIN_TOLERANCE_COSINE: f64 = 0.99;

/// The table `[shader]` of `plugin.toml`. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShaderTable {
    /// Plain name of the WGSL source, which the package carries as `shaders/<file>`; ends in `.wgsl`.
    pub file: String,
    /// Weight formats that the shader evaluates, by GGUF name; each one of the plugin's own formats.
    pub formats: Vec<String>,
    /// How far its results may be from the exact kernel's, for each of `formats`.
    pub tolerance: BTreeMap<String, Tolerance>,
}

/// How far a shader's output row `a` may be from the exact row `b`: every value `|a - b| <= max_abs + max_rel * |b|`, and the
/// cosine of the angle between the two rows at least `cosine`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Absolute part, 0 to [`MAX_TOLERANCE_ABS`].
    pub max_abs: f64,
    /// Part relative to the exact value, 0 to [`MAX_TOLERANCE_REL`].
    pub max_rel: f64,
    /// Least cosine, [`MIN_TOLERANCE_COSINE`] to 1.
    pub cosine: f64,
}

/// The shader of a verified plugin: signed WGSL source and what the plugin claims of it. Nothing about the source is known but
/// that it is UTF-8 of at most [`crate::MAX_SHADER_BYTES`].
#[derive(Clone, Debug, PartialEq)]
pub struct Shader {
    table: ShaderTable,
    source: String,
}

impl Shader {
    /// Plain name of the source, without its folder.
    pub fn file(&self) -> &str {
        &self.table.file
    }

    /// The WGSL source text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Weight formats that it evaluates, by GGUF name, in the manifest's order.
    pub fn formats(&self) -> &[String] {
        &self.table.formats
    }

    /// The tolerance for weights of `format`; `None` where the shader does not evaluate it.
    pub fn tolerance(&self, format: &str) -> Option<Tolerance> {
        self.table.tolerance.get(format).copied()
    }

    /// Puts table and source together: the package must carry the named file and no other in the folder of shaders.
    pub(crate) fn assemble(
        table: Option<&ShaderTable>,
        files: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Option<Self>, PluginError> {
        let named = table.map(|table| table.file.as_str());
        if let Some(stray) = files.keys().find(|name| Some(name.as_str()) != named) {
            return Err(PluginError::ShaderNotNamed { name: format!("{SHADERS}{stray}") });
        }
        let Some(table) = table else { return Ok(None) };
        let name = || format!("{SHADERS}{}", table.file);
        let bytes = files.get(&table.file).ok_or_else(|| PluginError::ShaderMissing { name: name() })?;
        let source = std::str::from_utf8(bytes)
            .map_err(|error| PluginError::ShaderNotUtf8 { name: name(), offset: error.valid_up_to() })?;
        Ok(Some(Shader { table: table.clone(), source: source.to_owned() }))
    }
}

impl ShaderTable {
    /// Checks the table against the plugin's own `formats`; the error is a sentence.
    pub(crate) fn check(&self, formats: &[String]) -> Result<(), String> {
        if !is_shader_name(&self.file) {
            return Err(format!(
                "shader.file {:?} must be a plain name that ends in .wgsl, of letters, digits, `.`, `-` and `_`; the file \
                 itself lies in {SHADERS}",
                self.file
            ));
        }
        if self.formats.is_empty() {
            return Err("shader.formats is empty; list the formats that the shader evaluates".to_owned());
        }
        for (index, format) in self.formats.iter().enumerate() {
            if !formats.contains(format) {
                return Err(format!(
                    "shader.formats names {format:?}, which is not among the plugin's own formats ({}); a shader is proven \
                     against the kernel, so the kernel must evaluate it too",
                    formats.join(", ")
                ));
            }
            if self.formats[..index].contains(format) {
                return Err(format!("shader.formats names {format:?} twice"));
            }
            let Some(tolerance) = self.tolerance.get(format) else {
                return Err(format!(
                    "shader.formats names {format:?} without a table shader.tolerance.{format}"
                ));
            };
            tolerance.check(format)?;
        }
        match self.tolerance.keys().find(|format| !self.formats.contains(format)) {
            Some(format) => Err(format!(
                "there is a table shader.tolerance.{format}, but shader.formats does not name it"
            )),
            None => Ok(()),
        }
    }
}

impl Tolerance {
    fn check(&self, format: &str) -> Result<(), String> {
        for (key, value, low, high) in [
            ("max_abs", self.max_abs, 0.0, MAX_TOLERANCE_ABS),
            ("max_rel", self.max_rel, 0.0, MAX_TOLERANCE_REL),
            ("cosine", self.cosine, MIN_TOLERANCE_COSINE, 1.0),
        ] {
            // A NaN is in no range.
            if !(low..=high).contains(&value) {
                return Err(format!(
                    "shader.tolerance.{format}.{key} is {value}, it must be from {low} to {high}"
                ));
            }
        }
        Ok(())
    }
}
