//! What can be wrong with a package or a trust store, said so that a person knows what to do next.

use std::path::PathBuf;

use crate::identity::{BlobDigest, KeyId, PluginDigest, UnixSeconds};
use crate::root::RoleName;
use crate::version::Version;

/// Why a package was refused, or could not be made. Nothing of a refused package is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    /// The whole package is over [`crate::MAX_PACKAGE_BYTES`].
    #[error("the package has {bytes} bytes, the limit is {limit}; leave out what a kernel does not need")]
    PackageTooLarge {
        /// Bytes found.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// One file is over its limit.
    #[error(
        "the package's file {name} has {bytes} bytes, the limit is {limit}; make it smaller and sign again"
    )]
    FileTooLarge {
        /// The file.
        name: String,
        /// Bytes found.
        bytes: u64,
        /// Bytes allowed.
        limit: usize,
    },
    /// More files than [`crate::MAX_FILES`].
    #[error("the package has more than {limit} files; put golden vectors into fewer files")]
    TooManyFiles {
        /// Files allowed.
        limit: usize,
    },
    /// The archive ends inside a header, a file or the end mark.
    #[error("the package ends early, at byte {offset}: it was cut short; fetch it again")]
    Truncated {
        /// Where more bytes were needed.
        offset: usize,
    },
    /// A tar header is not the canonical one for its name and size.
    #[error(
        "the package's tar header at byte {offset} is damaged or not in canonical form; fetch the package again, or \
         make it with `kvasir plugin pack`"
    )]
    HeaderNotCanonical {
        /// The first byte that differs.
        offset: usize,
    },
    /// A link, folder, device or extension record in the archive.
    #[error("the package's entry {name:?} is {kind}; a package holds plain files only")]
    NotAPlainFile {
        /// The entry's name, bytes that are not UTF-8 replaced.
        name: String,
        /// What it is.
        kind: &'static str,
    },
    /// A name that could leave the folder it is unpacked into, or that is not plain.
    #[error(
        "the package's file name {name:?} is not a plain relative path; see the package format for what may be in it"
    )]
    UnsafePath {
        /// The name, bytes that are not UTF-8 replaced.
        name: String,
    },
    /// Two entries of one name.
    #[error("the package holds {name} twice; a file must have one content")]
    DuplicateFile {
        /// The file.
        name: String,
    },
    /// A file that the format does not know.
    #[error(
        "the package holds {name:?}, which the format does not know; only plugin.toml, kernel.wasm, sbom.cdx.json, \
         shaders/*.wgsl and vectors/* may be in it"
    )]
    UnexpectedFile {
        /// The file.
        name: String,
    },
    /// An entry of the archive that is no part of an OCI layout.
    #[error(
        "the package's archive holds {name:?}, which is no part of a plugin's OCI layout; only oci-layout, index.json and \
         blobs/sha256/<64 digits> may be in it"
    )]
    UnexpectedEntry {
        /// The entry.
        name: String,
    },
    /// More entries in the archive than [`crate::MAX_ENTRIES`].
    #[error(
        "the package's archive has more than {limit} entries; make the package with `kvasir plugin pack`"
    )]
    TooManyEntries {
        /// Entries allowed.
        limit: usize,
    },
    /// A blob whose bytes are not those that it is called by.
    #[error("the package's blob {name} has the digest {found}: it was altered; fetch the package again")]
    BlobAltered {
        /// The digest that it is called by.
        name: BlobDigest,
        /// The digest of its bytes.
        found: BlobDigest,
    },
    /// A manifest names a blob that is not there.
    #[error("the package lacks {digest}, which {by} names; fetch the package again")]
    BlobMissing {
        /// The blob.
        digest: BlobDigest,
        /// Who names it.
        by: &'static str,
    },
    /// A manifest states another size than a blob has.
    #[error("{by} says that {digest} has {said} bytes, it has {found}; fetch the package again")]
    BlobSize {
        /// The blob.
        digest: BlobDigest,
        /// Who says so.
        by: &'static str,
        /// Bytes stated.
        said: u64,
        /// Bytes found.
        found: u64,
    },
    /// A blob that nothing names.
    #[error(
        "the package holds {digest}, which none of its manifests names; do not use it, it was added afterwards"
    )]
    BlobStray {
        /// The blob.
        digest: BlobDigest,
    },
    /// One of the layout's own documents is not what it must be.
    #[error(
        "the package's {what} cannot be read: {reason}; fetch the package again, or make it with `kvasir plugin pack`"
    )]
    Oci {
        /// The document.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// One of the layout's own documents says something else than the signed files give.
    #[error(
        "the package's {what} is not the one that belongs to its signed files; make it with `kvasir plugin pack`"
    )]
    NotCanonical {
        /// The document.
        what: &'static str,
    },
    /// The files together are over [`crate::MAX_PACKAGE_BYTES`], which one blob under many names can make of a small package.
    #[error(
        "the package's files have more than {limit} bytes together; leave out what a kernel does not need"
    )]
    UnpackedTooLarge {
        /// Bytes allowed.
        limit: usize,
    },
    /// The bill of materials is not CycloneDX.
    #[error("sbom.cdx.json cannot be used: {reason}; leave it out and `kvasir plugin pack` writes one")]
    Sbom {
        /// What is wrong.
        reason: String,
    },
    /// Signing anew what is signed already.
    #[error("the package is signed already; a further signature leaves its statement as it is")]
    AlreadySigned,
    /// Files not in canonical order.
    #[error("the package's file {name} is out of order; make the package with `kvasir plugin pack`")]
    OutOfOrder {
        /// The first file that stands too late.
        name: String,
    },
    /// A file that the format requires is absent.
    #[error("the package lacks {name}; fetch it again or ask its publisher for a complete one")]
    MissingFile {
        /// The file.
        name: &'static str,
    },
    /// `plugin.toml` names a shader that is not in the package.
    #[error("plugin.toml names a shader, but the package lacks {name}; put the file there and pack again")]
    ShaderMissing {
        /// The file.
        name: String,
    },
    /// A shader that `plugin.toml` does not name.
    #[error(
        "the package holds {name}, which plugin.toml does not name in its table [shader]; name it there or leave the file out"
    )]
    ShaderNotNamed {
        /// The file.
        name: String,
    },
    /// A shader that is not text.
    #[error("the package's file {name} is not UTF-8 at byte {offset}; WGSL is UTF-8 text, save it as such")]
    ShaderNotUtf8 {
        /// The file.
        name: String,
        /// The first byte that is part of no character.
        offset: usize,
    },
    /// Bytes after the end mark, or a padding that is not zero.
    #[error("the package has stray bytes at byte {offset}, outside every file; fetch it again")]
    StrayBytes {
        /// Where.
        offset: usize,
    },
    /// The envelope is not what it must be.
    #[error("the package's signature envelope cannot be read: {reason}; fetch the package again")]
    Envelope {
        /// What is wrong.
        reason: String,
    },
    /// A signature for another kind of document.
    #[error("the envelope signs a {found:?}, not the in-toto statement of a plugin ({expected:?})")]
    PayloadType {
        /// The payload type found.
        found: String,
        /// The payload type required.
        expected: &'static str,
    },
    /// A signature scheme that this host does not check. Ignoring it could mean trusting less than was signed.
    #[error(
        "the package is signed with scheme {scheme:?}, this host checks only \"ed25519\"; update the host"
    )]
    UnknownScheme {
        /// The scheme found.
        scheme: String,
    },
    /// No signature at all.
    #[error("the package is not signed; only signed packages are run")]
    NotSigned,
    /// More signatures than [`crate::MAX_SIGNATURES`].
    #[error("the package carries {count} signatures, the limit is {limit}")]
    TooManySignatures {
        /// Signatures found.
        count: usize,
        /// Signatures allowed.
        limit: usize,
    },
    /// One key signs twice, which could fake a threshold.
    #[error("the package is signed twice by key {key}; each key signs once")]
    DuplicateKey {
        /// The key.
        key: KeyId,
    },
    /// No signing key is in the trust store.
    #[error(
        "the package is signed by {found}, which this host does not trust; if you know the publisher, `kvasir plugin trust add KEY` \
         trusts its key, as a line in a *.pub file does in a folder that --trust names ({trusted} keys are trusted now)"
    )]
    UnknownPublisher {
        /// The key ids that signed, separated by commas.
        found: String,
        /// How many keys the trust store has.
        trusted: usize,
    },
    /// The root names nobody who may publish plugins of this namespace.
    #[error(
        "nobody is trusted to publish {name}: the root has neither a role publisher/{namespace} nor publisher/*; add the \
         publisher's key with `kvasir plugin trust add`"
    )]
    NoPublisher {
        /// The plugin's name.
        name: String,
        /// Its namespace, `*` where it has none.
        namespace: String,
    },
    /// Too few distinct keys of the publisher's role signed.
    #[error(
        "{name} is signed by {valid} keys of the role {role}, which takes {threshold}; ask its publishers for the signatures \
         that are missing"
    )]
    TooFewPublishers {
        /// The plugin's name.
        name: String,
        /// The role.
        role: RoleName,
        /// Distinct keys of the role whose signatures hold.
        valid: usize,
        /// How many it takes.
        threshold: u32,
    },
    /// Every key that signed and that this host knows is revoked.
    #[error(
        "the package is signed by key {key}, which is revoked; do not use it, ask its publisher for a newer one"
    )]
    RevokedKey {
        /// The key.
        key: KeyId,
    },
    /// The package itself is revoked.
    #[error("the package {plugin} is revoked; do not use it, ask its publisher for a newer one")]
    RevokedPackage {
        /// The package.
        plugin: PluginDigest,
    },
    /// Root or revocations are no longer valid, so nothing can be trusted by them.
    #[error(
        "what this host trusts expired at {expires}, it is now {now}; sign a new root or list of revocations (`kvasir plugin trust \
         rotate`), and check this host's clock"
    )]
    TrustExpired {
        /// The first second at which the earlier of both is no longer valid.
        expires: UnixSeconds,
        /// The time given to `verify`.
        now: UnixSeconds,
    },
    /// A kernel revision below one seen before.
    #[error(
        "{name} has kernel revision {revision}, {seen} was seen before: an old release, perhaps brought back by somebody else; \
         get a newer one, or go back on purpose with `kvasir plugin rollback`"
    )]
    Rollback {
        /// The plugin's name.
        name: String,
        /// The package's revision.
        revision: u64,
        /// The highest revision that it is measured against ([`crate::Seen::revision`]).
        seen: u64,
    },
    /// More revisions than [`crate::MAX_SEEN_REVISIONS`] to remember.
    #[error("this host remembers the revisions of {limit} plugins and key sets, no more fit")]
    SeenFull {
        /// Pairs allowed.
        limit: usize,
    },
    /// A signature by a trusted key that does not hold.
    #[error(
        "the signature by key {key} does not match the package's statement: it was altered; fetch it again"
    )]
    BadSignature {
        /// The key.
        key: KeyId,
    },
    /// The signed statement is not one of a plugin.
    #[error(
        "the package's signed statement cannot be read: {reason}; ask the publisher for a correct package"
    )]
    Statement {
        /// What is wrong.
        reason: String,
    },
    /// The statement does not list a file that is in the package.
    #[error(
        "the package's file {name} is not covered by the signature; it was added afterwards, do not use it"
    )]
    Unsigned {
        /// The file.
        name: String,
    },
    /// The statement lists a file that is not in the package.
    #[error("the signature covers {name:?}, which is not in the package; fetch it again")]
    SignedButMissing {
        /// The file.
        name: String,
    },
    /// A file's length differs from the signed one.
    #[error(
        "the package's file {name} has {found} bytes, {signed} were signed; it was altered, fetch it again"
    )]
    SizeMismatch {
        /// The file.
        name: String,
        /// Bytes signed.
        signed: u64,
        /// Bytes found.
        found: u64,
    },
    /// A file's digest differs from the signed one.
    #[error(
        "the package's file {name} has SHA-256 {found}, {signed} was signed; it was altered, fetch it again"
    )]
    DigestMismatch {
        /// The file.
        name: String,
        /// Hexadecimal digest signed.
        signed: String,
        /// Hexadecimal digest found.
        found: String,
    },
    /// The statement's validity is over.
    #[error(
        "the package expired at {expires}, it is now {now}; get a newer release, and check this host's clock"
    )]
    Expired {
        /// The first second at which it is no longer valid.
        expires: UnixSeconds,
        /// The time given to `verify`.
        now: UnixSeconds,
    },
    /// The statement's validity has not begun.
    #[error("the package is valid only from {not_before}, it is now {now}; check this host's clock")]
    NotYetValid {
        /// The first second at which it is valid.
        not_before: UnixSeconds,
        /// The time given to `verify`.
        now: UnixSeconds,
    },
    /// A validity that ends before it begins.
    #[error("the validity asked for ends ({expires}) before it begins ({not_before})")]
    EmptyValidity {
        /// The beginning.
        not_before: UnixSeconds,
        /// The end.
        expires: UnixSeconds,
    },
    /// The host is older than the package allows.
    #[error("the package needs a host of version {min_host} or newer, this one is {host}; update the host")]
    HostTooOld {
        /// Version needed.
        min_host: Version,
        /// This host's version.
        host: Version,
    },
    /// `plugin.toml` is not what it must be.
    #[error("plugin.toml cannot be used: {reason}")]
    Manifest {
        /// What is wrong.
        reason: String,
    },
    /// `plugin.toml` and the signed statement differ.
    #[error("plugin.toml and the signed statement disagree on {field}: {manifest} and {statement}")]
    Disagreement {
        /// The field.
        field: &'static str,
        /// The value in `plugin.toml`.
        manifest: String,
        /// The value in the statement.
        statement: String,
    },
    /// A signing key whose public half is of small order: anyone can sign for it.
    #[error("the signing key is weak; make another key")]
    WeakKey,
}

