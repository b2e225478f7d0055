//! Bundles and tiles through the books: fetched and hashed in batches, read and verified on all cores, booked in order.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use kvasir_merkle::{Accumulator, Hash, leaf_hash};

use super::books::Books;
use super::entry::{Entry, Signers};
use super::{AuditError, AuditOptions};
use crate::log::{
    BundleCoordinates, Checkpoint, LogSource, SourceError, TILE_HASHES, TileCoordinates, bundles_of,
    find_bundle, find_tile, parse_bundle, parse_tile,
};

/// Bundles in memory at one time, for each thread.
const BUNDLES_A_THREAD: usize = 4;
/// Most threads, whatever is asked for: each costs bundles in memory.
const MAX_THREADS: usize = 256;

/// Reads and books the whole log; gives the number of signatures that were verified.
pub(super) fn read_all(
    source: &dyn LogSource,
    head: &Checkpoint,
    options: &AuditOptions,
    books: &mut Books,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, AuditError> {
    let mut tree = Growing::new(source, head, options.remembered.as_ref());
    let mut signatures = 0;
    let taken = for_each_batch(head.size, options.threads, |batch| {
        let read = on_threads(batch, options.threads, |bundle| read_bundle(source, *bundle, head.size));
        let mut checks: Vec<(u64, Entry, Signers)> = Vec::new();
        let booked = read.into_iter().try_for_each(|(entries, stopped)| {
            for (index, entry) in entries {
                let leaf = entry.leaf;
                let wrong = |reason| AuditError::Entry { index, reason };
                let signers = books.take(&entry, &tree.all).map_err(wrong)?;
                checks.push((index, entry, signers));
                tree.push(index, leaf)?;
            }
            stopped
        });
        signatures += checks.iter().map(|(_, _, signers)| signers.len() as u64).sum::<u64>();
        let verified = on_threads(&checks, options.threads, |(index, entry, signers)| {
            let wrong = |reason: String| AuditError::Entry { index: *index, reason };
            entry.note.verify_exactly(signers).map_err(|error| wrong(error.to_string()))
        });
        // Both found something: what lies earlier in the log is named.
        match (verified.into_iter().find_map(Result::err), booked.err()) {
            (Some(one), Some(other)) if other.index().is_some_and(|at| Some(at) < one.index()) => Err(other),
            (Some(error), _) | (None, Some(error)) => Err(error),
            (None, None) => {
                progress(tree.all.size(), head.size);
                Ok(())
            }
        }
    });
    let until = match &taken {
        Ok(()) => head.size,
        // A penalty before the wrong entry may be wrong too, and is named then; what is no entry's fault stays as it is.
        Err(error) => error.index().unwrap_or(0),
    };
    let missing = books.unseen().filter(|(_, index)| *index < until).collect();
    let looked = look_back(source, head, &tree.all, missing, taken.is_ok());
    match (taken, looked) {
        // What was found already stands, unless the second look names an earlier entry.
        (Err(found), Err(other)) if other.index().is_none_or(|at| Some(at) > found.index()) => {
            return Err(found);
        }
        (_, Err(other)) => return Err(other),
        (taken, Ok(())) => taken?,
    }
    tree.finish()?;
    Ok(signatures)
}

/// A second look at the tiles of level 0 of the entries in `read`, for what penalties rest on: receipts, whose hashes are not
/// kept. Each leaf in `missing` must stand before the entry with its index. That the tiles are those that were read before is
/// seen by their root, if `in_order`: else a wrong entry stopped the reading, and the last tile may be another for that reason.
/// Nothing is read where nothing is missing.
fn look_back(
    source: &dyn LogSource,
    head: &Checkpoint,
    read: &Accumulator,
    mut missing: HashMap<Hash, u64>,
    in_order: bool,
) -> Result<(), AuditError> {
    let Some(first) = missing.values().min().copied() else { return Ok(()) };
    let wrong = |index, reason: &str| AuditError::Entry { index, reason: reason.into() };
    let mut again = Accumulator::new();
    while again.size() < read.size() {
        let at = again.size();
        let place = at / TILE_HASHES;
        let tile = TileCoordinates::in_tree(0, place, head.size);
        let tile = tile.ok_or_else(|| wrong(at, "a tile beyond the log"))?;
        let left = usize::try_from(read.size() - at).unwrap_or(usize::MAX);
        for leaf in read_tile(source, tile, at)?.into_iter().take(left) {
            if missing.get(&leaf).is_some_and(|before| again.size() < *before) {
                missing.remove(&leaf);
            }
            again.push(leaf);
        }
    }
    if again.root() != read.root() {
        let reason = "the tiles before it were others when they were read again for what it rests on";
        return if in_order { Err(wrong(first, reason)) } else { Ok(()) };
    }
    match missing.values().min() {
        Some(index) => Err(wrong(*index, "what it rests on is not in the log before it")),
        None => Ok(()),
    }
}

/// Reads and hashes the whole log, and looks into no entry.
pub(super) fn hash_all(
    source: &dyn LogSource,
    head: &Checkpoint,
    remembered: Option<&Checkpoint>,
    threads: NonZeroUsize,
) -> Result<(), AuditError> {
    let mut tree = Growing::new(source, head, remembered);
    for_each_batch(head.size, threads, |batch| {
        let hashed = on_threads(batch, threads, |bundle| {
            let mut leaves = Vec::with_capacity(usize::from(bundle.width));
            let take = |index, leaf, _: &[u8]| {
                leaves.push((index, leaf));
                Ok(())
            };
            visit_bundle(source, *bundle, head.size, take).map(|()| leaves)
        });
        hashed
            .into_iter()
            .try_for_each(|leaves| leaves?.into_iter().try_for_each(|(index, leaf)| tree.push(index, leaf)))
    })?;
    tree.finish()
}

/// Some bundles at a time. The size is the log's own word: nothing is made for bundles that may not be there.
fn for_each_batch(
    size: u64,
    threads: NonZeroUsize,
    mut task: impl FnMut(&[BundleCoordinates]) -> Result<(), AuditError>,
) -> Result<(), AuditError> {
    let mut bundles = bundles_of(0, size);
    loop {
        let batch: Vec<_> =
            bundles.by_ref().take(BUNDLES_A_THREAD * threads.get().min(MAX_THREADS)).collect();
        if batch.is_empty() {
            return Ok(());
        }
        task(&batch)?;
    }
}

/// The entries of a bundle up to the first that is none, and what stopped there.
fn read_bundle(
    source: &dyn LogSource,
    bundle: BundleCoordinates,
    size: u64,
) -> (Vec<(u64, Entry)>, Result<(), AuditError>) {
    let mut entries = Vec::with_capacity(usize::from(bundle.width));
    let read = visit_bundle(source, bundle, size, |index, leaf, bytes| {
        entries.push((index, Entry::parse(bytes, leaf)?));
        Ok(())
    });
    (entries, read)
}

/// Shows every entry of a bundle, with its index and its leaf hash, which the tile must have; up to the first that is wrong.
fn visit_bundle(
    source: &dyn LogSource,
    bundle: BundleCoordinates,
    size: u64,
    mut visit: impl FnMut(u64, Hash, &[u8]) -> Result<(), String>,
) -> Result<(), AuditError> {
    let first = bundle.first_entry();
    let wrong = |index, reason| AuditError::Entry { index, reason };
    let missing = || wrong(first, format!("the log has no {}", bundle.path()));
    let found = at(first, find_bundle(source, &bundle))?.ok_or_else(missing)?;
    let entries = parse_bundle(&found.bytes, found.width);
    let entries = entries.map_err(|error| wrong(first, format!("{}: {error}", found.path)))?;
    let tile = TileCoordinates::in_tree(0, bundle.index, size).ok_or_else(missing)?;
    let hashes = read_tile(source, tile, first)?;
    // A full bundle may hold more than the head covers.
    for ((index, entry), hash) in (first..).zip(entries).take(usize::from(bundle.width)).zip(hashes) {
        let leaf = leaf_hash(entry);
        if leaf != hash {
            let tile = tile.path();
            return Err(wrong(
                index,
                format!("the bundle's entry has leaf hash {leaf}, {tile} says something else"),
            ));
        }
        visit(index, leaf, entry).map_err(|reason| wrong(index, reason))?;
    }
    Ok(())
}

fn read_tile(source: &dyn LogSource, tile: TileCoordinates, first: u64) -> Result<Vec<Hash>, AuditError> {
    let wrong = |reason| AuditError::Entry { index: first, reason };
    let found = at(first, find_tile(source, &tile))?;
    let found = found.ok_or_else(|| wrong(format!("the log has no {}", tile.path())))?;
    parse_tile(&found.bytes, found.width).map_err(|error| wrong(format!("{}: {error}", found.path)))
}

/// A file that is too long is a fault of the log, from entry `index` on; one that cannot be read says nothing about it.
fn at<T>(index: u64, read: Result<T, SourceError>) -> Result<T, AuditError> {
    read.map_err(|error| match error {
        SourceError::TooLong { .. } => AuditError::Entry { index, reason: error.to_string() },
        error => error.into(),
    })
}

/// The tree over what was read, compared with the upper tiles as it grows.
struct Growing<'a> {
    source: &'a dyn LogSource,
    head: &'a Checkpoint,
    remembered: Option<&'a Checkpoint>,
    all: Accumulator,
    /// Hashes under the tile of each level that is not complete yet; `[0]` holds leaves.
    open: Vec<Vec<Hash>>,
    /// Complete tiles of each level.
    done: Vec<u64>,
}

