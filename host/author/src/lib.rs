//! What the author of a kernel needs: a scaffold that passes ([`scaffold()`]), a build that gives the same bytes again
//! ([`build()`]), and the conformance suite ([`suite`]).
//!
//! It knows folders of sources and unsigned components. It signs nothing, trusts nothing and installs nothing.
#![cfg_attr(test, allow(clippy::unwrap_used))] // A test that cannot set itself up has failed.

mod build;
mod c_toolchain;
mod command;
mod component;
mod error;
mod files;
mod products;
mod rebuild;
mod recipe;
mod rust_toolchain;
mod sbom;
mod scaffold;
pub mod suite;

pub use build::{BuildOptions, Built, COMPONENT, SBOM, build};
pub use component::componentize;
pub use error::AuthorError;
pub use rebuild::{Rebuilt, rebuild};
pub use recipe::{Language, RECIPE, Recipe};
pub use scaffold::{Scaffold, scaffold};