/// What can be wrong with `root.json`, `revoked.json` or what was seen of them. Nothing of a refused document is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Over the limit of its kind.
    #[error("{what} has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// File name.
        what: &'static str,
        /// Bytes found.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// More of something than a document may hold.
    #[error("{what} has {count} {of}, the limit is {limit}")]
    TooMany {
        /// File name.
        what: &'static str,
        /// Of what.
        of: &'static str,
        /// Count found.
        count: usize,
        /// Count allowed.
        limit: usize,
    },
    /// Not such a document.
    #[error(
        "{what} cannot be read: {reason}; put it back from a backup, or fetch it again from whoever signed it"
    )]
    Unreadable {
        /// File name.
        what: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Readable, but not the one form that its signatures are made on.
    #[error(
        "{what} is not in canonical form (compact JSON, fields in order, nothing twice); do not edit it by hand, use `kvasir plugin trust`"
    )]
    NotCanonical {
        /// File name.
        what: &'static str,
    },
    /// A document of another kind.
    #[error("{what} is of type {found:?}, not {expected:?}")]
    WrongType {
        /// File name.
        what: &'static str,
        /// Type found.
        found: String,
        /// Type required.
        expected: &'static str,
    },
    /// A key id that is not the digest of its key.
    #[error("root.json calls a key {key} whose id is {is}")]
    WrongKeyId {
        /// The id found.
        key: KeyId,
        /// The id it must have.
        is: KeyId,
    },
    /// A key of small order, for which anyone can sign.
    #[error("key {key} is weak: anyone can sign for it; make another key")]
    WeakKey {
        /// The key.
        key: KeyId,
    },
    /// A role that cannot be.
    #[error("root.json's role {role}: {reason}")]
    Role {
        /// The role.
        role: RoleName,
        /// What is wrong.
        reason: String,
    },
    /// One key signs twice, which could fake a threshold.
    #[error("{what} is signed twice by key {key}; each key signs once")]
    DuplicateSignature {
        /// File name.
        what: &'static str,
        /// The key.
        key: KeyId,
    },
    /// A signature by a key of the role that does not hold.
    #[error("the signature by key {key} does not match {what}: it was altered; fetch it again")]
    BadSignature {
        /// File name.
        what: &'static str,
        /// The key.
        key: KeyId,
    },
    /// Too few distinct keys signed.
    #[error(
        "{what} is signed by {valid} keys of {role}, which takes {threshold}; collect the missing signatures"
    )]
    NotEnoughSignatures {
        /// File name.
        what: &'static str,
        /// Whose signatures are wanted.
        role: String,
        /// Distinct keys whose signatures hold.
        valid: usize,
        /// How many it takes.
        threshold: u32,
    },
    /// Not the version that follows.
    #[error(
        "{what} is version {found}, but {expected} is the one that follows; apply the versions one by one"
    )]
    WrongVersion {
        /// File name.
        what: &'static str,
        /// Version found.
        found: u64,
        /// Version required.
        expected: u64,
    },
    /// Its validity is over.
    #[error("{what} expired at {expires}, it is now {now}; sign a new one, and check this host's clock")]
    Expired {
        /// File name.
        what: &'static str,
        /// The first second at which it is no longer valid.
        expires: UnixSeconds,
        /// The time given.
        now: UnixSeconds,
    },
    /// Older than one seen before, or gone (version 0).
    #[error(
        "{what} is version {found}, {seen} was seen before; somebody put an old one in its place (0: took it away), restore the newest"
    )]
    Rollback {
        /// File name.
        what: &'static str,
        /// Version found, 0 where there is none.
        found: u64,
        /// Highest version seen.
        seen: u64,
    },
}