impl<'a> Growing<'a> {
    fn new(source: &'a dyn LogSource, head: &'a Checkpoint, remembered: Option<&'a Checkpoint>) -> Self {
        Self { source, head, remembered, all: Accumulator::new(), open: vec![Vec::new()], done: vec![0] }
    }

    fn push(&mut self, index: u64, leaf: Hash) -> Result<(), AuditError> {
        self.all.push(leaf);
        if let Some(before) = self.remembered.filter(|before| before.size == self.all.size()) {
            let found = self.all.root();
            if found != before.root {
                return Err(AuditError::SplitView { size: before.size, found, remembered: before.root });
            }
        }
        let (mut level, mut carried) = (0, leaf);
        loop {
            if self.open.len() == level {
                self.open.push(Vec::new());
                self.done.push(0);
            }
            self.open[level].push(carried);
            if self.open[level].len() as u64 != TILE_HASHES {
                return Ok(());
            }
            // Leaf tiles were compared entry by entry.
            if level > 0 {
                self.compare(level, index)?;
            }
            carried = self.open[level].drain(..).collect::<Accumulator>().root();
            self.done[level] += 1;
            level += 1;
        }
    }

    /// The remaining tiles of upper levels, and the root.
    fn finish(&self) -> Result<(), AuditError> {
        for level in 1..self.open.len() {
            if !self.open[level].is_empty() {
                self.compare(level, self.head.size.saturating_sub(1))?;
            }
        }
        let found = self.all.root();
        if found == self.head.root && self.all.size() == self.head.size {
            return Ok(());
        }
        Err(AuditError::Root { size: self.all.size(), found, signed: self.head.root })
    }

