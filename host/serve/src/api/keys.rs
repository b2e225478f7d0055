//! Keys of clients: a file with one on each line. Without one, whoever reaches the service may use it.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};

use super::Api;
use super::error::ApiError;

/// Bytes of a file of keys.
pub const MAX_KEYS_FILE_BYTES: u64 = 64 * 1024;
/// Keys in a file.
pub const MAX_KEYS: usize = 1024;
/// Characters of a key: fewer could be guessed.
pub const MIN_KEY_CHARACTERS: usize = 16;
/// Characters of a key at most.
pub const MAX_KEY_CHARACTERS: usize = 256;

/// The keys that are known, by their digests alone.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeys(Vec<[u8; 32]>);

/// Why there are no keys to be had. Says nothing of what a key is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// The file cannot be read.
    #[error("cannot read the API keys in {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Others than its owner may read it.
    #[error("{} may be read by others (mode {mode:03o}); run: chmod 600 {}", .path.display(), .path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The permission bits.
        mode: u32,
    },
    /// It is larger than such a file is.
    #[error("{} has more than {most} bytes", .0.display(), most = MAX_KEYS_FILE_BYTES)]
    TooLarge(PathBuf),
    /// A line is no key.
    #[error(
        "line {line} is no API key: it must have {least} to {most} visible ASCII characters",
        least = MIN_KEY_CHARACTERS,
        most = MAX_KEY_CHARACTERS
    )]
    NoKey {
        /// The line, counted from 1.
        line: usize,
    },
    /// There is no key, or there are too many.
    #[error("there are {0} API keys; 1 to {most} are allowed", most = MAX_KEYS)]
    Count(usize),
}

impl ApiKeys {
    /// Reads a file of keys, which nobody but its owner may read.
    ///
    /// # Errors
    /// Why they are not had.
    pub fn read(path: &Path) -> Result<ApiKeys, KeysError> {
        let unreadable = |source| KeysError::Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(unreadable(std::io::Error::other("it is not a regular file")));
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = about.permissions().mode() & 0o777;
            if mode & 0o077 != 0 && !is_credential(path) {
                return Err(KeysError::Exposed { path: path.to_owned(), mode });
            }
        }
        let mut text = String::new();
        file.take(MAX_KEYS_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > MAX_KEYS_FILE_BYTES {
            return Err(KeysError::TooLarge(path.to_owned()));
        }
        ApiKeys::of(&text)
    }

    /// One key a line; empty lines and those that begin with `#` are left out.
    ///
    /// # Errors
    /// A line that is no key; none or too many.
    pub fn of(text: &str) -> Result<ApiKeys, KeysError> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        let keys: Vec<_> = lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .map(|(line, key)| if is_key(key) { Ok(digest(key)) } else { Err(KeysError::NoKey { line }) })
            .collect::<Result<_, _>>()?;
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(KeysError::Count(keys.len()));
        }
        Ok(ApiKeys(keys))
    }

    /// Whether the request shows one of the keys.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(shown) = headers.get(header::AUTHORIZATION) else {
            return Err(ApiError::no_key("You didn't provide an API key: send `Authorization: Bearer KEY`"));
        };
        let key = shown.to_str().ok().and_then(|shown| {
            let (scheme, key) = shown.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
        match key {
            Some(key) if self.knows(key) => Ok(()),
            _ => Err(ApiError::no_key("Incorrect API key provided")),
        }
    }

    /// The time that it takes tells nothing: digests are compared, each as a whole, and with every key.
    fn knows(&self, key: &str) -> bool {
        let shown = digest(key);
        let differs = |known: &[u8; 32]| known.iter().zip(shown).fold(0, |bits, (a, b)| bits | (a ^ b)) != 0;
        self.0.iter().fold(false, |found, known| found | !differs(known))
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

/// Lets a request on that shows a key, or all of them where no keys are set.
pub(super) async fn require(State(api): State<Api>, request: Request, next: Next) -> Response {
    if let Some(keys) = &api.0.settings.keys
        && let Err(refusal) = keys.check(request.headers())
    {
        return refusal.into_response();
    }
    next.run(request).await
}

fn is_key(key: &str) -> bool {
    (MIN_KEY_CHARACTERS..=MAX_KEY_CHARACTERS).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_graphic())
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Whether systemd handed the file over to this service (`LoadCredential=`), where an access list, whose bits the mode shows
/// as those of a group, lets the service's user alone read it.
#[cfg(unix)]
fn is_credential(path: &Path) -> bool {
    std::env::var_os("CREDENTIALS_DIRECTORY")
        .is_some_and(|folder| !folder.is_empty() && path.parent() == Some(Path::new(&folder)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = "# laptops\nkv-0123456789abcdef\n\n  kv-fedcba9876543210  \n";

    #[test]
    fn a_known_key_is_let_in_and_nothing_else() {
        let keys = ApiKeys::of(KEYS).unwrap();
        let check = |shown: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, shown.parse().unwrap());
            keys.check(&headers)
        };
        for shown in
            ["Bearer kv-0123456789abcdef", "bearer kv-fedcba9876543210", "Bearer  kv-0123456789abcdef "]
        {
            check(shown).unwrap();
        }
        for shown in [
            "Bearer kv-0123456789abcdee",
            "Bearer kv-0123456789abcde",
            "kv-0123456789abcdef",
            "Bearer",
            "Basic a",
        ] {
            assert_eq!(check(shown).unwrap_err().status(), 401, "{shown}");
        }
        assert_eq!(keys.check(&HeaderMap::new()).unwrap_err().status(), 401);
        assert_eq!(format!("{keys:?}"), "ApiKeys(2)");
    }

    #[test]
    fn what_is_no_file_of_keys_is_refused() {
        assert!(matches!(ApiKeys::of("# none\n"), Err(KeysError::Count(0))));
        assert!(matches!(ApiKeys::of("kv-0123456789abcdef\nshort\n"), Err(KeysError::NoKey { line: 2 })));
        assert!(matches!(ApiKeys::of("kv-0123456789 abcdef\n"), Err(KeysError::NoKey { line: 1 })));
        let many = "kv-0123456789abcdef\n".repeat(MAX_KEYS + 1);
        assert!(matches!(ApiKeys::of(&many), Err(KeysError::Count(_))));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, KEYS).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(ApiKeys::read(&path), Err(KeysError::Exposed { mode: 0o644, .. })));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(ApiKeys::read(&path).unwrap(), ApiKeys::of(KEYS).unwrap());
        std::fs::write(&path, "#".repeat(MAX_KEYS_FILE_BYTES as usize + 1)).unwrap();
        assert!(matches!(ApiKeys::read(&path), Err(KeysError::TooLarge(_))));
        assert!(matches!(ApiKeys::read(folder.path()), Err(KeysError::Unreadable { .. })));
    }
}
