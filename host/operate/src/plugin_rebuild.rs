//! `kvasir plugin verify --rebuild`: the sources built again, and compared with what was signed.

use std::path::Path;

use anyhow::{Context, Result, bail};
use kvasir_author::{Rebuilt, rebuild};
use kvasir_plugin::VerifiedPlugin;

use crate::progress::{LateLine, Spinner};

/// Builds `source` and returns the component's SHA-256, which is that of the plugin's.
///
/// # Errors
/// Where it does not build here, or builds to other bytes: then with what is known of why.
pub fn equal(plugin: &VerifiedPlugin, source: &Path) -> Result<String> {
    let waiting = "building the sources (for Rust with the standard library, which takes a minute or two)";
    let (spinner, late) = (Spinner::new(waiting), LateLine::new(waiting));
    let rebuilt = rebuild(source, plugin.component(), plugin.sbom())
        .with_context(|| format!("{} does not build", source.display()))?;
    drop((spinner, late));
    if rebuilt.is_equal() {
        return Ok(rebuilt.found);
    }
    bail!("{} does not build to the package's component: {}", source.display(), why(&rebuilt))
}

fn why(rebuilt: &Rebuilt) -> String {
    let mut text = format!("sha256 {} came out, {} was signed", rebuilt.found, rebuilt.due);
    for (there, here) in &rebuilt.other_tools {
        text += &format!("; the package was made by {there}, here is {here}: build with that one");
    }
    if !rebuilt.other_sources.is_empty() {
        text += &format!("; these sources are others: {}", rebuilt.other_sources.join(", "));
    }
    if rebuilt.other_tools.is_empty() && rebuilt.other_sources.is_empty() {
        text +=
            "; the bill of materials names the same tools and sources, so the package was not made of these";
    }
    text
}
