//! Kernels that misbehave get a typed error within their bounds, and harm nothing else. The kernels are in
//! `tests/data/hostile-plugin`.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::time::Duration;

use kvasir_sandbox::{
    CompiledKernel, Engine, ExpertHandle, ExpertShape, Fault, KernelInstance, KernelLimits, MAX_STACK_BYTES,
    MAX_TABLE_ELEMENTS, MatrixShape, SandboxError, WeightFormat,
};

const HIDDEN: u32 = 8;
const WIDTH: u32 = 4;
const BOUNDED: KernelLimits = KernelLimits {
    memory_bytes: 64 << 20,
    fuel_per_call: 10_000_000,
    rows_per_call: u32::MAX,
    deadline: Duration::from_secs(60),
};

fn engine() -> Engine {
    Engine::shared().unwrap()
}

fn compile(name: &str) -> CompiledKernel {
    CompiledKernel::compile(&engine(), &plugin::plugin(plugin::kernel(name))).unwrap()
}

fn shape() -> ExpertShape {
    let format = WeightFormat::from_gguf(0).unwrap();
    let wide = MatrixShape { format, rows: WIDTH, columns: HIDDEN };
    ExpertShape { gate: wide, up: wide, down: MatrixShape { format, rows: HIDDEN, columns: WIDTH } }
}

fn load(instance: &mut KernelInstance) -> Result<ExpertHandle, SandboxError> {
    let weights = vec![0; (HIDDEN * WIDTH * 4) as usize];
    instance.load(shape(), &weights, &weights, &weights)
}

/// Loads one expert into a fresh instance of the kernel and calls it with two rows.
fn forward(name: &str, limits: KernelLimits) -> (KernelInstance, Result<Vec<f32>, SandboxError>) {
    let mut instance = compile(name).instantiate(limits).unwrap();
    let expert = load(&mut instance).unwrap();
    let rows = vec![0; (2 * HIDDEN * 4) as usize];
    let answer = instance.forward(&expert, &rows, 2);
    (instance, answer)
}

/// What a call of the kernel fails with; the instance must be unusable afterwards.
fn fatal(name: &str, limits: KernelLimits) -> SandboxError {
    let (mut instance, answer) = forward(name, limits);
    let error = answer.unwrap_err();
    assert!(instance.is_poisoned(), "{name}");
    let again = load(&mut instance).unwrap_err();
    assert_eq!(again, SandboxError::Poisoned { first: error.to_string() }, "{name}");
    error
}

#[test]
fn the_honest_control_answers() {
    let (instance, answer) = forward("honest", BOUNDED);
    assert_eq!(answer, Ok(vec![1.0; 16]));
    assert!(!instance.is_poisoned());
    assert!(instance.fuel_used() > 0 && instance.fuel_used() < 10_000);
}

#[test]
fn an_endless_loop_runs_out_of_fuel() {
    assert_eq!(fatal("endless-loop", BOUNDED), SandboxError::OutOfFuel { call: "forward", fuel: 10_000_000 });
}

#[test]
fn an_endless_loop_with_unlimited_fuel_meets_its_deadline() {
    let deadline = Duration::from_millis(50);
    let limits = KernelLimits { fuel_per_call: u64::MAX, deadline, ..BOUNDED };
    assert_eq!(fatal("endless-loop", limits), SandboxError::Deadline { call: "forward", deadline });
    assert_eq!(fatal("fills-memory", limits), SandboxError::Deadline { call: "forward", deadline });
}

#[test]
fn loading_is_bounded_too() {
    let mut instance = compile("endless-load").instantiate(BOUNDED).unwrap();
    assert_eq!(load(&mut instance).unwrap_err(), SandboxError::OutOfFuel { call: "load", fuel: 10_000_000 });
    assert!(instance.is_poisoned());
}

#[test]
fn every_call_has_its_own_bounds() {
    // 200 honest calls use more fuel together than one may, and last longer than one may.
    let deadline = Duration::from_millis(200);
    let limits = KernelLimits { fuel_per_call: 5_000, deadline, ..BOUNDED };
    for calls_before in [1, 199] {
        let mut instance = compile("endless-when-told").instantiate(limits).unwrap();
        let expert = load(&mut instance).unwrap();
        let mut rows = vec![0; (2 * HIDDEN * 4) as usize];
        for _ in 0..calls_before {
            assert_eq!(instance.forward(&expert, &rows, 2), Ok(vec![1.0; 16]));
            std::thread::sleep(Duration::from_millis(2));
        }
        rows[0] = 1;
        let error = instance.forward(&expert, &rows, 2).unwrap_err();
        assert_eq!(
            error,
            SandboxError::OutOfFuel { call: "forward", fuel: 5_000 },
            "call {}",
            calls_before + 1
        );
    }
    let unlimited = KernelLimits { fuel_per_call: u64::MAX, deadline: Duration::from_millis(50), ..BOUNDED };
    let mut instance = compile("endless-when-told").instantiate(unlimited).unwrap();
    let expert = load(&mut instance).unwrap();
    let mut rows = vec![0; (2 * HIDDEN * 4) as usize];
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(instance.forward(&expert, &rows, 2), Ok(vec![1.0; 16]));
    rows[0] = 1;
    let deadline = unlimited.deadline;
    assert_eq!(
        instance.forward(&expert, &rows, 2).unwrap_err(),
        SandboxError::Deadline { call: "forward", deadline }
    );
}

