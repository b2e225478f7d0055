//! `settle@v1` and `correct@v1`: credit that moves from a paying account to a wallet, and back.

use std::fmt;
use std::str::FromStr;

use kvasir_merkle::Hash;

use super::penalty::reason;
use super::{AccountError, DIGEST, NETWORK, Statement, amount};
use crate::id::{IdError, KeyDigest, SessionId, WalletDigest, parse_hex_32, sha256};
use crate::money::{MAX_NUMBER, MeteredBytes, NanoKvr, PricePerByte};
use crate::note::{FieldReader, FieldWriter, NetworkName, Signer, canonical_number};

/// How long settled credit stays pending, so that a verdict can still reverse it: 24 hours.
pub const PENDING_SECONDS: u64 = 24 * 3600;
/// Most sessions in one settlement; more go into another one. Keeps the note well below its size limit.
pub const MAX_SETTLED_SESSIONS: usize = 64;
/// Longest reason in a correction, in bytes.
pub const MAX_REASON_BYTES: usize = 512;

/// Begins the preimage of a settlement's id.
const ID_DOMAIN: &[u8] = b"kvasir.example/settle@v1\0";

/// `settle@v1`: the bytes that receipts added since the last settlement, credited. Signed by the settler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The network.
    pub network: NetworkName,
    /// The wallet that is credited.
    pub payee: WalletDigest,
    /// The account that pays: digest of the backbone's key.
    pub payer: KeyDigest,
    /// Leaf hash of the price note.
    pub price: Hash,
    /// What is settled, ascending by session, each session once.
    pub sessions: Vec<SettledSession>,
    /// Sum of the sessions' bytes.
    pub bytes: MeteredBytes,
    /// Price times bytes.
    pub amount: NanoKvr,
    /// The wallet's credit, pending and posted together, before this settlement,
    pub before: NanoKvr,
    /// and after it.
    pub after: NanoKvr,
    /// Unix seconds when it was made. Pending ends [`PENDING_SECONDS`] later.
    pub at: u64,
}

/// One session's part of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledSession {
    /// The session.
    pub session: SessionId,
    /// First receipt that is covered: the one after the last settled one.
    pub from_seq: u64,
    /// Last receipt that is covered.
    pub to_seq: u64,
    /// Billed bytes that these receipts added.
    pub bytes: MeteredBytes,
}

/// SHA-256 over a domain string and every (session, to-seq), ascending by session, to-seq as u64 little-endian.
/// The same receipts settled twice have the same id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SettlementId(pub [u8; 32]);

/// `correct@v1`: reverses a settlement while it is pending. Nothing is ever edited. Signed by the treasury.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// The network.
    pub network: NetworkName,
    /// The settlement that is reversed, as a whole.
    pub settlement: SettlementId,
    /// Why, in one line: it stays readable for ever.
    pub reason: String,
    /// Unix seconds when it was made.
    pub at: u64,
}

impl Settlement {
    /// Puts a settlement together; sorts the sessions, sums, multiplies.
    pub fn new(
        network: NetworkName,
        parties: (KeyDigest, WalletDigest),
        price: (Hash, PricePerByte),
        mut sessions: Vec<SettledSession>,
        before: NanoKvr,
        at: u64,
    ) -> Result<Self, AccountError> {
        sessions.sort_by_key(|part| part.session);
        let bytes = sum(&sessions)?;
        let amount = price.1.credit(bytes)?;
        let after = before.checked_add(amount)?;
        let (payer, payee) = parties;
        let made = Self { network, payee, payer, price: price.0, sessions, bytes, amount, before, after, at };
        made.check()?;
        Ok(made)
    }

    /// The settlement's id.
    pub fn id(&self) -> SettlementId {
        let mut preimage = ID_DOMAIN.to_vec();
        for part in &self.sessions {
            preimage.extend_from_slice(part.session.as_bytes());
            preimage.extend_from_slice(&part.to_seq.to_le_bytes());
        }
        SettlementId(sha256(&[&preimage]))
    }

    /// Unix seconds until which the credit is pending.
    pub fn pending_until(&self) -> u64 {
        self.at + PENDING_SECONDS
    }

