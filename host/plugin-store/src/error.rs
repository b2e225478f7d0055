//! What can be wrong with a store, said so that an operator knows what to do next.

use std::path::PathBuf;
use std::time::Duration;

use kvasir_plugin::{PluginDigest, PluginError, TrustError};

/// Why the store refused, or could not do, what was asked. The store is then as it was before.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file or folder cannot be written.
    #[error(
        "cannot write {path}: {source}; nothing was changed: make room on the disk or make the folder writable, then try again"
    )]
    Write {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A link, pipe or device stands where the store keeps a file or folder.
    #[error("{path} is {kind}, not a {wanted}; the store follows no links: remove it")]
    NotPlain {
        /// Where.
        path: PathBuf,
        /// What is there.
        kind: &'static str,
        /// What belongs there.
        wanted: &'static str,
    },
    /// A file is larger than any that the store writes.
    #[error(
        "{path} has more than {limit} bytes, the most that are read: it is not what the store wrote; move it away"
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes allowed.
        limit: u64,
    },
    /// More packages than [`crate::MAX_PACKAGES`].
    #[error("{path} holds more than {limit} packages; remove those that are not needed")]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// Files allowed.
        limit: usize,
    },
    /// Another process changes the store and does not end.
    #[error(
        "another process has held {path} for {} seconds; wait until its command ends, or end it",
        waited.as_secs()
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// How long this one waited.
        waited: Duration,
    },
    /// A file of the store is not what the store wrote.
    #[error("{path} cannot be understood: {reason}; {remedy}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Nobody's packages are trusted yet.
    #[error("there are no trusted publishers in {path}; run `kvasir setup`")]
    NoTrust {
        /// The trust folder.
        path: PathBuf,
    },
    /// The trusted keys cannot be used.
    #[error("the trusted keys cannot be used")]
    Trust(#[source] TrustError),
    /// The package is refused; nothing of it was used.
    #[error("the package is refused")]
    Package(#[source] PluginError),
    /// An installed package is refused now.
    #[error("the installed plugin {digest} is refused; {remedy}")]
    Refused {
        /// The plugin.
        digest: PluginDigest,
        /// Why.
        source: PluginError,
        /// What to do.
        remedy: &'static str,
    },
    /// No package of this digest is in the store.
    #[error(
        "plugin {digest} is not installed; `kvasir plugin list` shows what is, `kvasir plugin install PACKAGE` adds one"
    )]
    NotInstalled {
        /// The plugin asked for.
        digest: PluginDigest,
    },
    /// A package file whose content is another plugin than its name says.
    #[error(
        "{path} holds the plugin {found}, not the one it is named after; remove it and install the package again"
    )]
    WrongContent {
        /// The file.
        path: PathBuf,
        /// The plugin in it.
        found: PluginDigest,
    },
    /// There is no version to go back to.
    #[error("there is no former version to go back to; `kvasir plugin list` shows what is installed")]
    NoFormer,
}

impl StoreError {
    /// `source` about an installed plugin, with what to do about it.
    pub(crate) fn refused(digest: PluginDigest, source: PluginError) -> Self {
        let remedy = match &source {
            PluginError::Expired { .. } => {
                "install a newer release (`kvasir setup --renew` for the bundled kernel), or go back with `kvasir plugin rollback`"
            }
            PluginError::UnknownPublisher { .. } => {
                "`kvasir plugin trust add` trusts its publisher, `kvasir plugin rollback` goes back to the version before"
            }
            _ => {
                "`kvasir plugin policy explain` says which check failed; install another release, or go back with `kvasir plugin rollback`"
            }
        };
        StoreError::Refused { digest, source, remedy }
    }
}
