//! The hub's books of one session: what was relayed, which receipt is being signed, and the checks of both signatures.
//!
//! No sockets and no clocks: headers, payloads and times come in, payloads to send and notes to file come out. One receipt
//! is on its way at a time:
//!
//! ```text
//! cut ──► backbone countersigns ──► worker countersigns ──► note filed ──► complete
//! ```
//!
//! The counters that are signed are checked against the hub's own meter at the first arrow; what the meters cannot agree
//! on is never signed here.

use kvasir_wire::{
    account::{Grant, Statement as _},
    frame::{FrameError, Header},
    handshake::HubIdentity,
    id::{KeyDigest, SessionId, WalletDigest},
    key::{PublicKey, SecretKey, Signature},
    message::{Countersign, CutRequest, ReceiptMessage},
    meter::{Answered, Meter},
    note::{Note, Signer},
    pairing::Transcript,
    receipt::{Receipt, ReceiptKeys, ReceiptSignatures, SignedReceipt},
    refusal::{Refusal, RefusalCode},
    work::{Metered, Tally, WorkError},
};

/// What is fixed when a session begins.
#[derive(Clone, Debug)]
pub struct SessionFacts {
    /// What both ends signed.
    pub transcript: Transcript,
    /// The wallet of the worker's ticket.
    pub payee: WalletDigest,
    /// Leaf hash of the price note, in hexadecimal.
    pub price: String,
}

/// The books of one session.
#[derive(Debug)]
pub struct Books {
    facts: SessionFacts,
    hub: SecretKey,
    meter: Meter,
    tally: Tally,
    uncut_bytes: u64,
    /// Bytes, up and down, of every result relayed, those left out of receipts included.
    relayed_bytes: (u64, u64),
    first_byte: Option<u64>,
    /// Leaf hash of the backbone's grant in hexadecimal, once it has come.
    grant: Option<String>,
    last: Option<Receipt>,
    on_its_way: Option<OnItsWay>,
    ended: bool,
}

/// Where the receipt that is being signed stands.
#[derive(Debug)]
enum OnItsWay {
    /// The backbone was asked.
    Backbone(CutRequest),
    /// The worker was asked.
    Worker(Box<Proposed>),
    /// Signed by all, on its way to the ledger.
    Ledger,
}

/// A receipt that hub and backbone have signed.
#[derive(Debug)]
struct Proposed {
    receipt: Receipt,
    results: u64,
    excluded: Vec<u64>,
    hub: Signature,
    backbone: Signature,
}

/// What a session has been counted for so far, for logs and status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionTotals {
    /// Results relayed.
    pub results: u64,
    /// Payload bytes of their calls.
    pub up: u64,
    /// Payload bytes of the results.
    pub down: u64,
    /// Bytes, up and down, that receipts signed by all three cover.
    pub receipted: u64,
    /// Receipts signed by all three.
    pub receipts: u64,
}

impl Books {
    /// Empty books.
    pub fn new(facts: SessionFacts, identity: &HubIdentity) -> Self {
        Books {
            facts,
            hub: identity.key.clone(),
            meter: Meter::new(),
            tally: Tally::new(),
            uncut_bytes: 0,
            relayed_bytes: (0, 0),
            first_byte: None,
            grant: None,
            last: None,
            on_its_way: None,
            ended: false,
        }
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.facts.transcript.session
    }

    /// Takes the backbone's `grant` payload: checks that it allows this session to be billed. Gives the note, to be filed
    /// before any receipt.
    pub fn granted(&mut self, payload: &[u8]) -> Result<Note, Refusal> {
        let note = Note::parse(payload).map_err(|error| self.disputed(error))?;
        let (grant, _) = Grant::verify(&note, &[self.backbone()]).map_err(|error| self.disputed(error))?;
        let transcript = &self.facts.transcript;
        let checks = [
            ("network", grant.network.to_string() == transcript.network),
            ("session", grant.session.is_none_or(|session| session == transcript.session)),
            ("hub", grant.hub == self.hub.public().digest()),
            ("worker", grant.worker.is_none_or(|worker| worker == transcript.worker.key.digest())),
            ("price", grant.price.to_string() == self.facts.price),
        ];
        if let Some((line, _)) = checks.into_iter().find(|(_, holds)| !holds) {
            return Err(
                self.disputed(format!("the line `{line}` of the backbone's grant is not this session's"))
            );
        }
        if self.grant.replace(note.leaf_hash().to_string()).is_some() {
            return Err(self.disputed("the backbone granted twice"));
        }
        Ok(note)
    }

