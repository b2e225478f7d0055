//! From one call of the backbone to the calls that go to workers: who gets which rows, in which mode, and where each
//! answer belongs. Pure arithmetic on indices; no bytes move here.
//!
//! When one worker holds every expert that the call picks, it returns sums (mode `sum`): one row down for each row up.
//! Otherwise every owner returns its experts' rows one by one (mode `each`) and this side adds them in the one defined
//! order. A worker is sent only the rows that its experts need. Either way the bits are the same.

use std::ops::Range;

use kvasir_experts::ExpertRows;

/// A call as it is dealt out.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) parts: Vec<Part>,
    /// Groups (by index) that this machine computes.
    pub(crate) local: Vec<usize>,
}

/// What one message to one worker asks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    pub(crate) slot: usize,
    /// The rows to send: numbers in the backbone's call, ascending.
    pub(crate) rows: Vec<u32>,
    /// Experts ascending, with row numbers that count in `rows`.
    pub(crate) requests: Vec<ExpertRows>,
    pub(crate) answer: Answer,
}

/// Where the values of an answer belong.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// One summed row for each entry of `Part::rows`.
    Sums,
    /// For each request in turn its rows: these of the group with that index.
    Rows(Vec<(usize, Range<usize>)>),
}

impl Part {
    /// Rows of the answer.
    pub(crate) fn answer_rows(&self) -> usize {
        match &self.answer {
            Answer::Sums => self.rows.len(),
            Answer::Rows(_) => self.expert_rows(),
        }
    }

    /// Expert evaluations asked for: the measure of a call's work.
    pub(crate) fn expert_rows(&self) -> usize {
        self.requests.iter().map(|request| request.rows.len()).sum()
    }
}

/// Deals `groups` (ascending by expert) out. `owners` has for each the slot that holds its expert and may be asked now;
/// no message asks for more than `most_rows` rows of answer, nor carries more than `most_rows` rows.
pub(crate) fn split(groups: &[ExpertRows], owners: &[Option<usize>], most_rows: usize) -> Plan {
    let most_rows = most_rows.max(1);
    match owners.first() {
        Some(&Some(slot)) if owners.iter().all(|&other| other == Some(slot)) => {
            Plan { parts: split_sums(groups, slot, most_rows), local: Vec::new() }
        }
        _ => split_rows(groups, owners, most_rows),
    }
}

fn split_sums(groups: &[ExpertRows], slot: usize, most_rows: usize) -> Vec<Part> {
    let mut touched: Vec<u32> = groups.iter().flat_map(|group| group.rows.iter().copied()).collect();
    touched.sort_unstable();
    touched.dedup();
    touched
        .chunks(most_rows)
        .map(|rows| {
            let requests = groups.iter().filter_map(|group| {
                let (numbers, weights): (Vec<u32>, Vec<f32>) = group
                    .rows
                    .iter()
                    .zip(&group.weights)
                    .filter_map(|(row, &weight)| Some((rows.binary_search(row).ok()? as u32, weight)))
                    .unzip();
                (!numbers.is_empty()).then_some(ExpertRows { expert: group.expert, rows: numbers, weights })
            });
            Part { slot, rows: rows.to_vec(), requests: requests.collect(), answer: Answer::Sums }
        })
        .collect()
}

fn split_rows(groups: &[ExpertRows], owners: &[Option<usize>], most_rows: usize) -> Plan {
    let local = (0..groups.len()).filter(|&index| owners[index].is_none()).collect();
    let mut slots: Vec<usize> = owners.iter().flatten().copied().collect();
    slots.sort_unstable();
    slots.dedup();

    let mut parts = Vec::new();
    for slot in slots {
        let mut pieces: Vec<(usize, Range<usize>)> = Vec::new();
        let mut taken = 0;
        for (index, group) in groups.iter().enumerate().filter(|&(index, _)| owners[index] == Some(slot)) {
            let mut from = 0;
            while from < group.rows.len() {
                let to = group.rows.len().min(from + (most_rows - taken));
                pieces.push((index, from..to));
                taken += to - from;
                from = to;
                if taken == most_rows {
                    parts.push(rows_part(slot, groups, std::mem::take(&mut pieces)));
                    taken = 0;
                }
            }
        }
        if !pieces.is_empty() {
            parts.push(rows_part(slot, groups, pieces));
        }
    }
    Plan { parts, local }
}

