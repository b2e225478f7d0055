//! The bill of materials (`sbom.cdx.json`, CycloneDX): what a package must carry of it, and the one that is written where an author
//! brings none.

use serde::Deserialize;
use serde_json::json;

use crate::error::{PluginError, one_line};
use crate::files::Files;
use crate::manifest::Manifest;

/// The fields that are demanded; all others are the author's.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "bomFormat")]
    format: String,
    #[serde(rename = "specVersion")]
    version: String,
}

/// Refuses what is not CycloneDX in JSON.
pub fn check(text: &[u8]) -> Result<(), PluginError> {
    let refused = |reason: String| Err(PluginError::Sbom { reason });
    let head: Head = match serde_json::from_slice(text) {
        Ok(head) => head,
        Err(error) => return refused(one_line(error)),
    };
    if head.format != "CycloneDX" {
        return refused(format!("bomFormat is {:?}, not \"CycloneDX\"", head.format));
    }
    if !head.version.starts_with("1.") {
        return refused(format!("specVersion is {:?}, this host knows 1.x", head.version));
    }
    Ok(())
}

/// A bill of the files in the package: all that can be known without its source.
pub fn of_files(manifest: &Manifest, files: &Files<'_>) -> Vec<u8> {
    let components: Vec<_> = files
        .iter()
        .map(|(name, file)| {
            json!({"type": "file", "name": name, "hashes": [{"alg": "SHA-256", "content": file.digest.hex()}]})
        })
        .collect();
    let mut plugin = json!({
        "type": "library", "bom-ref": "plugin", "name": manifest.name, "version": manifest.version.to_string(),
    });
    if let Some(license) = &manifest.license {
        plugin["licenses"] = json!([{"expression": license}]);
    }
    json!({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "metadata": {"component": plugin}, "components": components,
    })
    .to_string()
    .into_bytes()
}
