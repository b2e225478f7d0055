//! The WGSL kernel against the definition: integer sums equal, results within the tolerance, on whatever device there is.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

mod scene;

use kvasir_gpu::GpuOptions;
use kvasir_gpu::message::Part;
use kvasir_numerics::{Format, block_sums, sums_per_block};
use scene::{Deviation, Expert, Random, deviation, device, gpu, rows_format};

use Format::{F16, Q4K, Q8_0};

/// Formats of gate, up and down, and (hidden, width) for each shape.
type Case = ([Format; 3], &'static [(usize, usize)]);

/// Shapes: whole and broken groups of outputs, one block and many.
const CASES: [Case; 6] = [
    ([Q4K; 3], &[(256, 256), (512, 768), (1280, 512)]),
    ([Q8_0; 3], &[(32, 32), (96, 160), (2080, 64), (64, 1056)]),
    ([F16; 3], &[(1, 1), (33, 17), (300, 129), (64, 1040)]),
    ([Q4K, Q4K, Q8_0], &[(256, 96)]),
    ([Q8_0, Q8_0, F16], &[(64, 64)]),
    ([F16, F16, Q4K], &[(40, 256)]),
];

#[test]
fn every_format_shape_and_number_of_rows_is_within_tolerance() {
    let Some(options) = device() else { return };
    compare(options, &CASES);
}

#[test]
fn split_bindings_change_nothing() {
    let Some(options) = device() else { return };
    let small = GpuOptions { binding_bytes: Some(64 << 10), ..options.clone() };
    let (mut whole, mut split) = (gpu(options), gpu(small));
    assert!(split.adapter().binding_bytes <= 64 << 10);
    let mut random = Random(11);
    for (formats, hidden, width) in
        [([Q4K; 3], 512, 1024), ([Q8_0; 3], 256, 700 / 32 * 32), ([F16; 3], 300, 500)]
    {
        let expert = Expert::random(&mut random, formats, hidden, width);
        assert!(expert.bytes[0].len() > 64 << 10, "too small to be split");
        expert.load(&mut whole, 1).unwrap();
        expert.load(&mut split, 1).unwrap();
        for count in [1, 37] {
            let rows = expert.rows(&mut random, count);
            let parts = [Part { expert: 1, rows: (0..count as u32).collect() }];
            let format = rows_format(expert.matrix(0).row_format());
            let mut out = [vec![0.0; count * hidden], vec![0.0; count * hidden]];
            whole.forward(format, hidden, &rows, &parts, &mut out[0]).unwrap();
            split.forward(format, hidden, &rows, &parts, &mut out[1]).unwrap();
            assert_eq!(deviation(&out[1], &out[0]).bits, 0, "{formats:?} {count} rows");
        }
    }
}

#[test]
fn integer_sums_are_equal() {
    let Some(options) = device() else { return };
    let mut gpu = gpu(options);
    let mut random = Random(5);
    for (formats, shapes) in CASES {
        for &(hidden, width) in shapes {
            let expert = Expert::random(&mut random, formats, hidden, width);
            expert.load(&mut gpu, 1).unwrap();
            for index in 0..3 {
                let matrix = expert.matrix(index);
                let sums = matrix.columns() / matrix.format().block_len() * sums_per_block(matrix.format());
                let rows = scene::rows(&mut random, matrix.row_format(), matrix.columns(), 3);
                if sums == 0 {
                    assert!(gpu.accumulators(1, index as u8, 1, &rows).is_err());
                    continue;
                }
                let found = gpu.accumulators(1, index as u8, sums as u32, &rows).unwrap();
                let mut due = vec![0; found.len()];
                for (row, due) in
                    rows.chunks_exact(rows.len() / 3).zip(due.chunks_exact_mut(matrix.rows() * sums))
                {
                    for (output, due) in due.chunks_exact_mut(sums).enumerate() {
                        block_sums(matrix, output, row, due);
                    }
                }
                assert_eq!(found, due, "{formats:?} {hidden} x {width} matrix {index}");
            }
        }
    }
}

fn compare(options: GpuOptions, cases: &[Case]) {
    let mut gpu = gpu(options);
    println!("on {}", gpu.adapter());
    let mut random = Random(3);
    for (formats, shapes) in cases {
        let mut worst = Deviation { cosine: 1.0, ..Deviation::default() };
        for &(hidden, width) in *shapes {
            let expert = Expert::random(&mut random, *formats, hidden, width);
            expert.load(&mut gpu, 1).unwrap();
            for count in [1, 2, 5, 33] {
                let rows = expert.rows(&mut random, count);
                // Backwards, and one row twice: numbers are not positions.
                let numbers: Vec<u32> = (0..count as u32).rev().chain([0]).collect();
                let mut out = vec![0.0; numbers.len() * hidden];
                let parts = [Part { expert: 1, rows: numbers.clone() }];
                let format = rows_format(expert.matrix(0).row_format());
                gpu.forward(format, hidden, &rows, &parts, &mut out).unwrap();
                let answer = expert.answer(&rows, count);
                let due: Vec<f32> = numbers
                    .iter()
                    .flat_map(|&row| &answer[row as usize * hidden..][..hidden])
                    .copied()
                    .collect();
                let found = deviation(&out, &due);
                worst.values += found.values;
                worst.bits += found.bits;
                worst.largest = worst.largest.max(found.largest);
                worst.relative = worst.relative.max(found.relative);
                worst.cosine = worst.cosine.min(found.cosine);
                assert!(
                    found.relative < 2e-2 && found.cosine > 0.9999,
                    "{formats:?} {hidden} x {width}, {count} rows: {found:?}"
                );
            }
        }
        println!("{formats:?}: {worst:?}");
    }
}

/// The scalar functions of the step, each through an entry point made for this test: how many of many arguments give other bits.
#[test]
fn the_steps_functions_are_within_two_units_of_the_definition() {
    let Some(options) = device() else { return };
    type Function = fn(f32) -> f32;
    let functions: [(&str, Function); 4] = [
        ("exponential(x, job.reserved_0)", kvasir_numerics::exp),
        ("divide(x, 127.0)", |x| x / 127.0),
        ("divide(127.0, x)", |x| 127.0 / x),
        ("divide(x, 1.0 + exponential(-x, job.reserved_0))", kvasir_numerics::silu),
    ];
    let mut random = Random(17);
    let expert = Expert::random(&mut random, [F16; 3], 1024, 1024);
    let values: Vec<f32> =
        (0..8 * 1024).map(|index| random.unit() * [1.0, 4.0, 16.0, 60.0][index % 4]).collect();
    let rows: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for (text, function) in functions {
        let source = format!(
            "{}
@compute @workgroup_size(64)
fn f16_accumulators(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let job = jobs[group.z];
    let output = group.x * 64u + lane;
    if output >= job.outputs || group.y >= job.count {{
        return;
    }}
    let column = (job.out + output) % job.out_stride;
    let x = bitcast<f32>(row_word(job.rows + group.y * job.rows_stride + column));
    out[job.out + group.y * job.out_stride + output] = bitcast<u32>({text});
}}",
            scene::source()
        );
        let mut gpu =
            kvasir_gpu::Gpu::new(scene::PLUGIN, &source, &scene::formats(), options.clone()).unwrap();
        expert.load(&mut gpu, 1).unwrap();
        let found = gpu.accumulators(1, 0, 1, &rows).unwrap();
        let (mut differing, mut largest) = (0, 0);
        for (&bits, &x) in found.iter().zip(&values) {
            let due = function(x).to_bits();
            differing += usize::from(bits as u32 != due);
            largest = largest.max((bits as u32).abs_diff(due));
        }
        println!("{text}: {differing} of {} differ, by {largest} units at most", values.len());
        assert!(largest <= 2, "{text}");
    }
}
