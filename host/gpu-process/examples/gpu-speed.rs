//! What an expert-row costs on the GPU: Q4_K experts of 3,072 x 1,024, eight to a call, by rows of each. One line a count.
//!
//! `cargo run -p kvasir-gpu-process --example gpu-speed -- plugins/swiglu/shaders/swiglu.wgsl`

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kvasir_gpu::message::{ExpertShape, MatrixShape, Part, Rows};
use kvasir_gpu::{Gpu, GpuOptions};
use kvasir_plugin::PluginDigest;

const HIDDEN: u32 = 3072;
const WIDTH: u32 = 1024;
const EXPERTS: u64 = 8;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).context("usage: gpu-speed SHADER")?;
    let source = std::fs::read_to_string(path)?;
    let begin = Instant::now();
    let mut gpu = Gpu::new(PluginDigest([0; 32]), &source, &["Q4_K".to_owned()], GpuOptions::default())?;
    println!("{}, started in {:?}", gpu.adapter(), begin.elapsed());
    let matrix = |outputs: u32, columns: u32| MatrixShape {
        format: "Q4_K".to_owned(),
        rows_format: Rows::Q8K,
        outputs,
        columns,
        row_bytes: columns / 256 * 144,
    };
    let mut state = 1u32;
    let mut bytes = |count: u32| -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        for block in bytes.chunks_exact_mut(144) {
            (block[1], block[3]) = (0x10, 0x10);
        }
        bytes
    };
    let begin = Instant::now();
    for expert in 0..EXPERTS {
        let shape: ExpertShape = [matrix(WIDTH, HIDDEN), matrix(WIDTH, HIDDEN), matrix(HIDDEN, WIDTH)];
        let all = shape.clone().map(|shape| bytes(shape.outputs * shape.row_bytes));
        gpu.load(expert, shape, [&all[0], &all[1], &all[2]])?;
    }
    println!("{EXPERTS} experts loaded in {:?}", begin.elapsed());
    for count in [1u32, 2, 4, 16, 64] {
        let row_bytes = HIDDEN as usize / 256 * 260;
        let mut rows = bytes(count * row_bytes as u32);
        for block in rows.chunks_exact_mut(260) {
            block[..4].copy_from_slice(&0.01f32.to_le_bytes());
            block[4..].iter_mut().filter(|value| **value == 0x80).for_each(|value| *value = 0);
        }
        let parts: Vec<Part> =
            (0..EXPERTS).map(|expert| Part { expert, rows: (0..count).collect() }).collect();
        let expert_rows = EXPERTS * u64::from(count);
        let mut out = vec![0.0; expert_rows as usize * HIDDEN as usize];
        let mut best = (Duration::MAX, Duration::MAX, 0);
        for _ in 0..(64 / count).clamp(4, 12) {
            let begin = Instant::now();
            let timing = gpu.forward(Rows::Q8K, HIDDEN as usize, &rows, &parts, &mut out)?;
            if begin.elapsed() < best.0 {
                best = (begin.elapsed(), timing.time, timing.submissions);
            }
        }
        let each = |time: Duration| time.as_secs_f64() * 1e6 / expert_rows as f64;
        println!(
            "{count:3} rows: {:8.1} us per expert-row, {:8.1} of it on the device, {} submissions",
            each(best.0),
            each(best.1),
            best.2
        );
    }
    Ok(())
}
