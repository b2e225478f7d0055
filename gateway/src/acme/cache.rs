//! What is kept between two starts: the account and the certificate, each with its private key in one file of mode 0600, in a
//! folder of mode 0700. A lock there lets one process at a time order certificates.
//!
//! What is not for the directory that is asked now, or cannot be understood, counts as missing. What others may read is an error:
//! a private key that somebody else may have is not used.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use kvasir_ledger::files;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    secret_file::{self, SecretFileError},
    served_certificate::ServedCertificate,
};

/// Most bytes of a file of the folder.
const MAX_FILE_BYTES: u64 = 512 * 1024;
const ACCOUNT: &str = "account.json";
const CERTIFICATE: &str = "certificate.json";
const LOCK: &str = "lock";

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It cannot be made, or not be looked at.
    #[error("the folder of account and certificate, {path}: {source}; name another one with --acme-cache")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others than the owner may look into it.
    #[error("{path} may be used by others (mode {mode:03o}); run: chmod 700 {path}")]
    Exposed {
        /// The folder.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
    /// A file in it cannot be used.
    #[error(transparent)]
    File(#[from] SecretFileError),
}

/// The folder, for one ACME server.
#[derive(Debug)]
pub(super) struct Cache {
    folder: PathBuf,
    directory: String,
}

/// An account as it is kept.
#[derive(Deserialize, Serialize)]
pub(super) struct KeptAccount {
    directory: String,
    /// As the server knows them.
    pub(super) contact: Vec<String>,
    /// The library's own form of it, private key included.
    pub(super) credentials: serde_json::Value,
}

/// A certificate as it is kept.
#[derive(Deserialize, Serialize)]
struct KeptCertificate {
    directory: String,
    private_key: String,
    chain: String,
}

impl Cache {
    /// The folder for a server's directory, made if it is missing.
    pub(super) fn open(folder: &Path, directory: &str) -> Result<Self, CacheError> {
        make(folder)?;
        Ok(Cache { folder: folder.into(), directory: directory.into() })
    }

    /// Holds the folder as long as the value lives. What a process that was killed left half written goes: it has a key in it.
    pub(super) fn hold(&self) -> io::Result<File> {
        let held = files::hold(&self.folder.join(LOCK))?;
        for name in [ACCOUNT, CERTIFICATE] {
            if let Err(error) = files::remove_drafts(&self.folder.join(name)) {
                tracing::warn!(
                    file = name,
                    "what is left of a write that was cut off cannot be removed: {error}"
                );
            }
        }
        Ok(held)
    }

    /// The account, if there is one.
    pub(super) fn account(&self) -> Result<Option<KeptAccount>, SecretFileError> {
        let kept: Option<KeptAccount> = self.read(ACCOUNT)?;
        Ok(kept.filter(|kept| self.is_of_directory(&kept.directory, ACCOUNT)))
    }

    /// Keeps an account.
    pub(super) fn keep_account(&self, contact: &[String], credentials: serde_json::Value) -> io::Result<()> {
        let directory = self.directory.clone();
        self.write(ACCOUNT, &KeptAccount { directory, contact: contact.to_vec(), credentials })
    }

    /// Drops the account: the server knows it no more.
    pub(super) fn forget_account(&self) -> io::Result<()> {
        match fs::remove_file(self.folder.join(ACCOUNT)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The certificate, if there is one that can be served.
    pub(super) fn certificate(&self) -> Result<Option<ServedCertificate>, SecretFileError> {
        let kept: Option<KeptCertificate> = self.read(CERTIFICATE)?;
        let Some(kept) = kept.filter(|kept| self.is_of_directory(&kept.directory, CERTIFICATE)) else {
            return Ok(None);
        };
        match ServedCertificate::from_pem(kept.chain.as_bytes(), kept.private_key.as_bytes()) {
            Ok(served) => Ok(Some(served)),
            Err(error) => {
                tracing::warn!(folder = %self.folder.display(), "the certificate that was kept is left: {error}");
                Ok(None)
            }
        }
    }

    /// Keeps a certificate with its key, both PEM.
    pub(super) fn keep_certificate(&self, chain: &str, private_key: &str) -> io::Result<()> {
        let (chain, private_key) = (chain.to_owned(), private_key.to_owned());
        self.write(CERTIFICATE, &KeptCertificate { directory: self.directory.clone(), private_key, chain })
    }

    fn is_of_directory(&self, directory: &str, name: &str) -> bool {
        let is = directory == self.directory;
        if !is {
            tracing::info!(file = name, directory, "left: it is another ACME server's");
        }
        is
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, SecretFileError> {
        let path = self.folder.join(name);
        let left = |why: String| {
            tracing::warn!(file = %path.display(), "left, and made anew: {why}");
            Ok(None)
        };
        match secret_file::read_up_to(&path, MAX_FILE_BYTES) {
            Ok(text) => match serde_json::from_str(&text) {
                Ok(kept) => Ok(Some(kept)),
                // Its text may quote what it found, and that is a secret.
                Err(error) => {
                    left(format!("line {}, column {}: not as it was", error.line(), error.column()))
                }
            },
            Err(SecretFileError::Malformed { detail, .. }) => left(detail),
            Err(SecretFileError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(None)
            }
            Err(SecretFileError::Unreadable { source, .. })
                if source.kind() == io::ErrorKind::InvalidData =>
            {
                left(source.to_string())
            }
            Err(error) => Err(error),
        }
    }

    /// A small file, a few times in a year: nobody minds that it is waited for.
    fn write<T: Serialize>(&self, name: &str, kept: &T) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(kept)?;
        secret_file::write(&self.folder.join(name), &text, true)
    }
}

fn make(folder: &Path) -> Result<(), CacheError> {
    let failed = |source| CacheError::Folder { path: folder.into(), source };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(folder).map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(folder).map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CacheError::Exposed { path: folder.into(), mode });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::{Names, make as make_certificate};

    const DIRECTORY: &str = "https://ca.example/dir";

    /// PEM of a chain and its key.
    fn pair() -> (String, String) {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::parse(&["edge.example".into()]).unwrap();
        let files = make_certificate(folder.path(), &names, false).unwrap();
        (fs::read_to_string(files.certificate).unwrap(), fs::read_to_string(files.key).unwrap())
    }

    #[test]
    fn what_is_kept_comes_back_for_the_same_server_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state").join("acme");
        let cache = Cache::open(&path, DIRECTORY).unwrap();
        assert!(cache.account().unwrap().is_none() && cache.certificate().unwrap().is_none());
        let (chain, key) = pair();
        cache.keep_account(&["mailto:a@b.c".into()], serde_json::json!({"id": "1"})).unwrap();
        cache.keep_certificate(&chain, &key).unwrap();
        let account = cache.account().unwrap().unwrap();
        assert_eq!(account.contact, ["mailto:a@b.c"]);
        assert_eq!(account.credentials["id"], "1");
        assert!(cache.certificate().unwrap().unwrap().is_for("edge.example"));
        let other = Cache::open(&path, "https://other.example/dir").unwrap();
        assert!(other.account().unwrap().is_none() && other.certificate().unwrap().is_none());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&path), 0o700);
            for name in [ACCOUNT, CERTIFICATE] {
                assert_eq!(mode(&path.join(name)), 0o600, "{name}");
            }
        }
        cache.forget_account().unwrap();
        cache.forget_account().unwrap();
        assert!(cache.account().unwrap().is_none());
        let draft = path.join(format!(".{CERTIFICATE}.1-0.partial"));
        fs::write(&draft, "half of a key").unwrap();
        let held = cache.hold().unwrap();
        assert!(!draft.exists() && cache.certificate().unwrap().is_some());
        assert_eq!(other.hold().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        other.hold().unwrap();
    }

    #[test]
    fn what_cannot_be_understood_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("acme");
        let cache = Cache::open(&path, DIRECTORY).unwrap();
        let (chain, key) = pair();
        for broken in
            ["", "{", "[]", "\"directory\"", "{\"directory\":1}", &"x".repeat(MAX_FILE_BYTES as usize + 1)]
        {
            for name in [ACCOUNT, CERTIFICATE] {
                secret_file::write(&path.join(name), broken.as_bytes(), true).unwrap();
            }
            assert!(cache.account().unwrap().is_none() && cache.certificate().unwrap().is_none());
        }
        secret_file::write(&path.join(CERTIFICATE), b"\xff\xfe", true).unwrap();
        assert!(cache.certificate().unwrap().is_none());
        // Halves that are not of one another.
        cache.keep_certificate(&chain, &pair().1).unwrap();
        assert!(cache.certificate().unwrap().is_none());
        cache.keep_certificate(&chain, &key).unwrap();
        assert!(cache.certificate().unwrap().is_some());
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_read_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("acme");
        let cache = Cache::open(&path, DIRECTORY).unwrap();
        let (chain, key) = pair();
        cache.keep_certificate(&chain, &key).unwrap();
        fs::set_permissions(path.join(CERTIFICATE), fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(cache.certificate(), Err(SecretFileError::Exposed { mode: 0o640, .. })));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let refused = Cache::open(&path, DIRECTORY);
        assert!(matches!(refused, Err(CacheError::Exposed { mode: 0o750, .. })));
    }
}
