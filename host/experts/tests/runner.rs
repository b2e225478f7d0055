//! The runner with real and with hostile kernels: what it holds, what it loses, what it answers.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvasir_experts::*;
use kvasir_numerics::{Format, Matrix};
use kvasir_sandbox::{CompiledKernel, Engine};

const HIDDEN: usize = 8;
const WIDTH: usize = 4;
const LAYER: LayerIndex = LayerIndex(3);
const EXPERT_BYTES: u64 = (3 * HIDDEN * WIDTH * 4) as u64;

fn options(instances: usize) -> RunnerOptions {
    RunnerOptions {
        device: Device::Cpu,
        instances: NonZeroUsize::new(instances).unwrap(),
        limits: KernelLimits {
            fuel_per_call: 1_000_000,
            memory_bytes: 64 << 20,
            rows_per_call: u32::MAX,
            deadline: Duration::from_secs(60),
        },
        held_bytes: None,
        isolation: Isolation::InProcess,
    }
}

fn runner(kernel: &str, options: RunnerOptions) -> ExpertRunner {
    let plugin = plugin::plugin(plugin::kernel(kernel));
    ExpertRunner::from_kernel(CompiledKernel::compile(&Engine::shared().unwrap(), &plugin).unwrap(), options)
}

/// Weights that no fixture looks at.
struct Zeros {
    reads: AtomicUsize,
}

impl Zeros {
    const BYTES: [u8; HIDDEN * WIDTH * 4] = [0; HIDDEN * WIDTH * 4];

    fn new() -> Self {
        Zeros { reads: AtomicUsize::new(0) }
    }

    fn weights() -> Swiglu<'static> {
        let wide = Matrix::new(Format::F32, WIDTH, HIDDEN, &Self::BYTES).unwrap();
        Swiglu::new(wide, wide, Matrix::new(Format::F32, HIDDEN, WIDTH, &Self::BYTES).unwrap()).unwrap()
    }
}

