//! Several experts in one request: what each answers, which of them failed, and what becomes of the others.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_kernel::jobs::MAX_JOBS;
use kvasir_kernel::{
    Asked, FailureHistory as _, Instance, InstanceLimits, Kernel, KernelError, KernelOptions, MemoryHistory,
    Stopped,
};
use kvasir_plugin::PluginDigest;
use kvasir_sandbox::SandboxError;

const HIDDEN: usize = 8;
const ROW_BYTES: usize = HIDDEN * 4;
const WIDTH: u32 = 4;
const PLUGIN: PluginDigest = PluginDigest([5; 32]);
const LIMITS: InstanceLimits =
    InstanceLimits { memory_bytes: 64 << 20, fuel_per_call: 10_000_000, deadline: Duration::from_secs(60) };
/// Far more than any of these takes on a busy machine: a guard against hanging.
const PATIENCE: Duration = Duration::from_secs(30);

fn kernel(name: &str, options: KernelOptions) -> Kernel {
    let program = Some(Path::new(env!("CARGO_BIN_EXE_kvasir-kernel")).to_owned());
    let options = KernelOptions { program, backoff: Duration::from_millis(1), ..options };
    Kernel::start(PLUGIN, &plugin::kernel(name), 0, 3, options).unwrap()
}

fn load(instance: &mut Instance) -> u64 {
    let weights = vec![0; HIDDEN * WIDTH as usize * 4];
    let hidden = HIDDEN as u32;
    instance
        .load([0, WIDTH, hidden, 0, WIDTH, hidden, 0, hidden, WIDTH], [&weights; 3].map(Vec::as_slice))
        .unwrap()
}

/// An instance for each of the lanes, with an expert in it.
fn instances(kernel: &Kernel, limits: InstanceLimits) -> Vec<(Instance, u64)> {
    let made = (0..3).map(|lane| {
        let mut instance = kernel.instantiate(lane, limits).unwrap();
        let expert = load(&mut instance);
        (instance, expert)
    });
    made.collect()
}

/// Rows of which those that `tell` begin with a one.
fn rows(count: usize, tell: &[usize]) -> Vec<u8> {
    let mut rows = vec![0; count * ROW_BYTES];
    tell.iter().for_each(|row| rows[row * ROW_BYTES] = 1);
    rows
}

/// Asks through the first job's lane.
fn ask<'a>(jobs: &[(&'a (Instance, u64), &[u32])], rows: &[u8]) -> Result<Asked<'a>, KernelError> {
    let (first, _) = jobs[0];
    let mut request = first.0.together(ROW_BYTES, HIDDEN)?;
    for ((instance, expert), chosen) in jobs {
        assert!(request.add(instance, *expert, rows, chosen));
    }
    request.ask()
}

/// The answers to jobs of so many rows.
fn collect(asked: Asked<'_>, counts: &[usize]) -> Result<Vec<Vec<f32>>, Stopped> {
    let mut outs: Vec<Vec<f32>> = counts.iter().map(|count| vec![0.0; count * HIDDEN]).collect();
    asked.collect(outs.iter_mut().map(Vec::as_mut_slice))?;
    Ok(outs)
}

fn said(error: &KernelError) -> SandboxError {
    match error {
        KernelError::Failed { report, .. } => SandboxError::decode(report).unwrap(),
        other => panic!("{other}"),
    }
}

#[test]
fn each_job_has_its_own_rows_whatever_the_instance_and_lanes_are_asked_side_by_side() {
    let kernel = kernel("tells-rows", KernelOptions::default());
    let mut all = instances(&kernel, LIMITS);
    let another = load(&mut all[0].0);
    let rows = rows(5, &[]);
    for _ in 0..50 {
        let one = ask(&[(&all[0], &[0, 1, 2]), (&all[1], &[4])], &rows).unwrap();
        let other = ask(&[(&all[2], &[3, 1])], &rows).unwrap();
        assert_eq!(collect(one, &[3, 1]).unwrap(), [vec![3.0; 3 * HIDDEN], vec![1.0; HIDDEN]]);
        assert_eq!(collect(other, &[2]).unwrap(), [vec![2.0; 2 * HIDDEN]]);
        // Several experts of one instance, watched for, and in between one by itself.
        let mut request = all[0].0.together(ROW_BYTES, HIDDEN).unwrap();
        assert!(
            request.add(&all[0].0, another, &rows, &[0, 1]) && request.add(&all[0].0, all[0].1, &rows, &[2])
        );
        request.watch();
        let both = collect(request.ask().unwrap(), &[2, 1]).unwrap();
        assert_eq!(both, [vec![2.0; 2 * HIDDEN], vec![1.0; HIDDEN]]);
        let mut out = vec![0.0; HIDDEN];
        let (instance, expert) = &mut all[1];
        instance.forward(*expert, &rows[..ROW_BYTES], 1, &mut out).unwrap();
        assert_eq!(out, [1.0; HIDDEN]);
    }
}

