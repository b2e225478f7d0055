//! Asks the program `kvasir-gpu` what it thinks of a plugin's shader, and waits no longer than a deadline. No GPU is needed.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvasir_plugin::Shader;
use serde_json::Value;

/// How long a check may take; measured are a few milliseconds for a kernel and 1.5 seconds for the worst that the limits allow.
const DEADLINE: Duration = Duration::from_secs(60);
/// Most bytes of a report that are read.
const REPORT_BYTES_MAX: u64 = 1 << 20;

/// What came of a check.
pub enum ShaderCheck {
    /// The program is not there; nothing is known.
    NotChecked,
    /// The shader may be run; the report has what each entry point costs.
    Accepted(Value),
}

/// Puts `shader` through the front door of `kvasir-gpu`.
///
/// # Errors
/// Where the shader is refused, or the program fails or takes too long.
pub fn check(shader: &Shader) -> Result<ShaderCheck> {
    check_source(shader.file(), shader.source())
}

/// As [`check`], for a text that nobody has verified, called `file` (a plain name).
///
/// # Errors
/// As [`check`].
pub fn check_source(file: &str, text: &str) -> Result<ShaderCheck> {
    let Ok(program) = kvasir_gpu::find_program() else { return Ok(ShaderCheck::NotChecked) };
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let source = folder.path().join(file);
    std::fs::write(&source, text).with_context(|| format!("cannot write {}", source.display()))?;
    // A file and no pipe, so that a long report never waits for a reader.
    let mut report = tempfile::tempfile().context("cannot make a temporary file")?;
    let output: File = report.try_clone().context("cannot share a temporary file")?;
    let name = || program.display();
    let mut child = kvasir_gpu::confined(&program)
        .arg("check")
        .arg(&source)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", name()))?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {}", name()))? {
            break status;
        }
        if began.elapsed() > DEADLINE {
            let _ = child.kill();
            let _ = child.wait();
            bail!("checking the shader {} took over {} seconds and was ended", file, DEADLINE.as_secs());
        }
        thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    report
        .rewind()
        .and_then(|()| report.take(REPORT_BYTES_MAX).read_to_string(&mut said))
        .with_context(|| format!("cannot read what {} says", name()))?;
    let report: Value = serde_json::from_str(&said).unwrap_or_default();
    match (status.code(), report["message"].as_str()) {
        (Some(0), _) => Ok(ShaderCheck::Accepted(report)),
        (Some(1), Some(message)) => bail!("the shader {file} is refused: {message}"),
        _ => bail!("checking the shader {file} ended {} with {status}; do not run it", name()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kvasir_plugin::{PackageContents, PublisherKey, TrustStore, VerifiedPlugin};
    use kvasir_wire::key::SecretKey;

    use super::*;
    use crate::setup;

    fn plugin(source: &str) -> VerifiedPlugin {
        let kernel = setup::bundled_kernel();
        let text = String::from_utf8(kernel.manifest).unwrap();
        let own_table = text.find("[shader]").unwrap_or(text.len());
        let manifest = format!(
            "{}\n[shader]\nfile = \"x.wgsl\"\nformats = [\"F16\"]\n[shader.tolerance.F16]\nmax_abs = 0.1\nmax_rel = 0.1\ncosine = 1\n",
            &text[..own_table]
        );
        let contents = PackageContents {
            manifest: manifest.into_bytes(),
            component: kernel.component,
            shaders: BTreeMap::from([("x.wgsl".to_owned(), source.as_bytes().to_vec())]),
            vectors: kernel.vectors,
            sbom: Vec::new(),
        };
        let key = SecretKey::from_seed([7; 32]);
        let package = kvasir_plugin::pack(&contents, setup::validity(1), key.signing_key()).unwrap();
        let own = PublisherKey { key: key.signing_key().verifying_key(), name: None };
        kvasir_plugin::verify(&package, &TrustStore::from_keys([own]).unwrap(), setup::now()).unwrap()
    }

    #[test]
    fn a_shader_is_accepted_with_what_it_costs_or_refused_with_a_reason() {
        let good = plugin("@compute @workgroup_size(8) fn main() {}");
        match check(good.shader().unwrap()).unwrap() {
            ShaderCheck::NotChecked => {
                println!("skipped: the program kvasir-gpu is not built");
                return;
            }
            ShaderCheck::Accepted(report) => assert_eq!(report["entry_points"][0]["name"], "main"),
        }
        let bad = plugin("@compute @workgroup_size(8) fn main() { loop { } } enable f16;");
        let error = check(bad.shader().unwrap()).err().unwrap().to_string();
        assert!(error.contains("x.wgsl is refused") && error.contains("enable"), "{error}");
    }
}
