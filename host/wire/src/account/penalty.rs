//! Measures against workers, and what they say to them: nobody is set back in silence.

use std::fmt;
use std::str::FromStr;

use kvasir_merkle::Hash;

use super::{AccountError, DIGEST, KEY, MAX_REASON_BYTES, NETWORK, Statement};
use crate::id::KeyDigest;
use crate::key::PublicKey;
use crate::note::{FieldReader, FieldWriter, NetworkName, Signer};

/// `penalty@v1`: a measure against a worker, with its reason and the entry that it rests on. Signed by the treasury.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The network.
    pub network: NetworkName,
    /// Digest of the worker's key.
    pub worker: KeyDigest,
    /// What is done.
    pub measure: Measure,
    /// Why, in a sentence.
    pub reason: String,
    /// Leaf hash of the entry that shows it, such as a finding.
    pub evidence: Hash,
    /// Unix seconds.
    pub at: u64,
}

/// What is done to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// It is to get no new sessions: who gives out tickets is asked; no hub acts on it by itself.
    Excluded,
    /// Auditors are asked to draw all of its calls; nothing makes them.
    Watched,
    /// An earlier measure ends.
    Lifted,
}

/// `appeal@v1`: what a worker says to a penalty. Signed by the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appeal {
    /// The network.
    pub network: NetworkName,
    /// The worker's full key.
    pub worker: PublicKey,
    /// Leaf hash of the penalty.
    pub penalty: Hash,
    /// What it says, in a sentence.
    pub reason: String,
    /// Unix seconds.
    pub at: u64,
}

impl Statement for Penalty {
    const KIND: &'static str = "kvasir.example/penalty@v1";
    const SIGNER: Signer = Signer::Treasury;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("worker", self.worker)
            .line("measure", self.measure)
            .line("reason", &self.reason)
            .line("evidence", self.evidence)
            .line("at", self.at)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let worker = fields.value("worker", DIGEST)?;
        let measure = fields.value("measure", "excluded, watched or lifted")?;
        let reason = reason(&mut fields)?;
        let evidence = fields.value("evidence", DIGEST)?;
        let at = fields.number("at")?;
        fields.end()?;
        Ok(Self { network, worker, measure, reason, evidence, at })
    }
}

impl Statement for Appeal {
    const KIND: &'static str = "kvasir.example/appeal@v1";
    const SIGNER: Signer = Signer::Worker;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("worker", self.worker)
            .line("penalty", self.penalty)
            .line("reason", &self.reason)
            .line("at", self.at)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let worker = fields.value("worker", KEY)?;
        let penalty = fields.value("penalty", DIGEST)?;
        let reason = reason(&mut fields)?;
        let at = fields.number("at")?;
        fields.end()?;
        Ok(Self { network, worker, penalty, reason, at })
    }
}

/// A sentence of at most [`MAX_REASON_BYTES`].
pub(super) fn reason(fields: &mut FieldReader<'_>) -> Result<String, AccountError> {
    let reason = fields.text("reason")?.to_owned();
    if reason.trim().is_empty() || reason.len() > MAX_REASON_BYTES {
        return Err(fields.wrong("reason", "a sentence of at most 512 bytes").into());
    }
    Ok(reason)
}

impl Measure {
    /// The measure as notes write it.
    pub const fn word(self) -> &'static str {
        match self {
            Measure::Excluded => "excluded",
            Measure::Watched => "watched",
            Measure::Lifted => "lifted",
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Measure {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        [Measure::Excluded, Measure::Watched, Measure::Lifted]
            .into_iter()
            .find(|one| one.word() == text)
            .ok_or(())
    }
}
