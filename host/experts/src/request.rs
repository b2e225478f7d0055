//! Requests expert by expert, and the one definition of the order in which experts are summed.

use std::collections::BTreeMap;

use kvasir_backbone::Call;
use kvasir_model::ExpertIndex;
use kvasir_numerics::{InstructionSet, scale_add};
use kvasir_threads::{current_count, share};

/// Values to be added up below which one thread does it.
const LEAST_SHARED: usize = 64 * 1024;

/// Rows that one expert is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertRows {
    /// The expert within its layer.
    pub expert: ExpertIndex,
    /// Row numbers within the call, in the order in which answers are wanted; normally ascending.
    pub rows: Vec<u32>,
    /// The gate weight of each of `rows` for this expert. May be empty where nothing is summed.
    pub weights: Vec<f32>,
}

/// Turns a call's picks (row -> experts) into requests (expert -> rows): ascending by expert, rows ascending.
pub fn group(call: &Call) -> Vec<ExpertRows> {
    let mut requests: BTreeMap<u16, ExpertRows> = BTreeMap::new();
    for (row, picks) in (0u32..).zip(&call.picks) {
        for pick in picks {
            let request = requests.entry(pick.expert.0).or_insert_with(|| ExpertRows {
                expert: pick.expert,
                rows: Vec::new(),
                weights: Vec::new(),
            });
            request.rows.push(row);
            request.weights.push(pick.weight);
        }
    }
    requests.into_values().collect()
}

/// The sum over experts: for each of `count` rows, from zero, in ascending expert index, `acc = acc + weight * y`, each
/// operation rounded. Returns count x hidden values, row by row.
///
/// `each_rows` holds `hidden` values for every row of every request, request by request, as [`crate::ExpertRunner::each`]
/// returns them. The requests may stand in any order (parts that arrived from several machines); each expert appears
/// once. The result depends on nothing but the values: not on order, partition or batching.
///
/// # Panics
/// If `each_rows` is not of that length, a request's weights do not match its rows, or a row number is `count` or more:
/// what crosses a process boundary is checked before it comes here.
pub fn combine(count: usize, hidden: usize, requests: &[ExpertRows], each_rows: &[f32]) -> Vec<f32> {
    let mut sums = vec![0.0f32; count * hidden];
    add_weighted(&mut sums, hidden, requests, each_rows);
    sums
}

/// [`combine`] onto what is there: experts in ascending parts, one after the other, give the sum that they give at once.
pub(crate) fn add_weighted(sums: &mut [f32], hidden: usize, requests: &[ExpertRows], each_rows: &[f32]) {
    let count = sums.len().checked_div(hidden).unwrap_or(0);
    let rows_in_all: usize = requests.iter().map(|request| request.rows.len()).sum();
    assert_eq!(each_rows.len(), rows_in_all * hidden, "one row of {hidden} values for each row asked for");
    let beyond = requests.iter().flat_map(|request| &request.rows).find(|&&row| row as usize >= count);
    assert_eq!(beyond, None, "a row number is below {count}");
    let mut start = 0;
    let mut parts: Vec<(&ExpertRows, &[f32])> = requests
        .iter()
        .map(|request| {
            assert_eq!(request.rows.len(), request.weights.len(), "one weight for each row asked for");
            let part = &each_rows[start..start + request.rows.len() * hidden];
            start += part.len();
            (request, part)
        })
        .collect();
    parts.sort_by_key(|(request, _)| request.expert);
    let isa = InstructionSet::detect();
    let values: usize = parts.iter().map(|(_, part)| part.len()).sum();
    let pieces = if values < LEAST_SHARED { 1 } else { current_count() };
    let stretch = count.div_ceil(pieces).max(1);
    let mut tasks: Vec<(usize, &mut [f32])> = sums
        .chunks_mut((stretch * hidden).max(1))
        .enumerate()
        .map(|(at, sums)| (at * stretch, sums))
        .collect();
    share(&mut tasks, |(first, sums)| {
        for (request, part) in &parts {
            let rows = request.rows.iter().zip(&request.weights).zip(part.chunks_exact(hidden));
            for ((&row, &weight), values) in rows {
                if let Some(sum) = (row as usize)
                    .checked_sub(*first)
                    .and_then(|row| sums.get_mut(row * hidden..)?.get_mut(..hidden))
                {
                    scale_add(isa, sum, weight, values);
                }
            }
        }
    });
}
