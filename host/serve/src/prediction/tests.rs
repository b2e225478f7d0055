//! Predictions against figures worked out by hand, and what holds whatever is measured.

use proptest::prelude::*;

use super::*;

/// atlas, about.
const ATLAS: Shape = Shape { layers: 4, hidden: 256, experts: 16, picks: 4, row_bytes: 260 };

fn line(fixed: f64, each: f64) -> Curve {
    Curve::new([1, 64].map(|rows| (rows, fixed + each * rows as f64))).unwrap()
}

fn nothing() -> Curve {
    Curve::new([(1, 0.0), (64, 0.0)]).unwrap()
}

/// A pass takes 1 ms and 0.1 ms a row; half of it is experts.
fn computing() -> Computing {
    Computing { pass: line(1e-3, 1e-4), experts: line(0.5e-3, 0.5e-4), shared: nothing() }
}

/// A worker whose only cost is the round trip.
fn far(round_trip: f64) -> Worker {
    Worker { overhead: 0.0, speed: 1e12, ..Worker::at(round_trip) }
}

fn whole(layers: usize) -> Vec<RemoteLayer> {
    vec![RemoteLayer { share: 1.0, workers: vec![0] }; layers]
}

fn predicted(computing: &Computing, worker: Worker, remote: &[RemoteLayer], streams: usize) -> Prediction {
    let workers = [worker];
    predict(&Scene { computing, cores: 2, shape: ATLAS, workers: &workers, remote, most_waves: 16 }, streams)
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-6 * expected.abs()
}

#[test]
fn with_nothing_remote_it_is_the_local_rate() {
    let computing = computing();
    for streams in [1, 8, 64] {
        let found = predicted(&computing, far(0.1), &[], streams);
        assert_eq!(found.tokens_per_second, found.local_tokens_per_second);
        assert_eq!((found.waves, found.bound, found.round_trips_per_token), (1, Bound::Computing, 0.0));
        assert_eq!(found.ideal_tokens_per_second, found.local_tokens_per_second);
    }
}

#[test]
fn one_text_waits_for_every_round_trip() {
    let computing = computing();
    let found = predicted(&computing, far(13e-3), &whole(4), 1);
    // Every expert is elsewhere: half of 1.1 ms is left, four calls and four round trips.
    let step = 0.55e-3 * (1.0 + CHECKED) + 4.0 * CALL_COMPUTE + 4.0 * 13e-3;
    assert!(close(found.tokens_per_second, 1.0 / step), "{found:?}");
    assert_eq!((found.waves, found.bound, found.round_trips_per_token), (1, Bound::Waiting, 4.0));
    assert!(close(found.ideal_tokens_per_second, 1.0 / (52e-3 + 1.1e-3)), "{found:?}");
    assert!(found.waiting_share > 0.98);
}

#[test]
fn bytes_of_a_call_are_those_of_the_protocol() {
    // Everything with one worker, one row of four picks: 18 + 4 x 6 + 4 x 8 + 260 up, 44 + 4 x 256 down.
    let message = Message::of(ATLAS, 1.0, 1.0);
    assert!(close(message.up, 334.0) && close(message.down, 1068.0), "{} {}", message.up, message.down);
    // Half of a layer: it answers each of two rows instead of one sum.
    let message = Message::of(ATLAS, 1.0, 0.5);
    assert!(close(message.down, 44.0 + 2.0 * 1024.0), "{}", message.down);
    let found = predicted(&computing(), far(0.0), &whole(1), 1);
    assert!(close(found.bytes_per_token, 1402.0), "{found:?}");
}

#[test]
fn a_slow_link_is_waited_for_and_then_is_full() {
    let computing = computing();
    let slow = Worker { up: 1e6, down: 1e6, ..far(0.0) };
    let one = predicted(&computing, slow, &whole(1), 1);
    let compute = 1.1e-3 - 0.55e-3 / 4.0 * (1.0 - CHECKED) + CALL_COMPUTE;
    assert!(close(one.step, compute + 1402.0 * FRAMING / 1e6), "{one:?}");
    // 64 rows of four layers are answered with 256 KiB and more: at 1 MB/s the link is busier than this machine.
    let far_and_slow = Worker { down: 1e6, ..far(20e-3) };
    let many = predicted(&computing, far_and_slow, &whole(4), 64);
    assert_eq!(many.bound, Bound::Link(0), "{many:?}");
    assert!(many.step >= 4.0 * 64.0 * 1024.0 / 1e6, "{many:?}");
}

