//! Asks the program `kvasir-gpu` what it thinks of a plugin's shader, and waits no longer than a deadline. No GPU is needed.

use std::fs::File;
use std::io::{Read, Seek, Write};
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
    // Files without names: nothing is left of them, whenever this program is ended. And no pipes, so that a long report never
    // waits for a reader.
    let mut source = tempfile::tempfile().context("cannot make a temporary file")?;
    source
        .write_all(text.as_bytes())
        .and_then(|()| source.rewind())
        .with_context(|| format!("cannot write {file} to a temporary file"))?;
    let mut report = tempfile::tempfile().context("cannot make a temporary file")?;
    let output: File = report.try_clone().context("cannot share a temporary file")?;
    let name = || program.display();
    let mut child = kvasir_gpu::confined(&program)
        .arg("check")
        .arg("/proc/self/fd/0")
        .stdin(source)
        .stdout(output)
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", name()))?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| format!("cannot wait for {}", name()))? {
            break status;
        }
        let too_much = report.metadata().is_ok_and(|report| report.len() > REPORT_BYTES_MAX);
        if too_much || began.elapsed() > DEADLINE {
            let _ = child.kill();
            let _ = child.wait();
            let excess = if too_much {
                format!("wrote over {REPORT_BYTES_MAX} bytes")
            } else {
                format!("took over {} seconds", DEADLINE.as_secs())
            };
            bail!("checking the shader {file} {excess} and was ended");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let mut said = String::new();
    report
        .rewind()
        .and_then(|()| report.take(REPORT_BYTES_MAX).read_to_string(&mut said))
        .with_context(|| format!("cannot read what {} says", name()))?;
    match verdict(status.code(), &said) {
        Some(Ok(report)) => Ok(ShaderCheck::Accepted(report)),
        Some(Err(message)) => bail!("the shader {file} is refused: {message}"),
        None => {
            bail!("checking the shader {file} ended {} with {status} and no report; do not run it", name())
        }
    }
}

/// What a check said, the reason where it refused; `None` where what it said is no report.
fn verdict(status: Option<i32>, text: &str) -> Option<Result<Value, String>> {
    let report: Value = serde_json::from_str(text).ok()?;
    match (status?, report.get("accepted")?.as_bool()?) {
        (0, true) if report.get("entry_points")?.is_array() => Some(Ok(report)),
        (1, false) => Some(Err(report.get("message")?.as_str()?.to_owned())),
        _ => None,
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
    fn only_a_report_is_an_acceptance() {
        assert!(verdict(Some(0), r#"{"accepted":true,"entry_points":[]}"#).unwrap().is_ok());
        assert_eq!(verdict(Some(1), r#"{"accepted":false,"message":"no"}"#), Some(Err("no".to_owned())));
        let said = ["", "1", "null", "[]", "\"x\"", "{}", r#"{"accepted":1}"#, r#"{"accepted":true}"#];
        let more = [r#"{"accepted":true,"entry_points":5}"#, r#"{"accepted":false,"message":"no"}"#];
        for text in said.into_iter().chain(more) {
            assert_eq!(verdict(Some(0), text), None, "{text}");
        }
        assert_eq!(verdict(Some(1), r#"{"accepted":true,"entry_points":[]}"#), None);
        assert_eq!(verdict(None, r#"{"accepted":true,"entry_points":[]}"#), None);
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
