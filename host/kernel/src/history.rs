//! How often each plugin failed, in its own process or as a shader in the GPU's: the memory behind back-off and quarantine.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use kvasir_plugin::PluginDigest;

/// The count of a history that cannot be read: it may say anything, so the plugin counts as failed.
pub const UNREADABLE_FAILURES: u32 = u32::MAX;

/// How often a plugin failed at `place` ("on this machine"), as a sentence goes on after its name.
pub fn told_failures(failures: u32, place: &str) -> String {
    match failures {
        UNREADABLE_FAILURES => {
            format!("counts as failed {place}, since the record of its failures cannot be read,")
        }
        failures => format!("failed {failures} times {place}"),
    }
}

/// How a process failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// It did not answer in time and was killed.
    Deadline,
    /// It ended by itself, or broke the protocol.
    Crash,
    /// The process lives, but the kernel in it failed in a way that an honest one does not: a trap, a bound exceeded.
    Trap,
}

/// Remembers failures by plugin. Whoever wants them to outlive the process implements it over a file; the methods are called
/// from several threads and must not block for long.
pub trait FailureHistory: Send + Sync {
    /// How often the plugin failed so far; [`UNREADABLE_FAILURES`] where that cannot be told.
    fn failures(&self, plugin: PluginDigest) -> u32;
    /// One more failure; returns the number after it.
    fn record(&self, plugin: PluginDigest, kind: FailureKind) -> u32;
}

/// Forgets everything when the process ends.
#[derive(Debug, Default)]
pub struct MemoryHistory {
    failures: Mutex<HashMap<PluginDigest, u32>>,
}

impl FailureHistory for MemoryHistory {
    fn failures(&self, plugin: PluginDigest) -> u32 {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.get(&plugin).copied().unwrap_or(0)
    }

    fn record(&self, plugin: PluginDigest, _: FailureKind) -> u32 {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(plugin).or_insert(0);
        *count = count.saturating_add(1);
        *count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_is_none_is_not_told_as_a_number() {
        assert_eq!(told_failures(3, "on this machine"), "failed 3 times on this machine");
        let unreadable = told_failures(UNREADABLE_FAILURES, "on this GPU");
        assert!(unreadable.contains("cannot be read") && !unreadable.contains("4294967295"), "{unreadable}");
    }
}
