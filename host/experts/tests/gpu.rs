//! The runner on a GPU: what it computes there and what on the processor, how close it comes, what it loses with the process.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvasir_experts::*;
use kvasir_numerics::{Format, Matrix, quantise_row};

const LAYER: LayerIndex = LayerIndex(4);
const HIDDEN: usize = 256;
const WIDTH: usize = 512;

/// The released plugin, packed and signed as a release is.
fn released() -> VerifiedPlugin {
    let folder = plugin::root().join("plugins/swiglu");
    let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
    plugin::verified(&kvasir_plugin::PackageContents {
        manifest: read("plugin.toml"),
        component: read("release/swiglu-0.2.0.wasm"),
        shaders: plugin::folder_files(&folder.join("shaders")),
        vectors: plugin::folder_files(&folder.join("vectors")),
        sbom: Vec::new(),
    })
}

/// Options for the GPU, or `None` with the reason printed. One test at a time: they look for their process among this one's
/// children.
fn device() -> Option<(GpuOptions, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let options = GpuOptions { backoff: Duration::from_millis(200), ..GpuOptions::default() };
    match kvasir_gpu::describe(&options) {
        Ok(_) => Some((options, alone)),
        Err(error @ GpuError::NoDevice { .. }) => {
            println!("skipped: no Vulkan device ({error})");
            None
        }
        Err(error @ GpuError::NoProgram { .. }) => {
            println!("skipped: the program is not built, run `cargo build -p kvasir-gpu-process` ({error})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn runner(device: Device, held_bytes: Option<u64>) -> ExpertRunner {
    let options = RunnerOptions {
        device,
        instances: NonZeroUsize::new(2).unwrap(),
        held_bytes,
        ..RunnerOptions::default()
    };
    ExpertRunner::new(&released(), options).unwrap()
}

fn byte(state: &mut u64) -> u8 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 56) as u8
}

fn matrix_bytes(state: &mut u64, format: Format, outputs: usize, columns: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..format.row_bytes(columns).unwrap() * outputs).map(|_| byte(state)).collect();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let places: &[usize] = if format == Format::Q4K { &[0, 2] } else { &[208] };
        places.iter().for_each(|place| block[place + 1] = 0x10);
    }
    bytes
}

/// Experts of one model: even ones all Q4_K, odd ones with a down matrix in Q6_K, which the shader does not evaluate.
struct Source {
    reads: AtomicUsize,
}

impl ExpertSource for Source {
    fn expert(
        &self,
        _: LayerIndex,
        expert: ExpertIndex,
        take: &mut dyn FnMut(&Swiglu<'_>),
    ) -> Result<(), SourceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        with_expert(expert.0, |weights| take(weights));
        Ok(())
    }
}

fn with_expert<T>(expert: u16, take: impl FnOnce(&Swiglu<'_>) -> T) -> T {
    let down = if expert.is_multiple_of(2) { Format::Q4K } else { Format::Q6K };
    let mut state = u64::from(expert) + 1;
    let gate = matrix_bytes(&mut state, Format::Q4K, WIDTH, HIDDEN);
    let up = matrix_bytes(&mut state, Format::Q4K, WIDTH, HIDDEN);
    let last = matrix_bytes(&mut state, down, HIDDEN, WIDTH);
    let wide = |bytes| Matrix::new(Format::Q4K, WIDTH, HIDDEN, bytes).unwrap();
    take(&Swiglu::new(wide(&gate), wide(&up), Matrix::new(down, HIDDEN, WIDTH, &last).unwrap()).unwrap())
}

fn rows(count: usize) -> Vec<u8> {
    let row_bytes = RowFormat::Q8K.row_bytes(HIDDEN).unwrap();
    let mut state = 99;
    let mut bytes = vec![0; row_bytes * count];
    for row in bytes.chunks_exact_mut(row_bytes) {
        let values: Vec<f32> = (0..HIDDEN).map(|_| f32::from(byte(&mut state)) / 128.0 - 1.0).collect();
        quantise_row(&values, RowFormat::Q8K, row).unwrap();
    }
    bytes
}

fn request(expert: u16, rows: &[u32]) -> ExpertRows {
    ExpertRows { expert: ExpertIndex(expert), rows: rows.to_vec(), weights: vec![0.25; rows.len()] }
}

/// The processes that this one started and that still run.
fn children() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .flat_map(|task| {
            std::fs::read_to_string(task.unwrap().path().join("children"))
                .unwrap_or_default()
                .split_whitespace()
                .map(|number| number.parse().unwrap())
                .collect::<Vec<u32>>()
        })
        .collect()
}

