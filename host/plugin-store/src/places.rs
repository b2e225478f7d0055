//! Where the store's files are.

use std::path::{Path, PathBuf};

use kvasir_plugin::PluginDigest;

/// The two folders and every file in them.
#[derive(Clone, Debug)]
pub struct Places {
    data: PathBuf,
    configuration: PathBuf,
}

impl Places {
    /// `data` holds what may be fetched again, `configuration` what the operator decided.
    pub fn new(data: &Path, configuration: &Path) -> Self {
        Places { data: data.to_owned(), configuration: configuration.to_owned() }
    }

    /// `plugins/`: everything that the store itself writes.
    pub fn plugins(&self) -> PathBuf {
        self.data.join("plugins")
    }

    /// `plugins/packages/`: one file for each plugin.
    pub fn packages(&self) -> PathBuf {
        self.plugins().join("packages")
    }

    /// `plugins/packages/<digest>.kvp`.
    pub fn package(&self, digest: PluginDigest) -> PathBuf {
        self.packages().join(format!("{digest}.kvp"))
    }

    /// `plugins/active.json`.
    pub fn active(&self) -> PathBuf {
        self.plugins().join("active.json")
    }

    /// `plugins/history.jsonl`.
    pub fn history(&self) -> PathBuf {
        self.plugins().join("history.jsonl")
    }

    /// `plugins/lock`: held by whoever changes the store.
    pub fn lock(&self) -> PathBuf {
        self.plugins().join("lock")
    }

    /// `trust/` in the configuration folder.
    pub fn trust(&self) -> PathBuf {
        self.configuration.join("trust")
    }
}
