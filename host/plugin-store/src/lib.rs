//! Installed plugins, by digest: the trust that the operator keeps, the highest versions that were ever seen, which version is active,
//! and the history of it. It runs nothing and opens no connection.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

#[cfg(test)]
extern crate self as kvasir_plugin_store;

mod active;
mod authority;
#[cfg(test)]
mod cut_off;
mod disk;
mod downgrade;
mod error;
mod explain;
mod history;
mod limits;
mod packages;
mod places;
#[cfg(test)]
#[path = "../tests/scene/mod.rs"]
mod scene;
mod seen_files;
mod store;
mod trust;

pub use active::Active;
pub use authority::Revocable;
pub use downgrade::{OVERRIDE_PAYLOAD_TYPE, Override};
pub use error::StoreError;
pub use explain::{Check, Explanation, Outcome, Subject};
pub use history::{Entry, Happened, History, Named};
pub use limits::*;
pub use packages::Installed;
pub use places::Places;
pub use store::Store;
pub use trust::Trust;

/// A value of this crate as JSON on one line; it has no map with keys that are not text, so that this cannot fail.
fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
