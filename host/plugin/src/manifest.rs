//! `plugin.toml`: what a plugin says of itself. It requests; only the operator's policy grants.

use serde::{Deserialize, Serialize};

use crate::error::{PluginError, one_line};
use crate::limits::MAX_NAME_BYTES;
use crate::shader::ShaderTable;
use crate::version::Version;

/// The contents of `plugin.toml`. Unknown keys are refused, so that a host never ignores what a publisher meant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this file's own format: 1.
    pub schema: u32,
    /// Lower-case letters, digits and `-`, with an optional namespace and `:` before it: `kvasir:swiglu`.
    pub name: String,
    /// The plugin's version.
    pub version: Version,
    /// An integer that only grows from release to release; a lower one than seen before is a rollback.
    pub kernel_revision: u64,
    /// The WIT world that the component exports: `kvasir:expert/expert-kernel@0.1.0`.
    pub world: String,
    /// Whether results are equal to the last bit everywhere.
    pub class: Class,
    /// Weight formats that the kernel evaluates, by GGUF name: `Q4_K`.
    pub formats: Vec<String>,
    /// The oldest host that may run it.
    pub min_host: Version,
    /// What it asks for.
    pub limits: Limits,
    /// Asks for WASI that reaches nothing (no files, no network, a clock that stands still), as a kernel built by a stock toolchain
    /// may import it; refused unless the operator's policy allows it. Reserved: no sandbox of this version links it, and a component
    /// that imports it is refused in any case.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub wasi_inert: bool,
    /// License expression, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// One sentence, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The same experts as WGSL, for hosts with a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shader: Option<ShaderTable>,
}

/// How far two machines' results may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Not at all: every bit is defined.
    Exact,
    /// Within a stated tolerance.
    Tolerance,
}

/// What a plugin asks of the host; the host grants the lesser of this and its own policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Most linear memory of one instance in bytes, the experts it holds included.
    pub memory_bytes: u64,
    /// Most fuel (about one per WebAssembly instruction) of one call.
    pub fuel_per_call: u64,
    /// Most rows in one call of the kernel; the host splits longer ones.
    pub rows_per_call: u32,
}

impl Manifest {
    /// The only `schema` this host reads.
    pub const SCHEMA: u32 = 1;

    /// The part of the name before its colon, which decides whose signatures count; none where there is no colon.
    pub fn namespace(&self) -> Option<&str> {
        namespace(&self.name)
    }

    /// Parses and checks `plugin.toml`.
    pub fn parse(text: &[u8]) -> Result<Self, PluginError> {
        let text = std::str::from_utf8(text).map_err(|_| malformed("it is not UTF-8"))?;
        let manifest: Manifest = toml::from_str(text).map_err(|error| malformed(&told(&error)))?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), PluginError> {
        if self.schema != Self::SCHEMA {
            return Err(malformed(&format!("schema is {}, this host reads {}", self.schema, Self::SCHEMA)));
        }
        if !is_name(&self.name) {
            return Err(malformed(&format!(
                "name {:?} must be lower-case letters, digits and -, with at most one namespace before a colon, \
                 {MAX_NAME_BYTES} bytes at most",
                self.name
            )));
        }
        if self.formats.is_empty() {
            return Err(malformed("formats is empty; list the weight formats that the kernel evaluates"));
        }
        let one_line = [
            ("world", Some(&self.world)),
            ("license", self.license.as_ref()),
            ("description", self.description.as_ref()),
        ];
        let formats = self.formats.iter().map(|format| ("formats", Some(format)));
        for (key, text) in one_line.into_iter().chain(formats) {
            if let Some(text) = text.filter(|text| text.contains(char::is_control)) {
                return Err(malformed(&format!(
                    "{key} has a line break or another control character: {text:?}"
                )));
            }
        }
        if self.limits.memory_bytes == 0 || self.limits.fuel_per_call == 0 || self.limits.rows_per_call == 0 {
            return Err(malformed("every one of limits must be above zero"));
        }
        if let Some(shader) = &self.shader {
            shader.check(&self.formats).map_err(|reason| malformed(&reason))?;
        }
        Ok(())
    }
}

/// The part of a plugin's `name` before its colon.
pub(crate) fn namespace(name: &str) -> Option<&str> {
    name.split_once(':').map(|(space, _)| space)
}

/// Whether `word` may be a namespace, or the rest of a name: lower-case letters, digits and `-`, a letter first.
pub(crate) fn is_word(word: &str) -> bool {
    word.len() <= MAX_NAME_BYTES
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_name(name: &str) -> bool {
    let (space, rest) = name.split_once(':').unwrap_or(("kvasir", name));
    name.len() <= MAX_NAME_BYTES && is_word(space) && is_word(rest)
}

/// The parser's account with its picture of the line, which is one line by its nature. What it says of it may quote a string with line
/// feeds in it.
fn told(error: &toml::de::Error) -> String {
    error.to_string().trim_end().replace(error.message(), &one_line(error.message()))
}

fn malformed(reason: &str) -> PluginError {
    PluginError::Manifest { reason: reason.to_owned() }
}
