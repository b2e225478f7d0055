//! `kvasir plugin build`: from a kernel's folder to its component, its bill of materials and its golden vectors.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kvasir_numerics::golden::GoldenVector;
use kvasir_plugin::{MAX_COMPONENT_BYTES, MAX_MANIFEST_BYTES, Manifest};
use kvasir_sandbox::{KernelFacts, SandboxError};
use sha2::{Digest, Sha256};

use crate::c_toolchain::CToolchain;
use crate::component::componentize;
use crate::error::AuthorError;
use crate::files;
use crate::recipe::{Language, Recipe};
use crate::rust_toolchain::RustToolchain;
use crate::sbom::{self, Tools};

/// Where the component is put in a kernel's folder.
pub const COMPONENT: &str = "build/kernel.wasm";
/// Where the bill of materials is put.
pub const SBOM: &str = "sbom.cdx.json";
/// Where the compilers put what they make on the way.
const PRODUCTS: &str = "build/target";
/// Largest module that a linker may leave, in bytes; what is made of it may have [`MAX_COMPONENT_BYTES`].
const MAX_MODULE_BYTES: u64 = 64 << 20;
/// Where golden vectors lie.
const VECTORS: &str = "vectors";

/// What a build may be told.
#[derive(Clone, Copy, Debug)]
pub struct BuildOptions<'a> {
    /// The kernel's folder.
    pub folder: &'a Path,
    /// Golden vectors to choose from, as (file name, bytes), where the folder has none of its own.
    pub vectors: &'a [(&'a str, &'a [u8])],
}

/// What was built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The component's file.
    pub component: PathBuf,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// SHA-256 of them, hex.
    pub sha256: String,
    /// What the sandbox's scan finds in it, or why it refuses it; the suite says the same.
    pub scan: Result<KernelFacts, SandboxError>,
    /// What compiled it.
    pub compiler: String,
    /// What linked it, where that is another program.
    pub linker: Option<String>,
    /// Golden vectors that were put into the folder.
    pub new_vectors: Vec<String>,
}

/// Builds the kernel in a folder: `build/kernel.wasm`, `sbom.cdx.json`, and `vectors` for the manifest's formats where the folder
/// has none.
///
/// # Errors
/// A folder that is no project, no compiler, sources that do not compile, a module that does not fit the contract.
pub fn build(options: &BuildOptions<'_>) -> Result<Built, AuthorError> {
    let folder = absolute(options.folder)?;
    let manifest = manifest(&folder)?;
    let products = folder.join(PRODUCTS);
    let (bytes, compiler, linker) = compile(&folder, &products)?;
    let component = folder.join(COMPONENT);
    fs::write(&component, &bytes).map_err(AuthorError::file("write", &component))?;
    let tools = Tools { compiler: &compiler, linker: linker.as_deref() };
    let bill = folder.join(SBOM);
    fs::write(&bill, sbom::bill(&folder, &manifest, &bytes, &tools)?)
        .map_err(AuthorError::file("write", &bill))?;
    let new_vectors = put_vectors(&folder, &manifest, options.vectors)?;
    Ok(Built {
        component,
        sha256: hex::encode(Sha256::digest(&bytes)),
        scan: kvasir_sandbox::inspect(&bytes),
        bytes,
        compiler,
        linker,
        new_vectors,
    })
}

/// Compiles the sources of `folder` and returns the component, the compiler and the linker. Products go to `products`.
pub(crate) fn compile(
    folder: &Path,
    products: &Path,
) -> Result<(Vec<u8>, String, Option<String>), AuthorError> {
    let recipe = Recipe::read(folder)?;
    // A compiler that meets a pipe or a device among them would not end.
    sbom::source_digests(folder)?;
    fs::create_dir_all(products).map_err(AuthorError::file("make", products))?;
    let (module, compiler, linker) = match recipe.language {
        Language::Rust => {
            let toolchain = RustToolchain::find()?;
            let module = toolchain.compile(folder, products, &recipe)?;
            (module, toolchain.version, toolchain.linker_version)
        }
        Language::C => {
            let toolchain = CToolchain::find()?;
            let module = toolchain.compile(folder, products, &recipe)?;
            (module, toolchain.version, toolchain.linker_version)
        }
    };
    let module = files::read(&module, MAX_MODULE_BYTES)?;
    let bytes = componentize(&module)?;
    if bytes.len() > MAX_COMPONENT_BYTES {
        let what = "the component's size in bytes".to_owned();
        return Err(AuthorError::OverLimit {
            what,
            value: bytes.len() as u64,
            limit: MAX_COMPONENT_BYTES as u64,
        });
    }
    Ok((bytes, compiler, linker))
}

/// The manifest of a kernel's folder.
pub(crate) fn manifest(folder: &Path) -> Result<Manifest, AuthorError> {
    let path = folder.join("plugin.toml");
    if !path.is_file() {
        return Err(AuthorError::NoProject { folder: folder.to_owned(), file: "plugin.toml" });
    }
    Ok(Manifest::parse(&files::read(&path, MAX_MANIFEST_BYTES as u64)?)?)
}

/// Writes the vectors all of whose formats the manifest names, where there is no vector yet.
fn put_vectors(
    folder: &Path,
    manifest: &Manifest,
    vectors: &[(&str, &[u8])],
) -> Result<Vec<String>, AuthorError> {
    let place = folder.join(VECTORS);
    let there = fs::read_dir(&place).is_ok_and(|mut entries| entries.next().is_some());
    if there {
        return Ok(Vec::new());
    }
    let fitting: BTreeMap<&str, &[u8]> =
        vectors.iter().filter(|(_, bytes)| fits(manifest, bytes)).copied().collect();
    if !fitting.is_empty() {
        fs::create_dir_all(&place).map_err(AuthorError::file("make", &place))?;
    }
    for (name, bytes) in &fitting {
        let path = place.join(name);
        fs::write(&path, bytes).map_err(AuthorError::file("write", &path))?;
    }
    Ok(fitting.keys().map(|name| (*name).to_owned()).collect())
}

fn fits(manifest: &Manifest, vector: &[u8]) -> bool {
    let Ok(vector) = GoldenVector::parse(vector) else { return false };
    [vector.gate, vector.up, vector.down]
        .iter()
        .all(|matrix| manifest.formats.iter().any(|format| format == matrix.format().name()))
}

/// Compilers are told the folder's real path, so that a link to it changes no byte.
fn absolute(folder: &Path) -> Result<PathBuf, AuthorError> {
    folder.canonicalize().map_err(AuthorError::file("read", folder))
}
