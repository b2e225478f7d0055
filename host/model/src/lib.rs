//! kvasir-model
