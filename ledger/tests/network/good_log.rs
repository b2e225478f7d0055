//! A public log in which everything is right, of any size, and the files that a log would publish of any entries.

use std::collections::HashMap;

use kvasir_ledger::log::{
    CHECKPOINT_PATH, Checkpoint, CosignerKey, LogSource, SignedCheckpoint, SourceError, TILE_HASHES,
    bundles_of, cosign, encode_bundle, encode_tile, log_verifier, tiles_of,
};
use kvasir_merkle::{Accumulator, Hash, leaf_hash};
use kvasir_wire::account::{KeyBelief, KeyRole, KeyState, SettledSession, Settlement, Statement};
use kvasir_wire::id::SessionId;
use kvasir_wire::key::{PublicKey, SecretKey};
use kvasir_wire::money::{MeteredBytes, NanoKvr, PricePerByte};
use kvasir_wire::note::{KeyName, Note};
use kvasir_wire::receipt::{Counters, Receipt};

use super::{Network, START};

/// Signs what the ledger says about itself.
pub const LEDGER_SEED: u8 = 40;
/// Signs checkpoints.
pub const LOG_SEED: u8 = 41;
/// Cosigns them.
pub const WITNESS_SEED: u8 = 50;
/// When the witness saw the head.
pub const SEEN_AT: u64 = START + 500_000;

/// Entries before the first receipt: four keys and the foundation.
pub const FOUNDATION: u64 = 8;

pub fn secret(seed: u8) -> SecretKey {
    SecretKey::from_seed([seed; 32])
}

pub fn origin() -> KeyName {
    "kvasir.example/atlas/00000001".parse().unwrap()
}

pub fn witness_key() -> CosignerKey {
    CosignerKey::new("w.example".parse().unwrap(), secret(WITNESS_SEED).public())
}

/// The policy that the log satisfies.
pub fn policy() -> String {
    let log = log_verifier(&origin(), secret(LOG_SEED).public());
    format!("log {log}\nwitness w {}\nquorum w\n", witness_key())
}

pub fn session(number: u64) -> SessionId {
    let mut id = [0x5e; 32];
    id[..8].copy_from_slice(&number.to_be_bytes());
    SessionId(id)
}

/// Entries in order. Every receipt adds 30 bytes to its session; all sessions are settled together ten times.
pub fn entries(network: &Network, receipts: u64, sessions: u64) -> Vec<Vec<u8>> {
    let belief = |role, key: PublicKey| {
        KeyBelief { network: network.name.clone(), role, key, state: KeyState::Believed, at: START }
            .sign(&secret(LEDGER_SEED))
            .unwrap()
    };
    let mut entries: Vec<Vec<u8>> = [
        belief(KeyRole::Ledger, secret(LEDGER_SEED).public()),
        belief(KeyRole::Treasury, network.treasury.public()),
        belief(KeyRole::Hub, network.hub.public()),
        belief(KeyRole::Settler, network.settler.public()),
    ]
    .iter()
    .chain(&network.foundation())
    .map(|note| note.to_string().into_bytes())
    .collect();
    let mut last: Vec<Option<Receipt>> = vec![None; sessions as usize];
    let mut settled = vec![0; sessions as usize];
    let mut credit = 0;
    let every = (receipts / 10).max(1);
    for number in 0..receipts {
        let at = (number % sessions) as usize;
        let receipt = next(network, at as u64, last[at].as_ref());
        entries.push(network.sign(&receipt).to_string().into_bytes());
        last[at] = Some(receipt);
        if (number + 1) % every == 0 {
            let parts = settle_all(&last, &mut settled);
            for part in parts.chunks(64) {
                let made = settlement(network, part, credit);
                credit = made.after.get();
                entries.push(made.sign(&network.settler).unwrap().to_string().into_bytes());
            }
        }
    }
    entries
}

