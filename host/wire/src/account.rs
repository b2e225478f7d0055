//! The notes that move money besides receipts: prices, grants, fundings, delegations, settlements, corrections,
//! and what auditors find.
//!
//! Each is a signed note with a fixed line grammar and exactly one signature line, by the key of its role. What a note
//! means hangs on its text alone; grants and prices are referred to by the leaf hash of the whole note, so their
//! signer should make one signature (ed25519 signing is deterministic) and hand that note round.

mod audit;
mod belief;
mod penalty;
mod settlement;

use std::fmt;
use std::str::FromStr;

use kvasir_merkle::Hash;
use thiserror::Error;

pub use audit::{Audit, AuditVerdict, VerdictError};
pub use belief::{KeyBelief, KeyRole, KeyState, OriginChange};
pub use penalty::{Appeal, Measure, Penalty};
pub use settlement::{
    Correction, MAX_REASON_BYTES, MAX_SETTLED_SESSIONS, PENDING_SECONDS, SettledSession, Settlement,
    SettlementId,
};

use crate::id::{KeyDigest, SessionId, WalletDigest};
use crate::key::{PublicKey, SecretKey};
use crate::money::{MAX_NUMBER, MeteredBytes, MoneyError, NanoKvr, PricePerByte};
use crate::note::{FieldError, FieldReader, FieldWriter, NetworkName, Note, NoteError, Signer};

const DIGEST: &str = "64 lower-case hexadecimal digits";
const KEY: &str = "`ed25519:` and 64 lower-case hexadecimal digits, not a weak key";
const NETWORK: &str = "a network name";

/// Why a note of this module cannot be read, or is not signed as it must be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AccountError {
    /// Not a note, or not signed by exactly the right key.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The text leaves the grammar.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// An amount out of range.
    #[error(transparent)]
    Money(#[from] MoneyError),
    /// Values that cannot stand together.
    #[error("impossible note: {0}")]
    Impossible(&'static str),
    /// The signer is not among the keys that may sign this.
    #[error("signed by none of the {role} keys that are believed here", role = .0.word())]
    Signer(Signer),
}

/// A kind of note: its first line, who signs it, and its grammar.
pub trait Statement: Sized {
    /// First line of the text.
    const KIND: &'static str;
    /// Signer whose key signs.
    const SIGNER: Signer;

    /// The network that it belongs to.
    fn network(&self) -> &NetworkName;
    /// The exact text, with its final line feed.
    fn text(&self) -> String;
    /// Reads a text; accepts exactly what [`Statement::text`] writes.
    fn parse(text: &str) -> Result<Self, AccountError>;

    /// The signed note.
    fn sign(&self, key: &SecretKey) -> Result<Note, AccountError> {
        let text = self.text();
        // A statement that could not be read back is never signed.
        Self::parse(&text)?;
        let mut note = Note::unsigned(text)?;
        note.sign(Self::SIGNER.key_name(self.network()), key)?;
        Ok(note)
    }

    /// Reads a note that exactly one of `keys` signed, in this kind's role and the note's network. Returns that key.
    fn verify(note: &Note, keys: &[PublicKey]) -> Result<(Self, PublicKey), AccountError> {
        let statement = Self::parse(note.text())?;
        let verifiers = keys.iter().map(|key| Self::SIGNER.verifier(statement.network(), *key));
        let signed_by = |id| verifiers.clone().find(|verifier| Some(verifier.id()) == id);
        let signer = signed_by(note.signatures().first().map(|line| line.id));
        let signer = signer.ok_or(AccountError::Signer(Self::SIGNER))?;
        note.verify_exactly(std::slice::from_ref(&signer))?;
        Ok((statement, *signer.key()))
    }
}

/// `price@v1`: what a metered byte costs from some time on. Signed by the treasury.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    /// The network.
    pub network: NetworkName,
    /// Whole nanoKVR a byte.
    pub per_byte: PricePerByte,
    /// Unix seconds from which it may be used.
    pub from: u64,
}

/// `grant@v1`: a backbone allows sessions to be billed to its account, up to a number of bytes. Signed by the backbone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The network.
    pub network: NetworkName,
    /// One session, or any (the cap then holds for all of them together).
    pub session: Option<SessionId>,
    /// The hub that may meter.
    pub hub: KeyDigest,
    /// One worker, or any.
    pub worker: Option<KeyDigest>,
    /// The backbone's full key; its digest is the account that pays.
    pub backbone: PublicKey,
    /// Leaf hash of the price note.
    pub price: Hash,
    /// Most bytes, up and down together, that may be billed under this grant.
    pub bytes: MeteredBytes,
    /// Unix seconds from which,
    pub from: u64,
    /// and until which receipts may be cut under it.
    pub until: u64,
}

