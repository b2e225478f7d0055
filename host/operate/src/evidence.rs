//! Evidence against workers, as `kvasir run` and `kvasir serve` write it: a file for each worker that was found lying, in the form that
//! `kvasir-ledger convict` and `kvasir audit --evidence-file` read.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use kvasir_dispatch::EvidenceSink;
use kvasir_replay::{Evidence, WorkFraud};

use crate::files::Draft;

/// Names in a folder beyond which no more files are written: who lies under ever new keys shall not fill the disk.
const NAMES_MAX: usize = 256;

/// Writes evidence into `folder`, which is made where it is missing.
pub fn into_folder(folder: PathBuf) -> EvidenceSink {
    EvidenceSink::new(move |evidence| write(&folder, evidence, NAMES_MAX))
}

/// The rows in it are derived from a prompt, so folder and file are for their owner alone.
fn write(folder: &Path, evidence: &kvasir_dispatch::Evidence, most: usize) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    if fs::read_dir(folder)?.take(most).count() >= most {
        return Err(io::Error::other(format!(
            "{} holds {most} files already: look at them and move them away",
            folder.display()
        )));
    }
    let kvasir_dispatch::Evidence { keys, receipt, record } = evidence;
    let index = record.records.first().map_or(0, |record| record.index);
    let path = folder.join(format!("work-{}-{}-{index}.fraud", record.session.short(), record.seq));
    let work = WorkFraud { keys: *keys, receipt: receipt.clone(), record: record.clone() };
    let whole = |error: anyhow::Error| io::Error::other(format!("{error:#}"));
    let mut draft = Draft::secret(&path).map_err(whole)?;
    draft.write_all(Evidence::Work(work).to_string().as_bytes())?;
    draft.finish().map_err(whole)?;
    tracing::warn!(worker = %keys.worker, "evidence against the worker is in {}", path.display());
    Ok(())
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

    fn evidence(seq: u64) -> kvasir_dispatch::Evidence {
        let [hub, worker, backbone] = [1, 2, 3].map(|seed| SecretKey::from_seed([seed; 32]).public());
        let receipt = Note::unsigned("a receipt\n").unwrap();
        let (session, root) = (SessionId([4; 32]), receipt.leaf_hash());
        let record =
            ProbeFile { session, seq, receipt: ReceiptId([5; 32]), size: 1, root, records: Vec::new() };
        kvasir_dispatch::Evidence { keys: ReceiptKeys { hub, worker, backbone }, receipt, record }
    }

    #[test]
    fn each_is_a_file_for_its_owner_alone_and_there_are_not_too_many() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("new/evidence");
        for seq in 1..=2 {
            write(&folder, &evidence(seq), 2).unwrap();
        }
        let refused = write(&folder, &evidence(3), 2).unwrap_err();
        assert!(refused.to_string().contains("holds 2 files"), "{refused}");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&folder), 0o700);
        let paths: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(paths.len(), 2);
        for path in paths {
            assert_eq!((mode(&path), path.extension().unwrap().to_str()), (0o600, Some("fraud")));
        }
    }
}
