//! Placements that win, lose, fit and do not.

use kvasir_backbone::SequenceCost;
use proptest::prelude::*;

use super::*;
use crate::prediction::Curve;

const MEGABYTE: u64 = 1_000_000;

fn line(fixed: f64, each: f64) -> Curve {
    Curve::new([1, 64].map(|rows| (rows, fixed + each * rows as f64))).unwrap()
}

/// A pass takes 10 ms and 1 ms a row; nine tenths of it are experts.
fn computing() -> Computing {
    Computing { pass: line(10e-3, 1e-3), experts: line(9e-3, 0.9e-3), shared: line(0.0, 0.0) }
}

/// Four layers of eight experts of a megabyte, and ten beside them; a text takes one.
fn footprint() -> Footprint {
    Footprint {
        dense: 10 * MEGABYTE,
        read: 10 * MEGABYTE,
        shared: 0,
        experts: vec![vec![MEGABYTE; 8]; 4],
        text: SequenceCost { fixed: MEGABYTE, token: 0 },
        row: 0,
    }
}

const SHAPE: Shape = Shape { layers: 4, hidden: 256, experts: 8, picks: 2, row_bytes: 260 };

/// In each layer the first two experts have nearly all picks.
fn picks() -> Picks {
    Picks(vec![vec![5000, 4000, 1, 1, 1, 1, 1, 1]; 4])
}

struct Case {
    computing: Computing,
    footprint: Footprint,
    picks: Picks,
    workers: Vec<Worker>,
    worker_memory: Vec<Option<u64>>,
    holds: Vec<Vec<(u16, u32)>>,
}

impl Case {
    fn new(workers: Vec<Worker>) -> Case {
        Case {
            computing: computing(),
            footprint: footprint(),
            picks: picks(),
            workers,
            worker_memory: Vec::new(),
            holds: Vec::new(),
        }
    }

    fn question(&self) -> Question<'_> {
        Question {
            computing: &self.computing,
            cores: 2,
            shape: SHAPE,
            footprint: &self.footprint,
            picks: None,
            workers: &self.workers,
            worker_memory: &self.worker_memory,
            holds: &self.holds,
            memory: 1000 * MEGABYTE,
            texts: 8,
            context: 4096,
            most_waves: 16,
            prompt_rows: 128,
            copies: 0,
            copied: None,
            purpose: Purpose::Speed,
            asked: None,
        }
    }
}

fn far(round_trip: f64) -> Worker {
    Worker { up: 12.5e6, down: 12.5e6, ..Worker::at(round_trip) }
}

/// All experts of a layer.
fn layer(number: u16) -> Vec<(u16, u16)> {
    (0..8).map(|expert| (number, expert)).collect()
}

#[test]
fn what_loses_is_refused_with_both_rates_unless_room_is_the_point() {
    let case = Case::new(vec![far(0.1)]);
    let all: Vec<_> = (0..4).flat_map(layer).collect();
    let asked = Question { asked: Some((Kind::Layers, &all[..])), texts: 1, ..case.question() };
    let found = plan(&asked);
    let [planned] = &found.others[..] else { panic!("{found:?}") };
    let Verdict::Loses { planned: rate, local } = planned.verdict else { panic!("{planned:?}") };
    assert!(rate < 3.0 && local > 90.0, "{rate} {local}");
    assert_eq!(found.best(), Some(&found.here));
    let room = Question { purpose: Purpose::Capacity, ..asked };
    assert_eq!(plan(&room).others[0].verdict, Verdict::Slower);
}

#[test]
fn near_workers_that_compute_beside_this_machine_win() {
    let case = Case::new(vec![Worker::at(0.2e-3), Worker::at(0.2e-3)]);
    let found = plan(&Question { texts: 64, ..case.question() });
    let best = found.best().unwrap();
    assert!(best.kind != Kind::Here, "{best:?}");
    assert!(best.many.tokens_per_second > 1.2 * found.here.many.tokens_per_second, "{best:?}");
    assert_eq!(best.verdict, Verdict::Fine);
}

#[test]
fn far_workers_are_left_alone_by_one_text() {
    let case = Case::new(vec![far(0.1)]);
    let found = plan(&Question { texts: 1, ..case.question() });
    assert_eq!(found.others.len(), 4, "one to four layers");
    assert!(found.others.iter().all(|planned| planned.verdict.is_refusal()), "{found:?}");
    assert_eq!(found.best(), Some(&found.here));
    assert!(plan(&Question { workers: &[], ..case.question() }).others.is_empty());
}

#[test]
fn what_memory_cannot_hold_is_refused_with_the_figures_and_layers_make_room() {
    let case = Case::new(vec![far(0.013)]);
    // 10 dense, 32 experts, 8 texts: 50 MB. A machine of 40 has to give two layers away.
    let question = Question { memory: 40 * MEGABYTE, ..case.question() };
    let found = plan(&question);
    let (needed, there) = (50 * MEGABYTE, 40 * MEGABYTE);
    assert_eq!(found.here.verdict, Verdict::NoMemory { needed, there });
    let best = found.best().unwrap();
    assert_eq!((best.kind, best.experts.len()), (Kind::Layers, 16), "{best:?}");
    assert_eq!(best.needs.total(), 34 * MEGABYTE);
    // With nothing to compare with, nothing loses.
    assert_eq!(best.verdict, Verdict::Fine);
    // Texts alone may be too much, wherever experts are.
    let found = plan(&Question { texts: 100, ..question });
    assert_eq!(found.best(), None);
    assert!(found.others.iter().all(|planned| matches!(planned.verdict, Verdict::NoMemory { .. })));
}

