//! The hub's books of one session: what was relayed, which receipt is being signed, and the checks of both signatures.
//!
//! No sockets and no clocks: headers, payloads and times come in, payloads to send and notes to file come out. One receipt
//! is on its way at a time:
//!
//! ```text
//! cut ──► backbone countersigns ──► worker countersigns ──► note filed ──► complete
//! ```
//!
//! The counters that are signed are checked against the hub's own meter at the first arrow: the smaller number is signed, the
//! difference logged, and more than the hub counted is never signed here. What an end says again is answered with the first
//! note; another text under the same number is a conflict, which the caller keeps as evidence.

mod grant;
mod uncut;

use kvasir_wire::{
    frame::{FrameError, Header, Kind},
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

use grant::SessionGrant;
use uncut::Uncut;

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
    uncut: Uncut,
    /// Payload bytes of calls and results that passed, answered or not.
    passed_bytes: u64,
    first_byte: Option<u64>,
    /// The backbone's grant, once it has come. Nothing is cut without it.
    grant: Option<SessionGrant>,
    last: Option<Receipt>,
    /// The note of `last`, and what each end said for it.
    first_note: Option<Complete>,
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

/// A receipt that is signed by all.
#[derive(Debug)]
struct Complete {
    seq: u64,
    /// Payload of the backbone's countersignature; the worker's.
    said: [Vec<u8>; 2],
    /// The note as it was filed first.
    note: String,
}

/// What a countersignature is that was not asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// The same bytes as before: the payload that answers them, the first receipt. Nothing while it is not filed yet.
    Resend(Option<Vec<u8>>),
    /// A signed text that contradicts the one of the same number: evidence.
    Conflict,
}

