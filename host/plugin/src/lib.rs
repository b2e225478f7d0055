//! Signed packages of kernels: bytes -> [`VerifiedPlugin`].
//!
//! A package is a tar of a signed statement and the files that it lists; [`verify`] is the only way to a
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
mod identity;
mod limits;
mod manifest;
mod package;
mod policy;
mod revocations;
mod root;
mod seen;
mod shader;
mod statement;
mod trust;
mod version;

pub use contract::{CONTRACTS, ContractError, claims_compatibility, contract_world, negotiate};
pub use error::{DocumentError, KeyTextError, PluginError, TrustError};
pub use identity::{KeyId, PluginDigest, UnixSeconds};
pub use limits::*;
pub use manifest::{Class, Limits, Manifest};
pub use package::{PackageContents, Validity, VerifiedPlugin, pack, verify};
pub use policy::{Grant, GrantReason, Maximum, Policy, PolicyError, PolicyRefusal, Rule, RuleSource};
pub use revocations::{Revocations, VerifiedRevocations};
pub use root::{ANY_NAMESPACE, Role, RoleName, RoleNameError, Root, VerifiedRoot};
pub use seen::Seen;
pub use shader::{
    MAX_TOLERANCE_ABS, MAX_TOLERANCE_REL, MIN_TOLERANCE_COSINE, Shader, ShaderTable, Tolerance,
};
pub use trust::{PublisherKey, TrustStore};
pub use version::{HOST_VERSION, Version};
