//! `seen.json`: the highest versions and revisions ever seen, kept twice, and written before what they count is used.
//!
//! One copy lies with the packages and one with the trusted keys. What counts is the higher of both, number by number: whoever puts
//! an old copy of one folder back lowers nothing. Against putting back both, no file on the same disk can help.

use kvasir_plugin::{MAX_SEEN_BYTES, Seen};

use crate::disk::{self, Lock};
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
            let copy = Seen::parse(&text).map_err(|error| StoreError::Corrupt {
                path,
                reason: error.to_string(),
                remedy: REMEDY,
            })?;
            seen.raise_to(&copy);
            found = true;
        }
    }
    // Whoever wrote a root or an active plugin had written what was seen before.
    if !found && (disk::exists(&places.accepted_root())? || disk::exists(&places.active())?) {
        let [path, twin] = places.seen();
        return Err(StoreError::SeenLost { path, twin });
    }
    Ok(seen)
}

/// Writes `seen` to both copies; only the holder of the lock does.
pub fn write(places: &Places, seen: &Seen, _lock: &Lock) -> Result<(), StoreError> {
    disk::make_folder(&places.trust())?;
    let text = seen.encode();
    for path in places.seen() {
        disk::replace(&path, &text)?;
    }
    Ok(())
}
