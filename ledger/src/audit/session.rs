//! One session's receipts: their numbers, what they add up to, and how far they are settled.

use std::collections::BTreeMap;

use kvasir_merkle::Hash;
use kvasir_wire::id::{KeyDigest, WalletDigest};
use kvasir_wire::receipt::{Receipt, Terms};

/// What must be remembered of a session; small, since a log has many.
pub(super) struct Session {
    pub payer: KeyDigest,
    pub payee: WalletDigest,
    pub price: Hash,
    /// The receipt with the highest number, and those around gaps.
    kept: BTreeMap<u64, Box<Receipt>>,
    /// Numbers that are missing below the highest one.
    missing: u64,
    /// Billed bytes by number, for what is not settled.
    unsettled: BTreeMap<u64, u64>,
    settled_to: u64,
    settled_bytes: u64,
}

impl Session {
    pub(super) fn new(receipt: &Receipt) -> Self {
        let terms = &receipt.terms;
        let (payer, payee, price) = (terms.backbone, terms.payee, terms.price);
        Self {
            payer,
            payee,
            price,
            kept: BTreeMap::new(),
            missing: 0,
            unsettled: BTreeMap::new(),
            settled_to: 0,
            settled_bytes: 0,
        }
    }

    /// Puts a receipt into its place; it must fit to what is before and after it.
    pub(super) fn add(&mut self, receipt: Receipt) -> Result<(), String> {
        let seq = receipt.seq;
        let last = self.kept.last_key_value().map_or(0, |(seq, _)| *seq);
        let is_late = seq <= last;
        let earlier = self.kept.range(..seq).next_back();
        let later = self.kept.range(seq..).next();
        // What is neither kept nor missing is there already.
        let is_there = is_late && !self.is_missing(seq);
        if is_there {
            return Err(format!("receipt {seq} of its session is there already"));
        }
        if let Some((_, earlier)) = earlier {
            receipt.follows(earlier).map_err(|error| error.to_string())?;
        }
        if let Some((_, later)) = later {
            later.follows(&receipt).map_err(|error| error.to_string())?;
        }
        if seq > self.settled_to {
            self.unsettled.insert(seq, receipt.billed().get());
        }
        if is_late {
            self.missing -= 1
        } else {
            self.missing += seq - last - 1
        }
        self.kept.insert(seq, Box::new(receipt));
        if self.missing == 0 {
            while self.kept.len() > 1 {
                self.kept.pop_first();
            }
        }
        Ok(())
    }

    /// Billed bytes by the receipt with the highest number.
    pub(super) fn billed(&self) -> u64 {
        self.kept.last_key_value().map_or(0, |(_, receipt)| receipt.billed().get())
    }

    /// Takes a settled stretch: it begins after the last one, ends at a receipt that is there, and has its bytes.
    pub(super) fn settle(&mut self, from: u64, to: u64, bytes: u64) -> Result<(), String> {
        if from != self.settled_to + 1 {
            return Err(format!("is settled up to receipt {}, this begins at {from}", self.settled_to));
        }
        let billed = *self.unsettled.get(&to).ok_or_else(|| format!("has no receipt {to}"))?;
        let added = billed.checked_sub(self.settled_bytes);
        if added != Some(bytes) {
            let added = added.map_or("less than nothing".to_owned(), |added| added.to_string());
            return Err(format!("receipts {from} to {to} add {added} bytes, not {bytes}"));
        }
        self.unsettled = self.unsettled.split_off(&(to + 1));
        (self.settled_to, self.settled_bytes) = (to, billed);
        Ok(())
    }

    /// What holds for the whole session.
    pub(super) fn any_terms(&self) -> Option<&Terms> {
        self.kept.values().next().map(|receipt| &receipt.terms)
    }

    /// A receipt that is still remembered.
    pub(super) fn receipt(&self, seq: u64) -> Option<&Receipt> {
        self.kept.get(&seq).map(AsRef::as_ref)
    }

    /// Whether a receipt with this number was there.
    pub(super) fn has(&self, seq: u64) -> bool {
        let last = self.kept.last_key_value().map_or(0, |(seq, _)| *seq);
        seq > 0 && seq <= last && !self.is_missing(seq)
    }

    /// The first number that is missing.
    pub(super) fn first_gap(&self) -> Option<u64> {
        if self.missing == 0 {
            return None;
        }
        let mut expected = 1;
        for seq in self.kept.keys() {
            if *seq != expected && self.is_missing(expected) {
                return Some(expected);
            }
            expected = seq + 1;
        }
        None
    }

    /// Only where numbers are missing are receipts kept below the highest, and then all from the one before the first gap on.
    fn is_missing(&self, seq: u64) -> bool {
        self.missing > 0
            && !self.kept.contains_key(&seq)
            && (self.kept.keys().next().is_none_or(|first| seq > *first) || self.starts_late(seq))
    }

    /// Whether the session's first receipts are the missing ones.
    fn starts_late(&self, seq: u64) -> bool {
        let Some((first, last)) = self.kept.keys().next().zip(self.kept.keys().next_back()) else {
            return false;
        };
        // Of the numbers up to the last, those kept and those missing make up all: then nothing before the first was dropped.
        seq < *first && last - self.kept.len() as u64 == self.missing
    }
}

#[cfg(test)]
mod tests {
    use kvasir_wire::handshake::Class;
    use kvasir_wire::id::{ModelDigest, PluginDigest, SessionId};
    use kvasir_wire::money::MeteredBytes;
    use kvasir_wire::receipt::{Counters, Terms};
    use proptest::prelude::*;

    use super::*;

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
        let counters = |seq: u64| Counters {
            up: MeteredBytes::new(10 * seq).unwrap(),
            down: MeteredBytes::new(20 * seq).unwrap(),
            calls: seq,
            rows: seq,
            work: Hash([seq as u8; 32]),
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
            let mut session = Session::new(&all[0]);
            for (count, at) in order.iter().enumerate() {
                session.add(all[*at].clone()).unwrap();
                let there: Vec<u64> = order[..=count].iter().map(|at| *at as u64 + 1).collect();
                for seq in 1..=9 {
                    prop_assert_eq!(session.has(seq), there.contains(&seq), "{} of {:?}", seq, there);
                    if there.contains(&seq) {
                        prop_assert!(session.add(all[seq as usize - 1].clone()).is_err());
                    }
                }
                let highest = there.iter().copied().max().unwrap();
                prop_assert_eq!(session.first_gap(), (1..=highest).find(|seq| !there.contains(seq)));
                prop_assert_eq!(session.billed(), 30 * highest);
            }
        }
    }

    #[test]
    fn stretches_are_settled_once_and_in_order() {
        let all = receipts(5);
        let mut session = Session::new(&all[0]);
        all.into_iter().for_each(|receipt| session.add(receipt).unwrap());
        assert!(session.settle(2, 3, 60).is_err());
        assert!(session.settle(1, 6, 180).is_err());
        assert!(session.settle(1, 2, 59).is_err());
        session.settle(1, 2, 60).unwrap();
        assert!(session.settle(1, 2, 60).is_err() && session.settle(2, 3, 60).is_err());
        session.settle(3, 5, 90).unwrap();
        assert!(session.settle(6, 6, 0).is_err());
    }
}
