//! Hostile kernels through the real program: each ends in its own error, within ceilings of memory on both sides and of time, and
//! harms no other plugin. The kernels are in `tests/data/hostile-plugin`; what is too large for a file is generated here.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvasir_kernel::ring::{MAX_EXPERT_BYTES, Ring};
use kvasir_kernel::{
    CompileLimits, FailureHistory as _, Instance, InstanceLimits, Kernel, KernelError, KernelOptions,
    MemoryHistory,
};
use kvasir_plugin::PluginDigest;
use kvasir_sandbox::{Fault, MAX_STACK_BYTES, SandboxError};

const HIDDEN: u32 = 8;
const WIDTH: u32 = 4;
const LIMITS: InstanceLimits =
    InstanceLimits { memory_bytes: 64 << 20, fuel_per_call: 10_000_000, deadline: Duration::from_secs(60) };
/// Far more than any of these takes on a busy machine: a guard against hanging.
const PATIENCE: Duration = Duration::from_secs(30);
/// What a call may take on a busy machine beside what others may delay it by.
const SLACK: Duration = Duration::from_secs(10);
/// What this process may grow by over one hostile kernel. They ask for 64 MiB to 4 GiB.
const HOST_CEILING: u64 = 48 << 20;
/// What a kernel's process may ever hold: the 64 MiB that it may have, the engine and the compiled code.
const CHILD_CEILING: u64 = 192 << 20;
/// What the compiler's process may ever hold.
const COMPILER_CEILING: u64 = 512 << 20;

/// One test at a time: each measures the memory of the process that they share.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options() -> KernelOptions {
    KernelOptions {
        program: Some(Path::new(env!("CARGO_BIN_EXE_kvasir-kernel")).to_owned()),
        backoff: Duration::from_millis(1),
        memory_bytes: Some(256 << 20),
        compile: CompileLimits { memory_bytes: COMPILER_CEILING, ..CompileLimits::default() },
        quarantine_after: 1000,
        ..KernelOptions::default()
    }
}

fn digest(name: &str) -> PluginDigest {
    let mut digest = [0; 32];
    digest.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    PluginDigest(digest)
}

fn start(name: &str, component: &[u8], options: KernelOptions) -> Result<Kernel, KernelError> {
    Kernel::start(digest(name), component, 0, 2, options)
}

fn kernel(name: &str) -> Kernel {
    start(name, &plugin::kernel(name), options()).unwrap()
}

fn load(instance: &mut Instance) -> Result<u64, KernelError> {
    let weights = vec![0; (HIDDEN * WIDTH * 4) as usize];
    let shape = [0, WIDTH, HIDDEN, 0, WIDTH, HIDDEN, 0, HIDDEN, WIDTH];
    instance.load(shape, [&weights, &weights, &weights])
}

fn forward(instance: &mut Instance, expert: u64, first: u8) -> Result<Vec<f32>, KernelError> {
    let mut rows = vec![0; (2 * HIDDEN * 4) as usize];
    rows[0] = first;
    let mut out = vec![0.0; (2 * HIDDEN) as usize];
    instance.forward(expert, &rows, 2, &mut out)?;
    Ok(out)
}

/// What the sandbox over there says.
fn said(error: KernelError) -> SandboxError {
    match error {
        KernelError::Failed { report, .. } => SandboxError::decode(&report).unwrap(),
        other => panic!("{other}"),
    }
}

