//! What can go wrong in a forward pass, arranged by whose fault it is.

use kvasir_model::{LayerIndex, ModelError, TokenId};
use thiserror::Error;

use crate::experts::ExpertsError;

/// Why a backbone could not be made, or a forward pass or generation could not be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackboneError {
    // The caller's fault.
    /// There is nothing to continue from.
    #[error("the prompt is empty: give at least one token")]
    PromptEmpty,
    /// The prompt alone does not fit into the context.
    #[error("the prompt has {tokens} tokens, but the context holds {limit}: shorten it")]
    PromptTooLong {
        /// Tokens of the prompt, with those that the sequence already holds.
        tokens: usize,
        /// Tokens that a sequence of this backbone may hold.
        limit: usize,
    },
    /// A sequence has no room for the tokens fed to it.
    #[error("the sequence holds {held} tokens and was fed {fed} more, but the context holds {limit}")]
    ContextFull {
        /// Tokens that the sequence holds.
        held: usize,
        /// Tokens fed in this pass.
        fed: usize,
        /// Tokens that a sequence of this backbone may hold.
        limit: usize,
    },
    /// One pass was given more rows than its scratch memory may hold.
    #[error("one forward pass takes at most {limit} rows, not {rows}: feed the prompt in chunks")]
    TooManyRows {
        /// Rows of all sequences together.
        rows: usize,
        /// [`crate::MAX_ROWS`].
        limit: usize,
    },
    /// A token that the vocabulary does not have.
    #[error("token {} is outside the vocabulary of {vocabulary}", token.0)]
    UnknownToken {
        /// The token.
        token: TokenId,
        /// Entries of the vocabulary.
        vocabulary: usize,
    },
    /// A sequence started by another backbone.
    #[error("the sequence was started by another backbone: its caches have other shapes")]
    ForeignSequence,
    /// An earlier pass failed half way, so the caches of this sequence disagree with each other.
    #[error("an earlier forward pass of this sequence failed: start it anew")]
    SpoiledSequence,
    /// The caller took the sequence out of a pass that was under way.
    #[error("the sequence was taken out of a forward pass: start it anew")]
    TakenOut,
    /// A number of values that is not a number of rows, or layers that the model does not have.
    #[error("{what}")]
    WrongInput {
        /// What is wrong with it.
        what: String,
    },
    /// A sampling option outside its range.
    #[error("{option} is {value}: {expected}")]
    SamplerOption {
        /// The option's name.
        option: &'static str,
        /// What was given.
        value: f32,
        /// What is allowed.
        expected: &'static str,
    },

    // The model's fault.
    /// A tensor whose shape contradicts the configuration.
    #[error("{tensor} has shape {found}, the configuration asks for {expected}")]
    Shape {
        /// The tensor's name.
        tensor: String,
        /// rows x columns by the configuration.
        expected: String,
        /// rows x columns in the file.
        found: String,
    },
    /// Something this backbone does not compute.
    #[error("{what}")]
    Unsupported {
        /// What it is, and what is supported.
        what: String,
    },
    /// The model could not be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A NaN or infinity arose, which exact-v1 never passes on.
    #[error("a value that is not finite arose in {place}")]
    NotFinite {
        /// Where: a layer and its part.
        place: Place,
    },

    // Somebody else's.
    /// The routed experts of a layer could not be computed.
    #[error("the experts of layer {} failed: {source}", layer.0)]
    Experts {
        /// The layer that waited.
        layer: LayerIndex,
        /// The implementor's account.
        source: ExpertsError,
    },
    /// The operating system gave no memory for a cache.
    #[error("no memory for {bytes} bytes of {what}")]
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
    /// The threads could not be started.
    #[error("could not start the threads of the backbone: {0}")]
    Threads(#[source] std::io::Error),
}

/// A part of the model, for errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The delta net or attention of a layer.
    Mixer(LayerIndex),
    /// The router, the shared expert or the combination of a layer.
    Experts(LayerIndex),
    /// The final norm and the output matrix.
    Output,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Mixer(layer) => write!(f, "the mixer of layer {}", layer.0),
            Place::Experts(layer) => write!(f, "the experts of layer {}", layer.0),
            Place::Output => write!(f, "the output matrix"),
        }
    }
}
