//! `receipt@v1`: what hub, worker and backbone agree that a session has served so far.
//!
//! The text has exactly the lines of [`Receipt::text`], in that order; then come three signature lines, by hub, worker
//! and backbone. Counters are cumulative over the session, so a lost receipt costs nothing once a later one is kept.
//! The receipt's identity is SHA-256 of the text alone: another signature over the same text makes no second receipt.
//!
//! A party that cuts receipts keeps the last [`Receipt`] of the session and calls [`Receipt::next`]; a party that is
//! handed one calls [`Receipt::continues`] against the last one it signed.

use std::fmt;
use std::str::FromStr;

use kvasir_merkle::Hash;
use thiserror::Error;

pub use crate::handshake::Class;
use crate::id::{KeyDigest, ModelDigest, PluginDigest, SessionId, WalletDigest, sha256};
use crate::key::{KeyError, PublicKey, SecretKey, Signature};
use crate::money::{MAX_NUMBER, MeteredBytes, MoneyError};
use crate::note::{FieldError, FieldReader, FieldWriter, NetworkName, Note, NoteError, Signer};

/// First line of the text.
pub const RECEIPT_KIND: &str = "kvasir.example/receipt@v1";
/// A receipt is cut when so many bytes were metered since the last one,
pub const CUT_BYTES: u64 = 1 << 20;
/// or when so much time has passed and something was metered, or when the session closes.
pub const CUT_SECONDS: u64 = 10;

/// What holds for a whole session: equal in all of its receipts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The network.
    pub network: NetworkName,
    /// The session.
    pub session: SessionId,
    /// Leaf hash of the grant that allows the session to be billed.
    pub grant: Hash,
    /// Digest of the hub's key.
    pub hub: KeyDigest,
    /// Digest of the worker's key.
    pub worker: KeyDigest,
    /// Digest of the backbone's key: the paying account.
    pub backbone: KeyDigest,
    /// Digest of the wallet key that is credited.
    pub payee: WalletDigest,
    /// The model whose experts were computed.
    pub model: ModelDigest,
    /// The plugin that computed them.
    pub plugin: PluginDigest,
    /// Whether answers are exact.
    pub class: Class,
    /// Leaf hash of the price note.
    pub price: Hash,
    /// Hub clock at the session's first byte, in Unix seconds.
    pub from: u64,
}

/// Cumulative counts of a session: calls whose result was accepted in time, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Payload bytes of counted calls, backbone to worker.
    pub up: MeteredBytes,
    /// Payload bytes of counted results, worker to backbone.
    pub down: MeteredBytes,
    /// Counted calls.
    pub calls: u64,
    /// Rows of counted calls.
    pub rows: u64,
    /// RFC 6962 root over all work items of the session, counted or not (see [`crate::work`]).
    pub work: Hash,
}

/// A receipt without its terms: enough to see whether another one may follow it, for whoever has many sessions to remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// As in [`Receipt`].
    pub seq: u64,
    /// As in [`Receipt`].
    pub prev: Option<ReceiptId>,
    /// As in [`Receipt`].
    pub counters: Counters,
    /// As in [`Receipt`].
    pub to: u64,
    /// As in [`Receipt`].
    pub is_final: bool,
}

/// The signed statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// What holds for the whole session.
    pub terms: Terms,
    /// 1, 2, 3... within the session.
    pub seq: u64,
    /// Identity of the receipt before; nothing at `seq` 1.
    pub prev: Option<ReceiptId>,
    /// Counts so far.
    pub counters: Counters,
    /// Hub clock at the cut, in Unix seconds; never decreases.
    pub to: u64,
    /// True for the session's last receipt.
    pub is_final: bool,
}

/// SHA-256 of a receipt's text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiptId(pub [u8; 32]);

/// The three public keys whose digests a receipt names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptKeys {
    /// The hub's key.
    pub hub: PublicKey,
    /// The worker's key.
    pub worker: PublicKey,
    /// The backbone's key.
    pub backbone: PublicKey,
}

/// The three signatures over a receipt's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptSignatures {
    /// By the hub.
    pub hub: Signature,
    /// By the worker.
    pub worker: Signature,
    /// By the backbone.
    pub backbone: Signature,
}

/// A receipt and the note that carries it, all three signatures verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedReceipt {
    receipt: Receipt,
    note: Note,
}

