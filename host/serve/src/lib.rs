//! What serves one model to many clients.
//!
//! [`scheduler`] computes many texts at once: sequences join and leave at every step, and while one wave of them waits
//! for its experts another computes.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed"))]

pub mod scheduler;
