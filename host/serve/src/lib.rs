//! What serves one model to many clients.
//!
//! [`api`] is the HTTP side: requests in OpenAI's form, answers as they come, a page. It computes nothing; whoever does
//! stands behind the trait [`api::Engine`], so that it is tested without a model.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed"))]

pub mod api;
