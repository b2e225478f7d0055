//! Calls that are kept until a receipt covers them, then written down as probe records.
//!
//! A session keeps accepted calls, and those whose answers were found wrong afterwards, and only as many bytes as a bound allows: what does
//! not fit is computed, counted and paid like any other, and merely leaves no record. Files are written whole or not at all. Nothing
//! is read back.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use kvasir_wire::probe::{ProbeFile, ProbeRecord};
use kvasir_wire::receipt::{ReceiptKeys, SignedReceipt};
use kvasir_wire::work::{WORK_ITEM_BYTES, WorkBook, WorkError, WorkItem};

use crate::evidence::{Evidence, WrongCall, takes_another};
use crate::options::KeepOptions;

/// Most bytes of calls and results that a session keeps between two receipts. Far above what a receipt covers (it is due
/// after a mebibyte) and so low that its file stays within what a reader takes.
pub(crate) const MAX_KEPT_BYTES: usize = 128 << 20;
/// What a record weighs beside payload and rows, at most: so many small ones are bounded too.
const RECORD_BYTES: usize = 8 + WORK_ITEM_BYTES + 1 + 63 * 32 + 8;

/// Why a call is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// It is a probe: its rows may be published.
    Probe,
    /// The payer wants to be able to compute it again; its rows are nobody else's business.
    Private,
}

impl KeepOptions {
    /// Whether a call is kept, and why.
    pub(crate) fn of(&self, probe: bool) -> Option<Keeping> {
        match (probe, self.probes.is_some(), self.rows.is_some()) {
            (true, true, _) | (true, _, true) => Some(Keeping::Probe),
            (false, _, true) => Some(Keeping::Private),
            _ => None,
        }
    }
}

/// What one session keeps until its next receipt.
#[derive(Debug, Default)]
pub(crate) struct Records {
    kept: Vec<Kept>,
    bytes: usize,
    dropped: u64,
}

#[derive(Debug)]
struct Kept {
    index: u64,
    /// Why it was kept when it was accepted; nothing where it was not.
    why: Option<Keeping>,
    /// Its answer was found wrong.
    is_wrong: bool,
    item: WorkItem,
    payload: Vec<u8>,
    rows: Vec<u8>,
}

/// The records of one receipt.
#[derive(Debug)]
pub(crate) struct Covered {
    file: ProbeFile,
    probes: Vec<u64>,
    pub(crate) evidence: Option<Evidence>,
}

/// What became of writing records.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) files: u64,
    pub(crate) records: u64,
    /// Files of evidence, which are no records for replay.
    pub(crate) evidence: u64,
    pub(crate) failure: Option<String>,
}

impl Records {
    /// Keeps an accepted call: item number `index` of the session. False where there is no room.
    pub(crate) fn keep(
        &mut self,
        index: u64,
        why: Keeping,
        item: WorkItem,
        payload: Vec<u8>,
        rows: &[u8],
    ) -> bool {
        if !self.has_room(payload.len() + rows.len()) {
            if self.dropped == 0 {
                tracing::warn!(
                    limit = MAX_KEPT_BYTES,
                    "calls come faster than receipts: some leave no record for replay"
                );
            }
            self.dropped += 1;
            return false;
        }
        self.bytes += payload.len() + rows.len() + RECORD_BYTES;
        let (why, rows) = (Some(why), rows.to_vec());
        self.kept.push(Kept { index, why, is_wrong: false, item, payload, rows });
        true
    }

    /// Keeps a call whose answer was found wrong, item number `index` of the session, which is not of this moment.
    pub(crate) fn keep_wrong(&mut self, index: u64, wrong: WrongCall) {
        let at = self.kept.partition_point(|kept| kept.index < index);
        if let Some(kept) = self.kept.get_mut(at).filter(|kept| kept.index == index) {
            kept.is_wrong = true;
            return;
        }
        let WrongCall { item, payload, rows } = wrong;
        if !self.has_room(payload.len() + rows.len()) {
            tracing::warn!(
                limit = MAX_KEPT_BYTES,
                call = item.call,
                "no room for evidence beside the calls that are kept"
            );
            return;
        }
        self.bytes += payload.len() + rows.len() + RECORD_BYTES;
        self.kept.insert(at, Kept { index, why: None, is_wrong: true, item, payload, rows });
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes + RECORD_BYTES <= MAX_KEPT_BYTES
    }

    /// Takes out what the receipt `signed` with `keys`, over the first `results` results, covers. `book` must not have made that cut
    /// yet.
    pub(crate) fn covered(
        &mut self,
        signed: &SignedReceipt,
        keys: &ReceiptKeys,
        results: u64,
        book: &WorkBook,
    ) -> Result<Option<Covered>, WorkError> {
        let end = self.kept.partition_point(|kept| kept.index < results);
        if end == 0 {
            return Ok(None);
        }
        let indices: Vec<u64> = self.kept[..end].iter().map(|kept| kept.index).collect();
        let proofs = book.proofs_at(results, &indices)?;
        let (mut probes, mut wrong) = (Vec::new(), Vec::new());
        let mut records = Vec::with_capacity(end);
        for (kept, proof) in self.kept.drain(..end).zip(proofs) {
            let Kept { index, why, is_wrong, item, payload, rows } = kept;
            self.bytes -= payload.len() + rows.len() + RECORD_BYTES;
            if why == Some(Keeping::Probe) {
                probes.push(index);
            }
            let record = ProbeRecord { index, item: item.encode(), proof, payload, rows };
            if is_wrong && takes_another(&wrong, &record) {
                wrong.push(record.clone());
            }
            records.push(record);
        }
        let receipt = signed.receipt();
        let file_of = |records| ProbeFile {
            session: receipt.terms.session,
            seq: receipt.seq,
            receipt: receipt.id(),
            size: results,
            root: receipt.counters.work,
            records,
        };
        let evidence = (!wrong.is_empty()).then(|| Evidence {
            keys: *keys,
            receipt: signed.note().clone(),
            record: file_of(wrong),
        });
        Ok(Some(Covered { file: file_of(records), probes, evidence }))
    }
}

