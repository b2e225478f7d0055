//! The files that a package may carry: names, sizes, media types.

use std::collections::BTreeMap;

use crate::error::PluginError;
use crate::identity::BlobDigest;
use crate::limits::{
    MAX_COMPONENT_BYTES, MAX_FILE_NAME_BYTES, MAX_FILES, MAX_MANIFEST_BYTES, MAX_PACKAGE_BYTES,
    MAX_SBOM_BYTES, MAX_SHADER_BYTES, MAX_VECTOR_BYTES,
};

/// The manifest's file name.
pub const MANIFEST: &str = "plugin.toml";
/// The component's file name.
pub const COMPONENT: &str = "kernel.wasm";
/// The bill of materials' file name.
pub const SBOM: &str = "sbom.cdx.json";
/// The folder of WGSL shaders.
pub const SHADERS: &str = "shaders/";
/// The folder of golden vectors.
pub const VECTORS: &str = "vectors/";

/// One file: its bytes, and their digest, which was computed and not read.
#[derive(Clone, Copy)]
pub struct File<'a> {
    pub bytes: &'a [u8],
    pub digest: BlobDigest,
}

/// Files by name.
pub type Files<'a> = BTreeMap<String, File<'a>>;

/// The most bytes that the file `name` may have; an error if the format does not know the name.
pub fn size_limit(name: &str) -> Result<usize, PluginError> {
    match name {
        MANIFEST => Ok(MAX_MANIFEST_BYTES),
        COMPONENT => Ok(MAX_COMPONENT_BYTES),
        SBOM => Ok(MAX_SBOM_BYTES),
        _ if name.strip_prefix(SHADERS).is_some_and(is_shader_name) => Ok(MAX_SHADER_BYTES),
        _ if name.strip_prefix(VECTORS).is_some_and(is_vector_name) => Ok(MAX_VECTOR_BYTES),
        _ => Err(PluginError::UnexpectedFile { name: name.to_owned() }),
    }
}

/// The media type under which a layout carries the file `name`.
pub fn media_type(name: &str) -> &'static str {
    match name {
        MANIFEST => "application/toml",
        COMPONENT => "application/wasm",
        SBOM => "application/vnd.cyclonedx+json",
        _ if name.starts_with(SHADERS) => "text/wgsl",
        _ => "application/vnd.kvasir.vector.v1",
    }
}

/// Adds a file; refuses an unknown name, a size over its limit, a name twice, too many files, and too many bytes together.
pub fn add<'a>(files: &mut Files<'a>, name: String, file: File<'a>) -> Result<(), PluginError> {
    let limit = size_limit(&name)?;
    let bytes = file.bytes.len();
    if bytes > limit {
        return Err(PluginError::FileTooLarge { name, bytes: bytes as u64, limit });
    }
    if files.len() == MAX_FILES {
        return Err(PluginError::TooManyFiles { limit: MAX_FILES });
    }
    if files.values().map(|file| file.bytes.len()).sum::<usize>() + bytes > MAX_PACKAGE_BYTES {
        return Err(PluginError::UnpackedTooLarge { limit: MAX_PACKAGE_BYTES });
    }
    if files.contains_key(&name) {
        return Err(PluginError::DuplicateFile { name });
    }
    files.insert(name, file);
    Ok(())
}

/// Whether `name` may be a golden vector's, without its folder: plain letters, digits, `.`, `-` and `_`.
pub fn is_vector_name(name: &str) -> bool {
    is_plain_name(name, VECTORS)
}

/// Whether `name` may be a shader's, without its folder: as a vector's, and it ends in `.wgsl`.
pub fn is_shader_name(name: &str) -> bool {
    is_plain_name(name, SHADERS) && name.ends_with(".wgsl")
}

fn is_plain_name(name: &str, folder: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.len() + folder.len() <= MAX_FILE_NAME_BYTES
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'))
}
