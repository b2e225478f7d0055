//! What becomes of a process that hangs, crashes or is refused, and of the host that talks to it.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

mod scene;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_gpu::message::{MatrixShape, Part, Rows};
use kvasir_gpu::{
    Deadlines, FailureHistory, FailureKind, Gpu, GpuError, GpuOptions, MemoryHistory, describe,
};
use kvasir_numerics::Format;
use scene::{Expert, PLUGIN, Random, device, gpu, source};

/// The expert, its rows and one request for all of them.
fn call(count: usize) -> (Expert, Vec<u8>, [Part; 1]) {
    let mut random = Random(7);
    let expert = Expert::random(&mut random, [Format::Q8_0; 3], 64, 96);
    let rows = expert.rows(&mut random, count);
    (expert, rows, [Part { expert: 1, rows: (0..count as u32).collect() }])
}

/// The kernel with one entry point's body in the place of its own: each invocation turns 65,535 times, as far as a device in
/// software goes, with the whole grid of a large matrix.
fn runaway() -> String {
    let source = source();
    let start = source.find("fn q8_0_one_row").unwrap();
    let open = start + source[start..].find('{').unwrap();
    let turns = "{
    var x = vec4<f32>(f32(lane.x), f32(lane.y), f32(group.x), 1.5);
    for (var turn = 0u; turn < 65535u; turn++) {
        x = sqrt(abs(x.yzwx * 1.0001 + vec4<f32>(0.25))) + sin(x.zwxy) + cos(x.wxyz) * exp(x * 0.001);
    }
    if x.x + x.y + x.z + x.w == 12345.0 { out[0] = jobs[0].count; }
}
fn unused_1(lane: vec3<u32>, group: vec3<u32>) ";
    format!("{}{turns}{}", &source[..open], &source[open..])
        .replace("@workgroup_size(32, 4)\nfn q8_0_one_row", "@workgroup_size(64, 4)\nfn q8_0_one_row")
}

fn slow_options(options: GpuOptions) -> GpuOptions {
    let deadlines = Deadlines { call: Duration::from_secs(2), ..Deadlines::default() };
    GpuOptions { deadlines, backoff: Duration::ZERO, ..options }
}

/// An expert whose gate has 4,096 workgroups of outputs, all zero.
fn load_large(gpu: &mut Gpu) -> Result<(), GpuError> {
    let (hidden, width) = (32u32, 131_072u32);
    let matrix = |outputs: u32, columns: u32| MatrixShape {
        format: "Q8_0".to_owned(),
        rows_format: Rows::Q8,
        outputs,
        columns,
        row_bytes: columns / 32 * 34,
    };
    let bytes = vec![0; (hidden * width / 32 * 34) as usize];
    let shape = [matrix(width, hidden), matrix(width, hidden), matrix(hidden, width)];
    gpu.load(1, shape, [&bytes, &bytes, &bytes])
}

#[test]
fn a_runaway_shader_is_killed_at_the_deadline_and_its_plugin_quarantined() {
    let Some(options) = device() else { return };
    let history = Arc::new(MemoryHistory::default());
    let options = GpuOptions { history: history.clone(), ..slow_options(options) };
    let mut gpu = Gpu::new(PLUGIN, &runaway(), &scene::formats(), options).unwrap();
    for failures in 1..=3 {
        load_large(&mut gpu).unwrap();
        let process = gpu.process_id().unwrap();
        let begin = Instant::now();
        let mut out = vec![0.0; 32];
        let parts = [Part { expert: 1, rows: vec![0] }];
        let error = gpu.forward(Rows::Q8, 32, &[0; 36], &parts, &mut out).unwrap_err();
        assert_eq!(error, GpuError::Killed { request: "a call", deadline: Duration::from_secs(2) });
        // A hang guard: the kill does not wait for the device.
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
        assert!(!is_alive(process), "process {process} is still there");
        assert!(!gpu.is_running());
        assert_eq!(history.failures(PLUGIN), failures);
    }
    assert_eq!(load_large(&mut gpu), Err(GpuError::Quarantined { plugin: PLUGIN, failures: 3 }));
    let again = Gpu::new(PLUGIN, &source(), &scene::formats(), GpuOptions { history, ..scene::options() });
    assert!(matches!(again, Err(GpuError::Quarantined { failures: 3, .. })));
}