/// The receipt after `last` in a session.
pub fn next(network: &Network, number: u64, last: Option<&Receipt>) -> Receipt {
    let seq = last.map_or(1, |last| last.seq + 1);
    let bytes = |number| MeteredBytes::new(number).unwrap();
    let counters = Counters {
        up: bytes(10 * seq),
        down: bytes(20 * seq),
        calls: seq,
        rows: 3 * seq,
        work: Hash([seq as u8; 32]),
    };
    match last {
        Some(last) => last.next(counters, last.to + 1, false).unwrap(),
        None => {
            let mut terms = network.terms(0);
            terms.session = session(number);
            Receipt::first(terms, counters, START + 10, false).unwrap()
        }
    }
}

pub fn settlement(network: &Network, parts: &[SettledSession], before: i64) -> Settlement {
    let parties = (network.payer(), network.payee());
    let price = (network.price().leaf_hash(), PricePerByte::FOUNDING);
    let before = NanoKvr::new(before);
    Settlement::new(network.name.clone(), parties, price, parts.to_vec(), before, START + 1000).unwrap()
}

fn settle_all(last: &[Option<Receipt>], settled: &mut [u64]) -> Vec<SettledSession> {
    let mut parts = Vec::new();
    for (receipt, settled) in last.iter().zip(settled) {
        let Some(receipt) = receipt.as_ref().filter(|receipt| receipt.seq > *settled) else { continue };
        parts.push(SettledSession {
            session: receipt.terms.session,
            from_seq: *settled + 1,
            to_seq: receipt.seq,
            bytes: MeteredBytes::new(30 * (receipt.seq - *settled)).unwrap(),
        });
        *settled = receipt.seq;
    }
    parts
}

/// What a log publishes, in memory.
#[derive(Clone, Default)]
pub struct Files(pub HashMap<String, Vec<u8>>);

impl LogSource for Files {
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, SourceError> {
        match self.0.get(path) {
            Some(file) if file.len() > limit => Err(SourceError::TooLong { place: path.into(), limit }),
            file => Ok(file.cloned()),
        }
    }
}

/// The files of a log of these entries, its head signed and cosigned.
pub fn published(entries: &[Vec<u8>]) -> Files {
    let size = entries.len() as u64;
    let mut levels: Vec<Vec<Hash>> = vec![entries.iter().map(|entry| leaf_hash(entry)).collect()];
    let root = levels[0].iter().copied().collect::<Accumulator>().root();
    while levels.last().unwrap().len() >= TILE_HASHES as usize {
        let full = levels.last().unwrap().chunks_exact(TILE_HASHES as usize);
        levels.push(full.map(|tile| tile.iter().copied().collect::<Accumulator>().root()).collect());
    }
    let mut files = Files::default();
    for tile in tiles_of(0, size) {
        let first = (tile.index * TILE_HASHES) as usize;
        let hashes = &levels[usize::from(tile.level)][first..first + usize::from(tile.width)];
        files.0.insert(tile.path(), encode_tile(hashes));
    }
    for bundle in bundles_of(0, size) {
        let first = bundle.first_entry() as usize;
        let inside = entries[first..first + usize::from(bundle.width)].iter().map(Vec::as_slice);
        files.0.insert(bundle.path(), encode_bundle(inside).unwrap());
    }
    files.0.insert(CHECKPOINT_PATH.into(), head(size, root).note().to_string().into_bytes());
    files
}

/// A signed and cosigned head.
pub fn head(size: u64, root: Hash) -> SignedCheckpoint {
    let signed = Checkpoint { origin: origin(), size, root }.sign(&secret(LOG_SEED)).unwrap();
    let line = cosign(signed.note().text(), witness_key().name(), &secret(WITNESS_SEED), SEEN_AT);
    signed.with_lines([line]).unwrap()
}

/// An entry as a note.
pub fn note_of(entry: &[u8]) -> Note {
    Note::parse(entry).unwrap()
}