    /// Looks at a header that is about to be relayed. A result's last frame gives the call that it answers: give it to
    /// [`Books::relayed`] once the message is on its way, so that a cut never runs ahead of a result.
    pub fn observe(&mut self, header: &Header, now: u64) -> Result<Option<Answered>, FrameError> {
        self.first_byte.get_or_insert(now);
        self.meter.observe(header)
    }

    /// Books a result that is on its way to the backbone.
    pub fn relayed(&mut self, answered: Answered) -> Result<(), WorkError> {
        let Answered { call, up, down } = answered;
        self.tally.record(Metered { call, up, down, rows: 0 })?;
        self.uncut_bytes = self.uncut_bytes.saturating_add(up).saturating_add(down);
        self.relayed_bytes.0 = self.relayed_bytes.0.saturating_add(up);
        self.relayed_bytes.1 = self.relayed_bytes.1.saturating_add(down);
        Ok(())
    }

    /// Payload bytes, up and down, relayed since the last receipt.
    pub fn uncut_bytes(&self) -> u64 {
        self.uncut_bytes
    }

    /// Whether something was relayed that no receipt covers.
    pub fn has_uncut(&self) -> bool {
        self.tally.seen() > self.tally.cut_at()
    }

    /// Calls that are not answered yet.
    pub fn open_calls(&self) -> usize {
        self.meter.open_calls()
    }

    /// Whether a receipt is on its way.
    pub fn is_cutting(&self) -> bool {
        self.on_its_way.is_some()
    }

    /// Whether the session's final receipt was signed.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// What was counted so far.
    pub fn totals(&self) -> SessionTotals {
        let metered = self.meter.totals();
        SessionTotals {
            results: metered.results,
            up: metered.up,
            down: metered.down,
            receipted: self.last.as_ref().map_or(0, |receipt| receipt.billed().get()),
            receipts: self.last.as_ref().map_or(0, |receipt| receipt.seq),
        }
    }

    /// Cuts a receipt over everything relayed so far: the payload for the backbone. Nothing where one is on its way, where
    /// the final one was signed, or where there is nothing to say.
    pub fn cut(&mut self, now: u64, is_final: bool) -> Option<Vec<u8>> {
        let anything = self.has_uncut() || (is_final && self.last.is_some());
        if self.on_its_way.is_some() || self.ended || !anything {
            return None;
        }
        let results = self.tally.seen();
        let from = self.first_byte.unwrap_or(now);
        let earliest = self.last.as_ref().map_or(from, |last| last.to);
        let cut = CutRequest {
            seq: self.last.as_ref().map_or(1, |last| last.seq + 1),
            prev: self.last.as_ref().map_or([0; 32], |last| last.id().0),
            results,
            // Over all results: the backbone compares, then leaves out what it did not accept.
            up: self.relayed_bytes.0,
            down: self.relayed_bytes.1,
            from,
            // A clock that was set back must not make a receipt end before the one before it.
            to: now.max(earliest),
            is_final,
        };
        self.on_its_way = Some(OnItsWay::Backbone(cut));
        Some(ReceiptMessage::Cut(cut).encode())
    }

    /// Takes a `countersign` payload of the backbone: checks the text against the hub's own books, signs it, and gives the
    /// payload for the worker.
    pub fn backbone_signed(&mut self, payload: &[u8]) -> Result<Vec<u8>, Refusal> {
        let Countersign::Backbone { text, excluded, signature } = Countersign::decode(payload)? else {
            return Err(self.disputed("the backbone sent a worker's countersignature"));
        };
        let Some(OnItsWay::Backbone(cut)) = &self.on_its_way else {
            return Err(self.disputed("the backbone countersigned a receipt that it was not asked for"));
        };
        let cut = *cut;
        let receipt = Receipt::parse(&text).map_err(|error| self.disputed(error))?;
        self.check(&receipt, &cut, &excluded).map_err(|reason| self.disputed(reason))?;
        receipt
            .verify_signature(Signer::Backbone, &self.backbone(), &signature)
            .map_err(|error| self.disputed(error))?;
        let hub = receipt.sign(&self.hub);
        let proposal =
            ReceiptMessage::Proposal { text, excluded: excluded.clone(), hub, backbone: signature }.encode();
        self.on_its_way = Some(OnItsWay::Worker(Box::new(Proposed {
            receipt,
            results: cut.results,
            excluded,
            hub,
            backbone: signature,
        })));
        Ok(proposal)
    }

