//! `cargo run -p kvasir-experts --example kernel-speed`: how fast the released kernel evaluates Q4_K experts of 3072 x 1024
//! through the runner, beside the same arithmetic natively, one thread each. Sixty-four experts, 340 MB, so out of cache.
//! Prints; asserts nothing.
#![allow(clippy::unwrap_used)] // A measurement that cannot be set up has nothing to say.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::num::NonZeroUsize;
use std::time::Instant;

use kvasir_experts::*;
use kvasir_numerics::{Format, InstructionSet, Matrix, quantise_row, swiglu};
use kvasir_sandbox::{CompiledKernel, Engine};

const EXPERTS: u16 = 64;
const HIDDEN: usize = 3072;
const WIDTH: usize = 1024;

fn main() {
    let folder = plugin::root().join("plugins/swiglu");
    let verified = plugin::verified(&kvasir_plugin::PackageContents {
        manifest: std::fs::read(folder.join("plugin.toml")).unwrap(),
        component: std::fs::read(folder.join("release/swiglu-0.2.0.wasm")).unwrap(),
        shaders: plugin::folder_files(&folder.join("shaders")),
        ..Default::default()
    });
    let started = Instant::now();
    let kernel = CompiledKernel::compile(&Engine::shared().unwrap(), &verified).unwrap();
    println!("compile and check: {:?}", started.elapsed());
    let options = RunnerOptions { instances: NonZeroUsize::MIN, ..RunnerOptions::default() };
    let runner = ExpertRunner::from_kernel(kernel, options);

    // Any nibbles and sub-scales do; the two f16 scales of a block are small numbers.
    let length = Format::Q4K.row_bytes(HIDDEN).unwrap() * WIDTH;
    let mut bytes: Vec<u8> =
        (0..length as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for block in bytes.chunks_exact_mut(Format::Q4K.block_bytes()) {
        block[..4].copy_from_slice(&[0x12, 0x08, 0x34, 0x08]);
    }
    let wide = Matrix::new(Format::Q4K, WIDTH, HIDDEN, &bytes).unwrap();
    let expert = Swiglu::new(wide, wide, Matrix::new(Format::Q4K, HIDDEN, WIDTH, &bytes).unwrap()).unwrap();
    let started = Instant::now();
    for index in 0..EXPERTS {
        runner.load(LayerIndex(0), ExpertIndex(index), &expert).unwrap();
    }
    println!("load an expert: {:?}", started.elapsed() / u32::from(EXPERTS));

    let copies: Vec<Vec<u8>> = (0..EXPERTS).map(|_| bytes.clone()).collect();
    for count in [1usize, 4, 16, 64] {
        let row_bytes = RowFormat::Q8K.row_bytes(HIDDEN).unwrap();
        let mut rows = vec![0; count * row_bytes];
        for (row, out) in rows.chunks_exact_mut(row_bytes).enumerate() {
            let values: Vec<f32> =
                (0..HIDDEN).map(|index| ((index * 31 + row) % 97) as f32 / 97.0 - 0.5).collect();
            quantise_row(&values, RowFormat::Q8K, out).unwrap();
        }
        let requests: Vec<ExpertRows> = (0..EXPERTS)
            .map(|index| ExpertRows {
                expert: ExpertIndex(index),
                rows: (0..count as u32).collect(),
                weights: Vec::new(),
            })
            .collect();
        let per_row =
            |started: Instant| started.elapsed().as_secs_f64() * 1e6 / f64::from(EXPERTS) / count as f64;
        runner.each(LayerIndex(0), RowFormat::Q8K, &rows, HIDDEN, &requests).unwrap();
        let started = Instant::now();
        runner.each(LayerIndex(0), RowFormat::Q8K, &rows, HIDDEN, &requests).unwrap();
        let sandboxed = per_row(started);
        let mut scratch = vec![0.0; expert.scratch_len(count).unwrap()];
        let mut out = vec![0.0; count * HIDDEN];
        let started = Instant::now();
        for copy in &copies {
            let wide = Matrix::new(Format::Q4K, WIDTH, HIDDEN, copy).unwrap();
            let down = Matrix::new(Format::Q4K, HIDDEN, WIDTH, copy).unwrap();
            let expert = Swiglu::new(wide, wide, down).unwrap();
            swiglu(InstructionSet::detect(), &expert, &rows, count, &mut scratch, &mut out).unwrap();
        }
        let native = per_row(started);
        println!("{count} rows an expert: {sandboxed:.0} us an expert-row sandboxed, {native:.0} native");
    }
}
