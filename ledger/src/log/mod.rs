//! The public log's formats: checkpoints, tiles, entry bundles, cosignatures, policies and proof files.
//!
//! Everything is C2SP's, in the strict reading: [signed-note](https://c2sp.org/signed-note),
//! [tlog-checkpoint](https://c2sp.org/tlog-checkpoint), [tlog-tiles](https://c2sp.org/tlog-tiles),
//! [tlog-cosignature](https://c2sp.org/tlog-cosignature), [tlog-policy](https://c2sp.org/tlog-policy) and
//! [tlog-proof](https://c2sp.org/tlog-proof). Nothing here knows what an entry means, writes a file or keeps state, and
//! all of it builds without the feature `server`: it is what an auditor needs.

mod checkpoint;
mod cosignature;
mod policy;
mod proof_file;
mod prover;
mod source;
mod tile;

pub(crate) use checkpoint::hash_from_base64;
pub use checkpoint::{Checkpoint, CheckpointError, MAX_CHECKPOINT_BYTES, SignedCheckpoint, log_verifier};
pub use cosignature::{Cosignature, CosignatureError, CosignerKey, cosign};
pub use policy::{MAX_POLICY_BYTES, MAX_POLICY_LINES, Policy, PolicyError, Quorum};
pub use proof_file::{MAX_PROOF_FILE_BYTES, ProofFile, ProofFileError};
pub use prover::{Prover, ProverError};
pub use source::{
    FolderSource, Found, HttpSource, LogSource, SourceError, find_bundle, find_tile, source_at,
};
pub use tile::{
    BundleCoordinates, MAX_BUNDLE_BYTES, MAX_ENTRY_BYTES, TILE_HASHES, TILE_HEIGHT, TileCoordinates,
    TileError, bundles_of, encode_bundle, encode_tile, parse_bundle, parse_tile, tiles_of,
};

/// Path of the signed head.
pub const CHECKPOINT_PATH: &str = "checkpoint";
