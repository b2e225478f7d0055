//! The sum over experts depends on values alone: not on how a call was grouped, cut or ordered.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::sync::Arc;

use kvasir_backbone::Pick;
use kvasir_experts::*;
use proptest::prelude::*;

/// The sum as it is defined, written once more in the plainest way.
fn by_definition(call: &Call, hidden: usize, output: impl Fn(u16, u32) -> Vec<f32>) -> Vec<f32> {
    let mut sums = Vec::new();
    for (row, picks) in call.picks.iter().enumerate() {
        let mut picks = picks.clone();
        picks.sort_by_key(|pick| pick.expert);
        let mut sum = vec![0.0f32; hidden];
        for pick in picks {
            for (acc, y) in sum.iter_mut().zip(output(pick.expert.0, row as u32)) {
                let product = pick.weight * y;
                *acc += product;
            }
        }
        sums.extend(sum);
    }
    sums
}

/// What a made-up expert answers for a row: values of very different sizes, so that any other order shows.
fn output(hidden: usize) -> impl Fn(u16, u32) -> Vec<f32> {
    move |expert, row| {
        (0..hidden as u32)
            .map(|index| {
                let mixed =
                    u32::from(expert).wrapping_mul(2_654_435_761).wrapping_add(row * 40_503 + index * 97)
                        ^ 0x5bd1_e995;
                let mixed = mixed.wrapping_mul(0x85eb_ca6b);
                (mixed as i32 as f32) * 2f32.powi((mixed % 60) as i32 - 60)
            })
            .collect()
    }
}

fn each(requests: &[ExpertRows], output: impl Fn(u16, u32) -> Vec<f32>) -> Vec<f32> {
    requests
        .iter()
        .flat_map(|request| request.rows.iter().flat_map(|&row| output(request.expert.0, row)))
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn calls() -> impl Strategy<Value = Call> {
    let row = proptest::collection::btree_map(0u16..12, -2.0f32..2.0, 0..=8);
    proptest::collection::vec(row, 0..7).prop_map(|rows| Call {
        layer: LayerIndex(0),
        row_format: RowFormat::Float32,
        rows: Arc::from([]),
        picks: rows
            .into_iter()
            .map(|picks| {
                let mut picks: Vec<Pick> = picks
                    .into_iter()
                    .map(|(expert, weight)| Pick { expert: ExpertIndex(expert), weight })
                    .collect();
                picks.sort_by(|a, b| b.weight.total_cmp(&a.weight));
                picks
            })
            .collect(),
    })
}

proptest! {
    #[test]
    fn combining_is_the_definition(call in calls(), hidden in 1usize..40) {
        let requests = group(&call);
        let sums = combine(call.count(), hidden, &requests, &each(&requests, output(hidden)));
        prop_assert_eq!(bits(&sums), bits(&by_definition(&call, hidden, output(hidden))));
    }

    #[test]
    fn partition_and_order_change_nothing(
        call in calls(),
        hidden in 1usize..40,
        owner in proptest::collection::vec(0usize..4, 12),
        order in Just((0usize..4).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let requests = group(&call);
        let whole = combine(call.count(), hidden, &requests, &each(&requests, output(hidden)));
        // Each owner answers for its experts alone; the parts arrive in any order.
        let parts: Vec<ExpertRows> = order
            .iter()
            .flat_map(|part| requests.iter().filter(|request| owner[usize::from(request.expert.0)] == *part))
            .cloned()
            .collect();
        let sums = combine(call.count(), hidden, &parts, &each(&parts, output(hidden)));
        prop_assert_eq!(bits(&sums), bits(&whole));
    }

    #[test]
    fn a_batch_is_its_rows(call in calls(), hidden in 1usize..40) {
        let requests = group(&call);
        let batch = combine(call.count(), hidden, &requests, &each(&requests, output(hidden)));
        for row in 0..call.count() {
            let alone = Call { picks: vec![call.picks[row].clone()], ..call.clone() };
            let requests = group(&alone);
            let values = each(&requests, |expert, _| output(hidden)(expert, row as u32));
            let sums = combine(1, hidden, &requests, &values);
            prop_assert_eq!(bits(&sums), bits(&batch[row * hidden..][..hidden]));
        }
    }

    #[test]
    fn grouping_keeps_every_pick(call in calls()) {
        let requests = group(&call);
        prop_assert!(requests.windows(2).all(|pair| pair[0].expert < pair[1].expert));
        let mut picks: Vec<Vec<(u16, u32)>> = vec![Vec::new(); call.count()];
        for request in &requests {
            prop_assert!(request.rows.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert_eq!(request.rows.len(), request.weights.len());
            for (&row, weight) in request.rows.iter().zip(&request.weights) {
                picks[row as usize].push((request.expert.0, weight.to_bits()));
            }
        }
        for (found, row) in picks.iter().zip(&call.picks) {
            let mut expected: Vec<(u16, u32)> =
                row.iter().map(|pick| (pick.expert.0, pick.weight.to_bits())).collect();
            expected.sort_unstable();
            prop_assert_eq!(found, &expected);
        }
    }
}
