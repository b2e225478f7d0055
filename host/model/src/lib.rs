//! kvasir-model: a Qwen3.5-MoE checkpoint as a typed configuration, mapped tensors, experts as byte ranges, digests,
//! a tokenizer and a chat template.
//!
//! It opens GGUF version 3 (one file or split) and Hugging Face folders (safetensors, flat or nested as published).
//! It computes nothing on weights but their digests, knows no network, and treats every file as hostile: a damaged,
//! truncated or unsupported one is a typed error. Multi-token-prediction and vision tensors are recognised and left
//! aside everywhere.

#![cfg_attr(test, allow(clippy::unwrap_used))] // a test that panics has failed, which is what it is for

mod assemble;
mod blob;
mod config;
mod digest;
mod error;
mod experts;
mod folder;
mod gguf;
mod identity;
pub mod limits;
mod mapping;
mod model;
mod stored;
mod template;
mod template_scan;
mod template_time;
mod template_values;
mod tensor;
mod tokenizer;
mod visible;

pub use blob::{BlobError, BlobMatrix, EXPERT_DOMAIN, ExpertBlob};
pub use config::{Config, DeltaConfig, LayerKind, ValueHeadOrder};
pub use digest::{ModelDigests, expert_leaf};
pub use error::{ModelError, Place};
pub use identity::{DigestTextError, ExpertDigest, ExpertIndex, LayerIndex, ModelDigest, TokenId};
pub use kvasir_numerics::{Format, RowFormat};
pub use model::Model;
pub use template::{ChatTemplate, Message, TemplateError};
pub use tensor::{ExpertTensors, LayerTensors, Mixer, Tensor};
pub use tokenizer::{SpecialText, TextStream, Tokenizer, TokenizerError};