/// Why bytes are no receipt, or no valid one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReceiptError {
    /// Not a note, or not signed by exactly hub, worker and backbone in this order.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The text leaves the grammar.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A single signature does not verify.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Numbers that cannot be true together.
    #[error("impossible receipt: {0}")]
    Impossible(&'static str),
    /// The key at hand is not the one that the receipt names.
    #[error("the receipt names another key for {0}")]
    OtherKey(&'static str),
    /// The byte totals exceed 63 bits.
    #[error(transparent)]
    Money(#[from] MoneyError),
    /// It does not follow the session's earlier receipt.
    #[error(transparent)]
    Continuity(#[from] ContinuityError),
}

/// Why a receipt cannot follow an earlier one of its session.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ContinuityError {
    /// A line that must stay equal over the session changed.
    #[error("`{0}` changed within the session")]
    TermsChanged(&'static str),
    /// The sequence number is not the next one.
    #[error("seq is {found}, the next one is {expected}")]
    Seq {
        /// The next number.
        expected: u64,
        /// The number found.
        found: u64,
    },
    /// `prev` is not the identity of the receipt before.
    #[error("prev names {found}, the receipt before is {expected}")]
    Prev {
        /// Identity of the receipt before.
        expected: ReceiptId,
        /// Identity that `prev` names.
        found: ReceiptId,
    },
    /// A cumulative counter fell.
    #[error("`{field}` fell from {before} to {after}; counters are cumulative")]
    Fell {
        /// Field name.
        field: &'static str,
        /// Value in the earlier receipt.
        before: u64,
        /// Value in the later one.
        after: u64,
    },
    /// The hub's clock ran backwards.
    #[error(
        "the hub's clock ran backwards: the earlier receipt ends at {before}, this one at {after} (Unix seconds)"
    )]
    ClockRanBackwards {
        /// `to` of the earlier receipt.
        before: u64,
        /// `to` of the later one.
        after: u64,
    },
    /// The session has already ended.
    #[error("receipt {0} was the session's final one")]
    AfterFinal(u64),
}

impl Counters {
    /// These, with the byte totals of two meters that disagree brought down to the smaller one: `own` and `other` are the
    /// totals over all results, counted or not, up and down. What `other` did not see is taken off; nothing is added, and
    /// nothing falls below `last`, which was signed before.
    pub fn smallest(self, own: (u64, u64), other: (u64, u64), last: Option<&Counters>) -> Self {
        let less = |counted: MeteredBytes, own: u64, other: u64, before: Option<MeteredBytes>| {
            let seen = counted.get().saturating_sub(own.saturating_sub(other));
            let stated = MeteredBytes::new(seen).unwrap_or(counted);
            before.map_or(stated, |before| if stated.get() < before.get() { before } else { stated })
        };
        Self {
            up: less(self.up, own.0, other.0, last.map(|last| last.up)),
            down: less(self.down, own.1, other.1, last.map(|last| last.down)),
            ..self
        }
    }
}

impl Receipt {
    /// The session's first receipt.
    pub fn first(terms: Terms, counters: Counters, to: u64, is_final: bool) -> Result<Self, ReceiptError> {
        let receipt = Self { terms, seq: 1, prev: None, counters, to, is_final };
        receipt.check()?;
        Ok(receipt)
    }

    /// The receipt after this one.
    pub fn next(&self, counters: Counters, to: u64, is_final: bool) -> Result<Self, ReceiptError> {
        let (terms, prev) = (self.terms.clone(), Some(self.id()));
        let receipt = Self { terms, seq: self.seq + 1, prev, counters, to, is_final };
        receipt.check()?;
        receipt.continues(self)?;
        Ok(receipt)
    }

    /// The signed text: every line, in this order, with a final line feed.
    pub fn text(&self) -> String {
        let Self { terms, counters, .. } = self;
        FieldWriter::new(RECEIPT_KIND)
            .line("network", &terms.network)
            .line("session", terms.session)
            .line("grant", terms.grant)
            .line("seq", self.seq)
            .line("prev", self.prev.unwrap_or(ReceiptId::NONE))
            .line("hub", terms.hub)
            .line("worker", terms.worker)
            .line("backbone", terms.backbone)
            .line("payee", terms.payee)
            .line("model", terms.model)
            .line("plugin", terms.plugin)
            .line("class", terms.class.name())
            .line("up", counters.up)
            .line("down", counters.down)
            .line("calls", counters.calls)
            .line("rows", counters.rows)
            .line("work", counters.work)
            .line("price", terms.price)
            .line("from", terms.from)
            .line("to", self.to)
            .line("final", u8::from(self.is_final))
            .finish()
    }

    /// Reads a text; what is accepted is exactly what [`Receipt::text`] writes.
    pub fn parse(text: &str) -> Result<Self, ReceiptError> {
        const DIGEST: &str = "64 lower-case hexadecimal digits";
        let mut fields = FieldReader::new(text, RECEIPT_KIND)?;
        let network = fields.value("network", "a network name")?;
        let session = fields.value("session", DIGEST)?;
        let grant = fields.value("grant", DIGEST)?;
        let seq = fields.number("seq")?;
        let prev: ReceiptId = fields.value("prev", DIGEST)?;
        let hub = fields.value("hub", DIGEST)?;
        let worker = fields.value("worker", DIGEST)?;
        let backbone = fields.value("backbone", DIGEST)?;
        let payee = fields.value("payee", DIGEST)?;
        let model = fields.value("model", DIGEST)?;
        let plugin = fields.value("plugin", DIGEST)?;
        let class = match fields.text("class")? {
            "exact" => Class::Exact,
            "tolerance" => Class::Tolerance,
            _ => return Err(fields.wrong("class", "`exact` or `tolerance`").into()),
        };
        let up = MeteredBytes::new(fields.number("up")?)?;
        let down = MeteredBytes::new(fields.number("down")?)?;
        let calls = fields.number("calls")?;
        let rows = fields.number("rows")?;
        let work = fields.value("work", DIGEST)?;
        let price = fields.value("price", DIGEST)?;
        let from = fields.number("from")?;
        let to = fields.number("to")?;
        let is_final = match fields.text("final")? {
            "0" => false,
            "1" => true,
            _ => return Err(fields.wrong("final", "0 or 1").into()),
        };
        fields.end()?;
        let terms = Terms {
            network,
            session,
            grant,
            hub,
            worker,
            backbone,
            payee,
            model,
            plugin,
            class,
            price,
            from,
        };
        let counters = Counters { up, down, calls, rows, work };
        let prev = (prev != ReceiptId::NONE).then_some(prev);
        let receipt = Self { terms, seq, prev, counters, to, is_final };
        receipt.check()?;
        Ok(receipt)
    }

    /// SHA-256 of the text: the receipt's identity.
    pub fn id(&self) -> ReceiptId {
        ReceiptId(sha256(&[self.text().as_bytes()]))
    }

    /// Bytes billed so far: up and down together.
    pub fn billed(&self) -> MeteredBytes {
        self.mark().billed()
    }

    /// Signs the text. The text names the key of each role, so a signature cannot move to another role.
    pub fn sign(&self, key: &SecretKey) -> Signature {
        key.sign(self.text().as_bytes())
    }

    /// Verifies one signature by `key`, which must be the one that the receipt names for `signer`.
    pub fn verify_signature(
        &self,
        signer: Signer,
        key: &PublicKey,
        signature: &Signature,
    ) -> Result<(), ReceiptError> {
        let named = match signer {
            Signer::Hub => self.terms.hub,
            Signer::Worker => self.terms.worker,
            Signer::Backbone => self.terms.backbone,
            Signer::Treasury | Signer::Settler | Signer::Wallet | Signer::Auditor | Signer::Ledger => {
                return Err(ReceiptError::OtherKey(signer.word()));
            }
        };
        if key.digest() != named {
            return Err(ReceiptError::OtherKey(signer.word()));
        }
        Ok(key.verify(self.text().as_bytes(), signature)?)
    }

    /// Checks that this is the receipt right after `before`.
    pub fn continues(&self, before: &Receipt) -> Result<(), ContinuityError> {
        if self.seq != before.seq + 1 {
            return Err(ContinuityError::Seq { expected: before.seq + 1, found: self.seq });
        }
        self.follows(before)
    }

    /// Checks that this may stand some receipts after `earlier`: equal terms, counters and clock that do not fall,
    /// and `prev` where they are neighbours. Receipts between them may be missing.
    pub fn follows(&self, earlier: &Receipt) -> Result<(), ContinuityError> {
        if let Some(field) = self.terms.first_difference(&earlier.terms) {
            return Err(ContinuityError::TermsChanged(field));
        }
        self.mark().follows(&earlier.mark(), || earlier.id())
    }

    /// This receipt without its terms.
    pub fn mark(&self) -> Mark {
        let Self { terms: _, seq, prev, counters, to, is_final } = *self;
        Mark { seq, prev, counters, to, is_final }
    }

    /// What must hold inside one receipt.
    fn check(&self) -> Result<(), ReceiptError> {
        let Self { counters, .. } = self;
        let impossible = |reason| Err(ReceiptError::Impossible(reason));
        counters.up.checked_add(counters.down)?;
        if self.seq == 0 || self.seq > MAX_NUMBER {
            return impossible("seq counts from 1");
        }
        if (self.seq == 1) != self.prev.is_none() {
            return impossible("prev is zeros in receipt 1 and in no other");
        }
        if self.terms.from > self.to || self.to > MAX_NUMBER {
            return impossible("it ends before it began");
        }
        if counters.calls > counters.rows || counters.rows > MAX_NUMBER {
            return impossible("every call has a row or more");
        }
        if counters.calls == 0 && self.billed() != MeteredBytes::ZERO {
            return impossible("bytes without calls");
        }
        Ok(())
    }
}

impl Mark {
    /// Bytes billed so far: up and down together.
    pub fn billed(&self) -> MeteredBytes {
        // `check` has refused sums that do not fit; a hand-made value saturates, and is refused by whoever parses it.
        self.counters.up.checked_add(self.counters.down).unwrap_or(MeteredBytes::MAX)
    }

    /// [`Receipt::follows`] for receipts of equal terms. `earlier_id` gives the earlier one's identity; it is asked for neighbours
    /// only.
    pub fn follows(
        &self,
        earlier: &Mark,
        earlier_id: impl FnOnce() -> ReceiptId,
    ) -> Result<(), ContinuityError> {
        if self.seq <= earlier.seq {
            return Err(ContinuityError::Seq { expected: earlier.seq + 1, found: self.seq });
        }
        if earlier.is_final {
            return Err(ContinuityError::AfterFinal(earlier.seq));
        }
        if self.seq == earlier.seq + 1 {
            let (expected, found) = (earlier_id(), self.prev.unwrap_or(ReceiptId::NONE));
            if found != expected {
                return Err(ContinuityError::Prev { expected, found });
            }
        }
        for (field, before, after) in [
            ("up", earlier.counters.up.get(), self.counters.up.get()),
            ("down", earlier.counters.down.get(), self.counters.down.get()),
            ("calls", earlier.counters.calls, self.counters.calls),
            ("rows", earlier.counters.rows, self.counters.rows),
        ] {
            if after < before {
                return Err(ContinuityError::Fell { field, before, after });
            }
        }
        if self.to < earlier.to {
            return Err(ContinuityError::ClockRanBackwards { before: earlier.to, after: self.to });
        }
        Ok(())
    }
}

impl Terms {
    /// Name of the first line that differs.
    pub fn first_difference(&self, other: &Terms) -> Option<&'static str> {
        let Terms {
            network,
            session,
            grant,
            hub,
            worker,
            backbone,
            payee,
            model,
            plugin,
            class,
            price,
            from,
        } = self;
        [
            ("network", *network == other.network),
            ("session", *session == other.session),
            ("grant", *grant == other.grant),
            ("hub", *hub == other.hub),
            ("worker", *worker == other.worker),
            ("backbone", *backbone == other.backbone),
            ("payee", *payee == other.payee),
            ("model", *model == other.model),
            ("plugin", *plugin == other.plugin),
            ("class", *class == other.class),
            ("price", *price == other.price),
            ("from", *from == other.from),
        ]
        .into_iter()
        .find_map(|(field, equal)| (!equal).then_some(field))
    }
}