impl ExpertSource for Zeros {
    fn expert(
        &self,
        _: LayerIndex,
        expert: ExpertIndex,
        take: &mut dyn FnMut(&Swiglu<'_>),
    ) -> Result<(), SourceError> {
        if expert.0 == 99 {
            return Err("there is no expert 99".into());
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        take(&Zeros::weights());
        Ok(())
    }
}

fn request(expert: u16, rows: &[u32]) -> ExpertRows {
    ExpertRows { expert: ExpertIndex(expert), rows: rows.to_vec(), weights: vec![0.5; rows.len()] }
}

fn rows(first_bytes: &[u8]) -> Vec<u8> {
    first_bytes.iter().flat_map(|&first| [&[first][..], &[0; HIDDEN * 4 - 1]].concat()).collect()
}

#[test]
fn experts_are_held_until_unloaded() {
    let runner = runner("honest", options(3));
    let (rows, wanted) = (rows(&[0, 0]), [request(7, &[1])]);
    let error = runner.each(LAYER, RowFormat::Float32, &rows, HIDDEN, &wanted).unwrap_err();
    assert!(matches!(error, RunnerError::NotHeld { layer: LAYER, expert: ExpertIndex(7) }));
    runner.load(LAYER, ExpertIndex(7), &Zeros::weights()).unwrap();
    assert!(runner.holds(LAYER, ExpertIndex(7)) && !runner.holds(LayerIndex(4), ExpertIndex(7)));
    assert_eq!(runner.held_bytes(), EXPERT_BYTES);
    let twice = runner.load(LAYER, ExpertIndex(7), &Zeros::weights()).unwrap_err();
    assert!(matches!(twice, RunnerError::AlreadyHeld { .. }));
    assert_eq!(runner.held_bytes(), EXPERT_BYTES);
    assert_eq!(runner.each(LAYER, RowFormat::Float32, &rows, HIDDEN, &wanted).unwrap(), [1.0; HIDDEN]);
    assert_eq!(
        runner.sum(LAYER, RowFormat::Float32, &rows, HIDDEN, &wanted).unwrap(),
        [[0.0; HIDDEN], [0.5; HIDDEN]].concat()
    );
    runner.unload(LAYER, ExpertIndex(7));
    runner.unload(LAYER, ExpertIndex(7));
    assert!(!runner.holds(LAYER, ExpertIndex(7)));
    assert_eq!(runner.held_bytes(), 0);
}

/// What two infinities leave has another sign on another processor, and sums are signed for.
#[test]
fn a_sum_beyond_the_largest_number_is_an_error() {
    let runner = runner("honest", options(1));
    let rows = rows(&[0]);
    let with = |expert, weight| ExpertRows { weights: vec![weight], ..request(expert, &[0]) };
    for expert in [1, 2] {
        runner.load(LAYER, ExpertIndex(expert), &Zeros::weights()).unwrap();
    }
    let sum = |wanted: &[ExpertRows]| runner.sum(LAYER, RowFormat::Float32, &rows, HIDDEN, wanted);
    assert_eq!(sum(&[with(1, f32::MAX)]).unwrap(), [f32::MAX; HIDDEN]);
    let error = sum(&[with(1, f32::MAX), with(2, f32::MAX)]).unwrap_err();
    assert!(
        matches!(&error, RunnerError::Kernel { layer: LAYER, source, .. }
            if *source == SandboxError::NotFinite { index: 0 }),
        "{error}"
    );
    assert_eq!(
        (runner.failures(), runner.holds(LAYER, ExpertIndex(1))),
        (0, true),
        "the kernel is not at fault"
    );
}

#[test]
fn a_source_is_read_once_and_again_after_a_trap() {
    // One lane, so that the endless expert takes the others down with it.
    let runner = runner("endless-when-told", options(1));
    let source = Zeros::new();
    let both = [request(1, &[0]), request(2, &[0])];
    let calm = rows(&[0]);
    for _ in 0..3 {
        let values = runner.each_from(&source, LAYER, RowFormat::Float32, &calm, HIDDEN, &both).unwrap();
        assert_eq!(values, [1.0; 2 * HIDDEN]);
    }
    assert_eq!(source.reads.load(Ordering::Relaxed), 2);
    let error =
        runner.each_from(&source, LAYER, RowFormat::Float32, &rows(&[1]), HIDDEN, &both[1..]).unwrap_err();
    assert!(
        matches!(&error, RunnerError::Kernel { layer: LAYER, expert: ExpertIndex(2), source }
            if *source == SandboxError::OutOfFuel { call: "forward", fuel: 1_000_000 }),
        "{error}"
    );
    assert_eq!((runner.failures(), runner.held_bytes()), (1, 0));
    assert!(!runner.holds(LAYER, ExpertIndex(1)));
    let values = runner.each_from(&source, LAYER, RowFormat::Float32, &calm, HIDDEN, &both).unwrap();
    assert_eq!(values, [1.0; 2 * HIDDEN]);
    assert_eq!(source.reads.load(Ordering::Relaxed), 4);
    // 200 traps later it still answers.
    for _ in 0..200 {
        runner.each_from(&source, LAYER, RowFormat::Float32, &rows(&[1]), HIDDEN, &both[..1]).unwrap_err();
    }
    assert_eq!(runner.failures(), 201);
    assert_eq!(runner.each_from(&source, LAYER, RowFormat::Float32, &calm, HIDDEN, &both).unwrap(), values);
}

#[test]
fn a_trap_in_one_lane_leaves_the_others() {
    let runner = runner("endless-when-told", options(2));
    let source = Zeros::new();
    let calm = rows(&[0]);
    let all: Vec<ExpertRows> = (0..6).map(|expert| request(expert, &[0])).collect();
    runner.each_from(&source, LAYER, RowFormat::Float32, &calm, HIDDEN, &all).unwrap();
    runner.each(LAYER, RowFormat::Float32, &rows(&[1]), HIDDEN, &all[4..5]).unwrap_err();
    let held: Vec<u16> = (0..6).filter(|&expert| runner.holds(LAYER, ExpertIndex(expert))).collect();
    assert_eq!(held, [1, 3, 5]);
    assert_eq!(runner.held_bytes(), 3 * EXPERT_BYTES);
    runner.each(LAYER, RowFormat::Float32, &calm, HIDDEN, &[request(3, &[0])]).unwrap();
}

#[test]
fn the_least_used_make_room() {
    let runner = runner("honest", RunnerOptions { held_bytes: Some(2 * EXPERT_BYTES), ..options(1) });
    let source = Zeros::new();
    let calm = rows(&[0]);
    for expert in [0, 1, 0, 2] {
        let wanted = [request(expert, &[0])];
        runner.each_from(&source, LAYER, RowFormat::Float32, &calm, HIDDEN, &wanted).unwrap();
        assert!(runner.held_bytes() <= 2 * EXPERT_BYTES);
    }
    let held: Vec<u16> = (0..3).filter(|&expert| runner.holds(LAYER, ExpertIndex(expert))).collect();
    assert_eq!(held, [0, 2]);
    // What the caller places is not thrown out, and does not throw out.
    let error = runner.load(LAYER, ExpertIndex(5), &Zeros::weights()).unwrap_err();
    assert!(matches!(error, RunnerError::NoRoom { bytes: EXPERT_BYTES, held, limit, .. }
            if held == 2 * EXPERT_BYTES && limit == 2 * EXPERT_BYTES));
}

#[test]
fn a_lane_opens_another_instance_when_one_is_full() {
    // The fixture's memory holds 1 MiB, three quarters of it for experts: 2048 experts of 384 bytes fill one instance.
    let limits = KernelLimits { memory_bytes: 1 << 20, ..options(1).limits };
    let runner = runner("honest", RunnerOptions { limits, ..options(1) });
    for expert in 0..5_000 {
        runner.load(LAYER, ExpertIndex(expert), &Zeros::weights()).unwrap();
    }
    assert_eq!(runner.held_bytes(), 5_000 * EXPERT_BYTES);
    let wanted = [request(0, &[0]), request(4_999, &[0])];
    let values = runner.each(LAYER, RowFormat::Float32, &rows(&[0]), HIDDEN, &wanted).unwrap();
    assert_eq!(values, [1.0; 2 * HIDDEN]);
    assert_eq!(runner.failures(), 0);
}

#[test]
fn a_call_has_no_more_rows_than_the_lesser_of_policy_and_request() {
    let limits = KernelLimits { rows_per_call: 3, ..options(1).limits };
    let source = Zeros::new();
    // The fixture asks for 64 rows a call, and answers how many it got.
    for (limits, count, due) in [
        (limits, 7, [3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 1.0].to_vec()),
        (options(1).limits, 65, [vec![64.0; 64], vec![1.0]].concat()),
    ] {
        let runner = runner("tells-rows", RunnerOptions { limits, ..options(1) });
        let all: Vec<u32> = (0..count).collect();
        let rows = rows(&vec![0; count as usize]);
        let values =
            runner.each_from(&source, LAYER, RowFormat::Float32, &rows, HIDDEN, &[request(0, &all)]).unwrap();
        let first: Vec<f32> = values.iter().step_by(HIDDEN).copied().collect();
        assert_eq!(first, due);
    }
}

#[test]
fn what_a_source_cannot_give_is_an_error_and_harms_nothing() {
    let runner = runner("honest", options(1));
    let source = Zeros::new();
    let calm = rows(&[0]);
    let error = runner
        .each_from(&source, LAYER, RowFormat::Float32, &calm, HIDDEN, &[request(99, &[0])])
        .unwrap_err();
    assert_eq!(error.to_string(), "cannot read expert 99 of layer 3: there is no expert 99");
    runner.each_from(&source, LAYER, RowFormat::Float32, &calm, HIDDEN, &[request(1, &[0])]).unwrap();
}

#[test]
fn malformed_requests_are_refused_before_the_kernel() {
    let runner = runner("honest", options(2));
    let source = Zeros::new();
    let two = rows(&[0, 0]);
    let each = |format, rows: &[u8], hidden, requests: &[ExpertRows]| {
        runner.each_from(&source, LAYER, format, rows, hidden, requests).unwrap_err().to_string()
    };
    assert!(each(RowFormat::Float32, &two, HIDDEN, &[request(1, &[2])]).contains("asked for row 2 of 2"));
    assert!(each(RowFormat::Float32, &two[1..], HIDDEN, &[]).contains("not whole rows"));
    assert!(each(RowFormat::Float32, &two, 0, &[]).contains("not whole blocks"));
    assert!(each(RowFormat::Q8K, &two, HIDDEN, &[]).contains("not whole blocks"));
    let q8 = vec![0; RowFormat::Q8.row_bytes(32).unwrap()];
    assert!(each(RowFormat::Q8, &q8, 32, &[request(1, &[0])]).contains("rows come as Q8"));
    let long = vec![0; 4 * 2 * HIDDEN];
    assert!(each(RowFormat::Float32, &long, 2 * HIDDEN, &[request(1, &[0])]).contains("rows have 16 values"));
    let sum = |requests: &[ExpertRows]| {
        runner.sum_from(&source, LAYER, RowFormat::Float32, &two, HIDDEN, requests).unwrap_err().to_string()
    };
    assert!(sum(&[request(1, &[0]), request(1, &[1])]).contains("asked twice"));
    assert!(sum(&[ExpertRows { weights: vec![], ..request(1, &[0]) }]).contains("0 weights for 1 rows"));
    assert!(sum(&[ExpertRows { weights: vec![f32::NAN], ..request(1, &[0]) }]).contains("not finite"));
    assert_eq!(runner.failures(), 0);
}

#[test]
fn long_requests_are_split_as_the_plugin_asks() {
    // The fixtures ask for 64 rows a call at most.
    let runner = runner("honest", options(1));
    let many: Vec<u32> = (0..200).rev().collect();
    let wanted = [request(1, &many)];
    let values = runner
        .each_from(&Zeros::new(), LAYER, RowFormat::Float32, &rows(&[0; 200]), HIDDEN, &wanted)
        .unwrap();
    assert_eq!(values, vec![1.0; 200 * HIDDEN]);
}

#[test]
fn many_threads_share_a_runner() {
    let runner = runner("honest", options(3));
    let source = Zeros::new();
    std::thread::scope(|scope| {
        for thread in 0..4u16 {
            let (runner, source) = (&runner, &source);
            scope.spawn(move || {
                for turn in 0..50u16 {
                    let wanted: Vec<ExpertRows> =
                        (0..8).map(|pick| request((thread * 7 + turn * 3 + pick * 5) % 24, &[0])).collect();
                    let values = runner
                        .each_from(source, LAYER, RowFormat::Float32, &rows(&[0]), HIDDEN, &wanted)
                        .unwrap();
                    assert_eq!(values, [1.0; 8 * HIDDEN]);
                }
            });
        }
    });
    assert_eq!(source.reads.load(Ordering::Relaxed), 24);
}

#[test]
fn a_plugin_must_prove_itself() {
    let vectors = |files: &[(&str, &[u8])]| -> BTreeMap<String, Vec<u8>> {
        files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect()
    };
    let made = |vectors| {
        plugin::verified(&kvasir_plugin::PackageContents {
            manifest: plugin::manifest(64 << 20, 1 << 40),
            component: plugin::kernel("honest"),
            vectors,
            ..Default::default()
        })
    };
    assert_eq!(conformance(&made(BTreeMap::new())), Err(ConformanceError::NoVectors));
    let error = conformance(&made(vectors(&[("x.vector", b"no vector")]))).unwrap_err();
    assert!(matches!(error, ConformanceError::Vector { .. }));
    // The honest fixture answers 1.0 to everything, which is not what this vector says.
    let golden = std::fs::read(plugin::root().join("plugins/swiglu/vectors/f32.vector")).unwrap();
    let plugin = made(vectors(&[("f32.vector", &golden)]));
    let error = conformance(&plugin).unwrap_err();
    assert!(matches!(error, ConformanceError::Differs { row: 0, found: 0x3f80_0000, .. }), "{error}");
    let error = ExpertRunner::new(&plugin, options(1)).err().unwrap();
    assert!(matches!(error, RunnerError::Conformance(ConformanceError::Differs { .. })), "{error}");
    // A vector that asks for a refusal finds the kernel too obliging.
    let golden = std::fs::read(plugin::root().join("plugins/swiglu/vectors/q8_0-weight-128.vector")).unwrap();
    let error = conformance(&made(vectors(&[("q8_0-weight-128.vector", &golden)]))).unwrap_err();
    assert!(matches!(error, ConformanceError::Outcome { expected: "malformed-weights", .. }), "{error}");
}

#[test]
fn the_policys_limits_hold_while_a_plugin_is_proven() {
    let golden = std::fs::read(plugin::root().join("plugins/swiglu/vectors/f32.vector")).unwrap();
    let plugin = plugin::verified(&kvasir_plugin::PackageContents {
        manifest: plugin::manifest(64 << 20, 1 << 40),
        component: plugin::kernel("endless-loop"),
        vectors: BTreeMap::from([("f32.vector".to_owned(), golden)]),
        ..Default::default()
    });
    // The plugin requests a million times the fuel of the policy.
    let error = ExpertRunner::new(&plugin, options(1)).err().unwrap();
    let fuel = SandboxError::OutOfFuel { call: "forward", fuel: 1_000_000 }.to_string();
    assert!(
        matches!(&error, RunnerError::Conformance(ConformanceError::Outcome { expected: "an output", found, .. })
            if *found == fuel),
        "{error}"
    );
}

#[test]
fn a_sum_over_more_values_than_are_kept_at_a_time_is_the_same_sum() {
    let runner = runner("honest", options(2));
    let (count, experts) = (8_192u32, 300u16);
    let rows = vec![0; count as usize * HIDDEN * 4];
    let all: Vec<u32> = (0..count).collect();
    let asked: Vec<ExpertRows> = (100..100 + experts).rev().map(|expert| request(expert, &all)).collect();
    let sums = runner.sum_from(&Zeros::new(), LAYER, RowFormat::Float32, &rows, HIDDEN, &asked).unwrap();
    assert_eq!(sums.len(), count as usize * HIDDEN);
    assert!(sums.iter().all(|&sum| sum == 0.5 * f32::from(experts)));
}