#[test]
fn a_workers_memory_counts_and_copies_of_the_hot_alone_may_fit() {
    let mut case = Case::new(vec![Worker::at(0.2e-3), Worker::at(0.2e-3)]);
    case.worker_memory = vec![Some(12 * MEGABYTE), None];
    let two: Vec<_> = (0..2).flat_map(layer).collect();
    let asked = Question { asked: Some((Kind::Layers, &two[..])), texts: 64, ..case.question() };
    assert_eq!(plan(&asked).others[0].verdict, Verdict::Fine);
    let copied = Question { copies: 1, ..asked };
    let full = Verdict::WorkerFull { worker: 0, needed: 16 * MEGABYTE, there: 12 * MEGABYTE };
    assert_eq!(plan(&copied).others[0].verdict, full);
    let hot = plan(&Question { picks: Some(&case.picks), ..copied });
    let planned = &hot.others[0];
    assert_eq!((planned.verdict, planned.copies_some), (Verdict::Fine, true));
    assert_eq!(planned.held[0].experts[8..], [(1, 0), (1, 1)], "{planned:?}");
    // Those that are named go before.
    let named = BTreeSet::from([(0, 7), (1, 3)]);
    let named = plan(&Question { copied: Some(&named), ..copied });
    let planned = &named.others[0];
    assert_eq!((planned.verdict, planned.copies_some), (Verdict::Fine, true));
    assert_eq!(
        (&planned.held[0].experts[8..], &planned.held[1].experts[8..]),
        (&[(1, 3)][..], &[(0, 7)][..])
    );
}

#[test]
fn a_cold_tail_makes_room_with_fewer_round_trips_than_layers() {
    let case = Case::new(vec![far(0.05)]);
    let question = Question { memory: 44 * MEGABYTE, texts: 1, picks: Some(&case.picks), ..case.question() };
    let found = plan(&question);
    // 43 MB fit after all: one text is one MB.
    assert_eq!(found.best(), Some(&found.here));
    let found = plan(&Question { memory: 30 * MEGABYTE, ..question });
    let best = found.best().unwrap();
    assert_eq!(best.kind, Kind::Tail, "{best:?}");
    assert!(best.needs.total() <= 30 * MEGABYTE);
    assert!(best.experts.iter().all(|(_, expert)| *expert > 1), "hot ones stay: {best:?}");
    let mut layers = found.others.iter().filter(|planned| planned.kind == Kind::Layers);
    assert!(layers.all(|planned| planned.one.tokens_per_second < best.one.tokens_per_second));
}

#[test]
fn the_way_there_takes_what_its_bytes_take_and_what_is_there_is_not_sent() {
    let mut case = Case::new(vec![far(0.013)]);
    let one = layer(2);
    let asked = |case: &Case| {
        let found = plan(&Question { asked: Some((Kind::Layers, &one[..])), ..case.question() });
        found.others[0].held[0].clone()
    };
    let held = asked(&case);
    assert_eq!((held.bytes, held.to_send), (8 * MEGABYTE, 8 * MEGABYTE));
    assert!((held.seconds - 8.0 * FRAMING / 12.5).abs() < 1e-9, "{held:?}");
    case.holds = vec![vec![(2, 6), (3, 8)]];
    let held = asked(&case);
    assert_eq!((held.bytes, held.to_send), (8 * MEGABYTE, 2 * MEGABYTE));
    case.holds = vec![vec![(2, 80)]];
    assert_eq!((asked(&case).to_send, asked(&case).seconds), (0, 0.0));
    case.holds = Vec::new();
    case.workers = vec![Worker::at(0.013)];
    assert_eq!(asked(&case).seconds, f64::INFINITY);
}

proptest! {
    #[test]
    fn what_is_chosen_fits_and_does_not_lose(
        round_trip in 0.0f64..0.2,
        count in 1usize..4,
        memory in 1u64..80,
        worker_memory in 1u64..40,
        texts in 1usize..40,
        copies in 0usize..3,
    ) {
        let mut case = Case::new(vec![far(round_trip); count]);
        case.worker_memory = vec![Some(worker_memory * MEGABYTE); count];
        let memory = memory * MEGABYTE;
        let question = Question { memory, texts, copies, picks: Some(&case.picks), ..case.question() };
        let found = plan(&question);
        if let Some(best) = found.best() {
            prop_assert!(best.needs.total() <= memory);
            prop_assert!(best.held.iter().all(|held| held.bytes <= worker_memory * MEGABYTE));
            if !found.here.verdict.is_refusal() {
                prop_assert!(best.many.tokens_per_second >= LOSES * found.here.many.tokens_per_second);
            }
            // Every expert that leaves is with somebody.
            let mut own: Vec<_> = best.held.iter().flat_map(|held| held.experts.iter().copied()).collect();
            own.sort_unstable();
            own.dedup();
            prop_assert_eq!(own, best.experts.clone());
        }
    }
}
