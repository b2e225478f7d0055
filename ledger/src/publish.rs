//! Publishing: entries that are durable become tiles, bundles and a signed checkpoint that any web server can carry.
//!
//! The order is what makes it safe to be killed anywhere: tiles and bundles are staged under names that never change their
//! content; then the signed head is swapped in its own database, which is the moment at which the log has vouched for it;
//! then witnesses are asked and the checkpoint is put where readers look. Starting again goes through the same steps.
//! Every hash is computed from bytes that were read back from the database, never from what was in memory when they came.

mod staging;

use std::path::{Path, PathBuf};

use kvasir_merkle::Hash;
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::{KeyName, NetworkName, SignatureLine};
use rusqlite::Connection;
use tracing::{info, warn};

use crate::files::{Existing, Readers, write_whole};
use crate::head::{Head, HeadFile};
use crate::log::{
    CHECKPOINT_PATH, Checkpoint, CosignerKey, FolderSource, LogSource, MAX_CHECKPOINT_BYTES,
    SignedCheckpoint, log_verifier,
};
use crate::refusal::LedgerError;
use crate::store::{head_of_entries, open_for_reading};
use crate::witness::client;
use staging::Staging;

/// A witness that is asked for every head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownWitness {
    /// Its prefix, such as `https://witness.example`.
    pub url: String,
    /// Its key under its name.
    pub key: CosignerKey,
}

/// Where a log is kept, and what it is signed with.
pub struct LogFiles {
    /// The ledger's database.
    pub store: PathBuf,
    /// The network.
    pub network: NetworkName,
    /// The database of the head.
    pub head: PathBuf,
    /// Folder of tiles, bundles and the checkpoint.
    pub folder: PathBuf,
    /// Signs checkpoints.
    pub key: SecretKey,
    /// Asked for cosignatures.
    pub witnesses: Vec<KnownWitness>,
    /// Cosignatures of these that a head needs before readers get it; 0 for none.
    pub quorum: usize,
}

/// Publishes one log.
pub struct Publisher {
    files: LogFiles,
    entries: Connection,
    head: HeadFile,
    origin: KeyName,
    staging: Option<Staging>,
    /// Cosignatures of the head, by witness; what is missing is asked for again.
    cosigned: Vec<Option<SignatureLine>>,
    cosigned_head: Option<SignedCheckpoint>,
    /// The checkpoint that this value knows to be on the disk where readers look.
    shown: Option<Vec<u8>>,
}

/// What stands at the log's address now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The log's name.
    pub origin: KeyName,
    /// Entries.
    pub size: u64,
    /// Root over them.
    pub root: Hash,
    /// Names of the witnesses that cosigned.
    pub witnesses: Vec<String>,
}

impl Publisher {
    /// Opens what is there. Reads no entry yet.
    pub fn open(files: LogFiles) -> Result<Self, LedgerError> {
        let entries = open_for_reading(&files.store, &files.network)?;
        let head = HeadFile::open(&files.head)?;
        let origin = head.read()?.origin;
        std::fs::create_dir_all(&files.folder).map_err(|error| failed(&files.folder, &error))?;
        let cosigned = vec![None; files.witnesses.len()];
        Ok(Self { files, entries, head, origin, staging: None, cosigned, cosigned_head: None, shown: None })
    }

    /// The log's verifier key, as policies write it.
    pub fn verifier(&self) -> kvasir_wire::note::Verifier {
        log_verifier(&self.origin, self.files.key.public())
    }

    /// The witnesses that are asked for every head.
    pub fn witnesses(&self) -> &[KnownWitness] {
        &self.files.witnesses
    }

    /// Folder of the files that readers get.
    pub fn folder(&self) -> &Path {
        &self.files.folder
    }

