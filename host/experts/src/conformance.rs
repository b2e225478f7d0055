//! Proves a plugin on the golden vectors inside its signature.

use kvasir_plugin::VerifiedPlugin;

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
}

/// Runs the plugin's golden vectors.
pub fn conformance(plugin: &VerifiedPlugin) -> Result<Report, ConformanceError> {
    let _ = plugin;
    todo!()
}
