//! Bundles and tiles through the books: fetched and hashed in batches, read and verified on all cores, booked in order.

use std::num::NonZeroUsize;

use kvasir_merkle::{Accumulator, Hash, leaf_hash};

use super::books::Books;
use super::entry::{Entry, Signers};
use super::{AuditError, AuditOptions};
use crate::log::{
    BundleCoordinates, Checkpoint, LogSource, MAX_BUNDLE_BYTES, TILE_HASHES, TileCoordinates, bundles_of,
    parse_bundle, parse_tile,
};

/// Bundles in memory at one time, for each thread.
const BUNDLES_A_THREAD: usize = 4;
/// Bytes of a full tile.
const TILE_BYTES: usize = TILE_HASHES as usize * 32;

type Wrong = (u64, String);

/// Reads and books the whole log; gives the number of signatures that were verified.
pub(super) fn read_all(
    source: &dyn LogSource,
    head: &Checkpoint,
    options: &AuditOptions,
    books: &mut Books,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, AuditError> {
    let mut tree = Growing::new(source, head, options.remembered.as_ref());
    let bundles: Vec<_> = bundles_of(0, head.size).collect();
    let mut signatures = 0;
    for batch in bundles.chunks(BUNDLES_A_THREAD * options.threads.get()) {
        let read = on_threads(batch, options.threads, |bundle| read_bundle(source, *bundle, head.size));
        let (mut checks, mut wrong): (Vec<(u64, Entry, Signers)>, Option<Wrong>) = (Vec::new(), None);
        'batch: for bundle in read {
            let (entries, stopped) = bundle?;
            for (index, entry) in entries {
                let taken = books.take(&entry, &tree.all);
                tree.push(index, entry.leaf)?;
                match taken {
                    Ok(signers) => checks.push((index, entry, signers)),
                    Err(reason) => {
                        wrong = Some((index, reason));
                        break 'batch;
                    }
                }
            }
            if stopped.is_some() {
                wrong = stopped;
                break;
            }
        }
        signatures += checks.iter().map(|(_, _, signers)| signers.len() as u64).sum::<u64>();
        // An entry with a wrong signature comes before what was found at a later one.
        let verified = on_threads(&checks, options.threads, |(index, entry, signers)| {
            entry.note.verify_exactly(signers).map_err(|error| (*index, error.to_string()))
        });
        if let Some((index, reason)) = verified.into_iter().find_map(Result::err).or(wrong) {
            return Err(AuditError::Entry { index, reason });
        }
        progress(tree.all.size(), head.size);
    }
    tree.finish()?;
    Ok(signatures)
}

/// Reads and hashes the whole log, and looks into no entry.
pub(super) fn hash_all(
    source: &dyn LogSource,
    head: &Checkpoint,
    remembered: Option<&Checkpoint>,
    threads: NonZeroUsize,
) -> Result<(), AuditError> {
    let mut tree = Growing::new(source, head, remembered);
    let bundles: Vec<_> = bundles_of(0, head.size).collect();
    for batch in bundles.chunks(BUNDLES_A_THREAD * threads.get()) {
        for leaves in on_threads(batch, threads, |bundle| hash_bundle(source, *bundle, head.size)) {
            for (at, (leaf, _)) in leaves?.1.into_iter().enumerate() {
                let index = tree.all.size();
                debug_assert_eq!(index % TILE_HASHES, at as u64);
                tree.push(index, leaf)?;
            }
        }
    }
    tree.finish()
}

type Hashed = (u64, Vec<(Hash, Vec<u8>)>);

/// The entries of a bundle with their leaf hashes, which the tile must have.
fn hash_bundle(source: &dyn LogSource, bundle: BundleCoordinates, size: u64) -> Result<Hashed, AuditError> {
    let first = bundle.first_entry();
    let missing = |path: String| AuditError::Entry { index: first, reason: format!("the log has no {path}") };
    let bad = |reason: String| AuditError::Entry { index: first, reason };
    let (bytes, width, path) =
        read_file(source, bundle.path(), bundle.full().path(), bundle.width, MAX_BUNDLE_BYTES, first)?
            .ok_or_else(|| missing(bundle.path()))?;
    let entries = parse_bundle(&bytes, width).map_err(|error| bad(format!("{path}: {error}")))?;
    let tile = TileCoordinates::in_tree(0, bundle.index, size).ok_or_else(|| missing(bundle.path()))?;
    let hashes = read_tile(source, tile, first)?;
    let mut hashed = Vec::with_capacity(usize::from(bundle.width));
    for (at, entry) in entries.into_iter().take(usize::from(bundle.width)).enumerate() {
        let leaf = leaf_hash(entry);
        if hashes.get(at) != Some(&leaf) {
            let reason =
                format!("the bundle's entry has leaf hash {leaf}, {} says something else", tile.path());
            return Err(AuditError::Entry { index: first + at as u64, reason });
        }
        hashed.push((leaf, entry.to_vec()));
    }
    Ok((first, hashed))
}

type Read = (Vec<(u64, Entry)>, Option<Wrong>);

/// The entries of a bundle up to the first that is none.
fn read_bundle(source: &dyn LogSource, bundle: BundleCoordinates, size: u64) -> Result<Read, AuditError> {
    let (first, hashed) = hash_bundle(source, bundle, size)?;
    let mut entries = Vec::with_capacity(hashed.len());
    for (index, (leaf, bytes)) in (first..).zip(hashed) {
        match Entry::parse(&bytes, leaf) {
            Ok(entry) => entries.push((index, entry)),
            Err(reason) => return Ok((entries, Some((index, reason)))),
        }
    }
    Ok((entries, None))
}

fn read_tile(source: &dyn LogSource, tile: TileCoordinates, first: u64) -> Result<Vec<Hash>, AuditError> {
    let wrong = |reason: String| AuditError::Entry { index: first, reason };
    let (bytes, width, path) =
        read_file(source, tile.path(), tile.full().path(), tile.width, TILE_BYTES, first)?
            .ok_or_else(|| wrong(format!("the log has no {}", tile.path())))?;
    parse_tile(&bytes, width).map_err(|error| wrong(format!("{path}: {error}")))
}

type File = (Vec<u8>, u16, String);

/// The file of this width, or the full one: a log may drop partial files of what has become full. A file that is too long
/// is a fault of the log.
fn read_file(
    source: &dyn LogSource,
    path: String,
    full: String,
    width: u16,
    limit: usize,
    first: u64,
) -> Result<Option<File>, AuditError> {
    let read = |path: &str| match source.read(path, limit) {
        Err(error @ crate::log::SourceError::TooLong { .. }) => {
            Err(AuditError::Entry { index: first, reason: error.to_string() })
        }
        other => Ok(other?),
    };
    if let Some(bytes) = read(&path)? {
        return Ok(Some((bytes, width, path)));
    }
    if full == path {
        return Ok(None);
    }
    Ok(read(&full)?.map(|bytes| (bytes, TILE_HASHES as u16, full)))
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
    let share = items.len().div_ceil(threads.get()).max(1);
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
