//! A development certificate: a certificate authority that signs one server certificate, both made on the spot.
//!
//! For a laptop, a LAN, a test. A network on the internet gives the edge a certificate that everyone trusts instead. The
//! authority's private key is not kept, so nobody can ever sign a second certificate with it: to renew, make both anew.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use kvasir_ledger::files::{Existing, Readers, write_whole};

use crate::secret_file;

/// How long a development certificate is valid.
pub const VALID_FOR: Duration = Duration::from_secs(397 * 24 * 3600);

/// Why no certificate was made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// A name is neither a DNS name nor an IP address, or there is none.
    #[error("{0:?} is neither a DNS name nor an IP address; give --name for every name that workers dial")]
    Name(String),
    /// A file is there already.
    #[error("{0} exists already; pass --replace to overwrite it")]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("writing {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate library failed.
    #[error("making the certificate: {0}")]
    Rcgen(#[from] rcgen::Error),
}

/// The names that a server certificate is for: at least one.
#[derive(Clone, Debug)]
pub struct Names(Vec<String>);

impl Names {
    /// Checks names as given on the command line.
    pub fn parse(names: &[String]) -> Result<Self, MakeError> {
        if names.is_empty() {
            return Err(MakeError::Name(String::new()));
        }
        for name in names {
            CertificateParams::new(vec![name.clone()]).map_err(|_| MakeError::Name(name.clone()))?;
            if name.is_empty()
                || name.contains(|character: char| character.is_whitespace() || character == '/')
            {
                return Err(MakeError::Name(name.clone()));
            }
        }
        Ok(Names(names.to_vec()))
    }
}

/// The files that were written.
#[derive(Clone, Debug)]
pub struct CertificatePaths {
    /// The authority's certificate: hand it to workers (`--ca`).
    pub authority: PathBuf,
    /// The server certificate: for the edge.
    pub certificate: PathBuf,
    /// The server's private key, readable by its owner only: for the edge.
    pub key: PathBuf,
}

/// Makes `ca.pem`, `server.pem` and `server.key` in a folder (made if missing).
pub fn make(folder: &Path, names: &Names, replace: bool) -> Result<CertificatePaths, MakeError> {
    let paths = CertificatePaths {
        authority: folder.join("ca.pem"),
        certificate: folder.join("server.pem"),
        key: folder.join("server.key"),
    };
    if !replace {
        for path in [&paths.authority, &paths.certificate, &paths.key] {
            if path.exists() {
                return Err(MakeError::Exists(path.clone()));
            }
        }
    }
    fs::create_dir_all(folder).map_err(|source| MakeError::Write { path: folder.into(), source })?;

    // A clock that is a little behind must not find the certificate not yet valid.
    let not_before = SystemTime::now() - Duration::from_secs(3600);
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.not_before = not_before.into();
    authority.not_after = (not_before + VALID_FOR).into();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority.distinguished_name.push(DnType::CommonName, "Kvasir development authority");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let mut server = CertificateParams::new(names.0.clone())?;
    server.not_before = not_before.into();
    server.not_after = (not_before + VALID_FOR).into();
    server.use_authority_key_identifier_extension = true;
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.distinguished_name.push(DnType::CommonName, names.0[0].as_str());
    let key = KeyPair::generate()?;
    let certificate = server.signed_by(&key, &authority)?;

    let written = |path: &Path, result: io::Result<()>| {
        result.map_err(|source| MakeError::Write { path: path.into(), source })
    };
    written(&paths.key, secret_file::write(&paths.key, key.serialize_pem().as_bytes(), replace))?;
    let existing = if replace { Existing::Replace } else { Existing::Keep };
    let public = |path: &Path, pem: String| {
        written(path, write_whole(path, pem.as_bytes(), existing, Readers::Anyone))
    };
    let rest = public(&paths.certificate, certificate.pem())
        .and_then(|()| public(&paths.authority, authority.pem()));
    if rest.is_err() && !replace {
        // A key without its certificate is of no use and would stand in the way of the next try.
        for path in [&paths.key, &paths.certificate] {
            let _ = fs::remove_file(path);
        }
    }
    rest.map(|()| paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_once_and_the_key_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::parse(&["edge.example".into(), "::1".into()]).unwrap();
        let paths = make(folder.path(), &names, false).unwrap();
        assert!(matches!(make(folder.path(), &names, false), Err(MakeError::Exists(_))));
        make(folder.path(), &names, true).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(fs::metadata(&paths.key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert!(fs::read_to_string(&paths.authority).unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
    }

    #[test]
    fn names_that_nobody_can_dial_are_refused() {
        for name in ["", "a b", "https://edge", "ex\u{e4}mple"] {
            assert!(Names::parse(&[name.into()]).is_err(), "{name}");
        }
        assert!(Names::parse(&[]).is_err());
    }
}