impl Covered {
    /// Writes the records where the options say. Blocks on the disk.
    pub(crate) fn write(mut self, keep: &KeepOptions) -> Written {
        let mut written = Written::default();
        if let Some(folder) = &keep.rows {
            written.note(write(folder, &self.file, true), &self.file);
        }
        if let (Some(sink), Some(evidence)) = (&keep.evidence, &self.evidence) {
            match sink.take(evidence) {
                Ok(()) => written.evidence += 1,
                Err(error) => {
                    let name = evidence.record.name();
                    tracing::warn!(%name, %error, "evidence against a worker could not be written; free space or name another folder");
                    written.failure = Some(format!("evidence of {name}: {error}"));
                }
            }
        }
        if let Some(folder) = &keep.probes
            && !self.probes.is_empty()
        {
            self.file.records.retain(|record| self.probes.binary_search(&record.index).is_ok());
            written.note(write(folder, &self.file, false), &self.file);
        }
        written
    }
}

impl Written {
    fn note(&mut self, outcome: io::Result<PathBuf>, file: &ProbeFile) {
        match outcome {
            Ok(path) => {
                tracing::debug!(path = %path.display(), records = file.records.len(), "records were written");
                self.files += 1;
                self.records += file.records.len() as u64;
            }
            Err(error) => {
                // Work goes on: the receipt stands without its records, only nobody can replay them.
                tracing::warn!(name = %file.name(), %error, "records for replay could not be written; free space or name another folder");
                self.failure = Some(format!("{}: {error}", file.name()));
            }
        }
    }
}

/// Writes a file whole or not at all. A `private` one is for its owner's eyes, and so is its folder.
fn write(folder: &Path, file: &ProbeFile, private: bool) -> io::Result<PathBuf> {
    let path = folder.join(file.name().to_string());
    let place = path.parent().unwrap_or(folder);
    make_folder(place, private)?;
    let unfinished = place.join(format!(".{}.part", file.seq));
    // Left over from a crash: its mode may be another.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut out = create(&unfinished, private)?;
    out.write_all(&file.encode())?;
    out.sync_all()?;
    fs::rename(&unfinished, &path)?;
    File::open(place)?.sync_all()?;
    Ok(path)
}

#[cfg(unix)]
fn make_folder(place: &Path, private: bool) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let mode = if private { 0o700 } else { 0o755 };
    fs::DirBuilder::new().recursive(true).mode(mode).create(place)
}

#[cfg(not(unix))]
fn make_folder(place: &Path, _private: bool) -> io::Result<()> {
    fs::create_dir_all(place)
}

#[cfg(unix)]
fn create(path: &Path, private: bool) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mode = if private { 0o600 } else { 0o644 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

#[cfg(not(unix))]
fn create(path: &Path, _private: bool) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(call: u64) -> WorkItem {
        WorkItem { call, layer: 0, mode: 1, payload: [1; 32], rows: [2; 32] }
    }

    #[test]
    fn what_is_kept_depends_on_the_folders_named() {
        let folder = || Some(PathBuf::from("somewhere"));
        let none = KeepOptions::default();
        assert_eq!((none.of(true), none.of(false)), (None, None));
        let probes = KeepOptions { probes: folder(), ..KeepOptions::default() };
        assert_eq!((probes.of(true), probes.of(false)), (Some(Keeping::Probe), None));
        let rows = KeepOptions { rows: folder(), ..KeepOptions::default() };
        assert_eq!((rows.of(true), rows.of(false)), (Some(Keeping::Probe), Some(Keeping::Private)));
    }

    #[test]
    fn what_is_kept_between_two_receipts_is_bounded() {
        let mut records = Records::default();
        let half = vec![0; MAX_KEPT_BYTES / 2];
        assert!(records.keep(0, Keeping::Private, item(1), half.clone(), &[0; 8]));
        assert!(!records.keep(1, Keeping::Private, item(2), half, &[0; 8]), "the second half does not fit");
        assert!(records.keep(2, Keeping::Private, item(3), vec![0; 100], &[0; 8]), "a small one does");
        assert_eq!((records.kept.len(), records.dropped), (2, 1));
        let mut records = Records::default();
        let most = MAX_KEPT_BYTES / RECORD_BYTES;
        let kept =
            (0..most as u64 + 1).filter(|&index| records.keep(index, Keeping::Probe, item(1), vec![], &[]));
        assert_eq!(kept.count(), most, "empty ones are bounded too");
    }
}
