//! What a session has computed: work items, their running root, and the counts that a receipt states.
//!
//! A work item is one result sent, accepted or not, in sending order. Both ends record every result in a [`WorkBook`];
//! at a cut after N results both get the same root and, once the calls that are not paid are named, the same counters.
//! A hub, which sees sizes only, records the same results in a [`Tally`].
//!
//! Item encoding (all little-endian, fixed length): the domain string, call id u64, layer u16, mode u8, SHA-256 of the
//! call's payload, SHA-256 of the result's rows. Its leaf hash is RFC 6962's.

use std::collections::VecDeque;

use kvasir_merkle::{Accumulator, Hash, ProofError, Tail, leaf_hash};
use thiserror::Error;

use crate::money::{MeteredBytes, MoneyError};
use crate::receipt::Counters;

/// Begins every work item, so that it can be mistaken for nothing else.
pub const WORK_DOMAIN: &[u8] = b"kvasir.example/work@v1\0";
/// Bytes of an encoded work item.
pub const WORK_ITEM_BYTES: usize = WORK_DOMAIN.len() + 8 + 2 + 1 + 32 + 32;
/// Most results between two receipts; a peer that never lets a receipt be cut is refused.
pub const MAX_UNCUT_RESULTS: usize = 64 * 1024;

/// One result that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkItem {
    /// Number of the call within the session.
    pub call: u64,
    /// Layer of the experts.
    pub layer: u16,
    /// 0 = each expert's rows, 1 = summed rows.
    pub mode: u8,
    /// SHA-256 of the call's whole payload.
    pub payload: [u8; 32],
    /// SHA-256 of the result's rows.
    pub rows: [u8; 32],
}

/// Sizes of one result and its call: all that is metered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metered {
    /// Number of the call within the session.
    pub call: u64,
    /// Payload bytes of the call.
    pub up: u64,
    /// Payload bytes of the result.
    pub down: u64,
    /// Rows of the call; a hub records 0.
    pub rows: u64,
}

/// Totals of counted calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Payload bytes of calls.
    pub up: MeteredBytes,
    /// Payload bytes of results.
    pub down: MeteredBytes,
    /// Calls.
    pub calls: u64,
    /// Rows.
    pub rows: u64,
}

/// Results in sending order, counted up to the last cut, listed after it.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    cut: u64,
    totals: Totals,
    uncut: VecDeque<Metered>,
}

/// A [`Tally`] with the running root of the work items.
#[derive(Clone, Debug, Default)]
pub struct WorkBook {
    tally: Tally,
    root_at_cut: Accumulator,
    root_so_far: Accumulator,
    uncut: VecDeque<Hash>,
}

/// Why a result cannot be recorded or a cut cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WorkError {
    /// [`MAX_UNCUT_RESULTS`] results without a receipt.
    #[error("{MAX_UNCUT_RESULTS} results without a receipt; the session must be closed")]
    TooManyUncut,
    /// A cut at a number of results that were not all seen, or before the last cut.
    #[error("a cut after {asked} results, where {cut} are cut and {seen} were seen")]
    OutsideSession {
        /// Results asked for.
        asked: u64,
        /// Results up to the last cut.
        cut: u64,
        /// Results seen.
        seen: u64,
    },
    /// The excluded calls are not ascending, or one of them has no result in this cut.
    #[error("call {0} is excluded, but has no result between the last cut and this one, or is out of order")]
    Excluded(u64),
    /// Totals beyond 63 bits.
    #[error(transparent)]
    Money(#[from] MoneyError),
    /// A proof was asked for an item that is not between the last cut and this one.
    #[error(transparent)]
    Proof(#[from] ProofError),
}

impl WorkItem {
    /// The item's bytes.
    pub fn encode(&self) -> [u8; WORK_ITEM_BYTES] {
        let mut bytes = [0; WORK_ITEM_BYTES];
        let mut rest = bytes.as_mut_slice();
        for part in [
            WORK_DOMAIN,
            &self.call.to_le_bytes(),
            &self.layer.to_le_bytes(),
            &[self.mode],
            &self.payload,
            &self.rows,
        ] {
            let (here, after) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = after;
        }
        bytes
    }

    /// Reads an item back; nothing where length or domain differ.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(WORK_DOMAIN)?;
        let (call, rest) = rest.split_first_chunk()?;
        let (layer, rest) = rest.split_first_chunk()?;
        let (&mode, rest) = rest.split_first()?;
        let (&payload, rest) = rest.split_first_chunk()?;
        let rows = rest.try_into().ok()?;
        Some(Self { call: u64::from_le_bytes(*call), layer: u16::from_le_bytes(*layer), mode, payload, rows })
    }

    /// RFC 6962 leaf hash of the item.
    pub fn leaf(&self) -> Hash {
        leaf_hash(&self.encode())
    }
}

