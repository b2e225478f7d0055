//! Whom this ledger believes, as entries: what its settings say is written down, in public, before anything rests on it.

use std::path::Path;

use kvasir_wire::account::{KeyBelief, KeyRole, KeyState, OriginChange, Statement};
use kvasir_wire::key::{PublicKey, SecretKey};
use kvasir_wire::note::Note;
use rusqlite::Connection;

use super::receipts::accepted;
use super::{Keys, Store, Writing, at, rows};
use crate::api::Accepted;
use crate::refusal::{LedgerError, Refusal};

impl Store {
    /// Writes down every difference between the settings and what the entries say about keys, the ledger's own key first.
    /// Gives the number of new entries. Belongs before anything else that is written with these settings.
    pub fn declare_keys(&mut self, ledger: &SecretKey, now: u64) -> Result<u64, LedgerError> {
        let wanted = wanted(&self.keys, ledger.public());
        let (network, believed) = (self.network.clone(), self.beliefs()?);
        let mut own = believed.iter().filter(|(role, _)| *role == KeyRole::Ledger).map(|(_, key)| *key);
        if let Some(first) = own.next()
            && first != ledger.public()
            && !own.any(|key| key == ledger.public())
        {
            return Err(LedgerError::NotALedger {
                path: self.path.clone(),
                reason: format!(
                    "its entries are signed by ledger key {first}, not by {}; put the right ledger.key beside ledger.toml",
                    ledger.public()
                ),
            });
        }
        // A ledger's own key that another one followed stays: readers take its end from nobody but themselves.
        let stale = believed.iter().filter(|old| old.0 != KeyRole::Ledger && !wanted.contains(old));
        let stale = stale.map(|old| (*old, KeyState::Retired));
        let fresh = wanted.iter().filter(|new| !believed.contains(new)).map(|new| (*new, KeyState::Believed));
        let mut count = 0;
        for ((role, key), state) in fresh.chain(stale).collect::<Vec<_>>() {
            let belief = KeyBelief { network: network.clone(), role, key, state, at: now };
            let note = belief.sign(ledger).map_err(Refusal::from)?;
            self.accept_own(note.to_string().as_bytes(), now)?;
            count += 1;
        }
        Ok(count)
    }

    /// Stores a statement of this ledger about itself.
    pub fn accept_own(&mut self, note: &[u8], now: u64) -> Result<Accepted, LedgerError> {
        let accepted = self.write(now, |writing| writing.own_statement(super::parse(note)?))?;
        if self.believed != self.keys {
            self.believed = self.keys.written_down(&self.beliefs()?);
        }
        Ok(accepted)
    }

    /// The keys that the entries say are believed, in the order in which they came.
    pub fn beliefs(&self) -> Result<Vec<(KeyRole, PublicKey)>, LedgerError> {
        read(&self.connection).map_err(at(&self.path))
    }
}

/// The keys that the entries of a ledger's file say are believed, in the order in which they came.
pub fn believed(connection: &Connection, path: &Path) -> Result<Vec<(KeyRole, PublicKey)>, LedgerError> {
    read(connection).map_err(at(path))
}

impl Keys {
    /// Those that the entries believe. A ledger that writes no keys down goes by its settings alone.
    pub(super) fn written_down(&self, believed: &[(KeyRole, PublicKey)]) -> Keys {
        if believed.is_empty() {
            return self.clone();
        }
        let only = |role, keys: &[PublicKey]| {
            keys.iter().copied().filter(|key| believed.contains(&(role, *key))).collect()
        };
        Keys {
            hubs: only(KeyRole::Hub, &self.hubs),
            treasury: only(KeyRole::Treasury, &self.treasury),
            settlers: only(KeyRole::Settler, &self.settlers),
            retired: self.retired.clone(),
        }
    }
}

impl Writing<'_> {
    fn own_statement(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        if let Some(first) = self.stored(&note)? {
            return Ok(accepted(first));
        }
        let believed = read(&self.transaction).map_err(at(self.path))?;
        let mut signers: Vec<PublicKey> =
            believed.iter().filter(|(role, _)| *role == KeyRole::Ledger).map(|(_, key)| *key).collect();
        match note.text().lines().next().unwrap_or_default() {
            KeyBelief::KIND => {
                let belief = KeyBelief::parse(note.text()).map_err(Refusal::from)?;
                if signers.is_empty() && belief.role == KeyRole::Ledger && belief.state == KeyState::Believed
                {
                    signers.push(belief.key);
                }
                self.verified::<KeyBelief>(&note, &signers)?;
                let is_believed = believed.contains(&(belief.role, belief.key));
                if is_believed == (belief.state == KeyState::Believed) {
                    let message = format!("{} key {} is {} already", belief.role, belief.key, belief.state);
                    return Err(Refusal::new(409, "conflict", message, "nothing needs to be said").into());
                }
                self.append("key", &note)
            }
            OriginChange::KIND => {
                let change = self.verified::<OriginChange>(&note, &signers)?;
                if change.size != self.tree.size() || change.root != self.tree.root() {
                    let message = format!(
                        "the origin changes at {} entries, here are {}",
                        change.size,
                        self.tree.size()
                    );
                    return Err(
                        Refusal::new(409, "conflict", message, "restore from the backup again").into()
                    );
                }
                self.append("origin", &note)
            }
            _ => Err(Refusal::new(400, "unknown_kind", "no statement of a ledger about itself", "").into()),
        }
    }
}

fn wanted(keys: &Keys, ledger: PublicKey) -> Vec<(KeyRole, PublicKey)> {
    let mut wanted = vec![(KeyRole::Ledger, ledger)];
    for (role, keys) in
        [(KeyRole::Treasury, &keys.treasury), (KeyRole::Hub, &keys.hubs), (KeyRole::Settler, &keys.settlers)]
    {
        for key in keys {
            // A key that the settings name twice is one key.
            if !wanted.contains(&(role, *key)) {
                wanted.push((role, *key));
            }
        }
    }
    wanted
}

/// Reads the key entries in order. One that cannot be read is left to `verify`, which names it.
pub(super) fn read(connection: &Connection) -> rusqlite::Result<Vec<(KeyRole, PublicKey)>> {
    let mut believed = Vec::new();
    for entry in rows::entries_of_kind(connection, "key")? {
        let belief =
            Note::parse(entry.note.as_bytes()).ok().and_then(|note| KeyBelief::parse(note.text()).ok());
        let Some(belief) = belief else { continue };
        believed.retain(|known| *known != (belief.role, belief.key));
        if belief.state == KeyState::Believed {
            believed.push((belief.role, belief.key));
        }
    }
    Ok(believed)
}
