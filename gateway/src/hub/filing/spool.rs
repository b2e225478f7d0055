//! The spool folder: one file a note, whole or absent after a crash. No ledger is asked here.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use kvasir_wire::{id::SessionId, limits::MAX_NOTE_BYTES, note::Note};

/// How the name of a note's file ends.
const SUFFIX: &str = "receipt";
/// Folder in the spool for what the ledger refused for good.
pub(super) const REFUSED_FOLDER: &str = "refused";

/// Folder in the spool for countersignatures that contradict a receipt.
const CONFLICTS_FOLDER: &str = "conflicts";

/// Why a note's file gives no note.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpoolError {
    /// It is no note, or somebody took it away: trying again changes nothing.
    #[error("{path}: {reason}")]
    NoNote {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It cannot be read now.
    #[error("{path}: cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Makes the folder where it is missing, moves what was refused back into it, and lists all notes: by session, then number.
pub(super) fn take_up(spool: &Path) -> io::Result<Vec<PathBuf>> {
    let refused = spool.join(REFUSED_FOLDER);
    fs::create_dir_all(&refused)?;
    for path in notes_in(&refused)? {
        let back = spool.join(path.file_name().unwrap_or_default());
        if !back.exists() {
            tracing::warn!(note = %path.display(), "was refused in an earlier run and is tried once more");
            fs::rename(path, back)?;
        }
    }
    notes_in(spool)
}

/// The file of a session's note.
pub(super) fn path_of(spool: &Path, session: SessionId, seq: u64) -> PathBuf {
    spool.join(format!("{session}-{seq:020}.{SUFFIX}"))
}

/// Writes a file so that it is whole or absent after a crash.
pub(super) fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    });
    if let Err(error) = written {
        // On a full disk half a file would take the place that the next one needs.
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Keeps what contradicts a receipt: one file a session is enough, since it ends with the first.
pub(super) fn keep_conflict(spool: &Path, session: SessionId, payload: &[u8]) -> io::Result<PathBuf> {
    let folder = spool.join(CONFLICTS_FOLDER);
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{session}.countersign"));
    keep(&path, payload)?;
    Ok(path)
}

/// Reads a note back.
pub(super) fn read(path: &Path) -> Result<Note, SpoolError> {
    let no_note = |reason: String| SpoolError::NoNote { path: path.to_owned(), reason };
    let bytes = fs::metadata(path)
        .map(|metadata| metadata.len())
        .and_then(|length| Ok(if length > MAX_NOTE_BYTES as u64 { None } else { Some(fs::read(path)?) }));
    match bytes {
        Ok(Some(bytes)) => Note::parse(&bytes).map_err(|error| no_note(format!("is no note: {error}"))),
        Ok(None) => Err(no_note(format!("is larger than {MAX_NOTE_BYTES} bytes"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(no_note("was taken out of the spool".into()))
        }
        Err(source) => Err(SpoolError::Unreadable { path: path.to_owned(), source }),
    }
}

/// Sets a note aside.
pub(super) fn refuse(spool: &Path, path: &Path) -> io::Result<()> {
    fs::rename(path, spool.join(REFUSED_FOLDER).join(path.file_name().unwrap_or_default()))
}

fn notes_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == SUFFIX) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
