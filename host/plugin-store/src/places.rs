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

    /// `policy.toml` in the configuration folder.
    pub fn policy(&self) -> PathBuf {
        self.configuration.join("policy.toml")
    }

    /// `trust/root.json`: whom the operator trusts.
    pub fn root(&self) -> PathBuf {
        self.trust().join("root.json")
    }

    /// `trust/root.<version>.json`: every root there was, so that a host that missed some can follow.
    pub fn root_version(&self, version: u64) -> PathBuf {
        self.trust().join(format!("root.{version}.json"))
    }

    /// `plugins/root.json`: the last root that this host accepted.
    pub fn accepted_root(&self) -> PathBuf {
        self.plugins().join("root.json")
    }

    /// `trust/revoked.json`: what must not count any more.
    pub fn revoked(&self) -> PathBuf {
        self.trust().join("revoked.json")
    }

    /// `plugins/revoked.json`: the last revocations that this host accepted.
    pub fn accepted_revocations(&self) -> PathBuf {
        self.plugins().join("revoked.json")
    }

    /// Both copies of `seen.json`: in `plugins/` and in `trust/`.
    pub fn seen(&self) -> [PathBuf; 2] {
        [self.plugins().join("seen.json"), self.trust().join("seen.json")]
    }

    /// `plugins/overrides/`: signed permissions to use a version below the highest seen.
    pub fn overrides(&self) -> PathBuf {
        self.plugins().join("overrides")
    }

    /// `plugins/overrides/<digest>.dsse.json`.
    pub fn override_of(&self, digest: PluginDigest) -> PathBuf {
        self.overrides().join(format!("{digest}.dsse.json"))
    }
}
