//! In which process the kernels of a test's workers compute.

use kvasir_experts::{Isolation, KernelOptions};

use crate::build_programs;

/// The variable that asks for the other way: `KVASIR_TEST_ISOLATION=process` runs a test's workers as `kvasir worker` does.
const VARIABLE: &str = "KVASIR_TEST_ISOLATION";

/// What the environment asks for; nothing said, in the test's own process.
///
/// # Panics
/// Where it asks for what there is not.
pub fn chosen() -> Isolation {
    match std::env::var(VARIABLE).as_deref() {
        Ok("process") => Isolation::Process(process()),
        Ok("none") | Err(_) => Isolation::InProcess,
        Ok(other) => panic!("{VARIABLE} is {other:?}; it may be process or none"),
    }
}

/// Processes of the program of this build.
pub fn process() -> KernelOptions {
    KernelOptions { program: Some(build_programs().join("kvasir-kernel")), ..KernelOptions::default() }
}
