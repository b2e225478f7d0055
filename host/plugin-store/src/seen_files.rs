//! `seen.json`: the highest versions and revisions ever seen, kept twice, and written before what they count is used.
//!
//! One copy lies with the packages and one with the trusted keys. What counts is the higher of both, number by number: whoever puts
//! an old copy of one folder back lowers nothing. Against putting back both, no file on the same disk can help.

use kvasir_plugin::{MAX_SEEN_BYTES, Seen};

use crate::disk::{self, Draft, Lock};
use crate::error::StoreError;
use crate::places::Places;

const REMEDY: &str = "remove it if its twin (plugins/seen.json in the data folder, trust/seen.json in the configuration folder) is \
                      whole, else put it back from a backup";

/// What was seen, from both copies.
pub fn read(places: &Places) -> Result<Seen, StoreError> {
    let mut seen = Seen::default();
    let mut found = false;
    for path in places.seen() {
        if let Some(text) = disk::read(&path, MAX_SEEN_BYTES as u64)? {
            let copy = Seen::parse(&text).map_err(|error| StoreError::corrupt(path, error, REMEDY))?;
            seen.raise_to(&copy);
            found = true;
        }
    }
    // Whoever wrote a root had written what was seen before, whoever made a plugin active had begun both copies ([`begin`]).
    if !found && (disk::exists(&places.accepted_root())? || disk::exists(&places.active())?) {
        let [path, twin] = places.seen();
        return Err(StoreError::SeenLost { path, twin });
    }
    Ok(seen)
}

/// Begins both copies where neither is there, so that from now on one that is gone is missed.
pub fn begin(places: &Places, lock: &Lock) -> Result<(), StoreError> {
    for path in places.seen() {
        if disk::exists(&path)? {
            return Ok(());
        }
    }
    write(places, &read(places)?, lock)
}

/// Writes `seen` to both copies; only the holder of the lock does.
pub fn write(places: &Places, seen: &Seen, lock: &Lock) -> Result<(), StoreError> {
    Drafts::write(places, seen, lock)?.put()
}

/// Both copies, on the disk but not in their places yet.
pub struct Drafts([Draft; 2]);

impl Drafts {
    /// Writes both beside their places.
    pub fn write(places: &Places, seen: &Seen, _lock: &Lock) -> Result<Self, StoreError> {
        disk::make_folder(&places.trust())?;
        let text = seen.encode();
        let [path, twin] = places.seen();
        Ok(Drafts([Draft::write(&path, &text)?, Draft::write(&twin, &text)?]))
    }

    /// Puts them in their places one after the other; the higher one counts in between.
    pub fn put(self) -> Result<(), StoreError> {
        self.0.into_iter().try_for_each(Draft::put)
    }
}
