//! The front door of WGSL: text through limits, naga's parser and validator, own rules and SPIR-V.
//!
//! A panic of the compiler is caught by the front door and is no finding. What ends the process is one: an overflow of the
//! stack, memory beyond the fuzzer's limit, time beyond its limit.
#![no_main]

use kvasir_gpu_process::{ShaderLimits, check};
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    init: {
        std::panic::set_hook(Box::new(|panic| {
            if std::thread::current().name() != Some("check shader") {
                eprintln!("{panic}");
                std::process::abort();
            }
        }));
    },
    |bytes: &[u8]| {
        let Ok(source) = std::str::from_utf8(bytes) else { return };
        let limits = ShaderLimits::default();
        match check(source, &limits) {
            Ok(shader) => {
                for entry in &shader.entry_points {
                    assert!(entry.spirv_words <= limits.spirv_words);
                }
            }
            Err(error) => assert!(!error.code().is_empty()),
        }
    }
);