#[test]
fn a_job_that_fails_is_named_and_ends_its_own_instance_alone() {
    let history = Arc::new(MemoryHistory::default());
    let kernel =
        kernel("endless-when-told", KernelOptions { history: history.clone(), ..KernelOptions::default() });
    let mut all = instances(&kernel, LIMITS);
    let process = kernel.process_id();
    let rows = rows(2, &[1]);
    let bad = ask(&[(&all[0], &[0]), (&all[1], &[1]), (&all[0], &[0])], &rows).unwrap();
    let good = ask(&[(&all[2], &[0, 0])], &rows).unwrap();
    let stopped = collect(bad, &[1, 1, 1]).unwrap_err();
    assert_eq!(stopped.job, Some(1));
    assert_eq!(said(&stopped.error), SandboxError::OutOfFuel { call: "forward", fuel: 10_000_000 });
    assert_eq!(collect(good, &[2]).unwrap(), [[1.0; 2 * HIDDEN]], "asked while another failed");
    all[1].0.stopped(&stopped.error);
    assert!(all[1].0.is_poisoned() && !all[0].0.is_poisoned() && !all[2].0.is_poisoned());
    assert_eq!(history.failures(PLUGIN), 1);
    // The process lives, and so do the others; the instance that failed is replaced.
    assert_eq!(kernel.process_id(), process);
    let others = ask(&[(&all[0], &[0]), (&all[2], &[0])], &rows).unwrap();
    assert_eq!(collect(others, &[1, 1]).unwrap(), [[1.0; HIDDEN]; 2]);
    let begun = Instant::now();
    let mut fresh = loop {
        match kernel.instantiate(1, LIMITS) {
            Err(KernelError::BackingOff { .. }) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            instance => break instance.unwrap(),
        }
    };
    let expert = load(&mut fresh);
    let fresh = (fresh, expert);
    let again = ask(&[(&fresh, &[0]), (&all[0], &[0])], &rows).unwrap();
    assert_eq!(collect(again, &[1, 1]).unwrap(), [[1.0; HIDDEN]; 2]);
}

#[test]
fn a_process_that_dies_fails_every_request_under_way_and_is_counted_once() {
    let history = Arc::new(MemoryHistory::default());
    let kernel =
        kernel("endless-when-told", KernelOptions { history: history.clone(), ..KernelOptions::default() });
    let mut all = instances(&kernel, InstanceLimits { fuel_per_call: u64::MAX, ..LIMITS });
    let rows = rows(2, &[1]);
    let one = ask(&[(&all[0], &[0]), (&all[0], &[1])], &rows).unwrap();
    let other = ask(&[(&all[1], &[1]), (&all[2], &[0])], &rows).unwrap();
    let begun = Instant::now();
    // SAFETY: a number of a child of this process, which is not reaped before it is dead.
    assert_eq!(unsafe { libc::kill(kernel.process_id().unwrap() as i32, libc::SIGKILL) }, 0);
    let stopped = [collect(one, &[1, 1]).unwrap_err(), collect(other, &[1, 1]).unwrap_err()];
    assert!(begun.elapsed() < PATIENCE, "the caller was answered after {:?}", begun.elapsed());
    for stopped in &stopped {
        assert_eq!(stopped.job, None);
        assert!(
            matches!(stopped.error, KernelError::Crashed { request: "forward", .. }),
            "{}",
            stopped.error
        );
    }
    all.iter_mut().zip([0, 1, 1]).for_each(|((instance, _), at)| instance.stopped(&stopped[at].error));
    assert!(all.iter().all(|(instance, _)| instance.is_poisoned()));
    assert_eq!(history.failures(PLUGIN), 1);
    // Whoever asks now is told at once.
    assert_eq!(ask(&[(&all[0], &[0])], &rows).err(), Some(stopped[0].error.clone()));
}

