//! Every size that a package may not exceed. Chosen well above what a kernel needs (the first one is 210 kB) and
//! far below what would hurt a host that reads it.

/// Largest package in bytes; checked before anything else is looked at.
pub const MAX_PACKAGE_BYTES: usize = 64 << 20;
/// Most files in a package, the statement included.
pub const MAX_FILES: usize = 128;
/// Longest file name in bytes (the name field of a ustar header holds 100, the last one ends it).
pub const MAX_FILE_NAME_BYTES: usize = 99;
/// Largest envelope (`statement.dsse.json`) in bytes.
pub const MAX_ENVELOPE_BYTES: usize = 256 << 10;
/// Most signatures in an envelope.
pub const MAX_SIGNATURES: usize = 8;
/// Largest `plugin.toml` in bytes.
pub const MAX_MANIFEST_BYTES: usize = 64 << 10;
/// Largest `kernel.wasm` in bytes.
pub const MAX_COMPONENT_BYTES: usize = 8 << 20;
/// Largest single golden vector file in bytes.
pub const MAX_VECTOR_BYTES: usize = 16 << 20;
/// Largest shader source in bytes. What one costs to parse grows with the square of its length.
pub const MAX_SHADER_BYTES: usize = 64 << 10;
/// Longest plugin name in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Largest file of publisher keys (`*.pub`) in bytes.
pub const MAX_KEY_FILE_BYTES: usize = 64 << 10;
/// Most publisher keys in one trust store.
pub const MAX_TRUSTED_KEYS: usize = 1024;
