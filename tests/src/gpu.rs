//! The GPU for tests: whatever Vulkan drives, Mesa's software device included.

use std::sync::OnceLock;

use kvasir_gpu::{GpuError, GpuOptions, describe};

use crate::{build_programs, skipped};

/// How to use the GPU of this machine, with the program of this build; `None`, and a line that says so, where there is none.
///
/// # Panics
/// Where there is one and its process fails.
pub fn gpu() -> Option<GpuOptions> {
    static FOUND: OnceLock<Result<String, GpuError>> = OnceLock::new();
    let program = build_programs().join("kvasir-gpu");
    let options = GpuOptions { program: Some(program), ..GpuOptions::default() };
    match FOUND.get_or_init(|| describe(&options).map(|adapter| adapter.to_string())) {
        Ok(device) => {
            println!("device: {device}");
            Some(options)
        }
        Err(error @ GpuError::NoDevice { .. }) => {
            skipped("no Vulkan device", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}
