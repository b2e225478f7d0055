//! What can go wrong on the way to and from a registry, by whose fault it is.

use std::path::PathBuf;
use std::time::Duration;

use kvasir_plugin::PluginError;

/// Why a package was not carried. Nothing of a failed pull is given out.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    // The caller.
    /// A text that names no place.
    #[error(
        "{text:?} names no place for packages: {reason}; write a folder (`oci:/path:tag`, or its path) or a registry \
         (`oci://host/name:tag`)"
    )]
    Reference {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// What is to be pushed is no package, or what was pulled makes none.
    #[error(transparent)]
    Package(#[from] PluginError),
    /// A package whose layout lacks what a registry needs.
    #[error("{place} holds no plugin as packages lay it out: {reason}")]
    Layout {
        /// Where it was found.
        place: String,
        /// What is missing or too much.
        reason: String,
    },
    /// Credentials that cannot be used.
    #[error("the credentials cannot be used: {reason}")]
    Credentials {
        /// What is wrong and what to do.
        reason: String,
    },
    /// Certificates that cannot be used.
    #[error("{path} holds no certificate in PEM: {reason}")]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },

    // The folder.
    /// A file of the layout cannot be read or written.
    #[error("cannot {action} {path}: {source}")]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },

    /// Another push holds the folder.
    #[error("another push into {path} did not end within {limit:?}; try again, or allow more with --timeout")]
    Busy {
        /// The folder.
        path: PathBuf,
        /// The time that was waited.
        limit: Duration,
    },

    // The network.
    /// No connection, or it broke.
    #[error("{host} cannot be reached: {reason}")]
    Unreachable {
        /// The host.
        host: String,
        /// What the connection says.
        reason: String,
    },
    /// The other side was silent too long, or the whole took too long.
    #[error("{host} did not finish {what} within {limit:?}; try again, or allow more with --timeout")]
    Deadline {
        /// The host.
        host: String,
        /// What was waited for.
        what: String,
        /// The time that was allowed.
        limit: Duration,
    },

    // The registry.
    /// It wants credentials, and none are there or they are not right.
    #[error(
        "{host} refuses {what} without other credentials ({status}); set KVASIR_REGISTRY_USER and \
         KVASIR_REGISTRY_PASSWORD, or log in with a tool that writes ~/.docker/config.json"
    )]
    Denied {
        /// The host.
        host: String,
        /// What was asked for.
        what: String,
        /// HTTP status.
        status: u16,
    },
    /// It has no such thing.
    #[error("{host} does not have {what}; check the name and the tag")]
    NotFound {
        /// The host.
        host: String,
        /// What was asked for.
        what: String,
    },
    /// Any other refusal.
    #[error("{host} refused {what} with status {status}: {text}")]
    Refused {
        /// The host.
        host: String,
        /// What was asked for.
        what: String,
        /// HTTP status.
        status: u16,
        /// What it says, made plain and short.
        text: String,
    },
    /// A redirect that is not followed.
    #[error("{host} sends {what} elsewhere and is not followed: {reason}")]
    Redirect {
        /// The host.
        host: String,
        /// What was asked for.
        what: String,
        /// Why not.
        reason: String,
    },
    /// An answer that breaks the protocol.
    #[error("{place} breaks the distribution protocol at {what}: {reason}")]
    Protocol {
        /// Host or folder.
        place: String,
        /// What was asked for.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// More bytes than allowed.
    #[error("{place} has {what} with more than {limit} bytes; it is no part of a package")]
    TooLarge {
        /// Host or folder.
        place: String,
        /// What was asked for.
        what: String,
        /// Bytes allowed.
        limit: u64,
    },
    /// More things than allowed.
    #[error("{place} has more than {limit} {what}; it is no package")]
    TooMany {
        /// Host or folder.
        place: String,
        /// What.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
    /// A document or blob of another kind than it should be.
    #[error("{place} has {what} of media type {found:?}, not {expected:?}")]
    MediaType {
        /// Host or folder.
        place: String,
        /// What was asked for.
        what: String,
        /// The type found.
        found: String,
        /// The type required.
        expected: &'static str,
    },
    /// Bytes that are more or fewer than was said.
    #[error("{place} sent {what} with {found} bytes, {expected} were announced; it was cut short or altered")]
    Size {
        /// Host or folder.
        place: String,
        /// What was asked for.
        what: String,
        /// Bytes found; of a longer one, as many as were looked at.
        found: u64,
        /// Bytes announced.
        expected: u64,
    },
    /// Bytes with another digest than they were asked for by.
    #[error("{place} sent {what} with SHA-256 {found}; it was altered")]
    Digest {
        /// Host or folder.
        place: String,
        /// What was asked for, with the digest.
        what: String,
        /// Hexadecimal digest found.
        found: String,
    },
}
