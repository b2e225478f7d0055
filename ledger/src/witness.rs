//! A witness (C2SP [tlog-witness](https://c2sp.org/tlog-witness)): cosigns the heads of logs that it knows, and only such
//! that extend every head that it cosigned before. What a log says is none of its business, nor is whether it is true.
//!
//! The check and the record are one step, and the record is on the disk before the cosignature leaves: a witness that is
//! killed at any point never vouches for two histories. Nor do two processes: a [`Witness`] has its folder for itself as long
//! as it lives. It is the decision, [`service`] the program around it, [`client`] what a log asks with.

pub mod client;
mod request;
#[cfg(feature = "server")]
pub mod service;

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use kvasir_merkle::{ConsistencyProof, Hash};
use kvasir_wire::id::sha256;
use kvasir_wire::key::SecretKey;
use kvasir_wire::note::{KeyName, Verifier};
use thiserror::Error;

use crate::files::{Existing, Readers, read_regular, read_regular_text, write_whole};
use crate::log::{Checkpoint, CheckpointError, CosignerKey, MAX_CHECKPOINT_BYTES, SignedCheckpoint, cosign};
pub use request::{AddCheckpoint, MAX_REQUEST_BYTES, RequestError};

/// Content type of the answer that names the size a witness has.
pub const SIZE_TYPE: &str = "text/x.tlog.size";

/// File in a witness's folder that its process holds locked.
const LOCK: &str = "lock";
/// File in a witness's folder with the origins of all logs that it ever cosigned, a line each: a record that is missing is seen.
const LOGS: &str = "logs";
/// Longest such file that is read.
const MAX_LOGS_BYTES: u64 = 16 * 1024 * 1024;

/// The logs of which this process has the record, and the line in the list, on the disk: a name in a folder may be there and yet be
/// lost with the power, where syncing the folder failed or a process ended before it.
#[derive(Default)]
struct Durable {
    recorded: HashSet<KeyName>,
    listed: HashSet<KeyName>,
}

/// A witness with its key, the logs that it knows and what it saw of them. At most one lives for a folder.
pub struct Witness {
    name: KeyName,
    key: SecretKey,
    logs: HashMap<KeyName, Vec<Verifier>>,
    folder: PathBuf,
    /// Held from the check to the record.
    durable: Mutex<Durable>,
    /// Keeps other processes away; the system gives it back when this one ends, however that ends.
    _lock: File,
}

/// Why a head is not cosigned.
#[derive(Debug, Error)]
pub enum WitnessError {
    /// The request is no request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A log that this witness was not told of.
    #[error("log `{0}` is not known here; have the witness's operator add its key")]
    UnknownLog(String),
    /// The log's own signature is missing or wrong.
    #[error("the checkpoint is not signed by a key of log `{0}`")]
    NotSigned(KeyName),
    /// The old size is larger than the new one.
    #[error("the old size {old} is larger than the checkpoint's {size}")]
    Shrinks {
        /// Size that the request extends.
        old: u64,
        /// Size of the checkpoint.
        size: u64,
    },
    /// The request extends another head than the one cosigned last.
    #[error("the last head that was cosigned has size {0}; prove from there")]
    OtherSize(u64),
    /// The head does not extend the one cosigned last.
    #[error("the checkpoint does not extend the head that was cosigned last: {0}")]
    Inconsistent(String),
    /// Another process has the folder.
    #[error(
        "{}: another process is this witness already; two could cosign two histories between one's reading and the other's writing",
        .folder.display()
    )]
    InUse {
        /// Which folder.
        folder: PathBuf,
    },
    /// What was seen cannot be read or written; nothing is cosigned.
    #[error("{path}: {source}")]
    State {
        /// Which file.
        path: PathBuf,
        /// What the system said, or what is wrong with it.
        source: std::io::Error,
    },
}