    /// Takes a `countersign` payload of the worker: gives the note with all three signatures, to be filed.
    pub fn worker_signed(&mut self, payload: &[u8]) -> Result<Note, Refusal> {
        let Countersign::Worker { seq, signature: worker } = Countersign::decode(payload)? else {
            return Err(self.disputed("the worker sent a backbone's countersignature"));
        };
        let Some(OnItsWay::Worker(proposed)) = self.on_its_way.take() else {
            return Err(self.disputed("the worker countersigned a receipt that it was not asked for"));
        };
        let Proposed { receipt, results, excluded, hub, backbone } = *proposed;
        if seq != receipt.seq {
            return Err(
                self.disputed(format!("the worker signed receipt {seq} where {} was proposed", receipt.seq))
            );
        }
        let keys = ReceiptKeys {
            hub: self.hub.public(),
            worker: self.facts.transcript.worker.key,
            backbone: self.backbone(),
        };
        let signed = SignedReceipt::assemble(receipt, &keys, &ReceiptSignatures { hub, worker, backbone })
            .map_err(|error| self.disputed(error))?;
        self.tally.commit(results, &excluded).map_err(|error| self.disputed(error))?;
        self.uncut_bytes = self.tally.uncut_bytes();
        self.ended = signed.receipt().is_final;
        self.last = Some(signed.receipt().clone());
        self.on_its_way = Some(OnItsWay::Ledger);
        Ok(signed.note().clone())
    }

    /// The receipt on its way was filed: the payload for both ends. Another one may be cut now.
    pub fn filed(&mut self, note: &Note) -> Vec<u8> {
        self.on_its_way = None;
        ReceiptMessage::Complete { note: note.to_string() }.encode()
    }

    /// Every line of the text that the hub can know.
    fn check(&self, receipt: &Receipt, cut: &CutRequest, excluded: &[u64]) -> Result<(), String> {
        let transcript = &self.facts.transcript;
        let terms = &receipt.terms;
        let digest = |key: &PublicKey| -> KeyDigest { key.digest() };
        let checks = [
            ("network", terms.network.to_string() == transcript.network),
            ("session", terms.session == transcript.session),
            ("hub", terms.hub == digest(&self.hub.public())),
            ("worker", terms.worker == digest(&transcript.worker.key)),
            ("backbone", terms.backbone == digest(&transcript.backbone.key)),
            ("payee", terms.payee == self.facts.payee),
            ("model", terms.model == transcript.model),
            ("plugin", terms.plugin == transcript.plugin),
            ("class", terms.class == transcript.class),
            ("price", terms.price.to_string() == self.facts.price),
            ("grant", self.grant.as_ref().is_none_or(|grant| *grant == terms.grant.to_string())),
            ("from", terms.from == cut.from),
            ("to", receipt.to == cut.to),
            ("seq", receipt.seq == cut.seq),
            ("final", receipt.is_final == cut.is_final),
        ];
        if let Some((line, _)) = checks.into_iter().find(|(_, holds)| !holds) {
            return Err(format!("the line `{line}` of receipt {} is not what the hub knows", cut.seq));
        }
        if let Some(last) = &self.last {
            receipt.continues(last).map_err(|error| error.to_string())?;
        }
        let totals = self.tally.totals_at(cut.results, excluded).map_err(|error| error.to_string())?;
        let counters = &receipt.counters;
        for (line, counted, stated) in [
            ("up", totals.up.get(), counters.up.get()),
            ("down", totals.down.get(), counters.down.get()),
            ("calls", totals.calls, counters.calls),
        ] {
            if counted != stated {
                return Err(format!(
                    "receipt {} states `{line} {stated}`, the hub counted {counted}",
                    cut.seq
                ));
            }
        }
        Ok(())
    }

    fn backbone(&self) -> PublicKey {
        self.facts.transcript.backbone.key
    }