#[test]
fn waves_cover_the_wait_where_there_are_texts_enough() {
    let computing = computing();
    let few = predicted(&computing, far(13e-3), &whole(1), 1);
    let many = predicted(&computing, far(13e-3), &whole(1), 256);
    assert!(few.tokens_per_second < 0.1 * few.local_tokens_per_second, "{few:?}");
    assert!(many.waves > 1, "{many:?}");
    assert!(many.tokens_per_second > 0.8 * many.local_tokens_per_second, "{many:?}");
}

#[test]
fn workers_compute_too_and_on_the_same_processor_at_this_machines_cost() {
    let computing = computing();
    // 32 ms for 64 rows, in one call or in two; two go out before this machine is done with the first.
    let by_rows = Computing { experts: line(0.0, 0.5e-4), ..computing.clone() };
    let found = predicted(&by_rows, Worker { speed: 0.1, ..far(0.0) }, &whole(4), 64);
    assert_eq!((found.bound, found.waves), (Bound::Worker(0), 2), "{found:?}");
    assert!(close(found.step, 32e-3), "{found:?}");
    // Where each call costs it half as much again, one is faster than two.
    let found = predicted(&computing, Worker { speed: 0.01, ..far(0.0) }, &whole(4), 64);
    assert_eq!((found.bound, found.waves), (Bound::Waiting, 1), "{found:?}");
    let elsewhere = predicted(&computing, Worker { speed: 1.0, ..far(1e-3) }, &whole(4), 256);
    let here = predicted(&computing, Worker { speed: 1.0, is_here: true, ..far(1e-3) }, &whole(4), 256);
    assert_eq!(here.bound, Bound::Processor, "{here:?}");
    assert!(here.tokens_per_second < elsewhere.tokens_per_second, "{here:?} {elsewhere:?}");
    assert!(here.tokens_per_second < here.local_tokens_per_second, "{here:?}");
}

#[test]
fn on_the_same_processor_bytes_cost_time_too() {
    let computing = computing();
    let here = predicted(&computing, Worker { is_here: true, ..far(0.0) }, &whole(1), 1);
    let elsewhere = predicted(&computing, far(0.0), &whole(1), 1);
    assert!(close(here.step - elsewhere.step, 1402.0 * MOVING), "{here:?} {elsewhere:?}");
    // Where passes cover each other, it is the processor that they wait for: with two cores half of that.
    let moves = |cores: usize| {
        let workers = [Worker { is_here: true, ..far(1e-3) }];
        let remote = whole(4);
        let scene = Scene {
            computing: &computing,
            cores,
            shape: ATLAS,
            workers: &workers,
            remote: &remote,
            most_waves: 16,
        };
        predict(&scene, 256)
    };
    let (one, two) = (moves(1), moves(2));
    assert_eq!((one.bound, two.bound), (Bound::Processor, Bound::Processor), "{one:?} {two:?}");
    assert!(close(one.step - two.step, 256.0 * two.bytes_per_token * MOVING / 2.0), "{one:?} {two:?}");
}

#[test]
fn two_workers_on_one_machine_compute_one_after_the_other() {
    let computing = computing();
    let step = |is_here: bool| {
        let workers = [Worker { is_here, speed: 1.0, ..far(0.0) }; 2];
        let remote = [RemoteLayer { share: 1.0, workers: vec![0, 1] }];
        let scene = Scene {
            computing: &computing,
            cores: 2,
            shape: ATLAS,
            workers: &workers,
            remote: &remote,
            most_waves: 16,
        };
        predict(&scene, 1).step
    };
    let message = Message::of(ATLAS, 1.0, 0.5);
    let longer = 0.55e-3 / 4.0 / 2.0 + (message.up + message.down) * MOVING;
    assert!(close(step(true) - step(false), longer), "{} {}", step(true), step(false));
}