impl SignedReceipt {
    /// Puts the note together from the three signatures, each verified.
    pub fn assemble(
        receipt: Receipt,
        keys: &ReceiptKeys,
        signatures: &ReceiptSignatures,
    ) -> Result<Self, ReceiptError> {
        receipt.check()?;
        keys.check(&receipt)?;
        let mut note = Note::unsigned(receipt.text())?;
        for (verifier, signature) in keys.verifiers(&receipt.terms.network).iter().zip([
            signatures.hub,
            signatures.worker,
            signatures.backbone,
        ]) {
            note.append(verifier, &signature)?;
        }
        Ok(Self { receipt, note })
    }

    /// Checks a note's grammar and its three signatures.
    pub fn verify(note: Note, keys: &ReceiptKeys) -> Result<Self, ReceiptError> {
        let receipt = Receipt::parse(note.text())?;
        keys.check(&receipt)?;
        note.verify_exactly(&keys.verifiers(&receipt.terms.network))?;
        Ok(Self { receipt, note })
    }

    /// The statement.
    pub fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    /// The note with its three signature lines; `to_string` gives the bytes that are stored and sent.
    pub fn note(&self) -> &Note {
        &self.note
    }
}

impl ReceiptKeys {
    fn check(&self, receipt: &Receipt) -> Result<(), ReceiptError> {
        for (name, key, named) in [
            ("hub", &self.hub, receipt.terms.hub),
            ("worker", &self.worker, receipt.terms.worker),
            ("backbone", &self.backbone, receipt.terms.backbone),
        ] {
            if key.digest() != named {
                return Err(ReceiptError::OtherKey(name));
            }
        }
        Ok(())
    }

    fn verifiers(&self, network: &NetworkName) -> [crate::note::Verifier; 3] {
        [
            Signer::Hub.verifier(network, self.hub),
            Signer::Worker.verifier(network, self.worker),
            Signer::Backbone.verifier(network, self.backbone),
        ]
    }
}

impl ReceiptId {
    /// What `prev` holds in a session's first receipt.
    pub const NONE: Self = Self([0; 32]);
}

impl fmt::Display for ReceiptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hash(self.0).fmt(f)
    }
}

impl fmt::Debug for ReceiptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReceiptId({self})")
    }
}

impl FromStr for ReceiptId {
    type Err = crate::id::IdError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::id::parse_hex_32(text).map(Self)
    }
}
