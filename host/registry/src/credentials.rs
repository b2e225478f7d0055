//! Who one is to a registry: a name and a password from the environment or from a file as Docker and its kin write it.
//!
//! Helper programs that such a file may name are not run: a configuration file does not get to start programs here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::error::RegistryError;
use crate::limits::MAX_CREDENTIALS_BYTES;
use crate::plain_file;

/// The variable that holds the name.
pub const USER_VARIABLE: &str = "KVASIR_REGISTRY_USER";
/// The variable that holds the password.
pub const PASSWORD_VARIABLE: &str = "KVASIR_REGISTRY_PASSWORD";

/// A name and a password. Shown without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
    /// A key for the server that gives out bearer keys, in place of the password.
    refresh: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.user)
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Default, Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    #[serde(rename = "identitytoken")]
    refresh: Option<String>,
}

impl Credentials {
    /// A name and a password.
    pub fn new(user: &str, password: &str) -> Self {
        Credentials { user: user.to_owned(), password: password.to_owned(), refresh: None }
    }

    /// From the two variables, if both are set; else what the file (`$DOCKER_CONFIG/config.json` or
    /// `~/.docker/config.json`) says of `host`, if there is one.
    pub fn find(host: &str) -> Result<Option<Self>, RegistryError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        match (variable(USER_VARIABLE), variable(PASSWORD_VARIABLE)) {
            (Some(user), Some(password)) => return Ok(Some(Credentials::new(&user, &password))),
            (None, None) => {}
            _ => return Err(wrong(format!("set both {USER_VARIABLE} and {PASSWORD_VARIABLE}, or neither"))),
        }
        let folder = match std::env::var_os("DOCKER_CONFIG") {
            Some(folder) => PathBuf::from(folder),
            None => match std::env::home_dir() {
                Some(home) => home.join(".docker"),
                None => return Ok(None),
            },
        };
        Credentials::from_file(&folder.join("config.json"), host)
    }

    /// What the file at `path` says of `host`; nothing where there is no file.
    pub fn from_file(path: &Path, host: &str) -> Result<Option<Self>, RegistryError> {
        let text = match plain_file::read(path, MAX_CREDENTIALS_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(RegistryError::File { action: "read", path: path.to_owned(), source }),
        };
        if text.len() as u64 > MAX_CREDENTIALS_BYTES {
            return Err(wrong(format!("{} has more than {MAX_CREDENTIALS_BYTES} bytes", path.display())));
        }
        let file: File = serde_json::from_slice(&text).map_err(|error| {
            // Where it is wrong, and not what stands there.
            wrong(format!("{} is not as Docker writes it, at line {}", path.display(), error.line()))
        })?;
        let keys = [host.to_owned(), format!("https://{host}"), format!("https://{host}/v1/")];
        let entry = keys.iter().find_map(|key| file.auths.get(key));
        let found = entry.map(|entry| entry.read(path)).transpose()?.flatten();
        if found.is_none() && (file.helpers.contains_key(host) || (entry.is_some() && file.store.is_some())) {
            return Err(wrong(format!(
                "{} leaves those for {host} to a helper program, which kvasir does not run; set {USER_VARIABLE} and \
                 {PASSWORD_VARIABLE}",
                path.display()
            )));
        }
        Ok(found)
    }

    /// The value of the header `Authorization`.
    pub(crate) fn basic(&self) -> String {
        format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password)))
    }

    /// The key that is given for a bearer key in place of name and password.
    pub(crate) fn refresh(&self) -> Option<&str> {
        self.refresh.as_deref()
    }
}

impl Entry {
    fn read(&self, path: &Path) -> Result<Option<Credentials>, RegistryError> {
        let refresh = self.refresh.clone().filter(|key| !key.is_empty());
        let pair = match (&self.auth, &self.username, &self.password) {
            (_, Some(user), Some(password)) => Some((user.clone(), password.clone())),
            (Some(auth), _, _) if !auth.is_empty() => {
                let decoded = STANDARD.decode(auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
                let (user, password) = pair.ok_or_else(|| {
                    wrong(format!("an `auth` in {} is not base64 of name and password", path.display()))
                })?;
                Some((user.to_owned(), password.trim_end_matches('\0').to_owned()))
            }
            _ => None,
        };
        Ok(match (pair, refresh) {
            (None, None) => None,
            (pair, refresh) => {
                let (user, password) = pair.unwrap_or_default();
                Some(Credentials { user, password, refresh })
            }
        })
    }
}

fn wrong(reason: String) -> RegistryError {
    RegistryError::Credentials { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, host: &str) -> Result<Option<Credentials>, RegistryError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, text).unwrap();
        Credentials::from_file(&path, host)
    }

    #[test]
    fn a_file_is_read_as_others_write_it() {
        let file = format!(
            r#"{{"auths": {{"ghcr.io": {{"auth": "{}"}}, "https://other.org": {{"username": "a", "password": "b:c"}},
                "third.org": {{"identitytoken": "xyz"}}, "https://fourth.org/v1/": {{}}}}, "HttpHeaders": {{}}}}"#,
            STANDARD.encode("someone:pass:word")
        );
        let someone = found(&file, "ghcr.io").unwrap().unwrap();
        assert_eq!(someone, Credentials::new("someone", "pass:word"));
        assert_eq!(someone.basic(), format!("Basic {}", STANDARD.encode("someone:pass:word")));
        assert_eq!(found(&file, "other.org").unwrap().unwrap(), Credentials::new("a", "b:c"));
        assert_eq!(found(&file, "third.org").unwrap().unwrap().refresh(), Some("xyz"));
        assert_eq!(found(&file, "fourth.org").unwrap(), None);
        assert_eq!(found(&file, "ghcr.io.evil.org").unwrap(), None);
        assert_eq!(Credentials::from_file(Path::new("/nowhere/config.json"), "a").unwrap(), None);
    }

    #[test]
    fn helpers_are_named_and_not_run() {
        for file in [
            r#"{"credHelpers": {"ghcr.io": "gh"}}"#,
            r#"{"auths": {"ghcr.io": {}}, "credsStore": "desktop"}"#,
        ] {
            let error = found(file, "ghcr.io").unwrap_err().to_string();
            assert!(error.contains("helper program"), "{error}");
            assert_eq!(found(file, "other.org").unwrap(), None);
        }
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = Credentials::from_file(&path, "ghcr.io").unwrap_err();
        assert!(matches!(error, RegistryError::File { action: "read", .. }), "{error}");
        assert!(error.to_string().contains("no plain file"), "{error}");
    }

    #[test]
    fn a_broken_file_is_refused_without_showing_it() {
        for file in ["", "{", r#"{"auths": 1}"#, r#"{"auths": {"ghcr.io": {"auth": "!secret!"}}}"#] {
            let error = found(file, "ghcr.io").unwrap_err();
            assert!(matches!(error, RegistryError::Credentials { .. }));
            assert!(!error.to_string().contains("secret"));
        }
        let long = " ".repeat(MAX_CREDENTIALS_BYTES as usize + 1);
        assert!(found(&long, "ghcr.io").unwrap_err().to_string().contains("more than"));
        assert_eq!(format!("{:?}", Credentials::new("someone", "secret")), "Credentials(someone)");
    }
}