#[test]
fn a_process_that_does_not_answer_several_experts_is_killed() {
    // Long enough that the instances are made and loaded within it on a busy machine.
    let (deadline, grace) = (Duration::from_secs(2), Duration::from_secs(1));
    let kernel = kernel("honest", KernelOptions { grace, ..KernelOptions::default() });
    let all = instances(&kernel, InstanceLimits { deadline, ..LIMITS });
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
    let rows = rows(1, &[]);
    let one = ask(&[(&all[0], &[0]), (&all[1], &[0])], &rows).unwrap();
    let other = ask(&[(&all[2], &[0])], &rows).unwrap();
    let error = KernelError::Killed { request: "forward", deadline: deadline + grace };
    for stopped in [collect(one, &[1, 1]).unwrap_err(), collect(other, &[1]).unwrap_err()] {
        assert_eq!(stopped, Stopped { job: None, error: error.clone() });
    }
    assert!(begun.elapsed() < PATIENCE);
    assert!(kernel.process_id().is_none() && all.iter().all(|(instance, _)| instance.is_poisoned()));
}

#[test]
fn a_request_that_nobody_waits_for_ends_the_process_and_is_not_held_against_the_plugin() {
    let history = Arc::new(MemoryHistory::default());
    let kernel = kernel("honest", KernelOptions { history: history.clone(), ..KernelOptions::default() });
    let mut all = instances(&kernel, LIMITS);
    let rows = rows(1, &[]);
    drop(ask(&[(&all[0], &[0]), (&all[1], &[0])], &rows).unwrap());
    assert!(kernel.process_id().is_none() && all.iter().all(|(instance, _)| instance.is_poisoned()));
    let (instance, expert) = &mut all[0];
    let error = instance.forward(*expert, &rows, 1, &mut [0.0; HIDDEN]).unwrap_err();
    assert!(matches!(error, KernelError::Refused { .. }), "{error}");
    assert_eq!(history.failures(PLUGIN), 0);
    // The next process answers at once.
    let mut fresh = kernel.instantiate(0, LIMITS).unwrap();
    let expert = load(&mut fresh);
    let fresh = (fresh, expert);
    let again = ask(&[(&fresh, &[0])], &rows).unwrap();
    assert_eq!(collect(again, &[1]).unwrap(), [[1.0; HIDDEN]]);
}

#[test]
fn what_finds_no_room_in_a_request_is_not_taken_and_nothing_is_asked_for_nothing() {
    let one = kernel("honest", KernelOptions::default());
    let other = kernel("honest", KernelOptions::default());
    let (all, strangers) = (instances(&one, LIMITS), instances(&other, LIMITS));
    let ((instance, expert), rows) = (&all[0], rows(1, &[]));
    let mut request = instance.together(ROW_BYTES, HIDDEN).unwrap();
    assert!(!request.add(instance, *expert, &rows, &[]), "no rows");
    assert!(!request.add(&strangers[0].0, strangers[0].1, &rows, &[0]), "in another process");
    assert_eq!(
        request.ask().err(),
        Some(KernelError::Refused { request: "forward", reason: "there is no job".to_owned() })
    );
    // As many as there may be, and one more.
    let mut request = instance.together(ROW_BYTES, HIDDEN).unwrap();
    let taken = (0..=MAX_JOBS).filter(|_| request.add(instance, *expert, &rows, &[0])).count();
    assert_eq!(taken, MAX_JOBS);
    let ones = collect(request.ask().unwrap(), &[1; MAX_JOBS]).unwrap();
    assert!(ones.iter().all(|values| *values == [1.0; HIDDEN]));
    // Rows of a megabyte: the table stands before them, so there is room for three in 4 MiB.
    let long = vec![0; 1 << 20];
    let mut request = instance.together(long.len(), HIDDEN).unwrap();
    assert_eq!((0..4).filter(|_| request.add(instance, *expert, &long, &[0])).count(), 3);
    drop(request);
    let again = ask(&[(&all[0], &[0])], &rows).unwrap();
    assert_eq!(collect(again, &[1]).unwrap(), [[1.0; HIDDEN]]);
    assert!(one.process_id().is_some() && !instance.is_poisoned());
}
