//! The first pass over published probe records: each file against its receipt, each record against its file, and the draw.
//!
//! One file is in memory at a time, and of the records only their places are kept; what is drawn is read again.

use std::collections::HashSet;

use kvasir_wire::id::SessionId;
use kvasir_wire::probe::{ProbeFile, ProbeName};

use crate::draw::{Drawn, Lot};
use crate::error::ReplayError;
use crate::probes::ProbeSource;
use crate::receipts::{LoggedReceipt, LoggedReceipts};

/// Most records that one audit draws from.
pub const MAX_RECORDS: usize = 10_000_000;
/// Most faults that a survey keeps; further ones are counted.
pub const MAX_FAULTS: usize = 1_000;

/// A published item, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub name: ProbeName,
    /// The work item within the session.
    pub index: u64,
}

/// A file that may not be used. It says something of who published it, and nothing of the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub name: ProbeName,
    /// Why.
    pub reason: String,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// The items drawn, first drawn first.
    pub drawn: Vec<Place>,
    /// Files listed.
    pub files: usize,
    /// Records that may be drawn.
    pub records: usize,
    /// Work items of those sessions up to their latest published receipt, published or not.
    pub work_items: u64,
    /// Files that may not be used, the first [`MAX_FAULTS`].
    pub faults: Vec<Fault>,
    /// All of them.
    pub faulty: usize,
}

/// Checks all records that `probes` lists and draws `count` of them.
///
/// # Errors
/// The list cannot be read, or there is too much.
pub fn survey(
    probes: &dyn ProbeSource,
    receipts: &LoggedReceipts,
    lot: &Lot,
    count: usize,
) -> Result<Survey, ReplayError> {
    let mut names = probes.list()?;
    names.sort_unstable();
    names.dedup();
    let mut found = Survey { files: names.len(), ..Survey::default() };
    let mut drawn = Drawn::new(count);
    // Work roots are cumulative: a record may stand under several receipts of its session, and is one item.
    let mut seen: HashSet<(SessionId, u64)> = HashSet::new();
    let mut session = None;
    for name in names {
        let (file, receipt) = match checked(probes, receipts, &name)? {
            Ok(checked) => checked,
            Err(reason) => {
                found.faulty += 1;
                if found.faults.len() < MAX_FAULTS {
                    found.faults.push(Fault { name, reason });
                }
                continue;
            }
        };
        let (before, latest) = match session {
            Some((same, size)) if same == name.session => (size, file.size.max(size)),
            _ => (0, file.size),
        };
        session = Some((name.session, latest));
        found.work_items = found.work_items.saturating_add(latest - before);
        let seed = lot.seed(name.session, &receipt.signed.receipt().counters.work);
        for record in &file.records {
            if seen.insert((name.session, record.index)) {
                found.records += 1;
                drawn.offer(seed.rank(record.index), Place { name, index: record.index });
            }
            if seen.len() > MAX_RECORDS {
                return Err(ReplayError::TooMany { what: "records", limit: MAX_RECORDS });
            }
        }
    }
    found.drawn = drawn.into_items();
    Ok(found)
}

/// The file, all its records checked, and its receipt; the reason where either may not be used.
///
/// # Errors
/// It cannot be read at all.
pub fn checked<'r>(
    probes: &dyn ProbeSource,
    receipts: &'r LoggedReceipts,
    name: &ProbeName,
) -> Result<Result<(ProbeFile, &'r LoggedReceipt), String>, ReplayError> {
    let receipt = match receipts.get(name) {
        Ok(receipt) => receipt,
        Err(reason) => return Ok(Err(reason)),
    };
    let file = match probes.file(name)? {
        Ok(file) => file,
        Err(reason) => return Ok(Err(reason)),
    };
    Ok(match check(&file, receipt) {
        Ok(()) => Ok((file, receipt)),
        Err(reason) => Err(reason),
    })
}

/// Checks a file against its receipt.
fn check(file: &ProbeFile, receipt: &LoggedReceipt) -> Result<(), String> {
    let receipt = receipt.signed.receipt();
    file.check(receipt).map_err(|error| error.to_string())?;
    // Every counted call has its result among the work items.
    if file.size < receipt.counters.calls {
        return Err(format!(
            "the file says {} work items, the receipt counts {} calls",
            file.size, receipt.counters.calls
        ));
    }
    Ok(())
}
