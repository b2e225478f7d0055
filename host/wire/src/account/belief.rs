//! What a ledger says about itself: whom it believes, and which log it continues. Signed by the ledger's own key.

use std::fmt;
use std::str::FromStr;

use kvasir_merkle::Hash;

use super::{AccountError, DIGEST, KEY, NETWORK, Statement};
use crate::key::PublicKey;
use crate::note::{FieldReader, FieldWriter, KeyName, NetworkName, Signer};

/// `key@v1`: a key is believed in a role from this entry on, or no longer. Signed by the ledger.
///
/// The first entry of a public log names the ledger's own key, signed by that key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyBelief {
    /// The network.
    pub network: NetworkName,
    /// What it may sign.
    pub role: KeyRole,
    /// The full key.
    pub key: PublicKey,
    /// From this entry on.
    pub state: KeyState,
    /// Unix seconds when it was said.
    pub at: u64,
}

/// Roles that a ledger gives out. Backbones, workers and wallets need none: grants and delegations name their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyRole {
    /// Receipts.
    Hub,
    /// Prices, fundings, corrections, penalties.
    Treasury,
    /// Settlements.
    Settler,
    /// Statements of the ledger itself.
    Ledger,
}

/// Whether a key counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// What it signs counts.
    Believed,
    /// What it signed before stays valid, nothing new is accepted.
    Retired,
}

/// `origin@v1`: this log continues another one from a backup. Signed by the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginChange {
    /// The network.
    pub network: NetworkName,
    /// The log that begins to be published with this entry.
    pub origin: KeyName,
    /// The log that it continues.
    pub previous: KeyName,
    /// Entries that the backup held,
    pub size: u64,
    /// and the root over them.
    pub root: Hash,
    /// Unix seconds when it was restored.
    pub at: u64,
}

impl Statement for KeyBelief {
    const KIND: &'static str = "kvasir.example/key@v1";
    const SIGNER: Signer = Signer::Ledger;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("role", self.role)
            .line("key", self.key)
            .line("state", self.state)
            .line("at", self.at)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let role = fields.value("role", "hub, treasury, settler or ledger")?;
        let key = fields.value("key", KEY)?;
        let state = fields.value("state", "believed or retired")?;
        let at = fields.number("at")?;
        fields.end()?;
        Ok(Self { network, role, key, state, at })
    }
}

impl Statement for OriginChange {
    const KIND: &'static str = "kvasir.example/origin@v1";
    const SIGNER: Signer = Signer::Ledger;

    fn network(&self) -> &NetworkName {
        &self.network
    }

    fn text(&self) -> String {
        FieldWriter::new(Self::KIND)
            .line("network", &self.network)
            .line("origin", &self.origin)
            .line("previous", &self.previous)
            .line("size", self.size)
            .line("root", self.root)
            .line("at", self.at)
            .finish()
    }

    fn parse(text: &str) -> Result<Self, AccountError> {
        const NAME: &str = "the name of a log";
        let mut fields = FieldReader::new(text, Self::KIND)?;
        let network = fields.value("network", NETWORK)?;
        let origin = fields.value("origin", NAME)?;
        let previous = fields.value("previous", NAME)?;
        let size = fields.number("size")?;
        let root = fields.value("root", DIGEST)?;
        let at = fields.number("at")?;
        fields.end()?;
        if origin == previous {
            return Err(AccountError::Impossible("a log does not continue itself"));
        }
        Ok(Self { network, origin, previous, size, root, at })
    }
}

impl KeyRole {
    /// The role as notes write it.
    pub const fn word(self) -> &'static str {
        match self {
            KeyRole::Hub => "hub",
            KeyRole::Treasury => "treasury",
            KeyRole::Settler => "settler",
            KeyRole::Ledger => "ledger",
        }
    }
}

impl fmt::Display for KeyRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for KeyRole {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let roles = [KeyRole::Hub, KeyRole::Treasury, KeyRole::Settler, KeyRole::Ledger];
        roles.into_iter().find(|role| role.word() == text).ok_or(())
    }
}

impl fmt::Display for KeyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == KeyState::Believed { "believed" } else { "retired" })
    }
}

impl FromStr for KeyState {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "believed" => Ok(KeyState::Believed),
            "retired" => Ok(KeyState::Retired),
            _ => Err(()),
        }
    }
}