impl Witness {
    /// A witness named `name` that keeps what it saw in `folder`, which exists, and which no other process may use until this
    /// value is dropped.
    ///
    /// # Errors
    /// [`WitnessError::InUse`], and [`WitnessError::State`] where the folder cannot be locked.
    pub fn open(
        name: KeyName,
        key: SecretKey,
        logs: impl IntoIterator<Item = Verifier>,
        folder: PathBuf,
    ) -> Result<Self, WitnessError> {
        let mut known: HashMap<KeyName, Vec<Verifier>> = HashMap::new();
        for log in logs {
            known.entry(log.name().clone()).or_default().push(log);
        }
        let lock = lock(&folder)?;
        Ok(Self { name, key, logs: known, folder, durable: Mutex::default(), _lock: lock })
    }

    /// Its public key under its name, as policies write it.
    pub fn cosigner(&self) -> CosignerKey {
        CosignerKey::new(self.name.clone(), self.key.public())
    }

    /// Decides on the body of an `add-checkpoint` request at `now` (Unix seconds); gives the line to answer with.
    pub fn add_checkpoint(&self, body: &[u8], now: u64) -> Result<String, WitnessError> {
        let request = AddCheckpoint::parse(body)?;
        let note = &request.checkpoint;
        let origin = note.text().split('\n').next().unwrap_or_default();
        let unknown = || WitnessError::UnknownLog(origin.chars().take(128).collect());
        let logs =
            origin.parse::<KeyName>().ok().and_then(|origin| self.logs.get(&origin)).ok_or_else(unknown)?;
        let name = logs.first().map(|log| log.name().clone()).ok_or_else(unknown)?;
        Checkpoint::parse(note.text()).map_err(|error| match error {
            CheckpointError::EmptyRoot => WitnessError::Inconsistent(error.to_string()),
            error => RequestError::from(error).into(),
        })?;
        // Whatever else was signed is of no interest: a forged line of a stranger must not keep a good head out.
        let bytes = note.to_string();
        let verified =
            |log| SignedCheckpoint::verify(bytes.as_bytes(), log).and_then(|head| head.of_log_alone(log));
        let signed = logs.iter().find_map(|log| verified(log).ok()).ok_or(WitnessError::NotSigned(name))?;
        let Checkpoint { size, root, .. } = signed.checkpoint();
        if request.old > *size {
            return Err(WitnessError::Shrinks { old: request.old, size: *size });
        }
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.seen(&signed.checkpoint().origin)?.map(|seen| seen.checkpoint().clone());
        let seen_size = seen.as_ref().map_or(0, |seen| seen.size);
        if request.old != seen_size {
            return Err(WitnessError::OtherSize(seen_size));
        }
        check_extends(seen.as_ref(), request.proof, *size, root).map_err(WitnessError::Inconsistent)?;
        if seen.is_none_or(|seen| seen.size != *size) {
            durable.recorded.remove(&signed.checkpoint().origin);
        }
        self.record(&signed, &mut durable)?;
        // After the record: a log that is listed and has none is never cosigned again.
        self.list(&signed.checkpoint().origin, &mut durable)?;
        Ok(cosign(signed.note().text(), &self.name, &self.key, now).to_string())
    }