#[test]
fn memory_stays_within_its_limit() {
    let limit = 64 << 20;
    let error = fatal("grows-memory", BOUNDED);
    assert!(
        matches!(error, SandboxError::Memory { call: "forward", wanted, limit: found }
            if found == limit && wanted > limit && wanted <= limit + (16 << 16)),
        "{error}"
    );
    // A kernel that lives with the refusal lives.
    let (instance, answer) = forward("grows-memory-and-answers", BOUNDED);
    assert_eq!(answer, Ok(vec![1.0; 16]));
    assert!(!instance.is_poisoned());
}

#[test]
fn the_plugin_gets_no_more_than_it_asked_for() {
    let contents = kvasir_plugin::PackageContents {
        manifest: plugin::manifest(1 << 20, 1_000),
        component: plugin::kernel("grows-memory"),
        ..Default::default()
    };
    let kernel = CompiledKernel::compile(&engine(), &plugin::verified(&contents)).unwrap();
    let instance = kernel.instantiate(BOUNDED).unwrap();
    assert_eq!(
        instance.limits(),
        KernelLimits { memory_bytes: 1 << 20, fuel_per_call: 1_000, rows_per_call: 64, ..BOUNDED }
    );
}

#[test]
fn tables_stay_within_their_limit() {
    assert_eq!(MAX_TABLE_ELEMENTS, 10_000, "the fixture knows this number");
    assert_eq!(forward("grows-table", BOUNDED).1, Ok(vec![1.0; 16]));
}

#[test]
fn a_trap_is_typed() {
    let error = fatal("unreachable", BOUNDED);
    assert!(
        matches!(&error, SandboxError::Trap { call: "forward", reason } if reason.contains("unreachable")),
        "{error}"
    );
}

#[test]
fn deep_recursion_is_a_stack_overflow_on_any_thread() {
    let limits = KernelLimits { fuel_per_call: u64::MAX, ..BOUNDED };
    let overflow = SandboxError::StackOverflow { call: "forward", limit: MAX_STACK_BYTES };
    assert_eq!(fatal("deep-recursion", limits), overflow);
    let apart =
        std::thread::Builder::new().stack_size(2 << 20).spawn(move || fatal("deep-recursion", limits));
    assert_eq!(apart.unwrap().join().unwrap(), overflow);
}

#[test]
fn answers_of_the_wrong_length_are_refused() {
    assert_eq!(fatal("one-value-short", BOUNDED), SandboxError::WrongLength { found: 15, expected: 16 });
    assert_eq!(fatal("one-value-long", BOUNDED), SandboxError::WrongLength { found: 17, expected: 16 });
}

#[test]
fn answers_that_are_not_finite_are_refused() {
    for name in ["answers-nan", "answers-infinity"] {
        let (instance, answer) = forward(name, BOUNDED);
        assert_eq!(answer.unwrap_err(), SandboxError::NotFinite { index: 0 });
        // Weights and rows can do this to an honest kernel, so the instance lives.
        assert!(!instance.is_poisoned());
    }
}

#[test]
fn broken_answers_never_reach_the_host() {
    for name in ["list-outside-memory", "giant-list", "giant-fault", "bad-discriminant"] {
        let error = fatal(name, BOUNDED);
        assert!(matches!(error, SandboxError::BrokenContract { call: "forward", .. }), "{name}: {error:?}");
    }
}

#[test]
fn a_fault_is_told_in_plain_text_and_harms_nothing() {
    let (instance, answer) = forward("fault", BOUNDED);
    let fault = Fault::Unsupported("[31mno such format".to_owned());
    assert_eq!(answer.unwrap_err(), SandboxError::Fault { call: "forward", fault });
    assert!(!instance.is_poisoned());
}

#[test]
fn a_failed_instance_harms_no_other() {
    let kernel = compile("endless-when-told");
    let mut bad = kernel.instantiate(BOUNDED).unwrap();
    let mut good = kernel.instantiate(BOUNDED).unwrap();
    let (bad_expert, good_expert) = (load(&mut bad).unwrap(), load(&mut good).unwrap());
    let rows = |first| [&[first][..], &[0; 63]].concat();
    bad.forward(&bad_expert, &rows(1), 2).unwrap_err();
    assert_eq!(good.forward(&good_expert, &rows(0), 2), Ok(vec![1.0; 16]));
    // Handles belong to one instance.
    assert_eq!(good.forward(&bad_expert, &rows(0), 2), Err(SandboxError::ForeignHandle));
    assert_eq!(good.unload(bad_expert), Err(SandboxError::ForeignHandle));
    assert_eq!(good.unload(good_expert), Ok(()));
}

#[test]
fn shapes_that_do_not_fit_never_reach_the_kernel() {
    let mut instance = compile("honest").instantiate(BOUNDED).unwrap();
    let mut broken = shape();
    broken.down.rows += 1;
    assert_eq!(instance.load(broken, &[], &[], &[]).unwrap_err(), SandboxError::Shape { shape: broken });
    assert!(!instance.is_poisoned());
}