/// A receipt that hub and backbone have signed.
#[derive(Debug)]
struct Proposed {
    receipt: Receipt,
    results: u64,
    excluded: Vec<u64>,
    hub: Signature,
    backbone: Signature,
    /// What the backbone sent.
    said: Vec<u8>,
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
            uncut: Uncut::default(),
            passed_bytes: 0,
            first_byte: None,
            grant: None,
            last: None,
            first_note: None,
            on_its_way: None,
            ended: false,
        }
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.facts.transcript.session
    }

    /// Takes the backbone's `grant` payload: checks that it allows this session to be billed now. Gives the note, to be filed
    /// before any receipt.
    pub fn granted(&mut self, payload: &[u8], now: u64) -> Result<Note, Refusal> {
        let (grant, note) = SessionGrant::read(payload, &self.facts, &self.hub.public(), now)
            .map_err(|reason| self.disputed(reason))?;
        if self.grant.replace(grant).is_some() {
            return Err(self.disputed("the backbone granted twice"));
        }
        Ok(note)
    }

    /// Looks at a header that is about to be relayed. A result's last frame gives the call that it answers: give it to
    /// [`Books::relayed`] once the message is on its way, so that a cut never runs ahead of a result.
    pub fn observe(&mut self, header: &Header, now: u64) -> Result<Option<Answered>, FrameError> {
        self.first_byte.get_or_insert(now);
        if matches!(header.kind, Kind::Call | Kind::Result) {
            self.passed_bytes = self.passed_bytes.saturating_add(header.length.into());
        }
        self.meter.observe(header)
    }

    /// Books a result that is on its way to the backbone.
    pub fn relayed(&mut self, answered: Answered) -> Result<(), WorkError> {
        let Answered { call, up, down } = answered;
        self.tally.record(Metered { call, up, down, rows: 0 })?;
        self.uncut.push(up, down);
        Ok(())
    }

    /// Payload bytes, up and down, relayed since the last receipt.
    pub fn uncut_bytes(&self) -> u64 {
        self.uncut.bytes()
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

    /// Whether the backbone's grant has come.
    pub fn has_grant(&self) -> bool {
        self.grant.is_some()
    }

    /// Why the session has to be finished for its grant's sake, if it has to.
    pub fn grant_is_spent(&self, now: u64) -> Option<&'static str> {
        self.grant.as_ref().and_then(|grant| grant.spent(self.passed_bytes, now))
    }

    /// Cuts a receipt over everything relayed so far that the grant covers: the payload for the backbone. Nothing where no
    /// grant has come, where one is on its way, where the final one was signed, or where there is nothing to say.
    pub fn cut(&mut self, now: u64, is_final: bool) -> Option<Vec<u8>> {
        let grant = self.grant.as_ref()?;
        let billed = self.tally.totals();
        let billable = grant.bytes().saturating_sub(billed.up.get().saturating_add(billed.down.get()));
        let covered = self.uncut.within(billable);
        let anything = covered.results > 0 || (is_final && self.last.is_some());
        if self.on_its_way.is_some() || self.ended || !anything {
            return None;
        }
        let results = self.tally.cut_at() + covered.results;
        let from = self.first_byte.unwrap_or(now);
        let earliest = self.last.as_ref().map_or(from, |last| last.to);
        let cut = CutRequest {
            seq: self.last.as_ref().map_or(1, |last| last.seq + 1),
            prev: self.last.as_ref().map_or([0; 32], |last| last.id().0),
            results,
            // Over all results: the backbone compares, then leaves out what it did not accept.
            up: covered.up,
            down: covered.down,
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
            said: payload.to_vec(),
        })));
        Ok(proposal)
    }

    /// Whether a `countersign` payload says again, or contradicts, what its sender has signed before. Nothing where it is new,
    /// or not signed by its sender at all: then the next step judges it.
    pub fn repeated(&self, payload: &[u8]) -> Option<Repeated> {
        // The same bytes were verified when they came first: to say them again costs the hub no signature.
        if let Some(OnItsWay::Worker(proposed)) = &self.on_its_way
            && proposed.said == payload
        {
            return Some(Repeated::Resend(None));
        }
        if let Some(first) = &self.first_note
            && first.said.iter().any(|said| said == payload)
        {
            let filed = !matches!(self.on_its_way, Some(OnItsWay::Ledger));
            let complete = filed.then(|| ReceiptMessage::Complete { note: first.note.clone() }.encode());
            return Some(Repeated::Resend(complete));
        }
        // Other bytes under a number that was signed, if its sender did sign them.
        match Countersign::decode(payload).ok()? {
            Countersign::Backbone { text, signature, .. } => {
                let receipt = Receipt::parse(&text).ok()?;
                let proposed = match &self.on_its_way {
                    Some(OnItsWay::Worker(proposed)) => Some(proposed.receipt.seq),
                    _ => None,
                };
                let filed = self.first_note.as_ref().map(|first| first.seq);
                if ![proposed, filed].contains(&Some(receipt.seq)) {
                    return None;
                }
                receipt.verify_signature(Signer::Backbone, &self.backbone(), &signature).ok()?;
            }
            Countersign::Worker { seq, signature } => {
                self.first_note.as_ref().filter(|first| first.seq == seq)?;
                let last = self.last.as_ref()?;
                // A signature over another text cannot be told from none: the message does not carry the text.
                last.verify_signature(Signer::Worker, &self.facts.transcript.worker.key, &signature).ok()?;
            }
        }
        Some(Repeated::Conflict)
    }

    /// Takes a `countersign` payload of the worker: gives the note with all three signatures, to be filed.
    pub fn worker_signed(&mut self, payload: &[u8]) -> Result<Note, Refusal> {
        let Countersign::Worker { seq, signature: worker } = Countersign::decode(payload)? else {
            return Err(self.disputed("the worker sent a backbone's countersignature"));
        };
        let Some(OnItsWay::Worker(proposed)) = self.on_its_way.take() else {
            return Err(self.disputed("the worker countersigned a receipt that it was not asked for"));
        };
        let Proposed { receipt, results, excluded, hub, backbone, said } = *proposed;
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
        let cut_before = self.tally.cut_at();
        self.tally.commit(results, &excluded).map_err(|error| self.disputed(error))?;
        self.uncut.cut(results - cut_before);
        self.ended = signed.receipt().is_final;
        self.last = Some(signed.receipt().clone());
        let (seq, note) = (signed.receipt().seq, signed.note().to_string());
        self.first_note = Some(Complete { seq, said: [said, payload.to_vec()], note });
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
            ("grant", self.grant.as_ref().is_some_and(|grant| grant.leaf() == terms.grant.to_string())),
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
            if stated < counted && line != "calls" {
                tracing::warn!(
                    session = %self.session().short(), seq = cut.seq, line, stated, counted,
                    "the backbone counted fewer bytes than the hub; the smaller number is signed"
                );
                continue;
            }
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
mod tests;
