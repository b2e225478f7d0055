//! The backbone's account of one session: what was answered, what of it counts, and the receipts over it.
//!
//! The hub meters, this side decides what counts. At a cut the hub names a number of results and its byte totals over
//! all of them; this side writes and signs the receipt, in which the calls that it did not accept are left out and listed.
//! Where the totals differ the smaller ones are signed, and the difference is logged. The same cut again is answered with
//! the same bytes; another one under the same number is a conflict. Pure bookkeeping: no clock, no link.

use std::collections::VecDeque;
use std::sync::Arc;

use kvasir_wire::key::SecretKey;
use kvasir_wire::message::{Countersign, CutRequest};
use kvasir_wire::note::Note;
use kvasir_wire::receipt::{Receipt, ReceiptError, ReceiptKeys, SignedReceipt, Terms};
use kvasir_wire::work::{WorkBook, WorkError, WorkItem};
use thiserror::Error;

use crate::evidence::WrongCalls;
use crate::records::{Covered, Records};

/// Why a session's account and the other parties' do not meet. Each of them ends the session.
#[derive(Debug, Error)]
pub(crate) enum BooksError {
    /// The worker's work root is another: it has recorded other calls or results.
    #[error(
        "the worker's work root after result {results} is not this backbone's: it recorded other calls or rows"
    )]
    RootDiffers { results: u64 },
    #[error("receipt {asked} was asked for, {due} is due")]
    Sequence { asked: u64, due: u64 },
    #[error("the receipt is to follow another one than the last that this backbone signed")]
    OtherPredecessor,
    #[error("receipt {seq} was signed already, and is asked for again with other numbers")]
    Conflict { seq: u64 },
    #[error("a complete receipt came that this backbone did not sign last")]
    Unsigned,
    #[error("receipt: {0}")]
    Receipt(#[from] ReceiptError),
    #[error("{0}")]
    Work(#[from] WorkError),
}

/// One session's account.
#[derive(Debug)]
pub(crate) struct Books {
    terms: Terms,
    keys: ReceiptKeys,
    book: WorkBook,
    /// Byte totals of all results up to the last complete receipt, up and down; excluded calls count here.
    metered: (u64, u64),
    uncut: VecDeque<Answered>,
    last: Option<Receipt>,
    proposed: Option<Proposed>,
    /// The last cut and the answer to it.
    answered: Option<(CutRequest, Countersign)>,
    /// Calls kept for replay until a receipt covers them.
    pub(crate) records: Records,
    /// Calls that were found wrong, by those who checked them.
    wrong: Arc<WrongCalls>,
}

#[derive(Debug, Clone, Copy)]
struct Answered {
    call: u64,
    up: u64,
    down: u64,
    accepted: bool,
}

#[derive(Debug)]
struct Proposed {
    receipt: Receipt,
    results: u64,
    excluded: Vec<u64>,
}

impl Books {
    /// An empty account. `terms.from` is set by the first cut.
    pub(crate) fn new(terms: Terms, keys: ReceiptKeys, wrong: Arc<WrongCalls>) -> Self {
        let book = WorkBook::new();
        Self {
            terms,
            keys,
            book,
            metered: (0, 0),
            uncut: VecDeque::new(),
            last: None,
            proposed: None,
            answered: None,
            records: Records::default(),
            wrong,
        }
    }

    /// Records a result in the order of arrival and compares the worker's running root with this side's.
    pub(crate) fn record(
        &mut self,
        item: &WorkItem,
        bytes: (u64, u64),
        rows: u64,
        accepted: bool,
        root: &[u8; 32],
    ) -> Result<(), BooksError> {
        let (up, down) = bytes;
        self.book.record(item, up, down, rows)?;
        self.uncut.push_back(Answered { call: item.call, up, down, accepted });
        if self.book.running_root().as_bytes() != root {
            return Err(BooksError::RootDiffers { results: self.results() });
        }
        Ok(())
    }

    /// An answer that was accepted turned out to be wrong: the next receipt leaves it out, unless one covers it already. The
    /// worker signs that, and so its work root over what it answered: with the call it is evidence.
    pub(crate) fn exclude(&mut self, call: u64) {
        let wrong = self.wrong.take(self.terms.session, call);
        let Some(at) = self.uncut.iter().position(|answered| answered.call == call) else { return };
        self.uncut[at].accepted = false;
        if let Some(wrong) = wrong {
            self.records.keep_wrong(self.book.tally().cut_at() + at as u64, wrong);
        }
    }

    /// Results recorded so far.
    pub(crate) fn results(&self) -> u64 {
        self.book.tally().seen()
    }

    /// Writes and signs the receipt for the hub's numbers. All results that it is about must have been recorded.
    pub(crate) fn cut(&mut self, cut: &CutRequest, key: &SecretKey) -> Result<Countersign, BooksError> {
        if let Some((answered, countersign)) = &self.answered
            && answered.seq == cut.seq
        {
            // One number, one text: a second one would be a receipt against the first.
            return if answered == cut {
                Ok(countersign.clone())
            } else {
                Err(BooksError::Conflict { seq: cut.seq })
            };
        }
        let due = self.last.as_ref().map_or(1, |last| last.seq + 1);
        if cut.seq != due {
            return Err(BooksError::Sequence { asked: cut.seq, due });
        }
        if cut.prev != self.last.as_ref().map_or([0; 32], |last| last.id().0) {
            return Err(BooksError::OtherPredecessor);
        }
        let fresh = cut.results.saturating_sub(self.book.tally().cut_at()) as usize;
        let covered = || self.uncut.iter().take(fresh);
        let up = covered().fold(self.metered.0, |sum, answered| sum.saturating_add(answered.up));
        let down = covered().fold(self.metered.1, |sum, answered| sum.saturating_add(answered.down));
        if (up, down) != (cut.up, cut.down) {
            tracing::warn!(
                session = %self.terms.session.short(), results = cut.results,
                hub_up = cut.up, hub_down = cut.down, up, down,
                "the meters of hub and backbone differ; the smaller totals are signed"
            );
        }
        let mut excluded: Vec<u64> =
            covered().filter(|answered| !answered.accepted).map(|answered| answered.call).collect();
        excluded.sort_unstable();

        let counters = self.book.counters_at(cut.results, &excluded)?;
        let before = self.last.as_ref().map(|last| &last.counters);
        let counters = counters.smallest((up, down), (cut.up, cut.down), before);
        let receipt = match &self.last {
            Some(last) => last.next(counters, cut.to, cut.is_final)?,
            None => Receipt::first(
                Terms { from: cut.from, ..self.terms.clone() },
                counters,
                cut.to,
                cut.is_final,
            )?,
        };
        let (text, signature) = (receipt.text(), receipt.sign(key));
        self.proposed = Some(Proposed { receipt, results: cut.results, excluded: excluded.clone() });
        let countersign = Countersign::Backbone { text, excluded, signature };
        self.answered = Some((*cut, countersign.clone()));
        Ok(countersign)
    }

    /// Takes the note with all three signatures, as the ledger keeps it; gives the receipt, and the records that it covers.
    pub(crate) fn complete(&mut self, note: &str) -> Result<(Receipt, Option<Covered>), BooksError> {
        let note = Note::parse(note.as_bytes()).map_err(ReceiptError::from)?;
        let signed = SignedReceipt::verify(note, &self.keys)?;
        match self.proposed.take() {
            Some(proposed) if proposed.receipt == *signed.receipt() => {
                let fresh = proposed.results.saturating_sub(self.book.tally().cut_at()) as usize;
                let records = self.records.covered(&signed, &self.keys, proposed.results, &self.book)?;
                self.book.commit(proposed.results, &proposed.excluded)?;
                for answered in self.uncut.drain(..fresh.min(self.uncut.len())) {
                    self.metered.0 = self.metered.0.saturating_add(answered.up);
                    self.metered.1 = self.metered.1.saturating_add(answered.down);
                }
                self.last = Some(proposed.receipt.clone());
                Ok((proposed.receipt, records))
            }
            other => {
                self.proposed = other;
                if self.last.as_ref() == Some(signed.receipt()) {
                    return Ok((signed.receipt().clone(), None));
                }
                Err(BooksError::Unsigned)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kvasir_wire::handshake::Class;
    use kvasir_wire::id::{ModelDigest, PluginDigest, SessionId, WalletDigest, sha256};
    use kvasir_wire::receipt::ReceiptSignatures;

    use super::*;
    use crate::evidence::WrongCall;

    const RESULTS: [(u64, bool); 4] = [(1, true), (3, false), (2, true), (4, true)];

    fn keys() -> [SecretKey; 3] {
        [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]))
    }

    fn item(call: u64) -> WorkItem {
        WorkItem { call, layer: 0, mode: 1, payload: sha256(&[&call.to_le_bytes()]), rows: [call as u8; 32] }
    }

    fn filled() -> Books {
        let [hub, worker, backbone] = keys().map(|key| key.public());
        // Any leaf hash will do for notes that nobody looks up here.
        let leaf = Note::unsigned("a note\n").unwrap().leaf_hash();
        let terms = Terms {
            network: "test".parse().unwrap(),
            session: SessionId([9; 32]),
            grant: leaf,
            hub: hub.digest(),
            worker: worker.digest(),
            backbone: backbone.digest(),
            payee: WalletDigest([8; 32]),
            model: ModelDigest([7; 32]),
            plugin: PluginDigest([6; 32]),
            class: Class::Exact,
            price: leaf,
            from: 0,
        };
        let mut books = Books::new(terms, ReceiptKeys { hub, worker, backbone }, Arc::default());
        let mut theirs = WorkBook::new();
        for (call, accepted) in RESULTS {
            theirs.record(&item(call), 10, 100, 2).unwrap();
            let root = theirs.running_root();
            books.record(&item(call), (10, 100), 2, accepted, root.as_bytes()).unwrap();
        }
        books
    }

    fn request(results: u64) -> CutRequest {
        let (up, down) = (10 * results, 100 * results);
        CutRequest { seq: 1, prev: [0; 32], results, up, down, from: 50, to: 60, is_final: false }
    }

    /// Lets all three sign what the backbone wrote.
    fn completed(countersign: Countersign) -> (String, Vec<u64>) {
        let Countersign::Backbone { text, excluded, signature } = countersign else { panic!() };
        let receipt = Receipt::parse(&text).unwrap();
        let [hub, worker, backbone] = keys();
        let signatures =
            ReceiptSignatures { hub: receipt.sign(&hub), worker: receipt.sign(&worker), backbone: signature };
        let keys = ReceiptKeys { hub: hub.public(), worker: worker.public(), backbone: backbone.public() };
        (SignedReceipt::assemble(receipt, &keys, &signatures).unwrap().note().to_string(), excluded)
    }

    #[test]
    fn receipts_follow_each_other_and_leave_out_what_was_not_accepted() {
        let mut books = filled();
        let [.., key] = keys();
        let (note, excluded) = completed(books.cut(&request(2), &key).unwrap());
        assert_eq!(excluded, [3]);
        let (first, _) = books.complete(&note).unwrap();
        assert_eq!((first.counters.calls, first.counters.rows, first.billed().get()), (1, 2, 110));

        let next = CutRequest { seq: 2, prev: first.id().0, to: 70, is_final: true, ..request(4) };
        let (note, excluded) = completed(books.cut(&next, &key).unwrap());
        assert!(excluded.is_empty(), "a call is left out once");
        let (second, _) = books.complete(&note).unwrap();
        assert_eq!((second.counters.calls, second.billed().get(), second.terms.from), (3, 330, 50));
        assert_eq!(books.complete(&note).unwrap().0, second, "a resend changes nothing");
        let [hub, worker, backbone] = keys();
        let other = Receipt { to: second.to + 1, ..second };
        let signatures = ReceiptSignatures {
            hub: other.sign(&hub),
            worker: other.sign(&worker),
            backbone: other.sign(&backbone),
        };
        let keys = ReceiptKeys { hub: hub.public(), worker: worker.public(), backbone: backbone.public() };
        let other = SignedReceipt::assemble(other, &keys, &signatures).unwrap().note().to_string();
        assert!(matches!(books.complete(&other), Err(BooksError::Unsigned)));
    }

    #[test]
    fn an_answer_that_turns_out_wrong_is_left_out_of_the_next_receipt_and_of_none_before() {
        let mut books = filled();
        let [.., key] = keys();
        books.exclude(4);
        books.exclude(99);
        let (note, excluded) = completed(books.cut(&request(4), &key).unwrap());
        assert_eq!(excluded, [3, 4]);
        let (receipt, _) = books.complete(&note).unwrap();
        assert_eq!((receipt.counters.calls, receipt.billed().get()), (2, 220));

        let mut books = filled();
        let (note, _) = completed(books.cut(&request(2), &key).unwrap());
        let (receipt, _) = books.complete(&note).unwrap();
        books.exclude(1);
        let next = CutRequest { seq: 2, prev: receipt.id().0, to: 70, is_final: true, ..request(4) };
        let (note, excluded) = completed(books.cut(&next, &key).unwrap());
        assert!(excluded.is_empty(), "what is signed is signed");
        assert_eq!(books.complete(&note).unwrap().0.counters.calls, 3);
    }

    #[test]
    fn numbers_that_are_not_this_sides_are_not_signed() {
        let [.., key] = keys();
        let refused = |change: &dyn Fn(&mut CutRequest)| {
            let mut cut = request(3);
            change(&mut cut);
            filled().cut(&cut, &key).unwrap_err()
        };
        assert!(matches!(refused(&|cut| cut.seq = 2), BooksError::Sequence { asked: 2, due: 1 }));
        assert!(matches!(refused(&|cut| cut.prev = [1; 32]), BooksError::OtherPredecessor));
    }

    #[test]
    fn where_the_hub_counted_less_its_number_is_signed_and_never_more_than_ones_own() {
        let [.., key] = keys();
        let stated = |change: &dyn Fn(&mut CutRequest)| {
            let mut cut = request(4);
            change(&mut cut);
            let Countersign::Backbone { text, .. } = filled().cut(&cut, &key).unwrap() else { panic!() };
            let counters = Receipt::parse(&text).unwrap().counters;
            (counters.up.get(), counters.down.get(), counters.calls)
        };
        // Three of four calls count, 10 and 100 bytes each.
        assert_eq!(stated(&|_| {}), (30, 300, 3));
        assert_eq!(stated(&|cut| cut.up += 1_000), (30, 300, 3), "a hub that counted more pays nobody more");
        assert_eq!(stated(&|cut| cut.down -= 7), (30, 293, 3));
        assert_eq!(stated(&|cut| (cut.up, cut.down) = (0, 0)), (0, 0, 3));
    }

    #[test]
    fn what_is_found_wrong_before_its_receipt_is_left_out_and_is_evidence_under_it() {
        let [hub, worker, backbone] = keys();
        let mut books = filled();
        let wrong = Arc::clone(&books.wrong);
        let found =
            |call: u64| WrongCall { item: item(call), payload: call.to_le_bytes().into(), rows: vec![7; 8] };
        let session = books.terms.session;
        wrong.put(session, found(2));
        books.exclude(2);
        let (note, excluded) = completed(books.cut(&request(3), &backbone).unwrap());
        assert_eq!(excluded, [2, 3]);
        let (receipt, covered) = books.complete(&note).unwrap();
        let evidence = covered.unwrap().evidence.unwrap();
        let keys = ReceiptKeys { hub: hub.public(), worker: worker.public(), backbone: backbone.public() };
        assert_eq!((evidence.keys, evidence.receipt.to_string()), (keys, note));
        let [record] = &evidence.record.records[..] else { panic!("{evidence:?}") };
        // The third result.
        assert_eq!((record.index, record.item), (2, item(2).encode()));
        assert_eq!((evidence.record.root, record.proof.len()), (receipt.counters.work, 1));
        // What a receipt covers already is not found any more.
        wrong.put(session, found(1));
        books.exclude(1);
        assert_eq!(wrong.take(session, 1), None);
        let cut = CutRequest { seq: 2, prev: receipt.id().0, to: 61, ..request(4) };
        let (note, excluded) = completed(books.cut(&cut, &backbone).unwrap());
        assert_eq!((excluded, books.complete(&note).unwrap().1.is_none()), (vec![], true));
    }

    #[test]
    fn wrong_calls_are_evidence_in_whatever_order_they_are_found() {
        let [.., backbone] = keys();
        let found =
            |call: u64| WrongCall { item: item(call), payload: call.to_le_bytes().into(), rows: vec![7; 8] };
        let evidence = |covered: Option<Covered>| -> Vec<u64> {
            let evidence =
                covered.and_then(|covered| covered.evidence).map(|evidence| evidence.record.records);
            evidence.unwrap_or_default().iter().map(|record| record.index).collect()
        };
        let session = filled().terms.session;
        // A receipt covers results 1 to 3. Then the fourth is found wrong, and one that is paid by then.
        let mut books = filled();
        let (note, _) = completed(books.cut(&request(3), &backbone).unwrap());
        let (receipt, _) = books.complete(&note).unwrap();
        for call in [4, 2] {
            books.wrong.put(session, found(call));
        }
        books.exclude(4);
        books.exclude(2);
        let next = CutRequest { seq: 2, prev: receipt.id().0, to: 70, is_final: true, ..request(4) };
        let (note, excluded) = completed(books.cut(&next, &backbone).unwrap());
        assert_eq!((excluded, evidence(books.complete(&note).unwrap().1)), (vec![4], vec![3]));
        // One is found while the receipt that leaves another out is being asked for.
        let mut books = filled();
        for call in [2, 4] {
            books.wrong.put(session, found(call));
        }
        books.exclude(2);
        let last = CutRequest { is_final: true, ..request(4) };
        let (note, excluded) = completed(books.cut(&last, &backbone).unwrap());
        assert_eq!((excluded, evidence(books.complete(&note).unwrap().1)), (vec![2, 3], vec![2]));
        // Both in time are in one piece.
        let mut books = filled();
        for call in [4, 2] {
            books.wrong.put(session, found(call));
            books.exclude(call);
        }
        let (note, _) = completed(books.cut(&last, &backbone).unwrap());
        assert_eq!(evidence(books.complete(&note).unwrap().1), [2, 3]);
    }

    #[test]
    fn the_same_cut_is_answered_with_the_same_bytes_and_another_of_its_number_is_a_conflict() {
        let [.., key] = keys();
        let mut books = filled();
        let first = books.cut(&request(2), &key).unwrap();
        assert_eq!(books.cut(&request(2), &key).unwrap().encode(), first.encode());
        let other = CutRequest { to: 61, ..request(2) };
        assert!(matches!(books.cut(&other, &key), Err(BooksError::Conflict { seq: 1 })));
        let (note, _) = completed(first.clone());
        books.complete(&note).unwrap();
        assert_eq!(
            books.cut(&request(2), &key).unwrap().encode(),
            first.encode(),
            "also once it is complete"
        );
        assert!(matches!(books.cut(&request(3), &key), Err(BooksError::Conflict { seq: 1 })));
    }

    #[test]
    fn a_worker_with_other_books_is_found_out_at_once() {
        let mut books = filled();
        let found = books.record(&item(5), (10, 100), 1, true, &[0; 32]);
        assert!(matches!(found, Err(BooksError::RootDiffers { results: 5 })));
    }
}
