//! From the core module that a compiler writes to a component of the contract.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata, metadata};

use crate::error::AuthorError;

/// The contract, as released.
const CONTRACT: &str = include_str!("../../../wit/0.1.0/expert.wit");
const WORLD: &str = "expert-kernel";

/// Wraps a core module as a component. Where the module does not say which world it was built against (bindings that were made
/// by a generator say so in a custom section), it is taken to be `kvasir:expert/expert-kernel@0.1.0`.
///
/// # Errors
/// Where the module is no module, or lacks what the world exports.
pub fn componentize(module: &[u8]) -> Result<Vec<u8>, AuthorError> {
    // The encoder's errors are of a type that is not ours to name; their text is what an author needs.
    let contract = |reason: String| AuthorError::Contract { reason };
    let mut module = module.to_vec();
    let (tagged, _) = metadata::decode(&module).map_err(|error| contract(format!("{error:#}")))?;
    if tagged.is_none() {
        let mut resolve = wit_parser::Resolve::new();
        let package =
            resolve.push_str("expert.wit", CONTRACT).map_err(|error| contract(format!("{error:#}")))?;
        let world =
            resolve.select_world(&[package], Some(WORLD)).map_err(|error| contract(format!("{error:#}")))?;
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)
            .map_err(|error| contract(format!("{error:#}")))?;
    }
    ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|encoder| encoder.encode())
        .map_err(|error| contract(format!("{error:#}")))
}
