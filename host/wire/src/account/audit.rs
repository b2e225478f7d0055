//! `audit@v1`: what an auditor found when it computed a piece of work again.
//!
//! The note names the work item so that anybody with the published record can repeat it, and the two digests that differ. It moves
//! no credit: a treasury that agrees reverses the settlement, and names this note in its reason.

use std::fmt;
use std::str::FromStr;

use kvasir_merkle::Hash;

use super::{AccountError, DIGEST, KEY, NETWORK, Statement};
use crate::id::{ModelDigest, PluginDigest, SessionId};
use crate::key::PublicKey;
use crate::note::{FieldReader, FieldWriter, NetworkName, Note, Signer};
use crate::receipt::Terms;

const VERDICT: &str = "`convicted` or `plugin`";

/// `audit@v1`: a finding about one work item. Signed by the auditor, whose key it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// The network.
    pub network: NetworkName,
    /// The auditor's full key.
    pub auditor: PublicKey,
    /// The session.
    pub session: SessionId,
    /// Number of the receipt under whose root the item was shown.
    pub seq: u64,
    /// Number of the work item within the session, from 0.
    pub index: u64,
    /// The receipt's work root.
    pub work: Hash,
    /// What was found.
    pub verdict: AuditVerdict,
    /// SHA-256 of the rows that were computed again. Of the verdict `plugin`: what the first engine computed,
    pub expected: Hash,
    /// SHA-256 of the rows that the worker signed. Of the verdict `plugin`: and what another engine computed instead.
    pub got: Hash,
    /// The model.
    pub model: ModelDigest,
    /// The plugin.
    pub plugin: PluginDigest,
    /// SHA-256 of the text of the checkpoint that the audit was under, and that the item was drawn by.
    pub checkpoint: Hash,
    /// Unix seconds when it was found.
    pub at: u64,
}

/// What an audit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditVerdict {
    /// The engines agree with each other and not with the worker.
    Convicted,
    /// The engines differ from each other: the plugin is not defined on this call, and the worker is not at fault.
    Plugin,
}

impl Audit {
    /// Reads a note that the auditor it names has signed.
    ///
    /// # Errors
    /// As [`Statement::verify`].
    pub fn verify_own(note: &Note) -> Result<Self, AccountError> {
        let named = Self::parse(note.text())?.auditor;
        Self::verify(note, &[named]).map(|(audit, _)| audit)
    }

    /// The role in which the auditor is a party of the session; a party's finding about its own work counts for nothing.
    pub fn party_of(&self, terms: &Terms) -> Option<&'static str> {
        let key = self.auditor.digest();
        let wallet = self.auditor.wallet_digest();
        let parties =
            [("hub", terms.hub == key), ("worker", terms.worker == key), ("backbone", terms.backbone == key)];
        let party = parties.into_iter().find(|(_, is)| *is).map(|(role, _)| role);
        party.or((terms.payee == wallet).then_some("payee"))
    }
}

impl Statement for Audit {
    const KIND: &'static str = "kvasir.example/audit@v1";
    const SIGNER: Signer = Signer::Auditor;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("auditor", self.auditor)
            .line("session", self.session)
            .line("seq", self.seq)
            .line("index", self.index)
            .line("work", self.work)
            .line("verdict", self.verdict)
            .line("expected", self.expected)
            .line("got", self.got)
            .line("model", self.model)
            .line("plugin", self.plugin)
            .line("checkpoint", self.checkpoint)
            .line("at", self.at)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let auditor = fields.value("auditor", KEY)?;
        let session = fields.value("session", DIGEST)?;
        let seq = fields.number("seq")?;
        let index = fields.number("index")?;
        let work = fields.value("work", DIGEST)?;
        let verdict = fields.value("verdict", VERDICT)?;
        let expected = fields.value("expected", DIGEST)?;
        let got = fields.value("got", DIGEST)?;
        let model = fields.value("model", DIGEST)?;
        let plugin = fields.value("plugin", DIGEST)?;
        let checkpoint = fields.value("checkpoint", DIGEST)?;
        let at = fields.number("at")?;
        fields.end()?;
        if seq == 0 {
            return Err(AccountError::Impossible("receipts are numbered from 1"));
        }
        if expected == got {
            return Err(AccountError::Impossible("it finds that two equal digests differ"));
        }
        Ok(Self {
            network,
            auditor,
            session,
            seq,
            index,
            work,
            verdict,
            expected,
            got,
            model,
            plugin,
            checkpoint,
            at,
        })
    }
}

impl fmt::Display for AuditVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AuditVerdict::Convicted => "convicted",
            AuditVerdict::Plugin => "plugin",
        })
    }
}

/// A word that is no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {VERDICT}")]
pub struct VerdictError;

impl FromStr for AuditVerdict {
    type Err = VerdictError;

    fn from_str(text: &str) -> Result<Self, VerdictError> {
        match text {
            "convicted" => Ok(AuditVerdict::Convicted),
            "plugin" => Ok(AuditVerdict::Plugin),
            _ => Err(VerdictError),
        }
    }
}
