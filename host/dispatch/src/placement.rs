//! Which worker is asked to hold which experts: a fixed rule over the experts that the operator gave away.
//!
//! The rule knows a number of slots, not who sits in them: a worker takes a free slot when it joins and keeps it until it
//! leaves. One that comes back sits where it sat, if that is free, so that nothing is sent to it again. Which experts to
//! give away is for whoever measures and predicts to say (`kvasir plan`).

use std::collections::HashMap;

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

/// The experts of every slot, ascending. `experts`: those given away, ascending without repetitions.
pub fn deal(placement: Placement, experts: &[ExpertAddress], slots: usize) -> Vec<Vec<ExpertAddress>> {
    let mut dealt = vec![Vec::new(); slots];
    if slots == 0 {
        return dealt;
    }
    let layers = experts.chunk_by(|one, next| one.0 == next.0);
    for (turn, layer) in layers.enumerate() {
        for (place, &address) in layer.iter().enumerate() {
            let slot = match placement {
                Placement::WholeLayers => turn % slots,
                Placement::Experts => place % slots,
            };
            dealt[slot].push(address);
        }
    }
    dealt
}

/// Each share, and behind it those of the `copies` slots before it, as far as they are copied: so the experts of a slot are
/// held by the next ones too. At most all other slots hold a copy.
pub fn with_copies(
    shares: &[Vec<ExpertAddress>],
    copies: usize,
    is_copied: impl Fn(ExpertAddress) -> bool,
) -> Vec<Vec<ExpertAddress>> {
    let slots = shares.len();
    let copies = copies.min(slots.saturating_sub(1));
    let share = |slot: usize| -> Vec<ExpertAddress> {
        let others = (1..=copies).flat_map(|back| &shares[(slot + slots - back) % slots]);
        let copied = others.copied().filter(|address| is_copied(*address));
        shares[slot].iter().copied().chain(copied).collect()
    };
    (0..slots).map(share).collect()
}

/// To which slot each expert was dealt, and by that who is asked for it.
#[derive(Debug)]
pub(crate) struct Owners {
    dealt: HashMap<ExpertAddress, usize>,
    slots: usize,
}

impl Owners {
    /// Of experts that were dealt so, without copies.
    pub(crate) fn of(shares: &[Vec<ExpertAddress>]) -> Self {
        let dealt = shares.iter().enumerate();
        let dealt = dealt.flat_map(|(slot, share)| share.iter().map(move |&address| (address, slot)));
        Self { dealt: dealt.collect(), slots: shares.len() }
    }

    /// All experts that were dealt.
    #[cfg(test)]
    fn experts(&self) -> impl Iterator<Item = ExpertAddress> {
        self.dealt.keys().copied()
    }

    /// All slots, in the order in which they are asked for an expert if they hold it: the one that it was dealt to, the next ones, where
    /// its copies lie, and whoever may have taken it over. None for an expert that was not dealt.
    pub(crate) fn slots_of(&self, address: ExpertAddress) -> impl Iterator<Item = usize> + use<> {
        let (first, slots) = (self.dealt.get(&address).copied(), self.slots);
        first.into_iter().flat_map(move |first| (0..slots).map(move |next| (first + next) % slots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The experts `range` of each of `layers`.
    fn all(layers: &[u16], range: std::ops::Range<u16>) -> Vec<ExpertAddress> {
        layers.iter().flat_map(|&layer| range.clone().map(move |expert| (layer, expert))).collect()
    }

    #[test]
    fn whole_layers_go_round_robin() {
        let dealt = deal(Placement::WholeLayers, &all(&[1, 4, 6], 0..2), 2);
        assert_eq!(dealt[0], [(1, 0), (1, 1), (6, 0), (6, 1)]);
        assert_eq!(dealt[1], [(4, 0), (4, 1)]);
    }

    #[test]
    fn experts_of_a_layer_go_round_robin() {
        let dealt = deal(Placement::Experts, &all(&[3], 0..5), 2);
        assert_eq!(dealt[0], [(3, 0), (3, 2), (3, 4)]);
        assert_eq!(dealt[1], [(3, 1), (3, 3)]);
    }

    #[test]
    fn what_is_given_away_of_a_layer_stays_together() {
        let chosen = [(0, 3), (0, 9), (2, 1), (5, 0), (5, 7)];
        let dealt = deal(Placement::WholeLayers, &chosen, 2);
        assert_eq!(dealt, [vec![(0, 3), (0, 9), (5, 0), (5, 7)], vec![(2, 1)]]);
        let dealt = deal(Placement::Experts, &chosen, 2);
        assert_eq!(dealt, [vec![(0, 3), (2, 1), (5, 0)], vec![(0, 9), (5, 7)]]);
    }

    #[test]
    fn every_expert_is_dealt_once() {
        for placement in [Placement::WholeLayers, Placement::Experts] {
            let given = all(&[0, 2, 3], 1..8);
            let mut dealt: Vec<_> = deal(placement, &given, 3).into_iter().flatten().collect();
            dealt.sort_unstable();
            assert_eq!(dealt, given);
        }
    }

    #[test]
    fn copies_lie_with_the_next_slots_behind_their_own() {
        let shares = vec![vec![(0, 0)], vec![(1, 0), (1, 1)], vec![(2, 0)]];
        assert_eq!(with_copies(&shares, 0, |_| true), shares);
        let once = with_copies(&shares, 1, |_| true);
        assert_eq!(once[0], [(0, 0), (2, 0)]);
        assert_eq!(once[1], [(1, 0), (1, 1), (0, 0)]);
        // More copies than there are others are those of all others.
        assert_eq!(with_copies(&shares, 9, |_| true)[2], [(2, 0), (1, 0), (1, 1), (0, 0)]);
        assert!(with_copies(&[], 3, |_| true).is_empty());
    }

    #[test]
    fn of_some_experts_there_is_no_copy() {
        let shares = vec![vec![(0, 0), (0, 1)], vec![(1, 0)]];
        let hot = with_copies(&shares, 1, |address| address == (0, 1));
        assert_eq!(hot, [vec![(0, 0), (0, 1)], vec![(1, 0), (0, 1)]]);
    }

    #[test]
    fn an_expert_is_asked_of_its_own_slot_then_of_those_behind_it() {
        let owners = Owners::of(&[vec![(0, 0)], vec![], vec![(0, 1), (4, 2)]]);
        let slots_of = |address| owners.slots_of(address).collect::<Vec<_>>();
        assert_eq!(slots_of((0, 0)), [0, 1, 2]);
        assert_eq!(slots_of((4, 2)), [2, 0, 1]);
        assert!(slots_of((0, 2)).is_empty(), "it was dealt to nobody");
        let mut experts: Vec<ExpertAddress> = owners.experts().collect();
        experts.sort_unstable();
        assert_eq!(experts, [(0, 0), (0, 1), (4, 2)]);
    }

    #[test]
    fn no_slot_means_nothing_is_dealt() {
        assert!(deal(Placement::Experts, &all(&[0], 0..4), 0).is_empty());
    }
}
