//! The WebAssembly engine: one configuration for every kernel, and the clock behind deadlines.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use wasmparser::WasmFeatures;
use wasmtime::{Config, Strategy, WasmBacktraceDetails};

use crate::error::SandboxError;
use crate::limits::{DEADLINE_TICK, MAX_STACK_BYTES};

/// What a kernel may be written with: WebAssembly 2.0, SIMD with the relaxed instructions (scanned for the two allowed
/// ones), the component model. No threads, no exceptions, no garbage collection, no 64-bit or multiple memories.
pub(crate) const FEATURES: WasmFeatures = WasmFeatures::FLOATS
    .union(WasmFeatures::MUTABLE_GLOBAL)
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::RELAXED_SIMD)
    .union(WasmFeatures::COMPONENT_MODEL);

/// The interpreter's own instruction set, for this machine's width and order of bytes.
const INTERPRETER: &str = match (cfg!(target_pointer_width = "64"), cfg!(target_endian = "little")) {
    (true, true) => "pulley64",
    (true, false) => "pulley64be",
    (false, true) => "pulley32",
    (false, false) => "pulley32be",
};

/// The engine. Cheap to clone; one per process is enough, and all instances of a kernel must share one.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    engine: wasmtime::Engine,
}

impl Engine {
    /// Sets an engine up and starts its clock, which stops when the last clone is gone.
    pub fn new() -> Result<Self, SandboxError> {
        Engine::from_config(&config())
    }

    /// A second engine for comparisons: the same kernels, compiled for the portable interpreter instead of this machine. Tens
    /// of times slower, and independent of the processor; what differs between the two depends on what a kernel may not
    /// depend on. Nothing that serves calls uses it.
    pub fn interpreter() -> Result<Self, SandboxError> {
        let mut config = config();
        config.target(INTERPRETER).map_err(refused)?;
        Engine::from_config(&config)
    }

    /// A third engine for comparisons: compiled for this machine, but relaxed instructions are done the one way that the
    /// specification prescribes, instead of the processor's own, and whatever is no number has one pattern of bits. Slower than
    /// [`Engine::new`]; what differs between the two is one of the relaxed integer dots on operands beyond the seven bits on which
    /// every processor agrees, or the look that a kernel takes at bits which processors choose. A kernel that keeps the exact
    /// contract does neither: what is no number ends its call, whatever its bits.
    pub fn deterministic() -> Result<Self, SandboxError> {
        let mut config = config();
        config.relaxed_simd_deterministic(true).cranelift_nan_canonicalization(true);
        Engine::from_config(&config)
    }

    fn from_config(config: &Config) -> Result<Self, SandboxError> {
        let engine = wasmtime::Engine::new(config).map_err(refused)?;
        let inner = Arc::new(Inner { engine });
        let clock = Arc::downgrade(&inner);
        thread::Builder::new()
            .name("kernel deadlines".to_owned())
            .spawn(move || tick(&clock))
            .map_err(|error| SandboxError::Engine { reason: format!("no thread for deadlines: {error}") })?;
        Ok(Engine { inner })
    }

    /// The engine of this process, set up on first use.
    pub fn shared() -> Result<Self, SandboxError> {
        static SHARED: OnceLock<Result<Engine, SandboxError>> = OnceLock::new();
        SHARED.get_or_init(Engine::new).clone()
    }

    /// A number that is the same for engines whose compiled code fits each other: a name for what was compiled, and no proof.
    pub fn compatibility(&self) -> u64 {
        // Its keys are constants, and a change with another release of the standard library costs one compilation.
        let mut hasher = DefaultHasher::new();
        self.inner.engine.precompile_compatibility_hash().hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn inner(&self) -> &wasmtime::Engine {
        &self.inner.engine
    }
}

fn refused(error: wasmtime::Error) -> SandboxError {
    SandboxError::Engine { reason: format!("{error:#}") }
}

fn config() -> Config {
    let mut config = Config::new();
    config
        .strategy(Strategy::Cranelift)
        // Off first, then on: a proposal that a later engine turns on by default stays off here.
        .wasm_features(WasmFeatures::all(), false)
        .wasm_features(FEATURES, true)
        .gc_support(false)
        .concurrency_support(false)
        .shared_memory(false)
        // The exact contract refuses values that are not finite, and the scan refuses what differs between CPUs, so the
        // two settings that cost 30 % and half the speed stay off.
        .cranelift_nan_canonicalization(false)
        .relaxed_simd_deterministic(false)
        .consume_fuel(true)
        .epoch_interruption(true)
        .max_wasm_stack(MAX_STACK_BYTES)
        // The compiler recurses on the thread that called it, which has a large stack; a pool's threads have not.
        .parallel_compilation(false)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        // Data segments are copied: images that instances share would need files, which a confined process may not make.
        .memory_init_cow(false);
    config
}

fn tick(engine: &Weak<Inner>) {
    loop {
        thread::sleep(DEADLINE_TICK);
        match engine.upgrade() {
            Some(inner) => inner.engine.increment_epoch(),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use wasmtime::{Instance, Module, Store};

    use super::*;

    /// Infinity less infinity is no number; gives its bits, of one and of four lanes.
    const NO_NUMBER: &str = r#"(module
        (func (export "one") (param f32) (result i32)
            (i32.reinterpret_f32 (f32.sub (local.get 0) (local.get 0))))
        (func (export "four") (param f32) (result i32)
            (i32x4.extract_lane 3
                (f32x4.sub (f32x4.splat (local.get 0)) (f32x4.splat (local.get 0))))))"#;

    /// The bits that every processor is made to give.
    const CANONICAL: u32 = 0x7fc0_0000;

    fn bits(engine: &Engine, function: &str) -> u32 {
        let module = Module::new(engine.inner(), wat::parse_str(NO_NUMBER).unwrap()).unwrap();
        let mut store = Store::new(engine.inner(), ());
        store.set_fuel(1_000).unwrap();
        store.set_epoch_deadline(u64::MAX / 2);
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let function = instance.get_typed_func::<f32, u32>(&mut store, function).unwrap();
        function.call(&mut store, f32::INFINITY).unwrap()
    }

    #[test]
    fn what_is_no_number_has_one_pattern_of_bits_in_the_deterministic_engine() {
        let deterministic = Engine::deterministic().unwrap();
        for function in ["one", "four"] {
            assert_eq!(bits(&deterministic, function), CANONICAL, "{function}");
            // And another one in the engine that serves, where the processor has another: the two tell such a kernel.
            let own = bits(&Engine::new().unwrap(), function);
            assert_eq!(own == CANONICAL, !cfg!(target_arch = "x86_64"), "{function}: {own:08x}");
        }
        assert_ne!(deterministic.compatibility(), Engine::new().unwrap().compatibility());
    }
}
