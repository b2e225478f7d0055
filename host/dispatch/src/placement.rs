//! Which worker is asked to hold which experts: a fixed rule over the layers that the operator gave away.
//!
//! The rule knows a number of slots, not who sits in them: a worker takes the lowest free slot when it joins and keeps
//! it until it leaves, so a reconnect moves no experts. Measuring and predicting is left to later versions.

use std::ops::Range;

/// How the experts of the remote layers are dealt over the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// Layer after layer, round robin: each worker holds all experts of its layers, and answers with sums.
    #[default]
    WholeLayers,
    /// Expert after expert within every layer, round robin: with more than one worker each answers with its experts'
    /// rows and the backbone adds them up.
    Experts,
}

/// One expert of the model: (layer, index within the layer).
pub type ExpertAddress = (u16, u16);

/// The experts of every slot, ascending. `layers` in ascending order without repetitions; `experts` is the range of
/// indices given away in each of them.
pub(crate) fn deal(
    placement: Placement,
    layers: &[u16],
    experts: Range<u16>,
    slots: usize,
) -> Vec<Vec<ExpertAddress>> {
    let mut dealt = vec![Vec::new(); slots];
    if slots == 0 {
        return dealt;
    }
    for (turn, &layer) in layers.iter().enumerate() {
        for (place, expert) in experts.clone().enumerate() {
            let slot = match placement {
                Placement::WholeLayers => turn % slots,
                Placement::Experts => place % slots,
            };
            dealt[slot].push((layer, expert));
        }
    }
    dealt
}

/// Each share, and behind it those of the `copies` slots before it: so the experts of a slot are held by the next ones too.
/// At most all other slots hold a copy.
pub(crate) fn with_copies(shares: &[Vec<ExpertAddress>], copies: usize) -> Vec<Vec<ExpertAddress>> {
    let slots = shares.len();
    let copies = copies.min(slots.saturating_sub(1));
    let share =
        |slot: usize| (0..=copies).flat_map(move |back| &shares[(slot + slots - back) % slots]).copied();
    (0..slots).map(|slot| share(slot).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_layers_go_round_robin() {
        let dealt = deal(Placement::WholeLayers, &[1, 4, 6], 0..2, 2);
        assert_eq!(dealt[0], [(1, 0), (1, 1), (6, 0), (6, 1)]);
        assert_eq!(dealt[1], [(4, 0), (4, 1)]);
    }

    #[test]
    fn experts_of_a_layer_go_round_robin() {
        let dealt = deal(Placement::Experts, &[3], 0..5, 2);
        assert_eq!(dealt[0], [(3, 0), (3, 2), (3, 4)]);
        assert_eq!(dealt[1], [(3, 1), (3, 3)]);
    }

    #[test]
    fn every_expert_is_dealt_once() {
        for placement in [Placement::WholeLayers, Placement::Experts] {
            let mut all: Vec<_> = deal(placement, &[0, 2, 3], 1..8, 3).into_iter().flatten().collect();
            all.sort_unstable();
            let expected: Vec<_> = [0, 2, 3].iter().flat_map(|&l| (1..8).map(move |e| (l, e))).collect();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn copies_lie_with_the_next_slots_behind_their_own() {
        let shares = vec![vec![(0, 0)], vec![(1, 0), (1, 1)], vec![(2, 0)]];
        assert_eq!(with_copies(&shares, 0), shares);
        let once = with_copies(&shares, 1);
        assert_eq!(once[0], [(0, 0), (2, 0)]);
        assert_eq!(once[1], [(1, 0), (1, 1), (0, 0)]);
        // More copies than there are others are those of all others.
        assert_eq!(with_copies(&shares, 9)[2], [(2, 0), (1, 0), (1, 1), (0, 0)]);
        assert!(with_copies(&[], 3).is_empty());
    }

    #[test]
    fn no_slot_means_nothing_is_dealt() {
        assert!(deal(Placement::Experts, &[0], 0..4, 0).is_empty());
    }
}