/// Why publishers' keys could not be loaded. A trust store loads whole or not at all.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The folder or a file in it cannot be read.
    #[error(
        "cannot read {path:?}: {source}; the trust folder must exist and be readable, and hold *.pub files"
    )]
    Read {
        /// Folder or file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A key file is over [`crate::MAX_KEY_FILE_BYTES`].
    #[error("{path:?} has more than {limit} bytes; a key file holds one short line a key")]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Bytes allowed.
        limit: usize,
    },
    /// A line that is not a key.
    #[error("{path:?}, line {line}: {reason}; a line reads `ed25519:<64 hexadecimal digits> optional name`")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: usize,
        /// What is wrong.
        reason: KeyTextError,
    },
    /// One key twice.
    #[error("key {key} is in the trust store twice; remove one, so that removing a key removes it")]
    Duplicate {
        /// The key.
        key: KeyId,
    },
    /// A key of small order, for which anyone can sign.
    #[error("key {key} is weak: anyone can sign for it; remove it")]
    Weak {
        /// The key.
        key: KeyId,
    },
    /// More keys than [`crate::MAX_TRUSTED_KEYS`].
    #[error("the trust store has more than {limit} keys; keep only the publishers you use")]
    TooManyKeys {
        /// Keys allowed.
        limit: usize,
    },
}

/// Why a text is not a public key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// Another scheme, or none.
    #[error("the key does not begin with `ed25519:`, the only scheme this host checks")]
    Scheme,
    /// Not 64 lower-case hexadecimal digits.
    #[error("the key is not 64 lower-case hexadecimal digits")]
    Digits,
    /// Not a point of the curve.
    #[error("the digits are no ed25519 public key")]
    Point,
    /// A key of small order.
    #[error("the key is weak: anyone can sign for it")]
    Weak,
}

/// What a parser says of a text that nobody has verified, on one line: it quotes the text, line feeds in it too, and what stands on a
/// line of its own passes for a report of ours.
pub(crate) fn one_line(error: impl std::fmt::Display) -> String {
    error.to_string().trim_end().replace(char::is_control, " ")
}