impl Tally {
    /// No results yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a result in sending order.
    pub fn record(&mut self, result: Metered) -> Result<(), WorkError> {
        if self.uncut.len() >= MAX_UNCUT_RESULTS {
            return Err(WorkError::TooManyUncut);
        }
        self.uncut.push_back(result);
        Ok(())
    }

    /// Results seen so far, counted or not.
    pub fn seen(&self) -> u64 {
        self.cut + self.uncut.len() as u64
    }

    /// Results up to the last cut.
    pub fn cut_at(&self) -> u64 {
        self.cut
    }

    /// Totals up to the last cut.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Bytes up and down since the last cut, nothing excluded: decides when the next one is due.
    pub fn uncut_bytes(&self) -> u64 {
        self.uncut.iter().fold(0u64, |sum, result| sum.saturating_add(result.up).saturating_add(result.down))
    }

    /// Totals of the first `results` results of the session without the `excluded` calls, which are those of this
    /// cut alone (between the last cut and this one), ascending. Changes nothing: see [`Tally::commit`].
    pub fn totals_at(&self, results: u64, excluded: &[u64]) -> Result<Totals, WorkError> {
        let outside = WorkError::OutsideSession { asked: results, cut: self.cut, seen: self.seen() };
        let count = results.checked_sub(self.cut).ok_or(outside.clone())?;
        if results > self.seen() {
            return Err(outside);
        }
        if let Some(pair) = excluded.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(WorkError::Excluded(pair[1]));
        }
        let mut matched = vec![false; excluded.len()];
        let mut totals = self.totals;
        for result in self.uncut.iter().take(count as usize) {
            if let Ok(place) = excluded.binary_search(&result.call) {
                matched[place] = true;
                continue;
            }
            totals.up = totals.up.checked_add(MeteredBytes::new(result.up)?)?;
            totals.down = totals.down.checked_add(MeteredBytes::new(result.down)?)?;
            totals.calls += 1;
            totals.rows = totals.rows.checked_add(result.rows).ok_or(MoneyError::Overflow)?;
        }
        match matched.iter().position(|found| !found) {
            Some(place) => Err(WorkError::Excluded(excluded[place])),
            None => Ok(totals),
        }
    }

    /// Makes the cut: the receipt over the first `results` results was signed by all.
    pub fn commit(&mut self, results: u64, excluded: &[u64]) -> Result<Totals, WorkError> {
        self.totals = self.totals_at(results, excluded)?;
        self.uncut.drain(..(results - self.cut) as usize);
        self.cut = results;
        Ok(self.totals)
    }
}

impl WorkBook {
    /// Nothing computed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a result in sending order: the item, and its sizes.
    pub fn record(&mut self, item: &WorkItem, up: u64, down: u64, rows: u64) -> Result<(), WorkError> {
        self.tally.record(Metered { call: item.call, up, down, rows })?;
        let leaf = item.leaf();
        self.root_so_far.push(leaf);
        self.uncut.push_back(leaf);
        Ok(())
    }

    /// Root over all results so far: what a `result` carries.
    pub fn running_root(&self) -> Hash {
        self.root_so_far.root()
    }

    /// The sizes recorded.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The counters of a receipt over the first `results` results without `excluded` (see [`Tally::totals_at`]).
    pub fn counters_at(&self, results: u64, excluded: &[u64]) -> Result<Counters, WorkError> {
        let totals = self.tally.totals_at(results, excluded)?;
        let mut root = self.root_at_cut.clone();
        self.uncut.iter().take((results - self.tally.cut) as usize).for_each(|leaf| root.push(*leaf));
        let Totals { up, down, calls, rows } = totals;
        Ok(Counters { up, down, calls, rows, work: root.root() })
    }

    /// Proofs that the items at `indices`, all of them after the last cut, lie under the root over the first `results`
    /// results: siblings from the item up, in the order of `indices`.
    pub fn proofs_at(&self, results: u64, indices: &[u64]) -> Result<Vec<Vec<Hash>>, WorkError> {
        let (cut, seen) = (self.tally.cut, self.tally.seen());
        if results < cut || results > seen {
            return Err(WorkError::OutsideSession { asked: results, cut, seen });
        }
        let fresh: Vec<Hash> = self.uncut.iter().take((results - cut) as usize).copied().collect();
        let tail = Tail::new(&self.root_at_cut, &fresh);
        let proof = |index: &u64| Ok(tail.inclusion_proof(*index)?.hashes);
        indices.iter().map(proof).collect()
    }

