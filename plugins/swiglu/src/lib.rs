//! The plugin `swiglu`: a guest of the world `kvasir:expert/expert-kernel@0.1.0` that evaluates SwiGLU experts in exact-v1.
//!
//! It checks what it is given and calls `kvasir-numerics`; the arithmetic is all there. It imports nothing, so a host can
//! run it without any rights. On a host target this crate compiles to an unused library, so that the workspace builds.

mod expert;

/// Bindings made from the released WIT text.
#[allow(missing_docs, unsafe_code, clippy::all, unused_qualifications, reason = "generated")]
mod bindings {
    wit_bindgen::generate!({ path: "../../wit/0.1.0", world: "expert-kernel" });
    use super::Kernel;
    export!(Kernel);
}

/// What the component exports.
struct Kernel;

impl bindings::exports::kvasir::expert::kernel::Guest for Kernel {
    type Expert = expert::LoadedExpert;
}
