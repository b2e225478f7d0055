//! Evidence against workers, as `kvasir run` and `kvasir serve` write it: a file for each worker that was found lying, in the form that
//! `kvasir-ledger convict` and `kvasir audit --evidence-file` read.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use kvasir_dispatch::EvidenceSink;
use kvasir_replay::{Evidence, WorkFraud};

use crate::files::Draft;

/// What a folder may hold; beyond it no more files are written. Who lies under ever new keys shall not fill the disk.
#[derive(Clone, Copy)]
struct Most {
    names: usize,
    bytes: u64,
}

/// A file is mostly some megabytes, at most some two hundred.
const MOST: Most = Most { names: 256, bytes: 1 << 30 };

/// Writes evidence into `folder`, which is made where it is missing.
pub fn into_folder(folder: PathBuf) -> EvidenceSink {
    EvidenceSink::new(move |evidence| keep(&folder, evidence, MOST))
}

/// Writes evidence down, once it is verified as whoever is given the file will do: nobody is told of a file that convicts nobody.
fn keep(folder: &Path, evidence: &kvasir_dispatch::Evidence, most: Most) -> io::Result<()> {
    let kvasir_dispatch::Evidence { keys, receipt, record } = evidence;
    let work = WorkFraud { keys: *keys, receipt: receipt.clone(), record: record.clone() };
    work.verified()
        .map_err(|error| io::Error::other(format!("what is known of the call convicts nobody: {error}")))?;
    write(folder, work, most)
}

/// The rows in it are derived from a prompt, so folder and file are for their owner alone. No file takes the place of another.
fn write(folder: &Path, work: WorkFraud, most: Most) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let worker = work.keys.worker;
    // The session in full: who chooses its number could meet the beginning of another one's.
    let (session, seq) = (work.record.session, work.record.seq);
    let index = work.record.records.first().map_or(0, |record| record.index);
    let path = folder.join(format!("work-{session}-{seq}-{index}.fraud"));
    let text = Evidence::Work(work).to_string();
    look_for_room(folder, text.len() as u64, most)?;
    let mut draft = Draft::secret(&path).map_err(|error| io::Error::other(format!("{error:#}")))?;
    draft.write_all(text.as_bytes())?;
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()));
    draft.finish_new().map_err(failed)?;
    tracing::warn!(%worker, "evidence against the worker is in {}", path.display());
    Ok(())
}

/// An error where `folder` has no room for one more file of so many bytes.
fn look_for_room(folder: &Path, bytes: u64, most: Most) -> io::Result<()> {
    let (mut names, mut held) = (0, 0u64);
    for entry in fs::read_dir(folder)?.take(most.names) {
        names += 1;
        // One that is gone by now takes no room.
        held = held.saturating_add(entry?.metadata().map_or(0, |there| there.len()));
    }
    if names < most.names && held.saturating_add(bytes) <= most.bytes {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} holds {names} files of {held} bytes, and no more than {} of {} are written there: look at them and move them away",
        folder.display(),
        most.names,
        most.bytes
    )))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use kvasir_wire::id::SessionId;
    use kvasir_wire::key::SecretKey;
    use kvasir_wire::note::Note;
    use kvasir_wire::probe::ProbeFile;
    use kvasir_wire::receipt::{ReceiptId, ReceiptKeys};

    use super::*;

    /// As it would be if it were signed.
    fn work(seq: u64) -> WorkFraud {
        let [hub, worker, backbone] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]).public());
        let receipt = Note::unsigned("a receipt\n").unwrap();
        let (session, root) = (SessionId([4; 32]), receipt.leaf_hash());
        let record =
            ProbeFile { session, seq, receipt: ReceiptId([5; 32]), size: 1, root, records: Vec::new() };
        WorkFraud { keys: ReceiptKeys { hub, worker, backbone }, receipt, record }
    }

    fn names(folder: &Path) -> Vec<PathBuf> {
        let mut names: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    }

    #[test]
    fn each_is_a_file_for_its_owner_alone_and_there_are_not_too_many() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("new/evidence");
        let most = Most { names: 2, ..MOST };
        for seq in 1..=2 {
            write(&folder, work(seq), most).unwrap();
        }
        let refused = write(&folder, work(3), most).unwrap_err();
        assert!(refused.to_string().contains("holds 2 files"), "{refused}");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        let named = |seq| folder.join(format!("work-{}-{seq}-0.fraud", "04".repeat(32)));
        assert_eq!(names(&folder), [named(1), named(2)]);
        assert!(names(&folder).iter().all(|path| mode(path) == 0o600));
    }

    #[test]
    fn the_bytes_of_a_folder_are_bounded_too() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), work(1), MOST).unwrap();
        let one = fs::metadata(&names(home.path())[0]).unwrap().len();
        let most = Most { bytes: 2 * one - 1, ..MOST };
        let refused = write(home.path(), work(2), most).unwrap_err();
        assert!(refused.to_string().contains(&format!("1 files of {one} bytes")), "{refused}");
        write(home.path(), work(2), Most { bytes: 2 * one, ..MOST }).unwrap();
        assert_eq!(names(home.path()).len(), 2);
    }

    #[test]
    fn no_file_takes_the_place_of_another() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), work(1), MOST).unwrap();
        let first = fs::read(&names(home.path())[0]).unwrap();
        let mut other = work(1);
        other.record.size = 9;
        let refused = write(home.path(), other, MOST).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{refused}");
        assert_eq!(names(home.path()).len(), 1);
        assert_eq!(fs::read(&names(home.path())[0]).unwrap(), first);
    }

    #[test]
    fn what_convicts_nobody_is_not_written() {
        let home = tempfile::tempdir().unwrap();
        let WorkFraud { keys, receipt, record } = work(1);
        let evidence = kvasir_dispatch::Evidence { keys, receipt, record };
        let refused = keep(home.path(), &evidence, MOST).unwrap_err();
        assert!(refused.to_string().contains("convicts nobody"), "{refused}");
        assert!(names(home.path()).is_empty());
    }
}
