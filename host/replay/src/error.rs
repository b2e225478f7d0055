//! Why an audit by replay cannot go on. What it finds is no error: see [`crate::Verdict`] and [`crate::Fault`].

use kvasir_experts::RunnerError;
use kvasir_merkle::Hash;
use kvasir_model::ModelError;
use thiserror::Error;

/// Why there is no verdict about anything.
#[derive(Debug, Error)]
pub enum ReplayError {
    // The plugin's or this machine's.
    /// The plugin cannot be compiled, or does not compute its golden vectors.
    #[error(
        "the plugin cannot be replayed on {engine}: {source}; nobody is convicted by a plugin that fails by itself"
    )]
    Engine {
        /// The engine.
        engine: &'static str,
        /// What the runner says.
        source: Box<RunnerError>,
    },
    /// The model cannot be digested.
    #[error("the model cannot be digested: {0}")]
    Model(#[from] ModelError),

    // The log's.
    /// Leaves that were read are not those of the checkpoint.
    #[error(
        "the {leaves} leaves that were read have the root {found}, the checkpoint says {expected}; read the log again, and audit it"
    )]
    Root {
        /// Leaves read.
        leaves: u64,
        /// Their root.
        found: Hash,
        /// The checkpoint's root.
        expected: Hash,
    },
    /// Fewer or more leaves than the checkpoint covers.
    #[error("{found} leaves were read, the checkpoint covers {expected}; read the log again, and audit it")]
    Size {
        /// Leaves read.
        found: u64,
        /// The checkpoint's size.
        expected: u64,
    },

    // The publisher's of probe records.
    /// The list of probe records, or a file of it, cannot be read.
    #[error("the probe records cannot be read: {0}")]
    Probes(String),
    /// More files or records than are looked at.
    #[error("there are more than {limit} {what} of probe records; name a folder with fewer")]
    TooMany {
        /// Files or records.
        what: &'static str,
        /// The most.
        limit: usize,
    },
}