/// A line of /proc/PID/status in bytes.
fn status(process: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Most that any child that is gone has held, in bytes.
fn largest_child() -> u64 {
    // SAFETY: plain data that the call fills in.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: lives over the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) }, 0);
    usage.ru_maxrss as u64 * 1024
}

/// Kernels that misbehave when they are called: file, limits, and whether the error is the one that is due.
type Due = fn(&SandboxError) -> bool;
const RUNNING: &[(&str, &str, InstanceLimits, Due)] = &[
    (
        "1",
        "grows-memory",
        LIMITS,
        |error| matches!(error, SandboxError::Memory { call: "forward", limit, wanted } if *limit == 64 << 20 && wanted > limit),
    ),
    ("2", "endless-loop", LIMITS, |error| {
        *error == SandboxError::OutOfFuel { call: "forward", fuel: 10_000_000 }
    }),
    ("2", "endless-load", LIMITS, |error| {
        *error == SandboxError::OutOfFuel { call: "load", fuel: 10_000_000 }
    }),
    ("2", "endless-loop", HASTY, |error| {
        *error == SandboxError::Deadline { call: "forward", deadline: HASTY.deadline }
    }),
    ("3", "deep-recursion", UNMETERED, |error| {
        *error == SandboxError::StackOverflow { call: "forward", limit: MAX_STACK_BYTES }
    }),
    ("4", "fills-memory", HASTY, |error| {
        *error == SandboxError::Deadline { call: "forward", deadline: HASTY.deadline }
    }),
    ("4", "fills-memory", LIMITS, |error| matches!(error, SandboxError::OutOfFuel { call: "forward", .. })),
    ("12", "unreachable", LIMITS, |error| matches!(error, SandboxError::Trap { call: "forward", .. })),
    ("15", "list-outside-memory", LIMITS, broken),
    ("15", "bad-discriminant", LIMITS, broken),
    ("16", "giant-list", LIMITS, broken),
    ("16", "giant-fault", LIMITS, broken),
    ("16", "one-value-short", LIMITS, |error| {
        *error == SandboxError::WrongLength { found: 15, expected: 16 }
    }),
    ("16", "one-value-long", LIMITS, |error| *error == SandboxError::WrongLength { found: 17, expected: 16 }),
    ("34", "answers-nan", LIMITS, |error| *error == SandboxError::NotFinite { index: 0 }),
    ("34", "answers-infinity", LIMITS, |error| *error == SandboxError::NotFinite { index: 0 }),
    (
        "21",
        "fault",
        LIMITS,
        |error| matches!(error, SandboxError::Fault { call: "forward", fault: Fault::Unsupported(text) } if !text.contains('\u{1b}')),
    ),
];
const HASTY: InstanceLimits =
    InstanceLimits { fuel_per_call: u64::MAX, deadline: Duration::from_millis(50), ..LIMITS };
const UNMETERED: InstanceLimits = InstanceLimits { fuel_per_call: u64::MAX, ..LIMITS };

fn broken(error: &SandboxError) -> bool {
    matches!(error, SandboxError::BrokenContract { call: "forward", .. })
}

#[test]
fn every_kernel_that_misbehaves_ends_in_its_own_error_within_its_ceilings() {
    let _alone = alone();
    let honest = kernel("honest");
    let mut neighbour = honest.instantiate(0, LIMITS).unwrap();
    let expert = load(&mut neighbour).unwrap();
    for (row, name, limits, due) in RUNNING {
        let before = status(std::process::id(), "VmRSS");
        let kernel = kernel(name);
        let begun = Instant::now();
        let mut instance = kernel.instantiate(0, *limits).unwrap();
        let error = load(&mut instance).and_then(|expert| forward(&mut instance, expert, 0)).unwrap_err();
        let error = said(error);
        assert!(due(&error), "row {row}, {name}: {error:?}");
        assert!(begun.elapsed() < PATIENCE, "{name}: {:?}", begun.elapsed());
        let process = kernel.process_id().unwrap_or_else(|| panic!("{name} took its process with it"));
        let (host, child) = (status(std::process::id(), "VmRSS"), status(process, "VmHWM"));
        assert!(host < before + HOST_CEILING, "{name}: the host grew by {} bytes", host - before);
        assert!(child < CHILD_CEILING, "{name}: its process held {child} bytes");
        // The same process goes on with a fresh instance, where the old one is gone.
        if instance.is_poisoned() {
            let begun = Instant::now();
            while matches!(kernel.instantiate(0, *limits), Err(KernelError::BackingOff { .. })) {
                assert!(begun.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(kernel.process_id(), Some(process), "{name}");
        }
        assert_eq!(forward(&mut neighbour, expert, 0).unwrap(), [1.0; 16], "{name}");
    }
    assert!(largest_child() < COMPILER_CEILING, "a compiler held {} bytes", largest_child());
}

/// `(component (core module BODY))`
fn module(body: &str) -> Vec<u8> {
    wat::parse_str(format!("(component (core module {body}))")).unwrap()
}

/// Name, what is wrong with it, the component, and whether an error is the one that is due.
type Case<'a> = (&'a str, &'a str, Vec<u8>, Box<dyn Fn(&SandboxError) -> bool>);

#[test]
fn every_component_that_is_refused_is_refused_by_the_compilers_process_for_its_own_reason() {
    let _alone = alone();
    let over = |what: &'static str| move |error: &SandboxError| matches!(error, SandboxError::OverLimit { what: found, value, limit, .. } if *found == what && value > limit);
    let invalid = |error: &SandboxError| matches!(error, SandboxError::Invalid { .. });
    let import = |name: &'static str| {
        move |error: &SandboxError| *error == SandboxError::Import { name: name.to_owned() }
    };
    let honest = plugin::kernel("honest");
    let nest = |depth: usize| format!("(func {} {})", "loop ".repeat(depth), "end ".repeat(depth));
    let mut elf = plugin::kernel("honest");
    elf.splice(..4, *b"\x7fELF");
    let cases: Vec<Case> = vec![
        ("1", "two-memories", plugin::refused("two-memories"), Box::new(invalid)),
        (
            "1",
            "large-initial-memory",
            plugin::refused("large-initial-memory"),
            Box::new(over("initial memory")),
        ),
        ("5", "a nest of 11,000 loops", module(&nest(11_000)), Box::new(over("block depth"))),
        ("5", "40,000 functions", module(&"(func)".repeat(40_000)), Box::new(over("functions"))),
        (
            "5",
            "nested components",
            wat::parse_str(format!("{}{}", "(component ".repeat(9), ")".repeat(9))).unwrap(),
            Box::new(over("nesting depth")),
        ),
        (
            "5",
            "modules",
            wat::parse_str(format!("(component {})", "(core module)".repeat(64))).unwrap(),
            Box::new(over("nested modules")),
        ),
        (
            "6",
            "a function of 1 MiB",
            module(&format!("(func {})", "nop ".repeat(1 << 20))),
            Box::new(over("function bytes")),
        ),
        (
            "6",
            "50,000 locals",
            module(&format!("(func (local {}))", "i64 ".repeat(50_000))),
            Box::new(over("locals")),
        ),
        (
            "7",
            "data of 4 MiB",
            module(&format!("(memory 1) (data \"{}\")", "x".repeat(4 << 20))),
            Box::new(over("data segment bytes")),
        ),
        (
            "7",
            "data in 100,000 segments",
            module(&format!("(memory 1) {}", "(data \"\")".repeat(100_000))),
            Box::new(over("data segments")),
        ),
        ("8", "cut short", honest[..honest.len() / 2].to_vec(), Box::new(invalid)),
        ("8", "nothing", Vec::new(), Box::new(invalid)),
        (
            "8",
            "text",
            b"(component)".to_vec(),
            Box::new(|error| matches!(error, SandboxError::Invalid { offset: 0, .. })),
        ),
        ("8", "a core module", plugin::refused("core-module"), Box::new(invalid)),
        ("9", "memory64", plugin::refused("memory64"), Box::new(invalid)),
        (
            "9",
            "a table of 64-bit addresses",
            module("(table i64 0xffffffffffff funcref)"),
            Box::new(over("table elements")),
        ),
        ("9", "large-table", plugin::refused("large-table"), Box::new(over("table elements"))),
        ("16", "garbage collection", plugin::refused("garbage-collection"), Box::new(invalid)),
        ("16", "threads", plugin::refused("shared-memory"), Box::new(invalid)),
        ("16", "exceptions", plugin::refused("exceptions"), Box::new(invalid)),
        ("16", "tail calls", plugin::refused("tail-call"), Box::new(invalid)),
        ("17", "a clock", plugin::refused("import"), Box::new(import("wasi:clocks/monotonic-clock@0.2.0"))),
        ("22", "a function", plugin::refused("import-function"), Box::new(import("print"))),
        (
            "22",
            "start",
            plugin::refused("start-function"),
            Box::new(|error| matches!(error, SandboxError::StartFunction { .. })),
        ),
        (
            "22",
            "no exports",
            plugin::refused("no-exports"),
            Box::new(
                |error| matches!(error, SandboxError::WrongWorld { world, .. } if world.ends_with("@0.1.0")),
            ),
        ),
        (
            "precompiled",
            "machine code",
            elf,
            Box::new(|error| matches!(error, SandboxError::Precompiled | SandboxError::Invalid { .. })),
        ),
        (
            "5.3",
            "relaxed-swizzle",
            plugin::refused("relaxed-swizzle"),
            Box::new(
                |error| matches!(error, SandboxError::RelaxedOperator { operator, .. } if operator == "i8x16.relaxed_swizzle"),
            ),
        ),
        (
            "5.3",
            "relaxed-multiply-add",
            plugin::refused("relaxed-multiply-add"),
            Box::new(
                |error| matches!(error, SandboxError::RelaxedOperator { operator, .. } if operator == "f32x4.relaxed_madd"),
            ),
        ),
    ];
    for (row, name, component, due) in cases {
        let before = status(std::process::id(), "VmRSS");
        let begun = Instant::now();
        let error = start(name, &component, options()).err().unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(begun.elapsed() < PATIENCE, "{name}: {:?}", begun.elapsed());
        let error = said(error);
        assert!(due(&error), "row {row}, {name}: {error:?}");
        let after = status(std::process::id(), "VmRSS");
        assert!(after < before + HOST_CEILING, "{name}: the host grew by {} bytes", after - before);
    }
    for interface in [
        "cli/environment",
        "cli/stdin",
        "clocks/wall-clock",
        "filesystem/preopens",
        "http/outgoing-handler",
        "io/poll",
        "random/random",
        "sockets/tcp",
    ] {
        let name = format!("wasi:{interface}@0.2.0");
        let component = wat::parse_str(format!("(component (import \"{name}\" (instance)))")).unwrap();
        let error = said(start("wasi", &component, options()).err().unwrap());
        assert_eq!(error, SandboxError::Import { name });
        assert!(error.to_string().contains("WASI is granted by no policy"), "{error}");
    }
    assert!(largest_child() < COMPILER_CEILING, "a compiler held {} bytes", largest_child());
}

/// Within every limit of the scan, and slow and large to compile.
fn bomb(functions: usize) -> Vec<u8> {
    let body =
        "local.get 0 i64.const 7 i64.mul local.get 1 i64.xor local.tee 0 local.get 1 i64.rotl local.set 1 "
            .repeat(16_000);
    let function = format!("(func (param i64 i64) (result i64) {body} local.get 0)");
    module(&function.repeat(functions))
}

#[test]
fn a_compile_bomb_is_ended_at_the_clock_and_at_each_other_limit() {
    let _alone = alone();
    let component = bomb(12);
    let hasty = CompileLimits { wall_clock: Duration::from_millis(300), ..options().compile };
    let begun = Instant::now();
    match start("bomb", &component, KernelOptions { compile: hasty, ..options() }).err().unwrap() {
        KernelError::CompileLimit { limit } => assert!(limit.contains("wall clock"), "{limit}"),
        other => panic!("{other}"),
    }
    assert!(begun.elapsed() < PATIENCE);
    let small = CompileLimits { memory_bytes: 96 << 20, ..options().compile };
    match start("bomb", &component, KernelOptions { compile: small, ..options() }).err().unwrap() {
        KernelError::CompileLimit { limit } => assert!(limit.contains("memory"), "{limit}"),
        other => panic!("{other}"),
    }
    let short = CompileLimits { artefact_bytes: 1000, ..options().compile };
    match start("honest", &plugin::kernel("honest"), KernelOptions { compile: short, ..options() })
        .err()
        .unwrap()
    {
        KernelError::CompileLimit { limit } => assert!(limit.contains("size of 1000 bytes"), "{limit}"),
        other => panic!("{other}"),
    }
}

#[test]
fn the_second_and_the_two_hundredth_call_are_bounded_like_the_first() {
    let _alone = alone();
    let kernel = kernel("endless-when-told");
    for honest_calls in [1, 199] {
        let mut instance = loop {
            match kernel.instantiate(1, InstanceLimits { fuel_per_call: 5_000, ..LIMITS }) {
                Err(KernelError::BackingOff { wait }) => std::thread::sleep(wait),
                instance => break instance.unwrap(),
            }
        };
        let expert = load(&mut instance).unwrap();
        for _ in 0..honest_calls {
            assert_eq!(forward(&mut instance, expert, 0).unwrap(), [1.0; 16]);
        }
        let error = said(forward(&mut instance, expert, 1).unwrap_err());
        assert_eq!(
            error,
            SandboxError::OutOfFuel { call: "forward", fuel: 5_000 },
            "after {honest_calls} calls"
        );
        assert!(instance.is_poisoned());
    }
}

#[test]
fn while_one_plugin_runs_away_another_answers_and_the_end_of_a_process_is_told_at_once() {
    let _alone = alone();
    let hostile = kernel("endless-when-told");
    let honest = kernel("honest");
    let mut runaway = hostile.instantiate(0, InstanceLimits { fuel_per_call: u64::MAX, ..LIMITS }).unwrap();
    let expert = load(&mut runaway).unwrap();
    let mut other_lane = hostile.instantiate(1, LIMITS).unwrap();
    let other_expert = load(&mut other_lane).unwrap();
    let process = hostile.process_id().unwrap();
    let runs = Arc::new(AtomicBool::new(true));
    let theirs = Arc::clone(&runs);
    let running = std::thread::spawn(move || {
        let error = forward(&mut runaway, expert, 1).unwrap_err();
        theirs.store(false, Ordering::SeqCst);
        error
    });
    let mut neighbour = honest.instantiate(0, LIMITS).unwrap();
    let expert = load(&mut neighbour).unwrap();
    for _ in 0..200 {
        assert_eq!(forward(&mut neighbour, expert, 0).unwrap(), [1.0; 16]);
        assert_eq!(forward(&mut other_lane, other_expert, 0).unwrap(), [1.0; 16], "its other lane");
    }
    assert!(runs.load(Ordering::SeqCst), "it ran all the time");
    // As a hole in the compiler would end it (rows 10 and 11): a fault of memory in the process.
    let begun = Instant::now();
    while hostile.process_id() == Some(process) {
        // Sent from outside, the first of them meets the engine's own handler, which hands on to the one that ends the process.
        // SAFETY: a number of a child of this process, which is not reaped before it is dead.
        unsafe { libc::kill(process as i32, libc::SIGSEGV) };
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    match running.join().unwrap() {
        KernelError::Crashed { request: "forward", status, .. } => {
            assert!(status.starts_with("signal"), "{status}")
        }
        other => panic!("{other}"),
    }
    assert!(begun.elapsed() < LIMITS.deadline / 5, "the caller was answered after {:?}", begun.elapsed());
    assert!(other_lane.is_poisoned() && !neighbour.is_poisoned());
    assert_eq!(forward(&mut neighbour, expert, 0).unwrap(), [1.0; 16]);
}

#[test]
fn a_plugin_that_runs_to_its_deadline_delays_no_other_session_by_more_than_that() {
    let _alone = alone();
    let deadline = Duration::from_secs(2);
    let hostile = kernel("endless-when-told");
    let honest = kernel("honest");
    let mut runaway = hostile.instantiate(0, InstanceLimits { deadline, ..UNMETERED }).unwrap();
    let runaways_expert = load(&mut runaway).unwrap();
    let mut other_lane = hostile.instantiate(1, LIMITS).unwrap();
    let other_expert = load(&mut other_lane).unwrap();
    let mut neighbour = honest.instantiate(0, LIMITS).unwrap();
    let neighbours_expert = load(&mut neighbour).unwrap();
    let runs = Arc::new(AtomicBool::new(true));
    let theirs = Arc::clone(&runs);
    let begun = Instant::now();
    let running = std::thread::spawn(move || {
        let answer = forward(&mut runaway, runaways_expert, 1);
        theirs.store(false, Ordering::SeqCst);
        answer
    });
    let mut beside = 0;
    while runs.load(Ordering::SeqCst) {
        assert!(begun.elapsed() < PATIENCE, "it is not stopped");
        for (instance, expert) in [(&mut neighbour, neighbours_expert), (&mut other_lane, other_expert)] {
            let asked = Instant::now();
            assert_eq!(forward(instance, expert, 0).unwrap(), [1.0; 16]);
            assert!(asked.elapsed() < deadline + SLACK, "a neighbour waited for {:?}", asked.elapsed());
        }
        beside += usize::from(runs.load(Ordering::SeqCst));
    }
    assert!(beside > 0, "no neighbour was answered while it ran");
    let error = said(running.join().unwrap().unwrap_err());
    assert_eq!(error, SandboxError::Deadline { call: "forward", deadline });
    for (instance, expert) in [(&mut neighbour, neighbours_expert), (&mut other_lane, other_expert)] {
        assert_eq!(forward(instance, expert, 0).unwrap(), [1.0; 16]);
    }
}

#[test]
fn a_process_that_does_not_keep_its_own_deadline_is_killed() {
    let _alone = alone();
    let options = KernelOptions { grace: Duration::from_millis(200), ..options() };
    let kernel = start("honest", &plugin::kernel("honest"), options).unwrap();
    let mut instance =
        kernel.instantiate(0, InstanceLimits { deadline: Duration::from_millis(100), ..LIMITS }).unwrap();
    let expert = load(&mut instance).unwrap();
    let process = kernel.process_id().unwrap();
    // SAFETY: a number of a child of this process.
    assert_eq!(unsafe { libc::kill(process as i32, libc::SIGSTOP) }, 0);
    let begun = Instant::now();
    // A thread that runs stops a little later, and could still answer.
    let stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    };
    while !std::fs::read_dir(format!("/proc/{process}/task")).unwrap().all(|task| stopped(task.unwrap())) {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        forward(&mut instance, expert, 0).unwrap_err(),
        KernelError::Killed { request: "forward", deadline: Duration::from_millis(300) }
    );
    assert!(begun.elapsed() < PATIENCE);
    assert!(instance.is_poisoned() && kernel.process_id().is_none());
}

#[test]
fn traps_are_counted_and_the_third_is_the_plugins_end() {
    let _alone = alone();
    let history = Arc::new(MemoryHistory::default());
    let (backoff, quarantine_after) = (Duration::from_millis(300), 3);
    let options = || KernelOptions { history: history.clone(), backoff, quarantine_after, ..options() };
    let kernel = start("unreachable", &plugin::kernel("unreachable"), options()).unwrap();
    for failure in 1..=3u32 {
        let mut instance = kernel.instantiate(0, LIMITS).unwrap();
        let expert = load(&mut instance).unwrap();
        assert!(matches!(said(forward(&mut instance, expert, 0).unwrap_err()), SandboxError::Trap { .. }));
        match kernel.instantiate(0, LIMITS).err().unwrap() {
            KernelError::BackingOff { wait } if failure < 3 => {
                let due = backoff * (1 << (failure - 1));
                assert!(wait <= due && wait > due / 4, "{wait:?} of {due:?}");
                std::thread::sleep(wait);
            }
            error => {
                assert_eq!(error, KernelError::Quarantined { plugin: digest("unreachable"), failures: 3 })
            }
        }
    }
    // Another handle over the same memory of failures, and another plugin.
    let again = start("unreachable", &plugin::kernel("unreachable"), options()).err().unwrap();
    assert_eq!(again, KernelError::Quarantined { plugin: digest("unreachable"), failures: 3 });
    start("honest", &plugin::kernel("honest"), options()).unwrap();
}

#[test]
fn what_the_cache_gives_is_run_and_what_somebody_else_put_there_is_compiled_anew() {
    let _alone = alone();
    let home = tempfile::tempdir().unwrap();
    let cache = home.path().join("compiled");
    let with_cache = || KernelOptions { cache: Some(cache.clone()), ..options() };
    let run = |options| {
        let kernel = start("honest", &plugin::kernel("honest"), options).unwrap();
        let mut instance = kernel.instantiate(0, LIMITS).unwrap();
        let expert = load(&mut instance).unwrap();
        assert_eq!(forward(&mut instance, expert, 0).unwrap(), [1.0; 16]);
    };
    run(with_cache());
    let entry = std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path());
    let entry =
        entry.filter(|path| path.extension().is_some_and(|found| found == "compiled")).last().unwrap();
    let honest = std::fs::read(&entry).unwrap();
    // No compiler may run, so it comes from the cache.
    let no_compiler = CompileLimits { wall_clock: Duration::ZERO, ..options().compile };
    run(KernelOptions { compile: no_compiler, ..with_cache() });
    let mut planted = honest.clone();
    let end = planted.len() - 1;
    planted[end] ^= 1;
    std::fs::write(&entry, &planted).unwrap();
    assert!(matches!(
        start("honest", &plugin::kernel("honest"), KernelOptions { compile: no_compiler, ..with_cache() })
            .err()
            .unwrap(),
        KernelError::CompileLimit { .. }
    ));
    run(with_cache());
    assert_eq!(std::fs::read(&entry).unwrap(), honest, "replaced by what was compiled");
}

/// Three matrices of `bytes` each, with rows of two values, and their shape in F32.
fn wide(bytes: usize) -> ([u32; 9], Vec<u8>) {
    let width = (bytes / 8) as u32;
    ([0, width, 2, 0, width, 2, 0, 2, width], vec![0; bytes])
}

#[test]
fn large_experts_and_many_rows_cross_in_pieces() {
    let _alone = alone();
    // At its most the process holds the pieces twice (a vector that grows by doubling, and the kernel's own copy), later the
    // kernel's copy with a lane of rows and a lane of results: under 256 MiB either way, half of what it may have.
    let options = KernelOptions { memory_bytes: Some(512 << 20), ..options() };
    let kernel = start("honest", &plugin::kernel("honest"), options).unwrap();
    let limits = InstanceLimits { memory_bytes: 256 << 20, ..UNMETERED };
    let mut instance = kernel.instantiate(0, limits).unwrap();
    let lane_bytes = Ring::lane_bytes_for(2);
    let (shape, weights) = wide(24 << 20);
    assert!(3 * weights.len() > lane_bytes, "an expert that fits into a lane crosses in one piece");
    let expert = instance.load(shape, [&weights, &weights, &weights]).unwrap();
    let rows = lane_bytes / 8 + 1000;
    let mut out = vec![0.0; rows * 2];
    instance.forward(expert, &vec![0; rows * 8], rows as u32, &mut out).unwrap();
    assert!(out.iter().all(|value| *value == 1.0));
}

#[test]
fn an_expert_beyond_a_limit_is_refused_by_the_first_limit_that_it_meets() {
    let _alone = alone();
    let kernel = kernel("honest");
    // Larger than any: refused here, before a byte is sent. Nobody touches these zeros, so they take no memory.
    let mut instance = kernel.instantiate(0, LIMITS).unwrap();
    let (shape, weights) = wide(MAX_EXPERT_BYTES as usize / 3 / 8 * 8 + 8);
    let error = instance.load(shape, [&weights, &weights, &weights]).unwrap_err();
    let bytes = 3 * weights.len();
    let reason = format!("an expert of {bytes} bytes, the limit is {MAX_EXPERT_BYTES}");
    assert_eq!(error, KernelError::Refused { request: "load", reason });
    assert!(!instance.is_poisoned());
    // Larger than the instance's 64 MiB, in pieces: refused by the sandbox over there.
    let (shape, weights) = wide(24 << 20);
    let error = said(instance.load(shape, [&weights, &weights, &weights]).unwrap_err());
    let due = matches!(error, SandboxError::Memory { call: "load", limit, wanted } if limit == 64 << 20 && wanted > limit);
    assert!(due, "{error:?}");
    // Pieces of 216 MiB need a vector of 256 MiB, all that the process may have: it ends.
    let mut instance = loop {
        match kernel.instantiate(0, UNMETERED) {
            Err(KernelError::BackingOff { wait }) => std::thread::sleep(wait),
            instance => break instance.unwrap(),
        }
    };
    let (shape, weights) = wide(72 << 20);
    let error = instance.load(shape, [&weights, &weights, &weights]).unwrap_err();
    assert!(matches!(error, KernelError::Crashed { request: "load", .. }), "{error}");
    assert!(instance.is_poisoned());
}

/// The program as somebody starts it who has less than usual: `script` runs before it, in the same process.
fn limited(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("kvasir-kernel");
    let program = env!("CARGO_BIN_EXE_kvasir-kernel");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\nexec '{program}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn what_the_machine_does_not_give_is_not_held_against_a_kernel() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let history = Arc::new(MemoryHistory::default());
    let tried = |script: &str| {
        let program = Some(limited(folder.path(), script));
        let options = KernelOptions { program, history: history.clone(), quarantine_after: 1, ..options() };
        let kernel = start("limited", &plugin::kernel("honest"), options)?;
        let mut instance = kernel.instantiate(0, LIMITS)?;
        let expert = load(&mut instance)?;
        forward(&mut instance, expert, 0)
    };
    let due = tried("").unwrap();
    // Lower than what the process sets itself, and enough.
    for script in ["ulimit -f 100000", "ulimit -t 30", "ulimit -d 400000", "ulimit -n 12", "ulimit -c 0"] {
        assert_eq!(tried(script).unwrap(), due, "{script}");
    }
    for turn in 0..4 {
        let error = tried("echo 'no walls today' >&2; exit 3").unwrap_err();
        let setup = matches!(&error, KernelError::Setup { reason } if reason.contains("no walls today"));
        assert!(setup, "{turn}: {error}");
    }
    // Too little address space for a memory of WebAssembly, of which much is reserved and little used.
    let error = match tried("ulimit -v 3000000").unwrap_err() {
        KernelError::Failed { report, fatal: false } => SandboxError::decode(&report).unwrap(),
        other => panic!("{other}"),
    };
    assert!(matches!(error, SandboxError::Engine { .. }), "{error}");
    assert_eq!(history.failures(digest("limited")), 0);
    assert_eq!(tried("").unwrap(), due);
}

/// Prints what a hop costs: `cargo test -p kvasir-kernel-process --test hostile_kernel -- --ignored --nocapture hop`.
#[test]
#[ignore = "a measurement"]
fn the_hop() {
    let _alone = alone();
    let kernel = kernel("honest");
    let mut instance = kernel.instantiate(0, LIMITS).unwrap();
    let expert = load(&mut instance).unwrap();
    let mut pings: Vec<Duration> = (0..20_000).map(|_| kernel.ping(0).unwrap()).collect();
    pings.sort_unstable();
    let mut calls: Vec<Duration> = (0..20_000)
        .map(|_| {
            let begun = Instant::now();
            forward(&mut instance, expert, 0).unwrap();
            begun.elapsed()
        })
        .collect();
    calls.sort_unstable();
    let mut after_a_pause: Vec<Duration> = (0..500)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            kernel.ping(0).unwrap()
        })
        .collect();
    after_a_pause.sort_unstable();
    let row = vec![0; (HIDDEN * 4) as usize];
    let mut eight = |together: bool| {
        let mut times: Vec<Duration> = (0..500)
            .map(|_| {
                let mut out = vec![0.0; 8 * HIDDEN as usize];
                let outs = out.chunks_mut(HIDDEN as usize);
                std::thread::sleep(Duration::from_millis(1));
                let begun = Instant::now();
                if together {
                    let mut request = instance.together(row.len(), HIDDEN as usize).unwrap();
                    (0..8).for_each(|_| assert!(request.add(&instance, expert, &row, &[0])));
                    request.ask().unwrap().collect(outs).unwrap();
                } else {
                    outs.for_each(|out| instance.forward(expert, &row, 1, out).unwrap());
                }
                begun.elapsed()
            })
            .collect();
        times.sort_unstable();
        times
    };
    let (apart, together) = (eight(false), eight(true));
    for (name, times) in [
        ("hop", pings),
        ("smallest call", calls),
        ("hop after a pause of 1 ms", after_a_pause),
        ("eight small calls after a pause, one by one", apart),
        ("eight small calls after a pause, in one request", together),
    ] {
        let at = |part: usize| times[times.len() * part / 100].as_nanos() as f64 / 1000.0;
        println!("{name}: median {:.1} us, 10 % {:.1} us, 90 % {:.1} us", at(50), at(10), at(90));
    }
}