fn rows_part(slot: usize, groups: &[ExpertRows], pieces: Vec<(usize, Range<usize>)>) -> Part {
    let mut rows: Vec<u32> =
        pieces.iter().flat_map(|(index, range)| groups[*index].rows[range.clone()].iter().copied()).collect();
    rows.sort_unstable();
    rows.dedup();
    let requests = pieces
        .iter()
        .map(|(index, range)| {
            let group = &groups[*index];
            // Every number is in `rows`, which was made of them.
            let renumber = |row: &u32| rows.binary_search(row).unwrap_or_default() as u32;
            ExpertRows {
                expert: group.expert,
                rows: group.rows[range.clone()].iter().map(renumber).collect(),
                weights: group.weights[range.clone()].to_vec(),
            }
        })
        .collect();
    Part { slot, rows, requests, answer: Answer::Rows(pieces) }
}

#[cfg(test)]
mod tests {
    use kvasir_experts::ExpertIndex;
    use proptest::prelude::*;

    use super::*;

    fn group(expert: u16, rows: &[u32]) -> ExpertRows {
        ExpertRows {
            expert: ExpertIndex(expert),
            rows: rows.to_vec(),
            weights: rows.iter().map(|&row| row as f32 + 0.5).collect(),
        }
    }

    #[test]
    fn one_owner_sums() {
        let plan = split(&[group(1, &[0, 4]), group(7, &[4])], &[Some(3); 2], 100);
        assert!(plan.local.is_empty());
        let [part] = &plan.parts[..] else { panic!("{plan:?}") };
        assert_eq!((part.slot, &part.rows[..], &part.answer), (3, &[0, 4][..], &Answer::Sums));
        assert_eq!(part.requests[1].rows, [1]);
        assert_eq!(part.requests[1].weights, [4.5]);
        assert_eq!((part.answer_rows(), part.expert_rows()), (2, 3));
    }

    #[test]
    fn two_owners_and_this_machine() {
        let groups = [group(0, &[0, 1]), group(1, &[1]), group(2, &[0])];
        let plan = split(&groups, &[Some(0), None, Some(1)], 100);
        assert_eq!(plan.local, [1]);
        assert_eq!(plan.parts.len(), 2);
        assert_eq!(plan.parts[1].rows, [0]);
        assert_eq!(plan.parts[1].answer, Answer::Rows(vec![(2, 0..1)]));
    }

    #[test]
    fn a_call_without_picks_has_no_parts() {
        assert_eq!(split(&[], &[], 8), Plan { parts: Vec::new(), local: Vec::new() });
    }

    proptest! {
        /// Whatever the owners and the limit, every (expert, row) is computed exactly once, with its own weight, and no
        /// message exceeds the limit.
        #[test]
        fn every_pick_is_asked_once(
            picks in proptest::collection::btree_set((0u16..6, 0u32..20), 0..60),
            owners in proptest::collection::vec(proptest::option::of(0usize..3), 6),
            most_rows in 1usize..9,
        ) {
            let mut groups: Vec<ExpertRows> = Vec::new();
            for &(expert, row) in &picks {
                match groups.last_mut() {
                    Some(last) if last.expert.0 == expert => {
                        last.rows.push(row);
                        last.weights.push(f32::from(expert) * 100.0 + row as f32);
                    }
                    _ => groups.push(ExpertRows {
                        expert: ExpertIndex(expert),
                        rows: vec![row],
                        weights: vec![f32::from(expert) * 100.0 + row as f32],
                    }),
                }
            }
            let owned: Vec<Option<usize>> =
                groups.iter().map(|group| owners[usize::from(group.expert.0)]).collect();
            let plan = split(&groups, &owned, most_rows);
            let mut seen: Vec<(u16, u32)> = plan
                .local
                .iter()
                .flat_map(|&index| groups[index].rows.iter().map(move |&row| (index, row)))
                .map(|(index, row)| (groups[index].expert.0, row))
                .collect();
            for part in &plan.parts {
                prop_assert!(part.answer_rows() <= most_rows && part.rows.len() <= most_rows);
                prop_assert!(part.rows.is_sorted_by(|a, b| a < b));
                for request in &part.requests {
                    prop_assert_eq!(owners[usize::from(request.expert.0)], Some(part.slot));
                    for (&row, &weight) in request.rows.iter().zip(&request.weights) {
                        let row = part.rows[row as usize];
                        prop_assert_eq!(weight, f32::from(request.expert.0) * 100.0 + row as f32);
                        seen.push((request.expert.0, row));
                    }
                }
                if let Answer::Rows(pieces) = &part.answer {
                    for ((index, range), request) in pieces.iter().zip(&part.requests) {
                        prop_assert_eq!(groups[*index].expert, request.expert);
                        prop_assert_eq!(range.len(), request.rows.len());
                    }
                }
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, picks.into_iter().collect::<Vec<_>>());
        }
    }
}
