//! `kvasir plugin new` and `kvasir plugin build`: a kernel's project, from nothing to a component.

use std::path::Path;

use anyhow::Result;
pub use kvasir_author::Language;
use kvasir_author::{BuildOptions, build, scaffold};
use serde_json::json;

use crate::progress::{LateLine, Spinner};
use crate::{output, setup};

/// `kvasir plugin new`: the folder `name` in `parent`, with a kernel that passes the conformance suite as it is.
///
/// # Errors
/// A name that no plugin can have, or a folder that is there already.
pub fn command_new(parent: &Path, name: &str, language: Language, json: bool) -> Result<()> {
    let made = scaffold(parent, name, language)?;
    let folder = made.folder.strip_prefix(".").unwrap_or(&made.folder).display().to_string();
    if json {
        return output::object(&json!({
            "plugin": made.plugin, "folder": folder, "language": language.name(), "files": made.files,
        }));
    }
    output::line(format!(
        "{folder}: the kernel {} in {}\nfiles      {}\nnext       cd {folder} && kvasir plugin build && kvasir plugin test",
        made.plugin,
        language.name(),
        made.files.join(", ")
    ))
}

/// `kvasir plugin build`: compiles the kernel in `folder`.
///
/// # Errors
/// Where the folder is no project, there is no compiler, or the sources do not compile.
pub fn command_build(folder: &Path, json: bool) -> Result<()> {
    let bundled = setup::bundled_kernel();
    let vectors: Vec<(&str, &[u8])> =
        bundled.vectors.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let waiting = "compiling (the first time the standard library too, which takes a minute or two)";
    let (spinner, late) = (Spinner::new(waiting), LateLine::new(waiting));
    let built = build(&BuildOptions { folder, vectors: &vectors })?;
    drop((spinner, late));
    let component = folder.join(kvasir_author::COMPONENT);
    let component = component.strip_prefix(".").unwrap_or(&component).display().to_string();
    if let Err(refused) = &built.scan {
        output::remark(format!("no host will run it as it is: {refused}"));
    }
    if json {
        return output::object(&json!({
            "component": component, "bytes": built.bytes.len(), "sha256": built.sha256,
            "compiler": built.compiler, "linker": built.linker, "sbom": kvasir_author::SBOM,
            "new_vectors": built.new_vectors, "refused": built.scan.err().map(|error| error.to_string()),
        }));
    }
    let vectors = match built.new_vectors.len() {
        0 => "your own, left alone".to_owned(),
        count => format!("{count} bundled ones for the formats in plugin.toml"),
    };
    output::line(format!(
        "{component}: {} bytes, sha256 {}\ncompiler   {}\nlinker     {}\nvectors    {vectors}\nnext       kvasir plugin test",
        built.bytes.len(),
        built.sha256,
        built.compiler,
        built.linker.as_deref().unwrap_or("the compiler's own")
    ))
}
