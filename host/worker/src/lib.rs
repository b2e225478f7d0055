//! kvasir-worker
