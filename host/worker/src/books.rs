//! The worker's account of one session: what it sent, and which receipts over it are true.
//!
//! A receipt does not say how many results it covers; its work root does, since every number of results has its own.
//! What the backbone excludes is its decision and its to answer for; that the numbers then follow is checked here. Where
//! hub or backbone counted fewer bytes their number is signed, and the difference logged: it stays unsigned, and
//! [`Books::unsigned_bytes`] holds it, like the bytes of what was excluded. More than this side's own number is never signed. The
//! same text again is signed again with the same bytes; another one under a number that was signed is a conflict.

use std::collections::VecDeque;

use kvasir_merkle::{EMPTY_ROOT, Hash};
use kvasir_wire::key::{PublicKey, Signature};
use kvasir_wire::limits::CLOCK_SKEW_SECONDS;
use kvasir_wire::note::{Note, Signer};
use kvasir_wire::receipt::{Receipt, ReceiptError, ReceiptKeys, SignedReceipt};
use kvasir_wire::work::{WorkBook, WorkError, WorkItem};
use thiserror::Error;

use kvasir_wire::id::WalletDigest;
use kvasir_wire::pairing::Transcript;

/// Why a receipt is not countersigned, or the account cannot go on.
#[derive(Debug, Error)]
pub(crate) enum BooksError {
    #[error("the receipt's `{0}` is not this session's")]
    Terms(&'static str),
    #[error("the receipt's work root belongs to no number of results that this worker sent")]
    UnknownRoot,
    #[error("the receipt states {field} {stated}, this worker's books say {own} over {results} results")]
    Counter { field: &'static str, stated: u64, own: u64, results: u64 },
    #[error("receipt {seq} was signed already, and is proposed again with another text")]
    Conflict { seq: u64 },
    #[error("the first receipt of a session has number 1, this one {0}")]
    First(u64),
    #[error(
        "the receipt runs to {to}, more than {CLOCK_SKEW_SECONDS} s ahead of this machine's clock, which says {now} (Unix seconds): no \
         ledger would take it now; set the clock that is wrong"
    )]
    Ahead { to: u64, now: u64 },
    #[error("a complete receipt came that this worker did not sign last")]
    Unsigned,
    #[error("receipt: {0}")]
    Receipt(#[from] ReceiptError),
    #[error("{0}")]
    Work(#[from] WorkError),
}

/// One session's account.
#[derive(Debug)]
pub(crate) struct Books {
    transcript: Transcript,
    keys: ReceiptKeys,
    payee: WalletDigest,
    book: WorkBook,
    root_at_cut: Hash,
    /// The running root after each result since the last complete receipt.
    roots: VecDeque<Hash>,
    last: Option<Receipt>,
    signed: Option<Signed>,
    excluded: u64,
    /// Bytes of the results that complete receipts have left out.
    excluded_bytes: u64,
}

#[derive(Debug)]
struct Signed {
    receipt: Receipt,
    results: u64,
    excluded: Vec<u64>,
}

impl Books {
    /// An empty account of the session of `transcript`.
    pub(crate) fn new(transcript: Transcript, hub: PublicKey, payee: WalletDigest) -> Self {
        let keys = ReceiptKeys { hub, worker: transcript.worker.key, backbone: transcript.backbone.key };
        Self {
            transcript,
            keys,
            payee,
            book: WorkBook::new(),
            root_at_cut: EMPTY_ROOT,
            roots: VecDeque::new(),
            last: None,
            signed: None,
            excluded: 0,
            excluded_bytes: 0,
        }
    }

    /// Records a result that is about to be sent; gives the running root that it carries.
    pub(crate) fn record(
        &mut self,
        item: &WorkItem,
        up: u64,
        down: u64,
        rows: u64,
    ) -> Result<Hash, WorkError> {
        self.book.record(item, up, down, rows)?;
        let root = self.book.running_root();
        self.roots.push_back(root);
        Ok(root)
    }

    /// Results recorded so far.
    pub(crate) fn results(&self) -> u64 {
        self.book.tally().seen()
    }

    /// Bytes served that no complete receipt states: what came after the last one, what that one left out although this
    /// side counted it, and what was excluded from it or from one before.
    pub(crate) fn unsigned_bytes(&self) -> u64 {
        let stated = self.last.as_ref().map_or(0, |last| last.billed().get());
        let counted_less = self.counted_bytes().saturating_sub(stated);
        self.book.tally().uncut_bytes().saturating_add(counted_less).saturating_add(self.excluded_bytes)
    }

    /// Bytes up to the last cut that were not excluded.
    fn counted_bytes(&self) -> u64 {
        let totals = self.book.tally().totals();
        totals.up.get().saturating_add(totals.down.get())
    }

    /// Whether something was served after the last complete receipt.
    pub(crate) fn has_unsigned(&self) -> bool {
        !self.roots.is_empty()
    }

    /// Results that complete receipts have left out.
    pub(crate) fn excluded(&self) -> u64 {
        self.excluded
    }

    /// Checks a proposed receipt against this account, the two signatures under it and the clock, `now` in Unix seconds. What
    /// comes back may be signed.
    pub(crate) fn check(
        &mut self,
        text: &str,
        excluded: Vec<u64>,
        hub: &Signature,
        backbone: &Signature,
        now: u64,
    ) -> Result<Receipt, BooksError> {
        // One that ends before it began is no receipt.
        let receipt = Receipt::parse(text)?;
        receipt.verify_signature(Signer::Hub, &self.keys.hub, hub)?;
        receipt.verify_signature(Signer::Backbone, &self.keys.backbone, backbone)?;
        self.check_terms(&receipt)?;
        let before = [self.signed.as_ref().map(|signed| &signed.receipt), self.last.as_ref()];
        if let Some(first) = before.into_iter().flatten().find(|first| first.seq == receipt.seq) {
            return if *first == receipt {
                Ok(receipt)
            } else {
                Err(BooksError::Conflict { seq: receipt.seq })
            };
        }
        match &self.last {
            Some(last) => receipt.continues(last).map_err(ReceiptError::from)?,
            None if receipt.seq != 1 => return Err(BooksError::First(receipt.seq)),
            None => {}
        }
        if receipt.to > now.saturating_add(CLOCK_SKEW_SECONDS) {
            return Err(BooksError::Ahead { to: receipt.to, now });
        }
        let results = self.results_with_root(&receipt.counters.work)?;
        let own = self.book.counters_at(results, &excluded)?;
        for (field, stated, own) in [
            ("up", receipt.counters.up.get(), own.up.get()),
            ("down", receipt.counters.down.get(), own.down.get()),
            ("calls", receipt.counters.calls, own.calls),
            ("rows", receipt.counters.rows, own.rows),
        ] {
            // Bytes alone are metered three times; calls and rows follow from what is excluded.
            let bytes = matches!(field, "up" | "down");
            if stated > own || (stated < own && !bytes) {
                return Err(BooksError::Counter { field, stated, own, results });
            }
            if stated < own {
                tracing::warn!(
                    session = %self.transcript.session.short(), field, stated, own, results,
                    "hub or backbone counted fewer bytes than this worker; the smaller number is signed"
                );
            }
        }
        self.signed = Some(Signed { receipt: receipt.clone(), results, excluded });
        Ok(receipt)
    }

    /// Takes the note with all three signatures, as the ledger keeps it; gives the receipt.
    pub(crate) fn complete(&mut self, note: &str) -> Result<Receipt, BooksError> {
        let note = Note::parse(note.as_bytes()).map_err(ReceiptError::from)?;
        let complete = SignedReceipt::verify(note, &self.keys)?;
        match self.signed.take() {
            Some(signed) if signed.receipt == *complete.receipt() => {
                let fresh = (signed.results - self.book.tally().cut_at()) as usize;
                let before = self.book.tally().uncut_bytes().saturating_add(self.counted_bytes());
                self.book.commit(signed.results, &signed.excluded)?;
                let after = self.book.tally().uncut_bytes().saturating_add(self.counted_bytes());
                // What a cut takes is counted or excluded.
                self.excluded_bytes = self.excluded_bytes.saturating_add(before.saturating_sub(after));
                self.excluded += signed.excluded.len() as u64;
                self.roots.drain(..fresh.min(self.roots.len()));
                self.root_at_cut = signed.receipt.counters.work;
                self.last = Some(signed.receipt.clone());
                Ok(signed.receipt)
            }
            other => {
                self.signed = other;
                if self.last.as_ref() == Some(complete.receipt()) {
                    return Ok(complete.receipt().clone());
                }
                Err(BooksError::Unsigned)
            }
        }
    }

    fn check_terms(&self, receipt: &Receipt) -> Result<(), BooksError> {
        let terms = &receipt.terms;
        let checks = [
            ("network", terms.network.as_str() == self.transcript.network),
            ("session", terms.session == self.transcript.session),
            ("hub", terms.hub == self.keys.hub.digest()),
            ("worker", terms.worker == self.keys.worker.digest()),
            ("backbone", terms.backbone == self.keys.backbone.digest()),
            ("payee", terms.payee == self.payee),
            ("model", terms.model == self.transcript.model),
            ("plugin", terms.plugin == self.transcript.plugin),
            ("class", terms.class == self.transcript.class),
        ];
        match checks.into_iter().find(|(_, holds)| !holds) {
            Some((field, _)) => Err(BooksError::Terms(field)),
            None => Ok(()),
        }
    }

    /// The number of results after which the running root was `root`.
    fn results_with_root(&self, root: &Hash) -> Result<u64, BooksError> {
        let cut = self.book.tally().cut_at();
        if *root == self.root_at_cut {
            return Ok(cut);
        }
        let place = self.roots.iter().position(|own| own == root).ok_or(BooksError::UnknownRoot)?;
        Ok(cut + place as u64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use kvasir_wire::handshake::{Class, Features};
    use kvasir_wire::id::{ModelDigest, Nonce, PluginDigest, SessionId, TicketDigest};
    use kvasir_wire::key::SecretKey;
    use kvasir_wire::limits::PROTOCOL_VERSION;
    use kvasir_wire::pairing::TranscriptEnd;
    use kvasir_wire::receipt::{ReceiptSignatures, Terms};

    use super::*;

    /// By this machine's clock, in Unix seconds.
    const NOW: u64 = 1000;

    struct Parties {
        hub: SecretKey,
        worker: SecretKey,
        backbone: SecretKey,
    }

    fn parties() -> Parties {
        let key = |seed| SecretKey::from_seed([seed; 32]);
        Parties { hub: key(1), worker: key(2), backbone: key(3) }
    }

    fn transcript(parties: &Parties) -> Transcript {
        let end = |key: &SecretKey| TranscriptEnd {
            key: key.public(),
            nonce: Nonce([9; 32]),
            ticket: TicketDigest([8; 32]),
        };
        Transcript {
            version: PROTOCOL_VERSION,
            network: "test".to_owned(),
            session: SessionId([7; 32]),
            worker: end(&parties.worker),
            backbone: end(&parties.backbone),
            plugin: PluginDigest([6; 32]),
            model: ModelDigest([5; 32]),
            class: Class::Exact,
            features: Features::NONE,
        }
    }

    fn filled(parties: &Parties) -> Books {
        let mut books = Books::new(transcript(parties), parties.hub.public(), WalletDigest([4; 32]));
        for call in 1..=3 {
            let item = WorkItem { call, layer: 1, mode: 1, payload: [call as u8; 32], rows: [1; 32] };
            books.record(&item, 10, 100, 1).unwrap();
        }
        books
    }

    fn honest(parties: &Parties, results: u64, excluded: &[u64]) -> Receipt {
        let books = filled(parties);
        let transcript = transcript(parties);
        let terms = Terms {
            network: "test".parse().unwrap(),
            session: transcript.session,
            grant: Hash([3; 32]),
            hub: parties.hub.public().digest(),
            worker: parties.worker.public().digest(),
            backbone: parties.backbone.public().digest(),
            payee: WalletDigest([4; 32]),
            model: transcript.model,
            plugin: transcript.plugin,
            class: transcript.class,
            price: Hash([2; 32]),
            from: 100,
        };
        Receipt::first(terms, books.book.counters_at(results, excluded).unwrap(), 200, false).unwrap()
    }

    fn propose(
        books: &mut Books,
        parties: &Parties,
        receipt: &Receipt,
        excluded: &[u64],
    ) -> Result<Receipt, BooksError> {
        let (hub, backbone) = (receipt.sign(&parties.hub), receipt.sign(&parties.backbone));
        books.check(&receipt.text(), excluded.to_vec(), &hub, &backbone, NOW)
    }

    /// Signs the receipt for all and completes it.
    fn complete(books: &mut Books, parties: &Parties, receipt: &Receipt) -> String {
        let signatures = ReceiptSignatures {
            hub: receipt.sign(&parties.hub),
            worker: receipt.sign(&parties.worker),
            backbone: receipt.sign(&parties.backbone),
        };
        let keys = books.keys;
        let note = SignedReceipt::assemble(receipt.clone(), &keys, &signatures).unwrap().note().to_string();
        assert_eq!(books.complete(&note).unwrap(), *receipt);
        note
    }

    #[test]
    fn a_true_receipt_over_a_prefix_is_signed_and_completed() {
        let parties = parties();
        let mut books = filled(&parties);
        let receipt = honest(&parties, 2, &[1]);
        assert_eq!(propose(&mut books, &parties, &receipt, &[1]).unwrap(), receipt);
        let note = complete(&mut books, &parties, &receipt);
        assert_eq!((books.excluded(), books.results()), (1, 3));
        assert_eq!(books.complete(&note).unwrap(), receipt, "a resend changes nothing");
        assert_eq!(books.excluded(), 1);
    }

    #[test]
    fn a_receipt_that_pays_less_than_was_served_is_not_signed() {
        let parties = parties();
        let mut receipt = honest(&parties, 3, &[]);
        receipt.counters.calls -= 1;
        let found = propose(&mut filled(&parties), &parties, &receipt, &[]).unwrap_err();
        assert!(matches!(found, BooksError::Counter { field: "calls", .. }), "{found}");
    }

    #[test]
    fn fewer_bytes_are_signed_and_remembered_and_more_are_not() {
        let parties = parties();
        let bytes = |number| kvasir_wire::money::MeteredBytes::new(number).unwrap();
        let mut less = honest(&parties, 3, &[]);
        less.counters.down = bytes(290);
        let mut books = filled(&parties);
        assert_eq!(books.unsigned_bytes(), 330);
        propose(&mut books, &parties, &less, &[]).unwrap();
        complete(&mut books, &parties, &less);
        assert_eq!(
            (books.unsigned_bytes(), books.has_unsigned()),
            (10, false),
            "the difference stays unsigned"
        );

        let mut more = honest(&parties, 3, &[]);
        more.counters.up = bytes(31);
        let found = propose(&mut filled(&parties), &parties, &more, &[]).unwrap_err();
        assert!(matches!(found, BooksError::Counter { field: "up", stated: 31, own: 30, .. }), "{found}");
    }

    #[test]
    fn what_receipts_leave_out_stays_unsigned() {
        let parties = parties();
        let mut books = filled(&parties);
        let first = honest(&parties, 2, &[1]);
        propose(&mut books, &parties, &first, &[1]).unwrap();
        assert_eq!(books.unsigned_bytes(), 330, "a proposal is nothing yet");
        complete(&mut books, &parties, &first);
        assert_eq!(books.unsigned_bytes(), 110 + 110, "the excluded call, and the one behind the cut");

        let counters = books.book.counters_at(3, &[3]).unwrap();
        let second = first.next(counters, 300, false).unwrap();
        propose(&mut books, &parties, &second, &[3]).unwrap();
        let note = complete(&mut books, &parties, &second);
        assert_eq!((books.unsigned_bytes(), books.has_unsigned()), (220, false), "for ever");
        books.complete(&note).unwrap();
        assert_eq!(books.unsigned_bytes(), 220, "and once");
    }

    #[test]
    fn a_receipt_ahead_of_the_clock_or_ending_before_it_began_is_not_signed() {
        let parties = parties();
        let mut receipt = honest(&parties, 3, &[]);
        receipt.to = NOW + CLOCK_SKEW_SECONDS;
        propose(&mut filled(&parties), &parties, &receipt, &[]).unwrap();
        receipt.to += 1;
        let found = propose(&mut filled(&parties), &parties, &receipt, &[]).unwrap_err();
        assert!(matches!(found, BooksError::Ahead { now: NOW, .. }), "{found}");

        receipt.to = receipt.terms.from - 1;
        let found = propose(&mut filled(&parties), &parties, &receipt, &[]).unwrap_err();
        assert!(matches!(found, BooksError::Receipt(ReceiptError::Impossible(_))), "{found}");
    }

    #[test]
    fn a_proposal_is_signed_again_and_another_of_its_number_is_a_conflict() {
        let parties = parties();
        let mut books = filled(&parties);
        let receipt = honest(&parties, 2, &[]);
        let first = propose(&mut books, &parties, &receipt, &[]).unwrap();
        let again = propose(&mut books, &parties, &receipt, &[]).unwrap();
        assert_eq!(first.sign(&parties.worker), again.sign(&parties.worker));
        let mut other = receipt.clone();
        other.to += 1;
        let found = propose(&mut books, &parties, &other, &[]).unwrap_err();
        assert!(matches!(found, BooksError::Conflict { seq: 1 }), "{found}");
    }

    #[test]
    fn wrong_terms_roots_and_signatures_are_refused() {
        let parties = parties();
        let honest = honest(&parties, 3, &[]);
        let mut other = honest.clone();
        other.terms.payee.0[0] ^= 1;
        let refused = |receipt: &Receipt| propose(&mut filled(&parties), &parties, receipt, &[]).unwrap_err();
        assert!(matches!(refused(&other), BooksError::Terms("payee")));
        let mut other = honest.clone();
        other.counters.work = Hash([1; 32]);
        assert!(matches!(refused(&other), BooksError::UnknownRoot));

        let forged = honest.sign(&parties.worker);
        let books = &mut filled(&parties);
        assert!(books.check(&honest.text(), vec![], &forged, &honest.sign(&parties.backbone), NOW).is_err());
        assert!(books.check(&honest.text(), vec![], &honest.sign(&parties.hub), &forged, NOW).is_err());
    }
}
