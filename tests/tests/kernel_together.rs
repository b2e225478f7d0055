//! A confined kernel that is asked for several experts at once: the bits of one at a time, whatever the lanes, the threads and the
//! size of the call; and where some fail, the error that one at a time would give.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::num::NonZeroUsize;
use std::path::Path;

use kvasir_experts::{
    ExpertIndex, ExpertRows, ExpertRunner, Format, Isolation, KernelOptions, LayerIndex, RowFormat,
    RunnerOptions, Swiglu,
};
use kvasir_numerics::Matrix;
use kvasir_tests::isolation;
use kvasir_tests::swarm_scene::plugin;
use kvasir_threads::Threads;

const LAYER: LayerIndex = LayerIndex(2);
/// Hidden values and width alike: 22 rows are no little work any more, and go to several threads.
const SIDE: usize = 64;
const EXPERTS: u16 = 16;

/// A runner in this process, or one whose kernel is confined and kept compiled below `cache`.
fn runner(lanes: usize, cache: Option<&Path>) -> ExpertRunner {
    let isolation = cache.map_or(Isolation::InProcess, |cache| {
        Isolation::Process(KernelOptions { cache: Some(cache.join("compiled")), ..isolation::process() })
    });
    let instances = NonZeroUsize::new(lanes).unwrap();
    ExpertRunner::new(plugin(), RunnerOptions { instances, isolation, ..RunnerOptions::default() }).unwrap()
}

fn matrix(seed: usize, scale: f32) -> Vec<u8> {
    let value = |index: usize| ((index * 37 + seed * 101) % 97) as f32 / 48.0 - 1.0;
    (0..SIDE * SIDE).flat_map(|index| (value(index) * scale).to_le_bytes()).collect()
}

/// Loads expert `number`; one that `overflows` meets a value that is not finite in every row.
fn load(runner: &ExpertRunner, number: u16, overflows: bool) {
    let scale = if overflows { 3e38 } else { 0.5 };
    let bytes = [0, 1, 2].map(|at| matrix(usize::from(number) * 3 + at, scale));
    let [gate, up, down] = [0, 1, 2].map(|at| Matrix::new(Format::F32, SIDE, SIDE, &bytes[at]).unwrap());
    runner.load(LAYER, ExpertIndex(number), &Swiglu::new(gate, up, down).unwrap()).unwrap();
}

fn rows(count: usize) -> Vec<u8> {
    (0..count * SIDE).flat_map(|index| (1.0 + (index % 89) as f32 / 32.0).to_le_bytes()).collect()
}