    /// The tile of `level` over what is open. A difference is named by the first entry under the first wrong hash.
    fn compare(&self, level: usize, index: u64) -> Result<(), AuditError> {
        let place = self.done[level];
        let depth = u8::try_from(level).unwrap_or(u8::MAX);
        let tile = TileCoordinates::in_tree(depth, place, self.head.size);
        let tile = tile.ok_or(AuditError::Entry { index, reason: "a tile beyond the log".into() })?;
        let below = 1u64.checked_shl(8 * u32::from(depth)).unwrap_or(u64::MAX);
        let first = |at: u64| (place * TILE_HASHES + at).saturating_mul(below);
        let hashes = read_tile(self.source, tile, first(0))?;
        let differs = self.open[level].iter().zip(&hashes).position(|(found, kept)| found != kept);
        match differs {
            Some(at) => Err(AuditError::Entry {
                index: first(at as u64),
                reason: format!("from here on {} has another hash than its entries", tile.path()),
            }),
            None => Ok(()),
        }
    }
}

/// `task` for every item on several threads; results in the items' order.
fn on_threads<T: Sync, R: Send>(items: &[T], threads: NonZeroUsize, task: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let share = items.len().div_ceil(threads.get().min(MAX_THREADS)).max(1);
    if threads.get() == 1 || items.len() < 2 {
        return items.iter().map(task).collect();
    }
    let task = &task;
    std::thread::scope(|scope| {
        let parts: Vec<_> = items
            .chunks(share)
            .map(|part| scope.spawn(move || part.iter().map(task).collect::<Vec<R>>()))
            .collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