#[test]
fn a_cold_tail_is_waited_for_now_and_then_and_a_sprinkled_layer_nearly_always() {
    let computing = computing();
    let tail = |share: f64| vec![RemoteLayer { share, workers: vec![0] }; 4];
    let cold = predicted(&computing, far(13e-3), &tail(0.01), 1);
    assert!(close(cold.round_trips_per_token, 4.0 * (1.0 - 0.99f64.powi(4))), "{cold:?}");
    let sprinkled = predicted(&computing, far(13e-3), &tail(0.5), 1);
    assert!(sprinkled.round_trips_per_token > 3.7, "{sprinkled:?}");
    let layer = predicted(&computing, far(13e-3), &whole(1), 1);
    assert!(cold.tokens_per_second > layer.tokens_per_second, "{cold:?} {layer:?}");
    // Many rows find even the cold ones.
    let many = predicted(&computing, far(13e-3), &tail(0.01), 64);
    assert!(many.round_trips_per_token * many.rows_per_call > cold.round_trips_per_token, "{many:?}");
}

#[test]
fn the_shared_expert_is_computed_while_the_others_are_waited_for() {
    let computing = Computing { shared: line(0.4e-3, 0.0), ..computing() };
    let found = predicted(&computing, far(13e-3), &whole(4), 1);
    let alone = predicted(&self::computing(), far(13e-3), &whole(4), 1);
    assert!(close(alone.step - found.step, 0.4e-3), "{alone:?} {found:?}");
}

fn any_computing() -> impl Strategy<Value = Computing> {
    (1e-5f64..0.1, 1e-7f64..1e-3, 0.0f64..1.0, 0.0f64..1.0).prop_map(|(fixed, each, experts, shared)| {
        let part = |of: f64| line(fixed * of, each * of);
        Computing { pass: line(fixed, each), experts: part(experts), shared: part((1.0 - experts) * shared) }
    })
}

proptest! {
    #[test]
    fn no_prediction_is_better_than_round_trips_and_computing_allow(
        computing in any_computing(),
        round_trip in 0.0f64..0.5,
        bandwidth in 1e4f64..1e9,
        speed in 0.01f64..10.0,
        layers in 1usize..=4,
        share in 0.0f64..=1.0,
        streams in 1usize..300,
        is_here: bool,
    ) {
        let worker = Worker { up: bandwidth, down: bandwidth, speed, is_here, ..Worker::at(round_trip) };
        let remote = vec![RemoteLayer { share, workers: vec![0] }; layers];
        let found = predicted(&computing, worker, &remote, streams);
        prop_assert!(found.tokens_per_second.is_finite() && found.tokens_per_second > 0.0, "{:?}", found);
        prop_assert!((1..=streams.min(16)).contains(&found.waves));
        prop_assert!((0.0..=1.0).contains(&found.waiting_share));
        prop_assert!(close(found.rows_per_call * found.waves as f64, streams as f64));
        // Each text waits for its own calls, less what the shared expert covers.
        let calls = found.round_trips_per_token * found.rows_per_call;
        let rows = found.rows_per_call;
        let covered = computing.shared.at(rows) / 4.0 * calls;
        prop_assert!(found.step >= calls * round_trip - covered - 1e-12, "{:?}", found);
        prop_assert!(found.ideal_tokens_per_second <= found.local_tokens_per_second);
    }

    #[test]
    fn a_longer_round_trip_is_never_much_faster(
        computing in any_computing(),
        round_trip in 0.0f64..0.2,
        more in 0.0f64..0.2,
        layers in 1usize..=4,
        streams in 1usize..300,
    ) {
        let near = predicted(&computing, far(round_trip), &whole(layers), streams);
        let distant = predicted(&computing, far(round_trip + more), &whole(layers), streams);
        // Waves are as few as come within a fiftieth of the best.
        prop_assert!(distant.tokens_per_second <= near.tokens_per_second * 1.03, "{:?} {:?}", near, distant);
    }

    #[test]
    fn for_one_text_every_cost_counts(
        computing in any_computing(),
        round_trip in 0.0f64..0.2,
        bandwidth in 1e4f64..1e8,
        layers in 1usize..4,
    ) {
        let worker = Worker { up: bandwidth, down: bandwidth, ..Worker::at(round_trip) };
        let found = predicted(&computing, worker, &whole(layers), 1);
        let better = [
            predicted(&computing, Worker { up: 2.0 * bandwidth, ..worker }, &whole(layers), 1),
            predicted(&computing, Worker { round_trip: round_trip / 2.0, ..worker }, &whole(layers), 1),
            predicted(&computing, Worker { speed: 2.0, ..worker }, &whole(layers), 1),
        ];
        for better in better {
            prop_assert!(better.step <= found.step + 1e-12, "{:?} {:?}", better, found);
        }
    }
}
