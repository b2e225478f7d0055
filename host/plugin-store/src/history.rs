//! `history.jsonl`: what happened to the store, one JSON object a line, only ever added to.
//!
//! A record, not a source of decisions: nothing is granted or refused for what stands in it. A line is written before its change is
//! made, so that no change goes unrecorded; where the machine stopped in between, the line's `change` is higher than `active.json`'s.

use std::io::{Read, Seek, SeekFrom};

use kvasir_plugin::{UnixSeconds, VerifiedPlugin};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::limits::{MAX_HISTORY_BYTES, MAX_HISTORY_LINE_BYTES};
use crate::{disk, places::Places};

/// A plugin as the history names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Digest in hexadecimal.
    pub plugin: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its kernel revision.
    pub revision: u64,
}

impl From<&VerifiedPlugin> for Named {
    fn from(plugin: &VerifiedPlugin) -> Self {
        Named {
            plugin: plugin.digest().to_string(),
            name: plugin.name().to_owned(),
            version: plugin.version().to_string(),
            revision: plugin.manifest().kernel_revision,
        }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Happened {
    /// A package was put into the store.
    Installed {
        /// Which.
        #[serde(flatten)]
        plugin: Named,
        /// Key ids that signed it, of those that count.
        publishers: Vec<String>,
    },
    /// A plugin was made the active one.
    Activated {
        /// Which.
        #[serde(flatten)]
        plugin: Named,
        /// Number of the change in `active.json`.
        change: u64,
        /// Digest of the one before it.
        former: Option<String>,
        /// The highest revision seen, where it is above this one's and the operator signed an override.
        #[serde(default)]
        overridden_revision: Option<u64>,
    },
    /// The active plugin was given up for the one before it.
    RolledBack {
        /// The one that is active now.
        #[serde(flatten)]
        plugin: Named,
        /// Number of the change in `active.json`.
        change: u64,
        /// Digest of the one that was given up.
        former: Option<String>,
        /// The highest revision seen, where it is above this one's and the operator signed an override.
        overridden_revision: Option<u64>,
    },
    /// A package was removed from the store.
    Removed {
        /// Digest in hexadecimal.
        plugin: String,
    },
    /// A root was accepted: the operator's own choice of whom to trust.
    RootAccepted {
        /// Its version.
        version: u64,
        /// What was changed, in a word.
        change: String,
    },
    /// A key or a plugin was revoked.
    Revoked {
        /// Key id or digest.
        revoked: String,
        /// Version of `revoked.json`.
        version: u64,
    },
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Seconds since 1970.
    pub at: u64,
    /// What happened.
    #[serde(flatten)]
    pub happened: Happened,
}

/// What can be read of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The lines that are understood, the oldest first.
    pub entries: Vec<Entry>,
    /// How many lines are not: cut short by a crash, or written by another version or by somebody else.
    pub unreadable: usize,
    /// Whether older lines are in the file than were read ([`MAX_HISTORY_BYTES`]).
    pub cut: bool,
}

impl History {
    /// Reads the end of the file. Lines that are not understood are counted and never stop anything.
    pub(crate) fn read(places: &Places) -> Result<Self, StoreError> {
        let path = places.history();
        let failed = |source| StoreError::Read { path: path.clone(), source };
        let Some(mut file) = disk::open(&path)? else { return Ok(History::default()) };
        let length = file.metadata().map_err(failed)?.len();
        let begin = length.saturating_sub(MAX_HISTORY_BYTES);
        file.seek(SeekFrom::Start(begin)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_HISTORY_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        let mut lines = bytes.split(|byte| *byte == b'\n');
        if begin > 0 {
            lines.next();
        }
        let mut history = History { cut: begin > 0, ..History::default() };
        for line in lines.filter(|line| !line.is_empty()) {
            let entry = (line.len() <= MAX_HISTORY_LINE_BYTES).then(|| serde_json::from_slice(line).ok());
            match entry.flatten() {
                Some(entry) => history.entries.push(entry),
                None => history.unreadable += 1,
            }
        }
        Ok(history)
    }
}

/// Adds a line; the caller holds the store's lock.
pub(crate) fn record(places: &Places, now: UnixSeconds, happened: Happened) -> Result<(), StoreError> {
    let line = crate::json(&Entry { at: now.0, happened });
    disk::append(&places.history(), &String::from_utf8_lossy(&line))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_that_are_not_understood_hide_no_others_and_a_huge_file_is_read_at_its_end() {
        let place = tempfile::tempdir().unwrap();
        let places = Places::new(place.path(), place.path());
        fs::create_dir(places.plugins()).unwrap();
        assert_eq!(History::read(&places).unwrap(), History::default());
        let revoked = |version| Happened::Revoked { revoked: "ab".repeat(32), version };
        record(&places, UnixSeconds(1), revoked(1)).unwrap();
        let mut bytes = fs::read(places.history()).unwrap();
        bytes.extend(b"\xff\xfe\n{\"at\":1}\n{\"at\":5,\"event\":\"installed\",\"plu");
        fs::write(places.history(), &bytes).unwrap();
        record(&places, UnixSeconds(2), revoked(2)).unwrap();
        let history = History::read(&places).unwrap();
        assert_eq!((history.entries.len(), history.unreadable, history.cut), (2, 3, false));
        assert_eq!(history.entries[1], Entry { at: 2, happened: revoked(2) });

        let long = vec![b'x'; MAX_HISTORY_BYTES as usize];
        fs::write(places.history(), &long).unwrap();
        record(&places, UnixSeconds(3), revoked(3)).unwrap();
        let history = History::read(&places).unwrap();
        assert_eq!((history.entries.len(), history.unreadable, history.cut), (1, 0, true));
    }
}
