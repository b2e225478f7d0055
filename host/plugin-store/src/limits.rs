//! Every size and count that a file of the store may not exceed; all are checked before a file is read whole.

use std::time::Duration;

/// Largest `active.json` in bytes.
pub const MAX_ACTIVE_BYTES: u64 = 16 << 10;
/// Most former versions that `active.json` remembers for going back; the oldest is forgotten first.
pub const MAX_FORMER: usize = 32;
/// Largest signed override in bytes.
pub const MAX_OVERRIDE_BYTES: u64 = 16 << 10;
/// Bytes at the end of `history.jsonl` that are read; what is older stays in the file and is not shown.
pub const MAX_HISTORY_BYTES: u64 = 1 << 20;
/// Longest line of the history in bytes.
pub const MAX_HISTORY_LINE_BYTES: usize = 4 << 10;
/// Most packages that a store holds.
pub const MAX_PACKAGES: usize = 4096;
/// Most versions of the root that are walked in one go, from the last one accepted to the newest.
pub const MAX_ROOT_STEPS: u64 = 1024;
/// How long a permission to go below the highest revision seen holds, in days.
pub const OVERRIDE_DAYS: u64 = 90;
/// How long a root and its revocations hold, in days.
pub const ROOT_DAYS: u64 = 730;
/// How long a command waits for another one that changes the store.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(20);