    /// What must hold inside one settlement. The price's value is not in it: whoever has the price note checks that.
    fn check(&self) -> Result<(), AccountError> {
        let impossible = |reason| Err(AccountError::Impossible(reason));
        if self.sessions.is_empty() || self.sessions.len() > MAX_SETTLED_SESSIONS {
            return impossible("a settlement covers 1 to 64 sessions");
        }
        if self.sessions.windows(2).any(|pair| pair[0].session >= pair[1].session) {
            return impossible("sessions ascend, each once");
        }
        if self.sessions.iter().any(|part| part.from_seq == 0 || part.from_seq > part.to_seq) {
            return impossible("receipts are settled from a seq of 1 or more to the same or a later one");
        }
        if sum(&self.sessions)? != self.bytes {
            return impossible("bytes is the sum over the sessions");
        }
        if self.before.checked_add(self.amount)? != self.after {
            return impossible("after is before plus the amount");
        }
        if self.at > MAX_NUMBER - PENDING_SECONDS {
            return impossible("it was made too late in time");
        }
        Ok(())
    }
}

impl Statement for Settlement {
    const KIND: &'static str = "kvasir.example/settle@v1";
    const SIGNER: Signer = Signer::Settler;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        let mut fields = FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("payee", self.payee)
            .line("payer", self.payer)
            .line("price", self.price);
        for SettledSession { session, from_seq, to_seq, bytes } in &self.sessions {
            fields = fields.line("session", format_args!("{session} {from_seq} {to_seq} {bytes}"));
        }
        fields
            .line("bytes", self.bytes)
            .line("nanokvr", self.amount)
            .line("before", self.before)
            .line("after", self.after)
            .line("at", self.at)
            .line("pending-until", self.pending_until())
            .line("id", self.id())
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        const SESSION: &str = "a session, from-seq, to-seq and bytes, one space between";
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let payee = fields.value("payee", DIGEST)?;
        let payer = fields.value("payer", DIGEST)?;
        let price = fields.value("price", DIGEST)?;
        let mut sessions = Vec::new();
        while fields.next_is("session") {
            if sessions.len() == MAX_SETTLED_SESSIONS {
                return Err(AccountError::Impossible("a settlement covers 1 to 64 sessions"));
            }
            let line = fields.text("session")?;
            sessions.push(settled_session(line).ok_or_else(|| fields.wrong("session", SESSION))?);
        }
        let bytes = MeteredBytes::new(fields.number("bytes")?)?;
        let credited = amount(fields.number("nanokvr")?)?;
        let before = amount(fields.number("before")?)?;
        let after = amount(fields.number("after")?)?;
        let at = fields.number("at")?;
        let pending_until = fields.number("pending-until")?;
        let id: SettlementId = fields.value("id", DIGEST)?;
        fields.end()?;
        let read =
            Self { network, payee, payer, price, sessions, bytes, amount: credited, before, after, at };
        read.check()?;
        if pending_until != read.pending_until() {
            return Err(AccountError::Impossible("credit is pending for 24 hours"));
        }
        if id != read.id() {
            return Err(AccountError::Impossible("id is SHA-256 over the sessions and their to-seq"));
        }
        Ok(read)
    }
}

impl Statement for Correction {
    const KIND: &'static str = "kvasir.example/correct@v1";
    const SIGNER: Signer = Signer::Treasury;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("settlement", self.settlement)
            .line("reason", &self.reason)
            .line("at", self.at)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let settlement = fields.value("settlement", DIGEST)?;
        let reason = reason(&mut fields)?;
        let at = fields.number("at")?;
        fields.end()?;
        Ok(Self { network, settlement, reason, at })
    }
}

impl fmt::Display for SettlementId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hash(self.0).fmt(f)
    }
}

impl fmt::Debug for SettlementId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SettlementId({self})")
    }
}

impl FromStr for SettlementId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        parse_hex_32(text).map(Self)
    }
}

fn settled_session(line: &str) -> Option<SettledSession> {
    let mut parts = line.split(' ');
    let session = parts.next()?.parse().ok()?;
    let from_seq = canonical_number(parts.next()?)?;
    let to_seq = canonical_number(parts.next()?)?;
    let bytes = MeteredBytes::new(canonical_number(parts.next()?)?).ok()?;
    parts.next().is_none().then_some(SettledSession { session, from_seq, to_seq, bytes })
}

fn sum(sessions: &[SettledSession]) -> Result<MeteredBytes, AccountError> {
    let mut total = MeteredBytes::ZERO;
    for part in sessions {
        total = total.checked_add(part.bytes)?;
    }
    Ok(total)
}
