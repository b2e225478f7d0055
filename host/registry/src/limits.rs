//! Every size and time that the other side may not exceed. What a blob may weigh is the package format's to say.

use std::time::Duration;

use kvasir_plugin::{MAX_FILES, MAX_VECTOR_BYTES};

/// Largest blob in bytes: no file of a package is larger.
pub const MAX_BLOB_BYTES: u64 = MAX_VECTOR_BYTES as u64;
/// Most blobs of a package, the manifests among them: its files, two manifests, their configurations and the envelope.
pub const MAX_BLOBS: usize = MAX_FILES + 8;
/// Largest manifest, index, or list of referrers in bytes. A package's own manifests have a few kilobytes; a busy
/// registry's list of referrers may be longer.
pub const MAX_DOCUMENT_BYTES: u64 = 1 << 20;
/// Most referrers of ours that are looked at: one for each time that a plugin was signed anew.
pub const MAX_REFERRERS: usize = 16;
/// Most manifests that a folder's index may list: three for each plugin in it.
pub const MAX_LISTED: usize = 4096;
/// Largest answer of a server that gives out bearer keys, in bytes.
pub const MAX_BEARER_ANSWER_BYTES: u64 = 64 << 10;
/// Most bytes of a refusal's text that are read, and most characters of it that are shown.
pub const MAX_REFUSAL_BYTES: u64 = 16 << 10;
/// Longest text of a refusal that is shown, in characters.
pub const MAX_REFUSAL_CHARACTERS: usize = 300;
/// Largest head of an answer in bytes.
pub const MAX_HEAD_BYTES: usize = 32 << 10;
/// Most redirects that one request follows.
pub const MAX_REDIRECTS: usize = 4;
/// Largest file of credentials in bytes.
pub const MAX_CREDENTIALS_BYTES: u64 = 1 << 20;
/// Largest file of certificates in bytes.
pub const MAX_CERTIFICATES_BYTES: u64 = 1 << 20;
/// Longest reference in bytes.
pub const MAX_REFERENCE_BYTES: usize = 512;
/// Time for a whole push or pull where the caller names none.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(600);
/// Longest time for a whole push or pull that is granted; a caller that names more gets this.
pub const MAX_DEADLINE: Duration = Duration::from_secs(86_400);
/// Longest silence of the other side, connecting included.
pub const MAX_SILENCE: Duration = Duration::from_secs(30);
