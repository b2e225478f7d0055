//! `kvasir-gpu check FILE`: the front door by hand, for authors of shaders and for hosts that want to know without a GPU.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{BufferKind, CheckedShader, ShaderError, ShaderLimits, check, confine};

/// Checks the WGSL file `path` in this process, under the limits of [`confine`], and gives the object to print and whether the shader
/// was accepted.
///
/// # Errors
/// Where the limits cannot be set, or the file cannot be read or is not UTF-8. A shader that is refused is no error here.
pub fn run(path: &Path) -> Result<(Value, bool)> {
    confine::memory(confine::CHECK_MEMORY_BYTES).context("cannot limit this process's memory")?;
    confine::processor_time(confine::CHECK_SECONDS).context("cannot limit this process's time")?;
    // A panic of the compiler becomes part of the report; its own words on standard error would only frighten.
    std::panic::set_hook(Box::new(|_| {}));
    let limits = ShaderLimits::default();
    let mut bytes = Vec::new();
    open(path)
        .and_then(|file| file.take(limits.source_bytes as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    // The size comes first: what was read of a longer file may end within a character.
    if bytes.len() > limits.source_bytes {
        let bytes = usize::try_from(std::fs::metadata(path)?.len()).unwrap_or(usize::MAX).max(bytes.len());
        return Ok((refused(&ShaderError::TooLong { bytes, limit: limits.source_bytes }), false));
    }
    let Ok(source) = String::from_utf8(bytes) else {
        bail!("{} is not UTF-8; WGSL is UTF-8 text", path.display());
    };
    Ok(match check(&source, &limits) {
        Ok(shader) => (accepted(&shader), true),
        Err(error) => (refused(&error), false),
    })
}

/// A plain file: a pipe could wait for ever.
fn open(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
    }
    File::open(path)
}

/// Most bytes that this process ever had resident; null where the system does not tell.
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix("kB")?;
    Some(kibibytes.trim().parse::<u64>().ok()? << 10)
}

fn accepted(shader: &CheckedShader) -> Value {
    let entry_points: Vec<Value> = shader
        .entry_points
        .iter()
        .map(|entry| {
            json!({
                "name": entry.name, "workgroup_size": entry.workgroup_size, "workgroup_bytes": entry.workgroup_bytes,
                "private_bytes": entry.private_bytes, "inlined": entry.inlined, "spirv_words": entry.spirv_words,
                "barriers": entry.barriers, "bindings": entry.bindings,
            })
        })
        .collect();
    let buffers: Vec<Value> = shader
        .buffers
        .iter()
        .map(|buffer| {
            let kind = match buffer.kind {
                BufferKind::Uniform => "uniform",
                BufferKind::Read => "read",
                BufferKind::ReadWrite => "read_write",
            };
            json!({"binding": buffer.binding, "name": buffer.name, "kind": kind, "least_bytes": buffer.least_bytes})
        })
        .collect();
    json!({
        "accepted": true, "entry_points": entry_points, "buffers": buffers, "peak_memory_bytes": peak_memory_bytes(),
    })
}

fn refused(error: &ShaderError) -> Value {
    json!({
        "accepted": false, "error": error.code(), "message": error.to_string(), "peak_memory_bytes": peak_memory_bytes(),
    })
}
