//! One session's receipts: their numbers, what they add up to, and how far they are settled.

use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;

use kvasir_merkle::Hash;
use kvasir_wire::receipt::{ContinuityError, Mark, ReceiptId, Terms};

/// What must be remembered of a session; small, since a log has many.
pub(super) struct Session {
    /// What its receipts have in common with those of other sessions, and when it began.
    pub terms: (Arc<Terms>, u64),
    /// The stretch of receipts that ends with the highest number.
    end: Stretch,
    /// The stretches before it, with gaps between them, by the number of their first receipt.
    before: BTreeMap<u64, Box<Stretch>>,
    /// Billed bytes by number, for what is not settled and does not end a stretch.
    unsettled: BTreeMap<u64, u64>,
    settled_to: u64,
    settled_bytes: u64,
}

/// A receipt as its neighbours see it.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub mark: Mark,
    pub id: ReceiptId,
}

/// Receipts without a gap between them.
struct Stretch {
    start: u64,
    /// The first receipt, where another one may come before it.
    first: Option<Box<Point>>,
    last: Point,
}

impl Point {
    fn follows(&self, earlier: &Point) -> Result<(), String> {
        self.mark.follows(&earlier.mark, || earlier.id).map_err(|error: ContinuityError| error.to_string())
    }

    fn seq(&self) -> u64 {
        self.mark.seq
    }
}

impl Stretch {
    fn of(point: Point) -> Self {
        let start = point.seq();
        Self { start, first: (start > 1).then(|| Box::new(point)), last: point }
    }

    fn first(&self) -> &Point {
        self.first.as_deref().unwrap_or(&self.last)
    }

    fn has(&self, seq: u64) -> bool {
        (self.start..=self.last.seq()).contains(&seq)
    }
}

impl Session {
    /// A session by the receipt of it that is seen first.
    pub(super) fn new(terms: (Arc<Terms>, u64), point: Point) -> Self {
        Self {
            terms,
            end: Stretch::of(point),
            before: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            settled_to: 0,
            settled_bytes: 0,
        }
    }

    /// Puts another receipt of the same terms into its place; it must fit to what is before and after it.
    pub(super) fn add(&mut self, point: Point) -> Result<(), String> {
        let seq = point.seq();
        if seq > self.end.last.seq() {
            point.follows(&self.end.last)?;
            if seq == self.end.last.seq() + 1 {
                let inner = replace(&mut self.end.last, point);
                self.wait(inner);
            } else {
                let closed = replace(&mut self.end, Stretch::of(point));
                self.before.insert(closed.start, Box::new(closed));
            }
            return Ok(());
        }
        self.add_late(point)
    }

    /// A receipt with a number below the highest.
    fn add_late(&mut self, point: Point) -> Result<(), String> {
        let seq = point.seq();
        if self.has(seq) {
            return Err(format!("receipt {seq} of its session is there already"));
        }
        let left = self.before.range(..seq).next_back().map(|(start, stretch)| (*start, stretch.last));
        let right = self.before.range(seq..).next().map(|(start, _)| *start);
        if let Some((_, last)) = &left {
            point.follows(last)?;
        }
        right
            .and_then(|start| self.before.get(&start))
            .map_or(&self.end, Box::as_ref)
            .first()
            .follows(&point)?;

        let mut grown = Stretch::of(point);
        if let Some((start, last)) = left.filter(|(_, last)| last.seq() + 1 == seq)
            && let Some(left) = self.before.remove(&start)
        {
            self.wait(last);
            grown = Stretch { last: point, ..*left };
        }
        let next = right.unwrap_or(self.end.start);
        if next != seq + 1 {
            self.before.insert(grown.start, Box::new(grown));
            return Ok(());
        }
        self.wait(point);
        match self.before.remove(&next) {
            Some(right) => {
                grown.last = right.last;
                self.before.insert(grown.start, Box::new(grown));
            }
            None => (self.end.start, self.end.first) = (grown.start, grown.first),
        }
        Ok(())
    }

    /// Billed bytes by the receipt with the highest number.
    pub(super) fn billed(&self) -> u64 {
        self.end.last.mark.billed().get()
    }

    /// Takes a settled stretch: it begins after the last one, ends at a receipt that is there, and has its bytes.
    pub(super) fn settle(&mut self, from: u64, to: u64, bytes: u64) -> Result<(), String> {
        if from != self.settled_to + 1 || to < from {
            return Err(format!("is settled up to receipt {}, this begins at {from}", self.settled_to));
        }
        let ends_there = self.stretch_of(to).filter(|stretch| stretch.last.seq() == to);
        let billed = ends_there.map(|stretch| stretch.last.mark.billed().get());
        let billed = billed.or_else(|| self.unsettled.get(&to).copied());
        let billed = billed.ok_or_else(|| format!("has no receipt {to}"))?;
        let added = billed.checked_sub(self.settled_bytes);
        if added != Some(bytes) {
            let added = added.map_or("less than nothing".to_owned(), |added| added.to_string());
            return Err(format!("receipts {from} to {to} add {added} bytes, not {bytes}"));
        }
        self.unsettled = self.unsettled.split_off(&(to + 1));
        (self.settled_to, self.settled_bytes) = (to, billed);
        Ok(())
    }

    /// The work root of a receipt, where it is still remembered.
    pub(super) fn work(&self, seq: u64) -> Option<Hash> {
        let stretch = self.stretch_of(seq)?;
        let point = [&stretch.last, stretch.first()].into_iter().find(|point| point.seq() == seq)?;
        Some(point.mark.counters.work)
    }

