//! Every size that a package may not exceed. Chosen well above what a kernel needs (the first one is 210 kB) and
//! far below what would hurt a host that reads it.

use std::ops::RangeInclusive;

/// Largest package in bytes; checked before anything else is looked at.
pub const MAX_PACKAGE_BYTES: usize = 64 << 20;
/// Most files in a package: plugin.toml, kernel.wasm, sbom.cdx.json, shaders and vectors.
pub const MAX_FILES: usize = 128;
/// Most entries in a package's archive: a blob for each file, three manifests, two configurations, the envelope,
/// `oci-layout` and `index.json`.
pub const MAX_ENTRIES: usize = MAX_FILES + 8;
/// Largest `oci-layout` in bytes.
pub const MAX_OCI_LAYOUT_BYTES: usize = 64;
/// Largest `index.json` of a layout in bytes.
pub const MAX_INDEX_BYTES: usize = 16 << 10;
/// Largest manifest or configuration of a layout in bytes; one that lists [`MAX_FILES`] files with the longest names has half.
pub const MAX_OCI_DOCUMENT_BYTES: usize = 128 << 10;
/// Largest blob of a layout in bytes; what a file may have is less, by its kind.
pub const MAX_BLOB_BYTES: usize = MAX_VECTOR_BYTES;
/// Longest file name in bytes (the name field of a ustar header holds 100, the last one ends it).
pub const MAX_FILE_NAME_BYTES: usize = 99;
/// Largest signature envelope in bytes.
pub const MAX_ENVELOPE_BYTES: usize = 256 << 10;
/// Most signatures in an envelope.
pub const MAX_SIGNATURES: usize = 8;
/// Largest `plugin.toml` in bytes.
pub const MAX_MANIFEST_BYTES: usize = 64 << 10;
/// Largest `kernel.wasm` in bytes.
pub const MAX_COMPONENT_BYTES: usize = 8 << 20;
/// Largest single golden vector file in bytes.
pub const MAX_VECTOR_BYTES: usize = 16 << 20;
/// Largest `sbom.cdx.json` in bytes.
pub const MAX_SBOM_BYTES: usize = 1 << 20;
/// Largest shader source in bytes. What one costs to parse grows with the square of its length.
pub const MAX_SHADER_BYTES: usize = 64 << 10;
/// Longest plugin name in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Largest file of publisher keys (`*.pub`) in bytes.
pub const MAX_KEY_FILE_BYTES: usize = 64 << 10;
/// Most publisher keys in one trust store.
pub const MAX_TRUSTED_KEYS: usize = 1024;
/// Largest `root.json` or `revoked.json` in bytes.
pub const MAX_TRUST_DOCUMENT_BYTES: usize = 1 << 20;
/// Most keys that a root may hold.
pub const MAX_ROOT_KEYS: usize = 256;
/// Most roles of a root.
pub const MAX_ROLES: usize = 256;
/// Most signatures on a `root.json` or `revoked.json`.
pub const MAX_DOCUMENT_SIGNATURES: usize = 32;
/// Most keys, and most packages, that one `revoked.json` may revoke.
pub const MAX_REVOKED: usize = 4096;
/// Largest `policy.toml` in bytes.
pub const MAX_POLICY_BYTES: usize = 64 << 10;
/// Most namespaces, and most publishers, that one policy may speak of.
pub const MAX_POLICY_RULES: usize = 256;
/// What a policy may say of linear memory, in bytes: a page of WebAssembly to all that 32 bits address.
pub const POLICY_MEMORY_BYTES: RangeInclusive<u64> = 65_536..=4 << 30;
/// What a policy may say of the fuel of a call; the most is about a hundred hours of one core.
pub const POLICY_FUEL_PER_CALL: RangeInclusive<u64> = 1..=1_000_000_000_000_000;
/// What a policy may say of the rows of a call.
pub const POLICY_ROWS_PER_CALL: RangeInclusive<u64> = 1..=65_536;
/// What a policy may say of the wall clock of a call, in milliseconds; the most is an hour.
pub const POLICY_DEADLINE_MS: RangeInclusive<u64> = 1..=3_600_000;
/// Largest text of [`crate::Seen`] in bytes.
pub const MAX_SEEN_BYTES: usize = 4 << 20;
/// Most (package, key set) pairs that [`crate::Seen`] remembers.
pub const MAX_SEEN_REVISIONS: usize = 4096;