    fn disputed(&self, reason: impl std::fmt::Display) -> Refusal {
        Refusal::new(
            RefusalCode::ReceiptDisputed,
            reason.to_string(),
            "the session ends and what no receipt covers is not paid; update the older side, else report this sentence",
        )
        .about(self.session())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_wire::{
        frame::Kind,
        handshake::{Class, Features},
        id::{ModelDigest, Nonce, PluginDigest, TicketDigest},
        pairing::TranscriptEnd,
        receipt::{Counters, Terms},
        ticket::EdgeKey,
        work::{WorkBook, WorkItem},
    };

    const PRICE: &str = "1111111111111111111111111111111111111111111111111111111111111111";

    /// Hub, worker and backbone with their books; the ends' books are the wire's own.
    struct Three {
        books: Books,
        worker: SecretKey,
        backbone: SecretKey,
        terms: Terms,
        work: WorkBook,
        last: Option<Receipt>,
    }

    impl Three {
        fn new() -> Self {
            let (worker, backbone) = (SecretKey::from_seed([2; 32]), SecretKey::from_seed([3; 32]));
            let hub = SecretKey::from_seed([1; 32]);
            let end = |key: &SecretKey| TranscriptEnd {
                key: key.public(),
                nonce: Nonce([0; 32]),
                ticket: TicketDigest([0; 32]),
            };
            let transcript = Transcript {
                version: 1,
                network: "atlas".into(),
                session: SessionId([9; 32]),
                worker: end(&worker),
                backbone: end(&backbone),
                plugin: PluginDigest([5; 32]),
                model: ModelDigest([6; 32]),
                class: Class::Exact,
                features: Features::NONE,
            };
            let terms = Terms {
                network: "atlas".parse().unwrap(),
                session: transcript.session,
                grant: "2222222222222222222222222222222222222222222222222222222222222222".parse().unwrap(),
                hub: hub.public().digest(),
                worker: worker.public().digest(),
                backbone: backbone.public().digest(),
                payee: WalletDigest([7; 32]),
                model: transcript.model,
                plugin: transcript.plugin,
                class: transcript.class,
                price: PRICE.parse().unwrap(),
                from: 0,
            };
            let facts = SessionFacts { transcript, payee: terms.payee, price: PRICE.into() };
            let identity =
                HubIdentity { network: "atlas".into(), key: hub, edge: EdgeKey::from_bytes([4; 32]) };
            Three {
                books: Books::new(facts, &identity),
                worker,
                backbone,
                terms,
                work: WorkBook::new(),
                last: None,
            }
        }

        /// One call and its result, each in two frames.
        fn call(&mut self, call: u64, up: u32, down: u32) {
            let stream = (call * 2) as u32;
            let mut answered = None;
            for (kind, length) in [(Kind::Call, up), (Kind::Result, down)] {
                for (more, length) in [(true, length - 1), (false, 1)] {
                    let header = Header { kind, more, length, stream, sequence: u32::from(!more) };
                    answered = self.books.observe(&header, 100).unwrap();
                }
            }
            self.books.relayed(answered.expect("the result's last frame")).unwrap();
            let item = WorkItem { call, layer: 0, mode: 0, payload: [0; 32], rows: [0; 32] };
            self.work.record(&item, up.into(), down.into(), 1).unwrap();
        }

        /// What an honest backbone answers to a cut.
        fn countersign(
            &mut self,
            cut: &[u8],
            excluded: &[u64],
            change: impl FnOnce(&mut Receipt),
        ) -> Vec<u8> {
            let ReceiptMessage::Cut(cut) = ReceiptMessage::decode(cut).unwrap() else { panic!("a cut") };
            let counters: Counters = self.work.counters_at(cut.results, excluded).unwrap();
            let mut receipt = match &self.last {
                Some(last) => last.next(counters, cut.to, cut.is_final).unwrap(),
                None => {
                    let terms = Terms { from: cut.from, ..self.terms.clone() };
                    Receipt::first(terms, counters, cut.to, cut.is_final).unwrap()
                }
            };
            change(&mut receipt);
            let signature = receipt.sign(&self.backbone);
            self.last = Some(receipt.clone());
            self.work.commit(cut.results, excluded).unwrap();
            Countersign::Backbone { text: receipt.text(), excluded: excluded.to_vec(), signature }.encode()
        }

        fn worker_signature(&self, key: &SecretKey) -> Vec<u8> {
            let receipt = self.last.as_ref().unwrap();
            Countersign::Worker { seq: receipt.seq, signature: receipt.sign(key) }.encode()
        }
    }

    #[test]
    fn receipts_follow_each_other_and_leave_out_what_was_not_accepted() {
        let mut three = Three::new();
        assert_eq!(three.books.cut(100, false), None, "nothing to say");
        three.call(1, 1000, 500);
        three.call(2, 70, 30);
        assert_eq!(three.books.uncut_bytes(), 1600);
        let cut = three.books.cut(110, false).unwrap();
        assert!(three.books.cut(110, false).is_none(), "one at a time");
        three.call(3, 5, 5);
        let signed = three.countersign(&cut, &[2], |_| {});
        three.books.backbone_signed(&signed).unwrap();
        let note = three.books.worker_signed(&three.worker_signature(&three.worker)).unwrap();
        assert_eq!(Receipt::parse(note.text()).unwrap().billed().get(), 1500);
        assert!(three.books.cut(120, false).is_none(), "not before the note was filed");
        three.books.filed(&note);
        assert_eq!(three.books.uncut_bytes(), 10, "what came after the cut waits for the next");

        // The clock was set back: the next receipt still does not end before the first.
        let cut = three.books.cut(50, true).unwrap();
        let ReceiptMessage::Cut(numbers) = ReceiptMessage::decode(&cut).unwrap() else { panic!("a cut") };
        assert_eq!(
            (numbers.seq, numbers.results, numbers.up, numbers.down, numbers.to),
            (2, 3, 1075, 535, 110)
        );
        let signed = three.countersign(&cut, &[], |_| {});
        three.books.backbone_signed(&signed).unwrap();
        let note = three.books.worker_signed(&three.worker_signature(&three.worker)).unwrap();
        three.books.filed(&note);
        assert_eq!(Receipt::parse(note.text()).unwrap().billed().get(), 1510);
        assert!(three.books.has_ended());
        assert!(three.books.cut(130, true).is_none(), "nothing after the final one");
        let totals = three.books.totals();
        assert_eq!((totals.results, totals.up, totals.down), (3, 1075, 535));
        assert_eq!((totals.receipted, totals.receipts), (1510, 2));
    }

    #[test]
    fn what_the_hub_did_not_count_is_never_signed() {
        type Change = fn(&mut Receipt);
        let changes: [Change; 8] = [
            |receipt| receipt.counters.up = receipt.counters.up.checked_add(receipt.counters.up).unwrap(),
            |receipt| receipt.counters.down = kvasir_wire::money::MeteredBytes::ZERO,
            |receipt| receipt.counters.rows += 1,
            |receipt| receipt.terms.payee = WalletDigest([8; 32]),
            |receipt| receipt.terms.price = receipt.terms.grant,
            |receipt| receipt.terms.model = ModelDigest([0; 32]),
            |receipt| receipt.to += 1,
            |receipt| receipt.is_final = true,
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut three = Three::new();
            three.call(1, 1000, 500);
            let cut = three.books.cut(110, false).unwrap();
            let signed = three.countersign(&cut, &[], change);
            // Rows are the ends' to count: the hub sees sizes only.
            assert_eq!(three.books.backbone_signed(&signed).is_ok(), index == 2, "change {index}");
        }
    }

    #[test]
    fn signatures_of_other_keys_and_steps_out_of_turn_are_refused() {
        let mut three = Three::new();
        three.call(1, 1000, 500);
        let cut = three.books.cut(110, false).unwrap();
        let early = Countersign::Worker { seq: 1, signature: Signature([0; 64]) }.encode();
        assert!(three.books.worker_signed(&early).is_err(), "nothing was proposed");

        let mut three = Three::new();
        three.call(1, 1000, 500);
        let own = three.books.cut(110, false).unwrap();
        assert_eq!(own, cut);
        three.backbone = SecretKey::from_seed([99; 32]);
        let forged = three.countersign(&own, &[], |_| {});
        assert!(three.books.backbone_signed(&forged).is_err());

        let mut three = Three::new();
        three.call(1, 1000, 500);
        let cut = three.books.cut(110, false).unwrap();
        let signed = three.countersign(&cut, &[], |_| {});
        three.books.backbone_signed(&signed).unwrap();
        assert!(three.books.backbone_signed(&signed).is_err(), "a second answer to one cut");
        let other = SecretKey::from_seed([98; 32]);
        assert!(three.books.worker_signed(&three.worker_signature(&other)).is_err());
    }

    #[test]
    fn a_call_that_was_not_relayed_cannot_be_left_out() {
        let mut three = Three::new();
        three.call(1, 1000, 500);
        let cut = three.books.cut(110, false).unwrap();
        let signed = three.countersign(&cut, &[], |_| {});
        let Countersign::Backbone { text, signature, .. } = Countersign::decode(&signed).unwrap() else {
            panic!()
        };
        let wrong = Countersign::Backbone { text, excluded: vec![7], signature }.encode();
        assert!(three.books.backbone_signed(&wrong).is_err());
    }
}
