//! The receipts that probe records are about, as they stand in the log: every leaf is read once, and the leaves together must have
//! the checkpoint's root, so that a receipt found here is included for certain.
//!
//! A receipt names its signers by digest. The full keys stand in other leaves - the hub's in a key note, the backbone's in a grant,
//! the worker's in a delegation - and a digest can be only one key's, so that any place will do. Whether those keys were believed
//! when they signed is the ledger audit's question (`kvasir_ledger::audit`), which comes before this.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kvasir_merkle::{Accumulator, Hash, leaf_hash};
use kvasir_wire::account::{Delegation, Grant, KeyBelief, Statement};
use kvasir_wire::id::KeyDigest;
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::Note;
use kvasir_wire::probe::ProbeName;
use kvasir_wire::receipt::{RECEIPT_KIND, Receipt, ReceiptKeys, SignedReceipt};

use crate::error::ReplayError;

/// Reads leaves in their order.
pub struct LogReader {
    wanted: BTreeSet<ProbeName>,
    tree: Accumulator,
    leaves: u64,
    keys: HashMap<KeyDigest, PublicKey>,
    found: BTreeMap<ProbeName, (u64, Note, Receipt)>,
}

/// The receipts that were wanted and are in the log.
#[derive(Debug, Default)]
pub struct LoggedReceipts {
    receipts: BTreeMap<ProbeName, Result<LoggedReceipt, String>>,
}

/// A receipt in the log, its three signatures verified.
#[derive(Clone, Debug)]
pub struct LoggedReceipt {
    /// Its leaf's index.
    pub leaf: u64,
    /// The receipt and its note.
    pub signed: SignedReceipt,
    /// The keys that signed it.
    pub keys: ReceiptKeys,
}

impl LogReader {
    /// Will keep the receipts that `wanted` names.
    pub fn new(wanted: impl IntoIterator<Item = ProbeName>) -> Self {
        LogReader {
            wanted: wanted.into_iter().collect(),
            tree: Accumulator::new(),
            leaves: 0,
            keys: HashMap::new(),
            found: BTreeMap::new(),
        }
    }

    /// Takes the next leaf. What is no note of these kinds counts for the root alone.
    pub fn take(&mut self, leaf: &[u8]) {
        let index = self.leaves;
        self.leaves += 1;
        self.tree.push(leaf_hash(leaf));
        let Ok(note) = Note::parse(leaf) else { return };
        let kind = note.text().lines().next().unwrap_or_default();
        if kind == RECEIPT_KIND {
            let Ok(receipt) = Receipt::parse(note.text()) else { return };
            let name = ProbeName { session: receipt.terms.session, seq: receipt.seq };
            // The first one stands, as in the ledger.
            if self.wanted.contains(&name) {
                self.found.entry(name).or_insert((index, note, receipt));
            }
        } else if kind == Grant::KIND {
            self.know(Grant::parse(note.text()).ok().map(|grant| grant.backbone));
        } else if kind == Delegation::KIND {
            self.know(Delegation::parse(note.text()).ok().map(|delegation| delegation.worker));
        } else if kind == KeyBelief::KIND {
            self.know(KeyBelief::parse(note.text()).ok().map(|belief| belief.key));
        }
    }

    fn know(&mut self, key: Option<PublicKey>) {
        if let Some(key) = key {
            self.keys.insert(key.digest(), key);
        }
    }

    /// All leaves were taken: their root must be the checkpoint's. Verifies the signatures of what was kept.
    ///
    /// # Errors
    /// [`ReplayError::Size`] and [`ReplayError::Root`].
    pub fn finish(self, size: u64, root: &Hash) -> Result<LoggedReceipts, ReplayError> {
        if self.leaves != size {
            return Err(ReplayError::Size { found: self.leaves, expected: size });
        }
        let found = self.tree.root();
        if found != *root {
            return Err(ReplayError::Root { leaves: size, found, expected: *root });
        }
        let receipts = self
            .found
            .into_iter()
            .map(|(name, (leaf, note, receipt))| {
                (
                    name,
                    signed(&self.keys, note, &receipt).map(|(signed, keys)| LoggedReceipt {
                        leaf,
                        signed,
                        keys,
                    }),
                )
            })
            .collect();
        Ok(LoggedReceipts { receipts })
    }
}

impl LoggedReceipts {
    /// The receipt of a file of probe records; the reason where it may not be used, or is not there.
    pub fn get(&self, name: &ProbeName) -> Result<&LoggedReceipt, String> {
        match self.receipts.get(name) {
            Some(Ok(receipt)) => Ok(receipt),
            Some(Err(reason)) => Err(reason.clone()),
            None => {
                Err("no receipt with this session and number is in the log up to the checkpoint".to_owned())
            }
        }
    }

    /// Receipts that may be used.
    pub fn len(&self) -> usize {
        self.receipts.values().filter(|receipt| receipt.is_ok()).count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn signed(
    keys: &HashMap<KeyDigest, PublicKey>,
    note: Note,
    receipt: &Receipt,
) -> Result<(SignedReceipt, ReceiptKeys), String> {
    let terms = &receipt.terms;
    let key = |role: &str, place: &str, digest: &KeyDigest| {
        let missing = || format!("the log has no {place} with the {role}'s key {digest}");
        keys.get(digest).copied().ok_or_else(missing)
    };
    let keys = ReceiptKeys {
        hub: key("hub", "key note", &terms.hub)?,
        worker: key("worker", "delegation", &terms.worker)?,
        backbone: key("backbone", "grant", &terms.backbone)?,
    };
    let signed = SignedReceipt::verify(note, &keys).map_err(|error| error.to_string())?;
    Ok((signed, keys))
}