/// `fund@v1`: the treasury puts credit into a paying account. Signed by the treasury.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fund {
    /// The network.
    pub network: NetworkName,
    /// The account: digest of a backbone's key.
    pub account: KeyDigest,
    /// The amount, above zero.
    pub amount: NanoKvr,
    /// Drawn at random, so that two equal fundings are two texts and a resent one is not.
    pub nonce: [u8; 32],
    /// Unix seconds when it was made.
    pub at: u64,
}

/// `delegate@v1`: a wallet lets a worker's key earn for it. Signed by the wallet's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delegation {
    /// The network.
    pub network: NetworkName,
    /// The wallet's full key; its digest is the payee.
    pub wallet: PublicKey,
    /// The worker's full key.
    pub worker: PublicKey,
    /// Unix seconds from which,
    pub from: u64,
    /// and until which receipts may be cut for it.
    pub until: u64,
}

impl Statement for Price {
    const KIND: &'static str = "kvasir.example/price@v1";
    const SIGNER: Signer = Signer::Treasury;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("nanokvr-per-byte", self.per_byte.get())
            .line("from", self.from)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let per_byte = PricePerByte::new(fields.number("nanokvr-per-byte")?)?;
        let from = fields.number("from")?;
        fields.end()?;
        Ok(Self { network, per_byte, from })
    }
}

impl Statement for Grant {
    const KIND: &'static str = "kvasir.example/grant@v1";
    const SIGNER: Signer = Signer::Backbone;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("session", OneOrAny(self.session))
            .line("hub", self.hub)
            .line("worker", OneOrAny(self.worker))
            .line("backbone", self.backbone)
            .line("price", self.price)
            .line("bytes", self.bytes)
            .line("from", self.from)
            .line("until", self.until)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        const ONE_OR_ANY: &str = "`any` or 64 lower-case hexadecimal digits";
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let OneOrAny(session) = fields.value("session", ONE_OR_ANY)?;
        let hub = fields.value("hub", DIGEST)?;
        let OneOrAny(worker) = fields.value("worker", ONE_OR_ANY)?;
        let backbone = fields.value("backbone", KEY)?;
        let price = fields.value("price", DIGEST)?;
        let bytes = MeteredBytes::new(fields.number("bytes")?)?;
        let (from, until) = period(&mut fields)?;
        fields.end()?;
        Ok(Self { network, session, hub, worker, backbone, price, bytes, from, until })
    }
}

impl Statement for Fund {
    const KIND: &'static str = "kvasir.example/fund@v1";
    const SIGNER: Signer = Signer::Treasury;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("account", self.account)
            .line("nanokvr", self.amount)
            .line("nonce", hex::encode(self.nonce))
            .line("at", self.at)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let account = fields.value("account", DIGEST)?;
        let amount = amount(fields.number("nanokvr")?)?;
        if amount == NanoKvr::ZERO {
            return Err(AccountError::Impossible("nothing is funded"));
        }
        let Hash(nonce) = fields.value("nonce", DIGEST)?;
        let at = fields.number("at")?;
        fields.end()?;
        Ok(Self { network, account, amount, nonce, at })
    }
}

impl Statement for Delegation {
    const KIND: &'static str = "kvasir.example/delegate@v1";
    const SIGNER: Signer = Signer::Wallet;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("wallet", self.wallet)
            .line("worker", self.worker)
            .line("from", self.from)
            .line("until", self.until)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let wallet = fields.value("wallet", KEY)?;
        let worker = fields.value("worker", KEY)?;
        let (from, until) = period(&mut fields)?;
        fields.end()?;
        Ok(Self { network, wallet, worker, from, until })
    }
}

impl Grant {
    /// The account that pays: the digest of the backbone's key.
    pub fn payer(&self) -> KeyDigest {
        self.backbone.digest()
    }
}

impl Delegation {
    /// The account that is credited: the digest of the wallet's key.
    pub fn payee(&self) -> WalletDigest {
        self.wallet.wallet_digest()
    }
}

/// A name, or the word `any`.
struct OneOrAny<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for OneOrAny<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(one) => one.fmt(f),
            None => f.write_str("any"),
        }
    }
}

impl<T: FromStr> FromStr for OneOrAny<T> {
    type Err = T::Err;
    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "any" { Ok(Self(None)) } else { text.parse().map(|one| Self(Some(one))) }
    }
}

fn period(fields: &mut FieldReader<'_>) -> Result<(u64, u64), AccountError> {
    let (from, until) = (fields.number("from")?, fields.number("until")?);
    if from > until {
        return Err(AccountError::Impossible("it ends before it begins"));
    }
    Ok((from, until))
}

fn amount(number: u64) -> Result<NanoKvr, AccountError> {
    debug_assert!(number <= MAX_NUMBER);
    i64::try_from(number).map(NanoKvr::new).map_err(|_| MoneyError::Overflow.into())
}