    /// The head of the log `origin` that was cosigned last, as the log signed it.
    pub fn seen(&self, origin: &KeyName) -> Result<Option<SignedCheckpoint>, WitnessError> {
        let path = self.path(origin);
        let failed = |source| WitnessError::State { path: path.clone(), source };
        let bytes = match read_regular(&path, MAX_CHECKPOINT_BYTES as u64) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if !self.listed()?.iter().any(|listed| listed == origin.as_str()) {
                    return Ok(None);
                }
                let reason =
                    "it is missing, although this log was cosigned; restore it, or make a new witness";
                return Err(failed(std::io::Error::new(error.kind(), reason)));
            }
            Err(error) => return Err(failed(error)),
        };
        // A record that was damaged must never count as none: the witness would start over.
        let read = self
            .logs
            .get(origin)
            .into_iter()
            .flatten()
            .find_map(|log| SignedCheckpoint::verify(&bytes, log).ok());
        read.map(Some).ok_or_else(|| {
            failed(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "it is not the head that was recorded; restore it, or make a new witness",
            ))
        })
    }

    /// The head cosigned last for the log whose origin has this SHA-256, with a cosignature of `now`.
    pub fn cosigned(&self, origin_digest: &Hash, now: u64) -> Result<Option<String>, WitnessError> {
        let named = |name: &&KeyName| sha256(&[name.as_str().as_bytes()]) == origin_digest.0;
        let Some(origin) = self.logs.keys().find(named) else { return Ok(None) };
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seen) = self.seen(origin)? else { return Ok(None) };
        self.record(&seen, &mut durable)?;
        let line = cosign(seen.note().text(), &self.name, &self.key, now);
        let note = seen.with_lines([line]).map_err(|error| WitnessError::State {
            path: self.path(origin),
            source: std::io::Error::other(error.to_string()),
        })?;
        Ok(Some(note.note().to_string()))
    }

    /// Has this head on the disk before it is cosigned. It is written anew where that is not certain: an error of the disk is
    /// told once, and syncing again would hide it.
    fn record(&self, signed: &SignedCheckpoint, durable: &mut Durable) -> Result<(), WitnessError> {
        let origin = &signed.checkpoint().origin;
        if durable.recorded.contains(origin) {
            return Ok(());
        }
        let path = self.path(origin);
        write_whole(&path, signed.note().to_string().as_bytes(), Existing::Replace, Readers::Anyone)
            .map_err(|source| WitnessError::State { path, source })?;
        durable.recorded.insert(origin.clone());
        Ok(())
    }

    /// Has the log among those that were cosigned, on the disk; as [`Witness::record`].
    fn list(&self, origin: &KeyName, durable: &mut Durable) -> Result<(), WitnessError> {
        if durable.listed.contains(origin) {
            return Ok(());
        }
        let mut listed = self.listed()?;
        if listed.iter().all(|listed| listed != origin.as_str()) {
            listed.push(origin.to_string());
        }
        let (path, text) = (self.folder.join(LOGS), listed.join("\n") + "\n");
        write_whole(&path, text.as_bytes(), Existing::Replace, Readers::Anyone)
            .map_err(|source| WitnessError::State { path, source })?;
        durable.listed.insert(origin.clone());
        Ok(())
    }

    fn listed(&self) -> Result<Vec<String>, WitnessError> {
        let path = self.folder.join(LOGS);
        match read_regular_text(&path, MAX_LOGS_BYTES) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(WitnessError::State { path, source }),
        }
    }

    fn path(&self, origin: &KeyName) -> PathBuf {
        self.folder.join(format!("{}.checkpoint", Hash(sha256(&[origin.as_str().as_bytes()]))))
    }
}

/// Locks a witness's folder.
fn lock(folder: &Path) -> Result<File, WitnessError> {
    let path = folder.join(LOCK);
    // It is never removed: whoever opened it before would hold a lock that nobody else sees.
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    match file.map(|file| file.try_lock().map(|()| file)) {
        Ok(Ok(file)) => Ok(file),
        Ok(Err(TryLockError::WouldBlock)) => Err(WitnessError::InUse { folder: folder.to_owned() }),
        Ok(Err(TryLockError::Error(source))) | Err(source) => Err(WitnessError::State { path, source }),
    }
}

fn check_extends(seen: Option<&Checkpoint>, proof: Vec<Hash>, size: u64, root: &Hash) -> Result<(), String> {
    let Some(seen) = seen.filter(|seen| seen.size > 0) else {
        // Every tree extends the empty one.
        return if proof.is_empty() { Ok(()) } else { Err("nothing is to be proven from size 0".into()) };
    };
    if seen.size == size {
        return match (seen.root == *root, proof.is_empty()) {
            (false, _) => Err(format!("size {size} had root {} before", seen.root)),
            (true, false) => Err("nothing is to be proven for the same size".into()),
            (true, true) => Ok(()),
        };
    }
    let proof = ConsistencyProof { old_size: seen.size, new_size: size, hashes: proof };
    proof.verify(&seen.root, root).map_err(|error| error.to_string())
}
