//! The boundary of the contract: a component's bytes through scan, compiler, `load` and `forward`, in a signed plugin as a
//! worker gets it, with little fuel.
//!
//! The mutator changes bytes inside functions and data of a component as often as anything else, so that what comes out is
//! still a component and runs.
#![no_main]

use std::ops::Range;
use std::time::Duration;

use ed25519_dalek::SigningKey;
use kvasir_plugin::{
    PackageContents, PublisherKey, TrustStore, UnixSeconds, Validity, VerifiedPlugin, pack, verify,
};
use kvasir_sandbox::{
    CompiledKernel, Engine, ExpertShape, KernelLimits, MatrixShape, SandboxError, WeightFormat, inspect,
};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use wasmparser::{Parser, Payload};

const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
const HIDDEN: u32 = 8;
const WIDTH: u32 = 4;
const LIMITS: KernelLimits =
    KernelLimits { memory_bytes: 8 << 20, fuel_per_call: 200_000, rows_per_call: u32::MAX, deadline: Duration::from_secs(5) };
const MANIFEST: &str = "schema = 1\nname = \"kvasir:fuzzed\"\nversion = \"0.1.0\"\nkernel_revision = 1\n\
    world = \"kvasir:expert/expert-kernel@0.1.0\"\nclass = \"exact\"\nformats = [\"F32\"]\nmin_host = \"0.1.0\"\n\
    [limits]\nmemory_bytes = 8388608\nfuel_per_call = 200000\nrows_per_call = 64\n";

fuzz_target!(|component: &[u8]| {
    // The scan comes first in `compile` as well; here it spares a signature.
    if inspect(component).is_err() {
        return;
    }
    let Ok(kernel) = CompiledKernel::compile(&Engine::shared().expect("an engine"), &plugin(component)) else {
        return;
    };
    let Ok(mut instance) = kernel.instantiate(LIMITS) else { return };
    let format = WeightFormat::from_gguf(0).expect("F32 has a name");
    let wide = MatrixShape { format, rows: WIDTH, columns: HIDDEN };
    let shape = ExpertShape { gate: wide, up: wide, down: MatrixShape { format, rows: HIDDEN, columns: WIDTH } };
    let weights = [0; (HIDDEN * WIDTH * 4) as usize];
    let rows = [0; (2 * HIDDEN * 4) as usize];
    // Twice: bounds that hold once may not hold again, and an instance that failed answers nothing more.
    for _ in 0..2 {
        let expert = match instance.load(shape, &weights, &weights, &weights) {
            Ok(expert) => expert,
            Err(error) => return check(&error, instance.is_poisoned()),
        };
        match instance.forward(&expert, &rows, 2) {
            Ok(values) => {
                assert_eq!(values.len(), 2 * HIDDEN as usize);
                assert!(values.iter().all(|value| value.is_finite()));
            }
            Err(error) => check(&error, instance.is_poisoned()),
        }
        assert!(instance.fuel_used() <= LIMITS.fuel_per_call);
        if let Err(error) = instance.unload(expert) {
            return check(&error, instance.is_poisoned());
        }
    }
});

/// An instance goes on after a fault and after values that are not finite, and after nothing else.
fn check(error: &SandboxError, poisoned: bool) {
    let harmless = matches!(error, SandboxError::Fault { .. } | SandboxError::NotFinite { .. });
    assert_eq!(poisoned, !harmless, "{error}");
}

fn plugin(component: &[u8]) -> VerifiedPlugin {
    let key = SigningKey::from_bytes(&[7; 32]);
    let contents = PackageContents {
        manifest: MANIFEST.as_bytes().to_vec(),
        component: component.to_vec(),
        ..PackageContents::default()
    };
    let validity = Validity { not_before: NOW, expires: UnixSeconds(NOW.0 + 1) };
    let package = pack(&contents, validity, &key).expect("a component within the limit");
    let trust = TrustStore::from_keys([PublisherKey { key: key.verifying_key(), name: None }]);
    verify(&package, &trust.expect("one key"), NOW).expect("what was packed")
}

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let places = places(&data[..size]);
    let mut random = Random(u64::from(seed) | 1 << 32);
    if places.is_empty() || random.below(4) == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let place = places[random.below(places.len())].clone();
    for _ in 0..=random.below(3) {
        let byte = &mut data[place.start + random.below(place.len())];
        *byte = match random.below(4) {
            0 => byte.wrapping_add(1),
            1 => *byte ^ 1 << random.below(8),
            2 => [0x00, 0x0b, 0x1a, 0x20, 0x41, 0x45, 0x6a, 0x7f, 0x80, 0xfc, 0xfd, 0xff][random.below(12)],
            _ => random.below(256) as u8,
        };
    }
    size
});

/// Where a component may be changed without shifting anything: bodies of functions, segments of data, and the sections
/// that say how core and component fit together.
fn places(component: &[u8]) -> Vec<Range<usize>> {
    let places = Parser::new(0).parse_all(component).map_while(Result::ok).filter_map(|payload| match payload {
        Payload::CodeSectionEntry(body) => Some(body.range()),
        Payload::DataSection(section) => Some(section.range()),
        Payload::TypeSection(section) => Some(section.range()),
        Payload::ExportSection(section) => Some(section.range()),
        Payload::ComponentTypeSection(section) => Some(section.range()),
        Payload::ComponentCanonicalSection(section) => Some(section.range()),
        Payload::ComponentAliasSection(section) => Some(section.range()),
        Payload::InstanceSection(section) => Some(section.range()),
        _ => None,
    });
    places.filter(|range| !range.is_empty() && range.end <= component.len()).collect()
}

/// A generator that the fuzzer's seed determines (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}
