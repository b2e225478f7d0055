//! `cargo run -p kvasir-sandbox --example call-overhead`: what a call of a kernel costs beside its arithmetic.
//! The kernel only fills its answer with a constant, so what remains is the boundary: bounds set, rows copied in, values
//! copied out and checked. Prints; asserts nothing.
#![allow(clippy::unwrap_used)] // A measurement that cannot be set up has nothing to say.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::time::Instant;

use kvasir_sandbox::{CompiledKernel, Engine, ExpertShape, KernelLimits, MatrixShape, WeightFormat};

fn main() {
    let started = Instant::now();
    let verified = plugin::plugin(plugin::kernel("honest"));
    let kernel = CompiledKernel::compile(&Engine::shared().unwrap(), &verified).unwrap();
    println!("compile and check: {:?}", started.elapsed());
    let started = Instant::now();
    let mut instance = kernel.instantiate(KernelLimits::default()).unwrap();
    println!("instantiate: {:?}", started.elapsed());
    let format = WeightFormat::from_gguf(12).unwrap();
    for (hidden, row_bytes) in [(8, 8), (256, 260), (3072, 3120)] {
        let wide = MatrixShape { format, rows: 1024, columns: hidden };
        let shape =
            ExpertShape { gate: wide, up: wide, down: MatrixShape { format, rows: hidden, columns: 1024 } };
        let weights = vec![1; 64];
        let expert = instance.load(shape, &weights, &weights, &weights).unwrap();
        for count in [1u32, 4, 16] {
            let rows = vec![1; row_bytes * count as usize];
            let calls = 20_000 / count;
            for _ in 0..100 {
                instance.forward(&expert, &rows, count).unwrap();
            }
            let started = Instant::now();
            for _ in 0..calls {
                instance.forward(&expert, &rows, count).unwrap();
            }
            let each = started.elapsed() / calls;
            println!("forward of {count} rows of {hidden} values: {each:?}, {} fuel", instance.fuel_used());
        }
    }
}