fn kill_the_process() {
    let children = children();
    assert_eq!(children.len(), 1, "one runner, one process");
    assert!(Command::new("kill").arg("-KILL").arg(children[0].to_string()).status().unwrap().success());
}

#[test]
fn the_shader_is_proven_and_near_the_kernel_and_the_rest_is_exact() {
    let Some((options, _alone)) = device() else { return };
    let (gpu, cpu) = (runner(Device::Gpu(options), None), runner(Device::Cpu, None));
    assert_eq!((gpu.class(), cpu.class()), (KernelClass::Tolerance, KernelClass::Exact));
    assert!(cpu.adapter().is_none() && cpu.shader_report().is_none());
    println!("on {}: {:#?}", gpu.adapter().unwrap(), gpu.shader_report().unwrap());
    let report = gpu.shader_report().unwrap();
    assert_eq!(report.formats.len(), 3);
    assert!(report.sums > 1000 && report.rows > 10);

    let rows = rows(6);
    let requests = [request(0, &[0, 1, 2, 3, 4, 5]), request(1, &[5, 0]), request(2, &[3]), request(4, &[])];
    let answer = |runner: &ExpertRunner| {
        let source = Source { reads: AtomicUsize::new(0) };
        let each = runner.each_from(&source, LAYER, RowFormat::Q8K, &rows, HIDDEN, &requests).unwrap();
        let again = runner.each(LAYER, RowFormat::Q8K, &rows, HIDDEN, &requests[..3]).unwrap();
        assert_eq!(each, again);
        assert!(runner.holds(LAYER, ExpertIndex(0)) && runner.holds(LAYER, ExpertIndex(1)));
        let sum = runner.sum(LAYER, RowFormat::Q8K, &rows, HIDDEN, &requests[..3]).unwrap();
        (each, sum, runner.held_bytes())
    };
    let ((each, sum, held), (due, due_sum, due_held)) = (answer(&gpu), answer(&cpu));
    let largest = due.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    for (a, b) in each.iter().zip(&due).chain(sum.iter().zip(&due_sum)) {
        assert!((a - b).abs() <= 0.01 * largest, "{a} for {b}, the largest is {largest}");
    }
    // Expert 1 is in a format without a shader: the WASM kernel's bits.
    assert_eq!(each[6 * HIDDEN..8 * HIDDEN], due[6 * HIDDEN..8 * HIDDEN]);
    assert_eq!(held, due_held);
    gpu.unload(LAYER, ExpertIndex(0));
    gpu.unload(LAYER, ExpertIndex(1));
    assert!(!gpu.holds(LAYER, ExpertIndex(0)) && !gpu.holds(LAYER, ExpertIndex(1)));
}

#[test]
fn faulty_rows_and_weights_do_not_reach_the_gpu() {
    let Some((options, _alone)) = device() else { return };
    let gpu = runner(Device::Gpu(options), None);
    with_expert(0, |weights| gpu.load(LAYER, ExpertIndex(0), weights).unwrap());
    let twice = with_expert(0, |weights| gpu.load(LAYER, ExpertIndex(0), weights).unwrap_err());
    assert!(matches!(twice, RunnerError::AlreadyHeld { .. }));
    let mut faulty = rows(2);
    faulty[300] = 0x80;
    let error = gpu.each(LAYER, RowFormat::Q8K, &faulty, HIDDEN, &[request(0, &[0])]).unwrap_err();
    assert!(error.to_string().contains("rows are malformed"), "{error}");
    let error = gpu.each(LAYER, RowFormat::Q8, &vec![0; 288], HIDDEN, &[request(0, &[0])]).unwrap_err();
    assert!(matches!(error, RunnerError::WrongRowFormat { .. }), "{error}");
    let infinite = vec![0x7c; 144 * WIDTH];
    let wide = Matrix::new(Format::Q4K, WIDTH, HIDDEN, &infinite).unwrap();
    let down = vec![0; 288 * HIDDEN];
    let weights = Swiglu::new(wide, wide, Matrix::new(Format::Q4K, HIDDEN, WIDTH, &down).unwrap()).unwrap();
    let error = gpu.load(LAYER, ExpertIndex(9), &weights).unwrap_err();
    assert!(error.to_string().contains("weights are malformed"), "{error}");
    assert_eq!(gpu.failures(), 0);
}