    /// Brings everything that is durable now before the readers. Says what stands there afterwards. An error where too few
    /// witnesses have cosigned: readers keep the head before, and the next call asks again.
    pub fn publish(&mut self) -> Result<Published, LedgerError> {
        let mut head = self.head.read()?;
        let (size, root) = head_of_entries(&self.entries, &self.files.store)?;
        if size < head.size {
            let reason = format!(
                "holds {size} entries, but this log has vouched for {}; an older copy cannot go on: `kvasir-ledger restore` \
                 makes a new origin of it",
                head.size
            );
            return Err(LedgerError::NotALedger { path: self.files.store.clone(), reason });
        }
        // What cannot be taken on is not kept half done either.
        let mut staging = match self.staging.take() {
            Some(staging) => staging,
            None => Staging::new(&self.files.folder),
        };
        staging.extend_to(&self.entries, &self.files.store, size, head.size, &head.root)?;
        if staging.root() != root {
            return Err(LedgerError::Damaged {
                path: self.files.store.clone(),
                index: size.saturating_sub(1),
                reason: format!("the entries have root {}, the kept one is {root}", staging.root()),
            });
        }
        self.staging = Some(staging);
        if head.checkpoint.is_empty() || head.size < size {
            let checkpoint = Checkpoint { origin: self.origin.clone(), size, root };
            let signed =
                checkpoint.sign(&self.files.key).map_err(|error| failed(&self.files.head, &error))?;
            let bytes = signed.note().to_string().into_bytes();
            let new = Head { origin: self.origin.clone(), size, root, checkpoint: bytes };
            if !self.head.swap(&head, &new)? {
                let reason = "another process publishes this log; one must go".to_owned();
                return Err(LedgerError::NotALedger { path: self.files.head.clone(), reason });
            }
            head = new;
        }
        self.show(&head)
    }

    /// Asks witnesses and puts the checkpoint where readers look.
    fn show(&mut self, head: &Head) -> Result<Published, LedgerError> {
        let signed = SignedCheckpoint::verify(&head.checkpoint, &self.verifier()).map_err(|error| {
            let reason = format!("the head is not signed by the key beside it: {error}");
            LedgerError::NotALedger { path: self.files.head.clone(), reason }
        })?;
        if self.cosigned_head.as_ref() != Some(&signed) {
            self.cosigned.iter_mut().for_each(|line| *line = None);
            self.cosigned_head = Some(signed.clone());
        }
        let source = FolderSource(self.files.folder.clone());
        for (witness, line) in self.files.witnesses.iter().zip(&mut self.cosigned) {
            if line.is_none() {
                match client::ask(&witness.url, &witness.key, &signed, &source, head.size) {
                    Ok(cosignature) => *line = Some(cosignature),
                    Err(error) => warn!(witness = %witness.key.name(), %error, "not cosigned; asked again"),
                }
            }
        }
        let cosigned = self.cosigned.iter().flatten().count();
        if cosigned < self.files.quorum {
            let reason = format!(
                "the head of {} entries has {cosigned} of the {} cosignatures of `quorum`: readers keep the one before",
                head.size, self.files.quorum
            );
            return Err(failed(&self.files.folder.join(CHECKPOINT_PATH), &reason));
        }
        let shown = signed
            .with_lines(self.cosigned.iter().flatten().cloned())
            .map_err(|error| failed(&self.files.folder, &error))?;
        let bytes = shown.note().to_string().into_bytes();
        let there = source.read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES).unwrap_or(None);
        // One that is there, and that nobody saw reach the disk, is written again: an error of the disk is told once.
        if there.as_ref() != Some(&bytes) || self.shown.as_ref() != Some(&bytes) {
            let path = self.files.folder.join(CHECKPOINT_PATH);
            write_whole(&path, &bytes, Existing::Replace, Readers::Anyone)
                .map_err(|error| failed(&path, &error))?;
            self.shown = Some(bytes);
            info!(size = head.size, root = %head.root, "published");
        }
        if let Some(staging) = &mut self.staging {
            staging.sweep();
        }
        let named = self.files.witnesses.iter().zip(&self.cosigned).filter(|(_, line)| line.is_some());
        Ok(Published {
            origin: self.origin.clone(),
            size: head.size,
            root: head.root,
            witnesses: named.map(|(witness, _)| witness.key.name().to_string()).collect(),
        })
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> LedgerError {
    LedgerError::Log { path: path.to_owned(), reason: error.to_string() }
}
