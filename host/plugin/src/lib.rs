//! Signed packages of kernels: bytes -> [`VerifiedPlugin`].
//!
//! A package is an OCI image layout in a tar, with a signed statement on every file; [`verify`] is the only way to a
//! [`VerifiedPlugin`], so holding one proves that size limits, signature, publisher, validity, host version and every
//! file's digest were checked. [`pack`] writes the one canonical form of a package: the same contents and key give the
//! same bytes. Nothing here runs, compiles or even parses
//! WebAssembly or WGSL; that is the work of the sandbox and of the GPU's process.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod archive;
mod contract;
mod document;
mod envelope;
mod error;
mod files;
mod identity;
pub mod layout;
mod limits;
mod manifest;
mod oci;
mod pack;
mod package;
mod policy;
mod revocations;
mod root;
mod sbom;
mod seen;
mod shader;
mod statement;
mod trust;
mod unverified;
mod version;

pub use contract::{CONTRACTS, ContractError, claims_compatibility, contract_world, negotiate};
pub use envelope::pre_authentication;
pub use error::{DocumentError, KeyTextError, PluginError, TrustError};
pub use identity::{BlobDigest, KeyId, PluginDigest, UnixSeconds};
pub use limits::*;
pub use manifest::{Class, Limits, Manifest};
pub use pack::{PackageContents, add_signature, pack, pack_unsigned, sign};
pub use package::{Validity, VerifiedPlugin, verify};
pub use policy::{Grant, GrantReason, Maximum, Policy, PolicyError, PolicyRefusal, Rule, RuleSource};
pub use revocations::{Revocations, VerifiedRevocations};
pub use root::{ANY_NAMESPACE, Role, RoleName, RoleNameError, Root, VerifiedRoot};
pub use seen::Seen;
pub use shader::{
    MAX_TOLERANCE_ABS, MAX_TOLERANCE_REL, MIN_TOLERANCE_COSINE, Shader, ShaderTable, Tolerance,
};
pub use trust::{PublisherKey, TrustStore};
pub use unverified::{Claims, FileFacts, Unverified};
pub use version::{HOST_VERSION, Version};