#[test]
fn experts_unused_for_longest_make_room() {
    let Some((options, _alone)) = device() else { return };
    let one = with_expert(0, |weights| {
        [weights.gate(), weights.up(), weights.down()]
            .iter()
            .map(|matrix| matrix.bytes().len() as u64)
            .sum::<u64>()
    });
    let gpu = runner(Device::Gpu(options), Some(2 * one));
    let source = Source { reads: AtomicUsize::new(0) };
    let rows = rows(1);
    for expert in [0, 2, 0, 4, 0, 2] {
        gpu.each_from(&source, LAYER, RowFormat::Q8K, &rows, HIDDEN, &[request(expert, &[0])]).unwrap();
        assert!(gpu.held_bytes() <= 2 * one);
    }
    assert_eq!(source.reads.load(Ordering::Relaxed), 4);
}

#[test]
fn a_call_never_takes_the_room_of_its_own_experts_and_what_does_not_fit_is_the_processor_s() {
    let Some((options, _alone)) = device() else { return };
    let one = with_expert(0, |weights| {
        [weights.gate(), weights.up(), weights.down()]
            .iter()
            .map(|matrix| matrix.bytes().len() as u64)
            .sum::<u64>()
    });
    let gpu = runner(Device::Gpu(options), Some(2 * one));
    let source = Source { reads: AtomicUsize::new(0) };
    let rows = rows(2);
    let ask = |experts: &[u16]| {
        let requests: Vec<ExpertRows> = experts.iter().map(|&expert| request(expert, &[0, 1])).collect();
        gpu.each_from(&source, LAYER, RowFormat::Q8K, &rows, HIDDEN, &requests).unwrap()
    };
    let holds = |expert| gpu.holds(LAYER, ExpertIndex(expert));
    let alone: Vec<Vec<f32>> = [0, 2, 4, 6].iter().map(|&expert| ask(&[expert])).collect();
    // 0 is the older of the two, and in this call: 2 makes room.
    ask(&[0]);
    ask(&[2]);
    assert_eq!(ask(&[0, 4]), [alone[0].clone(), alone[2].clone()].concat());
    assert!(holds(0) && holds(4) && !holds(2));
    // More than fits at once: every answer is there, within what two kernels may differ by.
    let all = ask(&[0, 2, 4, 6]);
    let apart = alone.concat();
    assert_eq!(all.len(), apart.len());
    let largest = apart.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    for (value, due) in all.iter().zip(&apart) {
        assert!((value - due).abs() <= 0.005 + 0.005 * largest, "{value} and {due}");
    }
    assert!(gpu.held_bytes() <= 4 * one, "two on the device, two beside it");
}

#[test]
fn a_lost_process_costs_its_experts_and_three_cost_the_gpu() {
    let Some((options, _alone)) = device() else { return };
    let gpu = runner(Device::Gpu(options), None);
    let source = Source { reads: AtomicUsize::new(0) };
    let rows = rows(2);
    let ask = || gpu.each_from(&source, LAYER, RowFormat::Q8K, &rows, HIDDEN, &[request(0, &[0, 1])]);
    let first = ask().unwrap();
    for failures in 1..=2 {
        kill_the_process();
        let error = ask().unwrap_err();
        assert!(matches!(error, RunnerError::Gpu(GpuError::Crashed { .. })), "{error}");
        assert!(!gpu.holds(LAYER, ExpertIndex(0)));
        assert_eq!((gpu.held_bytes(), gpu.failures()), (0, failures));
        let error = gpu.each(LAYER, RowFormat::Q8K, &rows, HIDDEN, &[request(0, &[0])]).unwrap_err();
        assert!(matches!(error, RunnerError::NotHeld { .. }), "{error}");
        let error = ask().unwrap_err();
        assert!(matches!(error, RunnerError::Gpu(GpuError::BackingOff { .. })), "{error}");
        std::thread::sleep(Duration::from_millis(200 * failures + 50));
        assert_eq!(ask().unwrap(), first);
    }
    kill_the_process();
    ask().unwrap_err();
    let error = ask().unwrap_err();
    assert!(matches!(error, RunnerError::Gpu(GpuError::Quarantined { failures: 3, .. })), "{error}");
}