    /// Makes the cut: the receipt over the first `results` results was signed by all.
    pub fn commit(&mut self, results: u64, excluded: &[u64]) -> Result<(), WorkError> {
        let fresh = results.saturating_sub(self.tally.cut) as usize;
        self.tally.commit(results, excluded)?;
        self.uncut.drain(..fresh).for_each(|leaf| self.root_at_cut.push(leaf));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kvasir_merkle::{EMPTY_ROOT, root};

    use super::*;

    fn item(call: u64) -> WorkItem {
        WorkItem { call, layer: 3, mode: 1, payload: [call as u8; 32], rows: [0xee; 32] }
    }

    #[test]
    fn encoding_is_fixed() {
        let bytes = item(0x0102).encode();
        let mut expected = b"kvasir.example/work@v1\0".to_vec();
        expected.extend([2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 1]);
        expected.extend([2; 32]);
        expected.extend([0xee; 32]);
        assert_eq!(bytes.to_vec(), expected);
        assert_eq!(WorkItem::decode(&bytes), Some(item(0x0102)));
        assert_eq!(WorkItem::decode(&bytes[1..]), None);
        assert_eq!(WorkItem::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(WorkItem::decode(&[&bytes[..], &[0]].concat()), None);
    }

    #[test]
    fn counters_cover_a_prefix_without_the_excluded_calls() {
        let mut book = WorkBook::new();
        assert_eq!(book.counters_at(0, &[]).unwrap().work, EMPTY_ROOT);
        for call in [1, 3, 2, 4, 5] {
            book.record(&item(call), 10 * call, 1000 * call, call).unwrap();
        }
        let leaves: Vec<Hash> = [1, 3, 2, 4, 5].map(|call| item(call).leaf()).to_vec();
        assert_eq!(book.running_root(), root(&leaves));

        let counters = book.counters_at(3, &[3]).unwrap();
        assert_eq!(counters.work, root(&leaves[..3]));
        assert_eq!((counters.up.get(), counters.down.get(), counters.calls, counters.rows), (30, 3000, 2, 3));
        book.commit(3, &[3]).unwrap();
        // After the cut: exclusions of the first three results stand and cannot be named again.
        assert_eq!(book.counters_at(5, &[3]), Err(WorkError::Excluded(3)));
        let counters = book.counters_at(5, &[]).unwrap();
        assert_eq!(counters.work, root(&leaves));
        assert_eq!((counters.up.get(), counters.calls), (120, 4));
        assert_eq!(book.tally().uncut_bytes(), 1010 * 9);
        assert_eq!(book.running_root(), root(&leaves));
    }

    #[test]
    fn items_since_the_last_cut_are_proven_without_those_before() {
        let mut book = WorkBook::new();
        (1..=5).for_each(|call| book.record(&item(call), 1, 1, 1).unwrap());
        book.commit(3, &[]).unwrap();
        (6..=9).for_each(|call| book.record(&item(call), 1, 1, 1).unwrap());
        let work = book.counters_at(8, &[]).unwrap().work;
        let proofs = book.proofs_at(8, &[3, 7]).unwrap();
        for (index, proof) in [3, 7].into_iter().zip(&proofs) {
            kvasir_merkle::verify_inclusion(&item(index + 1).leaf(), index, 8, proof, &work).unwrap();
        }
        assert!(
            matches!(book.proofs_at(8, &[2]), Err(WorkError::Proof(_))),
            "it belongs to an earlier receipt"
        );
        assert!(matches!(book.proofs_at(8, &[8]), Err(WorkError::Proof(_))));
        assert!(matches!(book.proofs_at(10, &[]), Err(WorkError::OutsideSession { .. })));
    }

    #[test]
    fn impossible_cuts_are_refused_and_change_nothing() {
        let mut book = WorkBook::new();
        for call in 1..=4 {
            book.record(&item(call), 1, 1, 1).unwrap();
        }
        book.commit(2, &[]).unwrap();
        let outside = |asked| Err(WorkError::OutsideSession { asked, cut: 2, seen: 4 });
        assert_eq!(book.counters_at(5, &[]).map(|_| ()), outside(5));
        assert_eq!(book.commit(1, &[]), outside(1));
        assert_eq!(book.commit(4, &[4, 3]), Err(WorkError::Excluded(3)));
        assert_eq!(book.commit(4, &[3, 3]), Err(WorkError::Excluded(3)));
        assert_eq!(book.commit(3, &[4]), Err(WorkError::Excluded(4)));
        assert_eq!(book.tally().cut_at(), 2);
        book.commit(4, &[3, 4]).unwrap();
        assert_eq!(book.tally().totals().calls, 2);
    }

    #[test]
    fn results_without_receipts_are_bounded() {
        let mut tally = Tally::new();
        for call in 0..MAX_UNCUT_RESULTS as u64 {
            tally.record(Metered { call, up: 1, down: 1, rows: 1 }).unwrap();
        }
        let one_more = tally.record(Metered { call: 0, up: 1, down: 1, rows: 1 });
        assert_eq!(one_more, Err(WorkError::TooManyUncut));
        let mut tally = Tally::new();
        tally.record(Metered { call: 1, up: u64::MAX, down: 1, rows: 1 }).unwrap();
        assert_eq!(tally.totals_at(1, &[]), Err(WorkError::Money(MoneyError::Overflow)));
    }
}