    /// Whether a receipt with this number was there.
    pub(super) fn has(&self, seq: u64) -> bool {
        self.stretch_of(seq).is_some()
    }

    /// The first number that is missing.
    pub(super) fn first_gap(&self) -> Option<u64> {
        match self.before.values().next() {
            None => (self.end.start > 1).then_some(1),
            Some(first) if first.start > 1 => Some(1),
            Some(first) => Some(first.last.seq() + 1),
        }
    }

    fn stretch_of(&self, seq: u64) -> Option<&Stretch> {
        let earlier = || self.before.range(..=seq).next_back().map(|(_, stretch)| stretch.as_ref());
        Some(&self.end).filter(|end| end.has(seq)).or_else(|| earlier().filter(|stretch| stretch.has(seq)))
    }

    /// A receipt that ends no stretch any more can still be where a settlement ends.
    fn wait(&mut self, inner: Point) {
        if inner.seq() > self.settled_to {
            self.unsettled.insert(inner.seq(), inner.mark.billed().get());
        }
    }
}

#[cfg(test)]
mod tests {
    use kvasir_wire::handshake::Class;
    use kvasir_wire::id::{KeyDigest, WalletDigest};
    use kvasir_wire::id::{ModelDigest, PluginDigest, SessionId};
    use kvasir_wire::money::MeteredBytes;
    use kvasir_wire::receipt::{Counters, Receipt};
    use proptest::prelude::*;

    use super::*;

    fn counters(seq: u64) -> Counters {
        Counters {
            up: MeteredBytes::new(10 * seq).unwrap(),
            down: MeteredBytes::new(20 * seq).unwrap(),
            calls: seq,
            rows: seq,
            work: Hash([seq as u8; 32]),
        }
    }

    fn point(receipt: &Receipt) -> Point {
        Point { mark: receipt.mark(), id: receipt.id() }
    }

    fn begun(receipt: &Receipt) -> Session {
        Session::new((Arc::new(receipt.terms.clone()), receipt.terms.from), point(receipt))
    }

    fn receipts(count: u64) -> Vec<Receipt> {
        let terms = Terms {
            network: "test".parse().unwrap(),
            session: SessionId([9; 32]),
            grant: Hash([1; 32]),
            hub: KeyDigest([1; 32]),
            worker: KeyDigest([2; 32]),
            backbone: KeyDigest([3; 32]),
            payee: WalletDigest([8; 32]),
            model: ModelDigest([7; 32]),
            plugin: PluginDigest([6; 32]),
            class: Class::Exact,
            price: Hash([4; 32]),
            from: 0,
        };
        let mut all = vec![Receipt::first(terms, counters(1), 1, false).unwrap()];
        for seq in 2..=count {
            let next = all.last().unwrap().next(counters(seq), seq, false).unwrap();
            all.push(next);
        }
        all
    }

    proptest! {
        #[test]
        fn receipts_in_any_order_are_each_taken_once(order in Just((0..9usize).collect::<Vec<_>>()).prop_shuffle()) {
            let all = receipts(9);
            let mut session = begun(&all[order[0]]);
            for (count, at) in order.iter().enumerate() {
                if count > 0 {
                    session.add(point(&all[*at])).unwrap();
                }
                let there: Vec<u64> = order[..=count].iter().map(|at| *at as u64 + 1).collect();
                for seq in 1..=9 {
                    prop_assert_eq!(session.has(seq), there.contains(&seq), "{} of {:?}", seq, there);
                    if there.contains(&seq) {
                        prop_assert!(session.add(point(&all[seq as usize - 1])).is_err());
                    }
                }
                let highest = there.iter().copied().max().unwrap();
                prop_assert_eq!(session.first_gap(), (1..=highest).find(|seq| !there.contains(seq)));
                prop_assert_eq!(session.billed(), 30 * highest);
            }
            prop_assert_eq!((session.end.start, session.before.len(), session.unsettled.len()), (1, 0, 8));
            for seq in 1..=9 {
                session.settle(seq, seq, 30).unwrap();
            }
            prop_assert!(session.unsettled.is_empty());
        }

        #[test]
        fn what_does_not_fit_to_a_neighbour_is_refused_wherever_it_comes(at in 0..9usize, order in Just((0..9usize).collect::<Vec<_>>()).prop_shuffle()) {
            let mut all = receipts(9);
            // Counters beyond those of the next receipt, or below those of the one before.
            all[at].counters = counters(if at == 8 { 1 } else { 100 });
            let mut session = begun(&all[order[0]]);
            let refused = order[1..].iter().any(|at| session.add(point(&all[*at])).is_err());
            prop_assert!(refused);
        }
    }

    #[test]
    fn stretches_are_settled_once_and_in_order() {
        let all = receipts(5);
        let mut session = begun(&all[0]);
        all[1..].iter().for_each(|receipt| session.add(point(receipt)).unwrap());
        assert!(session.settle(2, 3, 60).is_err());
        assert!(session.settle(1, 6, 180).is_err());
        assert!(session.settle(1, 2, 59).is_err());
        session.settle(1, 2, 60).unwrap();
        assert!(session.settle(1, 2, 60).is_err() && session.settle(2, 3, 60).is_err());
        session.settle(3, 5, 90).unwrap();
        assert!(session.settle(6, 6, 0).is_err());
    }
}