#[test]
fn a_crash_is_an_error_then_a_rest_then_a_fresh_process() {
    let Some(options) = device() else { return };
    let mut gpu = gpu(GpuOptions { backoff: Duration::from_millis(300), ..options });
    let (expert, rows, parts) = call(3);
    expert.load(&mut gpu, 1).unwrap();
    let mut out = vec![0.0; 3 * 64];
    gpu.forward(Rows::Q8, 64, &rows, &parts, &mut out).unwrap();
    signal(gpu.process_id().unwrap(), "-KILL");
    let error = gpu.forward(Rows::Q8, 64, &rows, &parts, &mut out).unwrap_err();
    assert!(
        matches!(&error, GpuError::Crashed { request: "a call", status, .. } if status == "signal 9"),
        "{error}"
    );
    assert!(matches!(gpu.ensure_running(), Err(GpuError::BackingOff { .. })));
    std::thread::sleep(Duration::from_millis(350));
    gpu.ensure_running().unwrap();
    assert_eq!(gpu.starts(), 2);
    // The expert went with the process.
    let error = gpu.forward(Rows::Q8, 64, &rows, &parts, &mut out).unwrap_err();
    assert!(matches!(error, GpuError::Refused { .. }), "{error}");
    assert!(gpu.is_running());
    expert.load(&mut gpu, 1).unwrap();
    let before = out.clone();
    gpu.forward(Rows::Q8, 64, &rows, &parts, &mut out).unwrap();
    assert_eq!(out, before);
}

#[test]
fn a_stopped_process_is_killed_at_the_deadline() {
    let Some(options) = device() else { return };
    let mut gpu = gpu(slow_options(options));
    let (expert, rows, parts) = call(1);
    expert.load(&mut gpu, 1).unwrap();
    let process = gpu.process_id().unwrap();
    signal(process, "-STOP");
    let error = gpu.forward(Rows::Q8, 64, &rows, &parts, &mut [0.0; 64]).unwrap_err();
    assert!(matches!(error, GpuError::Killed { .. }), "{error}");
    assert!(!is_alive(process));
}

#[test]
fn calls_of_a_proof_share_its_deadline_and_later_ones_have_their_own() {
    let Some(options) = device() else { return };
    let deadlines = Deadlines { call: Duration::ZERO, ..Deadlines::default() };
    let mut gpu = gpu(GpuOptions { deadlines, ..options });
    let (expert, rows, parts) = call(2);
    expert.load(&mut gpu, 1).unwrap();
    let mut out = vec![0.0; 2 * 64];
    gpu.begin_proof();
    gpu.forward(Rows::Q8, 64, &rows, &parts, &mut out).unwrap();
    gpu.forward(Rows::Q8, 64, &rows, &parts, &mut out).unwrap();
    gpu.end_proof();
    let error = gpu.forward(Rows::Q8, 64, &rows, &parts, &mut out).unwrap_err();
    assert_eq!(error, GpuError::Killed { request: "a call", deadline: Duration::ZERO });
}

#[test]
fn requests_that_make_no_sense_are_refused_and_the_process_goes_on() {
    let Some(options) = device() else { return };
    let mut gpu = gpu(GpuOptions { memory_bytes: Some(40 << 20), ..options });
    let (expert, rows, parts) = call(2);
    let mut out = vec![0.0; 2 * 64];
    let refused = |gpu: &mut Gpu, expert: u64, rows: &[u8], format, numbers: Vec<u32>| {
        let length = numbers.len() * 64;
        let parts = [Part { expert, rows: numbers }];
        let error = gpu.forward(format, 64, rows, &parts, &mut vec![0.0; length]).unwrap_err();
        assert!(matches!(error, GpuError::Refused { .. }), "{error}");
    };
    expert.load(&mut gpu, 1).unwrap();
    refused(&mut gpu, 2, &rows, Rows::Q8, vec![0]);
    refused(&mut gpu, 1, &rows, Rows::Q8, vec![2]);
    refused(&mut gpu, 1, &rows[1..], Rows::Q8, vec![0]);
    refused(&mut gpu, 1, &rows, Rows::F32, vec![0]);
    assert!(gpu.accumulators(1, 3, 2, &rows).is_err());
    assert!(gpu.accumulators(1, 0, 0, &rows).is_err());
    assert!(gpu.accumulators(1, 0, u32::MAX, &rows).is_err());
    let mut shape = expert.shape();
    shape[1].format = "Q6_K".to_owned();
    let unknown = gpu.load(3, shape, [&expert.bytes[0], &expert.bytes[1], &expert.bytes[2]]);
    assert!(matches!(unknown, Err(GpuError::Refused { .. })), "{unknown:?}");
    // More than the memory that was granted, in frames that are all taken before the answer.
    let large = Expert::random(&mut Random(1), [Format::Q8_0; 3], 4096, 4096);
    assert!(matches!(large.load(&mut gpu, 4), Err(GpuError::NoRoom { .. })));
    gpu.unload(4).unwrap();
    gpu.forward(Rows::Q8, 64, &rows, &parts, &mut out).unwrap();
    assert_eq!(gpu.starts(), 1);
}

#[test]
fn memory_is_used_again() {
    let Some(options) = device() else { return };
    let mut gpu = gpu(GpuOptions { memory_bytes: Some(17 << 20), ..options });
    let expert = Expert::random(&mut Random(1), [Format::Q8_0; 3], 1024, 1024);
    let (mut held, mut number) = (0, 0);
    while expert.load(&mut gpu, number).is_ok() {
        (held, number) = (held + 1, number + 1);
    }
    assert!((4..=5).contains(&held), "{held} experts of 3.3 MB in 17 MiB");
    for number in 100..130 {
        gpu.unload(number - 100).unwrap();
        gpu.unload(number - 1).unwrap();
        expert.load(&mut gpu, number).unwrap();
    }
    let resident = resident_bytes(gpu.process_id().unwrap());
    assert!(resident < 600 << 20, "{resident} bytes are resident");
}