fn request(expert: u16, rows: impl Iterator<Item = u32>) -> ExpertRows {
    let rows: Vec<u32> = rows.collect();
    let weights = rows.iter().map(|row| 0.25 + f32::from(expert) / 64.0 + (row % 7) as f32).collect();
    ExpertRows { expert: ExpertIndex(expert), rows, weights }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The bits of each expert's rows and of the sums, or what is wrong.
fn asked(runner: &ExpertRunner, rows: &[u8], requests: &[ExpertRows]) -> Result<[Vec<u32>; 2], String> {
    let each = runner.each(LAYER, RowFormat::Float32, rows, SIDE, requests);
    let sum = runner.sum(LAYER, RowFormat::Float32, rows, SIDE, requests);
    let told = |values: Result<Vec<f32>, kvasir_experts::RunnerError>| {
        values.map(|values| bits(&values)).map_err(|error| error.to_string())
    };
    Ok([told(each)?, told(sum)?])
}

fn threads(count: usize) -> Threads {
    Threads::new(NonZeroUsize::new(count).unwrap(), "together").unwrap()
}

#[test]
fn whatever_the_lanes_and_threads_the_bits_are_those_of_one_expert_at_a_time() {
    let cache = tempfile::tempdir().unwrap();
    let plain = runner(1, None);
    (0..EXPERTS).for_each(|number| load(&plain, number, false));
    let some = rows(40);
    let calls: Vec<Vec<ExpertRows>> = vec![
        // One row in four experts, as a text's next token.
        [1, 4, 9, 15].map(|expert| request(expert, [39].into_iter())).to_vec(),
        // Rows in order and out of it, some experts with many, some with one, one with none.
        (0..EXPERTS)
            .map(|expert| request(expert, (0..40).filter(move |row| row % (u32::from(expert) + 1) == 0)))
            .collect(),
        vec![request(3, [7, 2, 30, 2].into_iter()), request(11, std::iter::empty()), request(5, 10..20)],
        vec![request(8, 0..40)],
        Vec::new(),
    ];
    let due: Vec<_> = calls.iter().map(|call| asked(&plain, &some, call).unwrap()).collect();
    for lanes in [1, 2, 3, 7, 16] {
        let confined = runner(lanes, Some(cache.path()));
        (0..EXPERTS).for_each(|number| load(&confined, number, false));
        for count in [1, 2, 3, 5] {
            let threads = threads(count);
            for (call, due) in calls.iter().zip(&due) {
                let found = threads.within(|| asked(&confined, &some, call)).unwrap();
                assert!(found == *due, "{lanes} lanes, {count} threads, {call:?}");
            }
        }
        assert_eq!(confined.failures(), 0);
    }
}

#[test]
fn a_call_that_is_more_than_a_request_holds_goes_in_several() {
    const ROWS: u32 = 10_000;
    const MANY: u16 = 600;
    let cache = tempfile::tempdir().unwrap();
    let many = rows(ROWS as usize);
    let calls: [Vec<ExpertRows>; 2] = [
        // 512 bytes for a row and its result: more than the 4 MiB of a request in each of the lanes that are asked.
        [0, 1, 3, 4].map(|expert| request(expert, 0..ROWS)).to_vec(),
        // More experts than the 256 of a request, whether one thread computes or two.
        (0..MANY).map(|expert| request(expert, std::iter::once(u32::from(expert)))).collect(),
    ];
    let found = [runner(1, None), runner(3, Some(cache.path()))].map(|runner| {
        (0..MANY).for_each(|number| load(&runner, number, false));
        [1, 2].map(|count| {
            let threads = threads(count);
            calls.each_ref().map(|call| threads.within(|| asked(&runner, &many, call)).unwrap())
        })
    });
    assert!(found[0] == found[1] && found[0][0] == found[0][1]);
}

#[test]
fn where_several_experts_fail_the_error_is_that_of_one_at_a_time_and_the_others_are_as_they_were() {
    let cache = tempfile::tempdir().unwrap();
    let some = rows(8);
    for lanes in [1, 2, 3, 5] {
        let runners = [runner(lanes, None), runner(lanes, Some(cache.path()))];
        for runner in &runners {
            (0..EXPERTS).for_each(|number| load(runner, number, [4, 5, 9].contains(&number)));
        }
        let whole = |expert| request(expert, 0..8);
        let calls: Vec<Vec<ExpertRows>> = vec![
            vec![whole(0), whole(4), whole(8), whole(12)],
            // The lane with the most rows is the first to be heard; within one the first expert is.
            vec![request(4, 0..1), request(5, 0..3), request(1, 0..2)],
            vec![request(5, 0..1), request(4, 0..3), whole(7)],
            vec![whole(2), whole(9), whole(4), whole(5)],
            (0..EXPERTS).map(whole).collect(),
            // Not there, before and behind one that fails.
            vec![whole(40), whole(4), whole(1)],
            vec![whole(4), whole(1), whole(40)],
        ];
        let good: Vec<ExpertRows> = [0, 1, 2, 3, 6, 7, 8].map(whole).to_vec();
        for count in [1, 2, 4] {
            let threads = threads(count);
            for call in &calls {
                let [plain, confined] =
                    [0, 1].map(|at| threads.within(|| asked(&runners[at], &some, call)).unwrap_err());
                assert_eq!(confined, plain, "{lanes} lanes, {count} threads");
            }
            let [plain, confined] =
                [0, 1].map(|at| threads.within(|| asked(&runners[at], &some, &good)).unwrap());
            assert!(confined == plain, "{lanes} lanes, {count} threads");
        }
        assert_eq!(runners.map(|runner| runner.failures()), [0, 0]);
    }
}
