//! Publishing: entries that are durable become tiles, bundles and a signed checkpoint that any web server can carry.
//!
//! The order is what makes it safe to be killed anywhere: tiles and bundles are staged under names that never change their
//! content; then the signed head is swapped in its own database, which is the moment at which the log has vouched for it;
//! then witnesses are asked and the checkpoint is put where readers look. Starting again goes through the same steps.
//! Every hash is computed from bytes that were read back from the database, never from what was in memory when they came.

mod staging;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use kvasir_merkle::Hash;
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::{KeyName, NetworkName, SignatureLine, Verifier};
use rusqlite::Connection;
use tracing::{info, warn};

use crate::files::{Existing, Readers, read_regular_text, write_whole};
use crate::head::{Head, HeadFile};
use crate::log::{
    CHECKPOINT_PATH, Checkpoint, CosignerKey, FolderSource, LogSource, MAX_CHECKPOINT_BYTES,
    SignedCheckpoint, log_verifier,
};
use crate::refusal::LedgerError;
use crate::store::{head_of_entries, open_for_reading};
use crate::witness::client::{self, CosignError};
use staging::Staging;

/// File of the log's verifier key, beside the head.
pub const LOG_VKEY: &str = "log.vkey";
/// Longest such file that is read.
const MAX_VKEY_BYTES: u64 = 4096;
/// How long a head that the quorum has cosigned waits for the others' cosignatures.
const GRACE: Duration = Duration::from_secs(1);
/// A witness that let its time pass is not asked again for so long, twice as long each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(320);

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
    /// Which witnesses let their time pass, how long they are left alone for it, and since when.
    pauses: Vec<Option<(Duration, Instant)>>,
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
    /// Opens what is there. Reads no entry yet. Refuses a key that is not the log's: a head that it signed could never be taken
    /// back.
    pub fn open(files: LogFiles) -> Result<Self, LedgerError> {
        let entries = open_for_reading(&files.store, &files.network)?;
        let head_file = HeadFile::open(&files.head)?;
        let head = head_file.read()?;
        check_key(&files, &log_verifier(&head.origin, files.key.public()))?;
        std::fs::create_dir_all(&files.folder).map_err(|error| failed(&files.folder, &error))?;
        let (cosigned, pauses) = (vec![None; files.witnesses.len()], vec![None; files.witnesses.len()]);
        let origin = head.origin.clone();
        let publisher = Self {
            files,
            entries,
            head: head_file,
            origin,
            staging: None,
            cosigned,
            pauses,
            cosigned_head: None,
            shown: None,
        };
        publisher.signed(&head)?;
        Ok(publisher)
    }

    /// The log's verifier key, as policies write it.
    pub fn verifier(&self) -> Verifier {
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
            self.signed(&head)?;
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

    /// The head as this log's key signed it; nothing before the first.
    fn signed(&self, head: &Head) -> Result<Option<SignedCheckpoint>, LedgerError> {
        if head.checkpoint.is_empty() {
            return Ok(None);
        }
        SignedCheckpoint::verify(&head.checkpoint, &self.verifier()).map(Some).map_err(|error| {
            let reason =
                format!("the head is not signed by the log.key beside it, put the right one back: {error}");
            LedgerError::NotALedger { path: self.files.head.clone(), reason }
        })
    }

    /// Asks witnesses and puts the checkpoint where readers look: once all have answered, or soon after the quorum has cosigned it and
    /// again with what comes later.
    fn show(&mut self, head: &Head) -> Result<Published, LedgerError> {
        let signed =
            self.signed(head)?.ok_or_else(|| failed(&self.files.head, &"there is no signed head"))?;
        if self.cosigned_head.as_ref() != Some(&signed) {
            self.cosigned.iter_mut().for_each(|line| *line = None);
            self.cosigned_head = Some(signed.clone());
        }
        self.ask(&signed, false)?;
        if self.cosigned.iter().flatten().count() < self.files.quorum {
            self.ask(&signed, true)?;
        }
        if !self.put(&signed)? {
            let cosigned = self.cosigned.iter().flatten().count();
            let reason = format!(
                "the head of {} entries has {cosigned} of the {} cosignatures of `quorum`: readers keep the one before",
                head.size, self.files.quorum
            );
            return Err(failed(&self.files.folder.join(CHECKPOINT_PATH), &reason));
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

    /// Asks every witness whose cosignature is missing, all at once. One that does not answer soon keeps no head from readers that the
    /// quorum has cosigned.
    /// One that let its time pass before is left alone for a while, unless `paused_too`.
    fn ask(&mut self, signed: &SignedCheckpoint, paused_too: bool) -> Result<(), LedgerError> {
        let source = FolderSource(self.files.folder.clone());
        let witnesses = self.files.witnesses.clone();
        let missing = (0..witnesses.len())
            .filter(|place| self.cosigned[*place].is_none() && (paused_too || self.is_due(*place)));
        let missing: Vec<usize> = missing.collect();
        let size = signed.checkpoint().size;
        std::thread::scope(|scope| {
            let (answer, answers) = mpsc::channel();
            for place in missing {
                let (answer, source, witness) = (answer.clone(), &source, &witnesses[place]);
                let task = move || {
                    // It fails only where nobody waits any more.
                    let _ =
                        answer.send((place, client::ask(&witness.url, &witness.key, signed, source, size)));
                };
                if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, task) {
                    warn!(witness = %witness.key.name(), %error, "cannot be asked now; asked again");
                }
            }
            drop(answer);
            let mut grace = Some(Instant::now() + GRACE);
            loop {
                let answer = match grace {
                    Some(until) => answers.recv_timeout(until.saturating_duration_since(Instant::now())),
                    None => answers.recv().map_err(|_| RecvTimeoutError::Disconnected),
                };
                match answer {
                    Ok((place, answer)) => self.take(place, answer),
                    Err(RecvTimeoutError::Timeout) => grace = None,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
                if grace.is_none() {
                    self.put(signed)?;
                }
            }
        })
    }

    fn take(&mut self, place: usize, answer: Result<SignatureLine, CosignError>) {
        match answer {
            Ok(line) => (self.cosigned[place], self.pauses[place]) = (Some(line), None),
            Err(error) => {
                let pause = self.pauses[place].map_or(FIRST_PAUSE, |(last, _)| LONGEST_PAUSE.min(2 * last));
                self.pauses[place] = error.is_timeout().then(|| (pause, Instant::now()));
                let witness = self.files.witnesses[place].key.name();
                warn!(%witness, %error, "not cosigned; asked again");
            }
        }
    }

    fn is_due(&self, place: usize) -> bool {
        self.pauses[place].is_none_or(|(pause, since)| since.elapsed() >= pause)
    }

    /// Puts the checkpoint with the cosignatures that there are where readers look. False, and nothing done, below the quorum.
    fn put(&mut self, signed: &SignedCheckpoint) -> Result<bool, LedgerError> {
        if self.cosigned.iter().flatten().count() < self.files.quorum {
            return Ok(false);
        }
        let shown = signed
            .with_lines(self.cosigned.iter().flatten().cloned())
            .map_err(|error| failed(&self.files.folder, &error))?;
        let bytes = shown.note().to_string().into_bytes();
        let source = FolderSource(self.files.folder.clone());
        let there = source.read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES).unwrap_or(None);
        // One that is there, and that nobody saw reach the disk, is written again: an error of the disk is told once.
        if there.as_ref() != Some(&bytes) || self.shown.as_ref() != Some(&bytes) {
            let path = self.files.folder.join(CHECKPOINT_PATH);
            write_whole(&path, &bytes, Existing::Replace, Readers::Anyone)
                .map_err(|error| failed(&path, &error))?;
            self.shown = Some(bytes);
            let Checkpoint { size, root, .. } = signed.checkpoint();
            info!(size, %root, "published");
        }
        Ok(true)
    }
}

/// The key must be the one that auditors were given. Where that file is not there, the head's signature alone says it.
fn check_key(files: &LogFiles, own: &Verifier) -> Result<(), LedgerError> {
    let path = files.head.with_file_name(LOG_VKEY);
    let told = match read_regular_text(&path, MAX_VKEY_BYTES) {
        Ok(told) => told,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(&path, &error)),
    };
    if told.trim() == own.to_string() {
        return Ok(());
    }
    let reason = format!("names {}, but log.key is that of {own}; put the right log.key back", told.trim());
    Err(LedgerError::NotALedger { path, reason })
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> LedgerError {
    LedgerError::Log { path: path.to_owned(), reason: error.to_string() }
}
