//! What can be wrong with a store, said so that an operator knows what to do next.

use std::path::PathBuf;
use std::time::Duration;

use kvasir_plugin::{
    DocumentError, KeyId, PluginDigest, PluginError, PolicyError, PolicyRefusal, RoleName, TrustError,
};

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
    #[error(
        "{path} holds more than {limit} packages: the files in it are named after their digests, and `kvasir plugin remove DIGEST` \
         removes one that is not needed"
    )]
    TooManyFiles {
        /// The folder.
        path: PathBuf,
        /// Files allowed.
        limit: usize,
    },
    /// One package more would be more than [`crate::MAX_PACKAGES`].
    #[error(
        "{path} holds {limit} packages, as many as it may; `kvasir plugin remove DIGEST` removes one that is not needed"
    )]
    Full {
        /// The folder.
        path: PathBuf,
        /// Packages allowed.
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
    /// `root.json` or `revoked.json` is refused.
    #[error("the trust folder {folder} is refused: {source}")]
    Document {
        /// The trust folder.
        folder: PathBuf,
        /// Which file, and why.
        source: DocumentError,
    },
    /// There was a root, and it is gone.
    #[error("{path} is gone; the last one that was accepted is in {copy}: copy it back")]
    RootMissing {
        /// Where it was.
        path: PathBuf,
        /// The copy of it.
        copy: PathBuf,
    },
    /// There were revocations, and they are gone.
    #[error("{path} is gone; the last one that was accepted is in {copy}: copy it back")]
    RevocationsMissing {
        /// Where they were.
        path: PathBuf,
        /// The copy of them.
        copy: PathBuf,
    },
    /// Another root of the version that was accepted.
    #[error(
        "{path} is not the root of version {version} that this host accepted: it was exchanged; put that one back, it is \
         plugins/root.json in the data folder"
    )]
    RootReplaced {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u64,
    },
    /// A step between the root that was accepted and the present one is not there.
    #[error(
        "{path} is missing: the roots between the last one that this host accepted and root.json must be there one by one; fetch \
         version {version} from whoever signed it"
    )]
    RootStepMissing {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u64,
    },
    /// More steps than [`crate::MAX_ROOT_STEPS`].
    #[error(
        "{path} is version {found}, this host accepted version {accepted}: too far to follow; put the versions between there in portions"
    )]
    RootTooFar {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that was accepted.
        accepted: u64,
    },
    /// A change of the root where there is none.
    #[error("there is no root in {path} to change; run `kvasir setup`, which makes one")]
    NoRoot {
        /// The trust folder.
        path: PathBuf,
    },
    /// A key that is to be replaced holds nothing.
    #[error(
        "key {key} is trusted with neither the root nor revocations; `kvasir plugin trust show` lists the keys that are"
    )]
    NotARootKey {
        /// The key.
        key: KeyId,
    },
    /// A key to revoke that signs whom this host trusts, which revocations do not bound.
    #[error(
        "key {key} holds the root's role {role}, and would hold it all the same if it were revoked: `kvasir plugin trust rotate` puts \
         another key in its place"
    )]
    RevokesRootKey {
        /// The key.
        key: KeyId,
        /// The role.
        role: RoleName,
    },
    /// Both copies of what was seen are gone, though something had been used.
    #[error(
        "both {path} and {twin} are gone: which versions were seen is unknown, so an old one could not be told; put one back from a \
         backup, or move plugins/ in the data folder away and run `kvasir setup`"
    )]
    SeenLost {
        /// One copy.
        path: PathBuf,
        /// The other.
        twin: PathBuf,
    },
    /// The policy cannot be used; nothing is granted then.
    #[error("{path} cannot be used, so nothing is granted: {source}")]
    PolicyFile {
        /// `policy.toml`.
        path: PathBuf,
        /// What is wrong.
        source: PolicyError,
    },
    /// The policy refuses the plugin.
    #[error("the policy refuses plugin {digest}: {source}")]
    Policy {
        /// The plugin.
        digest: PluginDigest,
        /// Why.
        source: PolicyRefusal,
    },
    /// The revision is below the highest one seen, and no permission is there.
    #[error(
        "{name} {version} has kernel revision {revision}, {seen} was seen before: to go back on purpose, run `kvasir plugin rollback \
         --allow-downgrade`, `kvasir plugin activate {digest} --allow-downgrade` or, where it is not installed, `kvasir plugin install \
         PACKAGE --allow-downgrade`, which signs a permission with your root key"
    )]
    Downgrade {
        /// The plugin.
        digest: PluginDigest,
        /// Its name.
        name: String,
        /// Its version.
        version: String,
        /// Its revision.
        revision: u64,
        /// The highest revision seen.
        seen: u64,
    },
    /// A permission to go below the highest revision that does not hold.
    #[error(
        "the permission {path} does not hold: {reason}; sign another one with `kvasir plugin activate DIGEST --allow-downgrade` (where \
         it is not installed: `kvasir plugin install PACKAGE --allow-downgrade`), or activate a newer version"
    )]
    Override {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// An upgrade that is none.
    #[error(
        "{name} {version} (revision {revision}) is not newer than the active {active} (revision {active_revision}); `kvasir plugin \
         install` installs it all the same"
    )]
    NotNewer {
        /// The plugin's name.
        name: String,
        /// Its version.
        version: String,
        /// Its revision.
        revision: u64,
        /// The active version.
        active: String,
        /// The active revision.
        active_revision: u64,
    },
    /// An upgrade to another plugin.
    #[error(
        "the package is {name}, the active plugin is {active}: that is no upgrade; `kvasir plugin install` puts one in the other's place"
    )]
    OtherPlugin {
        /// The package's name.
        name: String,
        /// The active one's.
        active: String,
    },
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
    /// A package to remove that is in use.
    #[error("plugin {digest} {needed}")]
    Needed {
        /// The plugin.
        digest: PluginDigest,
        /// For what, and what to do.
        needed: &'static str,
    },
    /// There is no version to go back to.
    #[error("there is no former version to go back to; `kvasir plugin list` shows what is installed")]
    NoFormer,
}

impl StoreError {
    /// The document at `path` is refused for `source`, and `remedy` says where a good one is.
    pub(crate) fn corrupt(path: PathBuf, source: DocumentError, remedy: &'static str) -> Self {
        let reason = match source {
            DocumentError::Unreadable { reason, .. } => reason,
            other => other.to_string(),
        };
        StoreError::Corrupt { path, reason, remedy }
    }

    /// `source` about an installed plugin, with what to do about it.
    pub(crate) fn refused(digest: PluginDigest, source: PluginError) -> Self {
        let remedy = match &source {
            PluginError::Expired { .. } => {
                "install a newer release (`kvasir setup --renew` for the bundled kernel), or go back with `kvasir plugin rollback`"
            }
            PluginError::RevokedKey { .. } | PluginError::RevokedPackage { .. } => {
                "go back with `kvasir plugin rollback`, or `kvasir plugin install` another release"
            }
            PluginError::TrustExpired { .. } => "`kvasir setup --renew` signs your root and revocations anew",
            PluginError::UnknownPublisher { .. } | PluginError::NoPublisher { .. } => {
                "`kvasir plugin trust add` trusts its publisher, `kvasir plugin rollback` goes back to the version before"
            }
            _ => {
                "`kvasir plugin policy explain` says which check failed; install another release, or go back with `kvasir plugin rollback`"
            }
        };
        StoreError::Refused { digest, source, remedy }
    }
}
