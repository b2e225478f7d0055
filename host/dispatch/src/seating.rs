//! Which slot a worker gets that joins: the one whose experts it holds already, if there is one.

use kvasir_wire::key::PublicKey;

/// What is known of a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeatPlace<'a> {
    /// Nobody sits there, and nobody is about to.
    pub(crate) is_free: bool,
    /// Who sits there.
    pub(crate) worker: Option<&'a PublicKey>,
    /// Who sat there last, or sits there: it holds the slot's experts, if it is there still.
    pub(crate) last: Option<&'a PublicKey>,
}

/// What a slot is to a worker; the least is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// It sits there.
    Its,
    /// It sat there last.
    WasIts,
    /// Nobody ever sat there.
    New,
    /// Somebody did, and may come back.
    Left,
}

/// The slot of a worker that joins, counted from 0: the lowest of those that fit best. Nothing where none is free.
pub(crate) fn slot_for<'a>(worker: &PublicKey, slots: impl Iterator<Item = SeatPlace<'a>>) -> Option<usize> {
    let fits = slots.enumerate().filter_map(|(number, slot)| Some((slot.fit(worker)?, number)));
    fits.min().map(|(_, number)| number)
}

impl SeatPlace<'_> {
    fn fit(&self, worker: &PublicKey) -> Option<Fit> {
        if self.worker == Some(worker) {
            return Some(Fit::Its);
        }
        let fit = match self.last {
            Some(last) if last == worker => Fit::WasIts,
            Some(_) => Fit::Left,
            None => Fit::New,
        };
        self.is_free.then_some(fit)
    }
}

#[cfg(test)]
mod tests {
    use kvasir_wire::key::SecretKey;

    use super::*;

    #[test]
    fn a_worker_sits_where_it_sat_and_a_newcomer_where_nobody_comes_back_to() {
        let [one, other, newcomer] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]).public());
        let left = |last| SeatPlace { is_free: true, worker: None, last: Some(last) };
        let new = SeatPlace { is_free: true, worker: None, last: None };
        let slots = [left(&one), left(&other), new];
        assert_eq!(slot_for(&other, slots.into_iter()), Some(1));
        assert_eq!(slot_for(&one, slots.into_iter()), Some(0));
        assert_eq!(slot_for(&newcomer, slots.into_iter()), Some(2));
        // Where there is no other place, one that somebody left will do.
        assert_eq!(slot_for(&newcomer, slots.into_iter().take(2)), Some(0));
        assert_eq!(slot_for(&one, std::iter::empty()), None);
    }

    #[test]
    fn a_place_that_is_taken_is_for_who_sits_there_alone() {
        let [one, other] = [1, 2].map(|seed| SecretKey::from_seed([seed; 32]).public());
        let taken = SeatPlace { is_free: false, worker: Some(&one), last: Some(&one) };
        assert_eq!(slot_for(&one, [taken].into_iter()), Some(0));
        assert_eq!(slot_for(&other, [taken].into_iter()), None);
        // While a pairing is under way nobody sits there yet.
        let reserved = SeatPlace { is_free: false, worker: None, last: Some(&one) };
        assert_eq!(slot_for(&one, [reserved].into_iter()), None);
    }
}