#[test]
fn what_a_shader_does_not_write_is_no_number_and_not_the_last_call_s() {
    let Some(options) = device() else { return };
    let (expert, rows, parts) = call(2);
    let honest = source();
    // With more than one row, products return before they write, and the step throws its rows away.
    let many_rows = honest.find("fn q8_0_many_rows").unwrap();
    let body = many_rows + honest[many_rows..].find('{').unwrap() + 1;
    let products = format!("{} if jobs[0].count > 1u {{ return; }} {}", &honest[..body], &honest[body..]);
    let written = "if first < job.columns && group.y < job.count";
    let step = honest.replace(written, &format!("{written} && job.count < 2u"));
    for source in [products, step] {
        assert_ne!(source, honest);
        assert_blank(&options, &source, &expert, &rows, &parts);
    }
}

/// One row first, so that old results lie about; then two rows, of which the shader does not write all.
fn assert_blank(options: &GpuOptions, source: &str, expert: &Expert, rows: &[u8], parts: &[Part; 1]) {
    let mut gpu = Gpu::new(PLUGIN, source, &scene::formats(), options.clone()).unwrap();
    expert.load(&mut gpu, 1).unwrap();
    for row in [0, 1] {
        let one = [Part { expert: 1, rows: vec![row] }];
        let mut out = [0.0; 64];
        gpu.forward(Rows::Q8, 64, rows, &one, &mut out).unwrap();
        assert!(out.iter().all(|value| value.is_finite()));
    }
    let mut out = [0.0; 128];
    gpu.forward(Rows::Q8, 64, rows, parts, &mut out).unwrap();
    assert!(out.iter().all(|value| !value.is_finite()), "{out:?}");
}

#[test]
fn a_refused_shader_says_why() {
    let Some(options) = device() else { return };
    for (source, word) in [
        ("fn", "valid wgsl"),
        ("@compute @workgroup_size(1) fn nothing() {}", "q4_k_one_row"),
        (&source().replace("var<storage, read> weights", "var<storage, read_write> weights"), "binding"),
    ] {
        let error = Gpu::new(PLUGIN, source, &scene::formats(), options.clone()).err().unwrap();
        let text = error.to_string();
        assert!(matches!(error, GpuError::ShaderRefused { .. }), "{text}");
        assert!(text.to_lowercase().contains(word), "{text}");
    }
}

#[test]
fn programs_that_are_no_gpu_process_are_errors() {
    let with = |program: &str| GpuOptions { program: Some(PathBuf::from(program)), ..GpuOptions::default() };
    assert!(matches!(describe(&with("/no/such/program")), Err(GpuError::Start { .. })));
    let error = describe(&with("/bin/false")).unwrap_err();
    assert!(matches!(&error, GpuError::Crashed { status, .. } if status == "exit status 1"), "{error}");
    let script = tempfile::NamedTempFile::new().unwrap();
    let answer = |text: &str| {
        let path = script.path().with_extension("sh");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(&path).status().unwrap().success());
        let deadlines = Deadlines { start: Duration::from_secs(5), ..Deadlines::default() };
        let error = describe(&GpuOptions { program: Some(path.clone()), deadlines, ..GpuOptions::default() });
        std::fs::remove_file(path).unwrap();
        error.unwrap_err()
    };
    assert!(matches!(answer("cat"), GpuError::BrokenProtocol { .. }));
    assert!(matches!(answer("printf '\\377\\377\\377\\377\\001'; cat"), GpuError::BrokenProtocol { .. }));
    let error = answer("echo one >&2; echo two >&2; exit 3");
    assert!(matches!(&error, GpuError::Crashed { stderr, .. } if stderr == "one | two"), "{error}");
    assert!(matches!(answer("sleep 100"), GpuError::Killed { .. }));
}

#[test]
fn failures_are_remembered_by_plugin() {
    let history = MemoryHistory::default();
    assert_eq!(history.failures(PLUGIN), 0);
    assert_eq!(history.record(PLUGIN, FailureKind::Crash), 1);
    assert_eq!(history.record(PLUGIN, FailureKind::Deadline), 2);
    assert_eq!(history.failures(kvasir_plugin::PluginDigest([8; 32])), 0);
}

#[test]
fn the_device_can_be_measured() {
    let Some(options) = device() else { return };
    let speed = kvasir_gpu::bandwidth(&options, 64 << 20).unwrap();
    assert!(speed > 1e6, "{speed} bytes per second");
}

fn signal(process: u32, signal: &str) {
    assert!(Command::new("kill").arg(signal).arg(process.to_string()).status().unwrap().success());
}

fn is_alive(process: u32) -> bool {
    PathBuf::from(format!("/proc/{process}")).exists()
}

fn resident_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}
