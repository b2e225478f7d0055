//! What serves one model to many clients.
//!
//! [`scheduler`] computes many texts at once: sequences join and leave at every step, and while one wave of them waits
//! for its experts another computes. [`api`] is the HTTP side: requests in OpenAI's form, answers as they come, a page. It
//! computes nothing; whoever does stands behind the trait [`api::Engine`], so that it is tested without a model.
//! [`prediction`] says beforehand how fast that would be, of measured figures.
//! [`batched`] joins the two: the scheduler as the API's engine. What is told of it and of the swarm behind it is put
//! together in [`engine_figures`] and [`swarm_view`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed"))]

pub mod api;
pub mod batched;
pub mod engine_figures;
pub mod prediction;
pub mod scheduler;
pub mod swarm_view;
