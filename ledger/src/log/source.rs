//! Where a log's files are read from: a folder, or a web server.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

/// Time for one file over HTTP, connecting included.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Gives the files of a log by their path below its prefix. Several threads may read at once.
pub trait LogSource: Send + Sync {
    /// The whole file, or nothing where there is none. A file of more than `limit` bytes is an error.
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, SourceError>;
}

/// A log in a folder.
#[derive(Clone, Debug)]
pub struct FolderSource(pub PathBuf);

/// A log behind `http://` or `https://`.
#[derive(Clone, Debug)]
pub struct HttpSource {
    base: String,
    agent: ureq::Agent,
}

/// Why a file could not be read.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The address has another form than `http://...` or `https://...`.
    #[error("`{0}` is no log's address: expected http:// or https:// and a host")]
    Address(String),
    /// A file that is longer than what it may hold.
    #[error("{place} has more than {limit} bytes")]
    TooLong {
        /// Which file.
        place: String,
        /// Most bytes.
        limit: usize,
    },
    /// The folder cannot be read.
    #[error("{place} cannot be read: {source}")]
    File {
        /// Which file.
        place: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server does not answer, or with an error.
    #[error("{place} cannot be fetched: {source}")]
    Http {
        /// What was asked.
        place: String,
        /// Why it failed.
        source: Box<ureq::Error>,
    },
}

impl LogSource for FolderSource {
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, SourceError> {
        let file = self.0.join(path);
        let place = || file.display().to_string();
        let failed = |source| SourceError::File { place: place(), source };
        let opened = match File::open(&file) {
            Ok(opened) => opened,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        // A folder, a pipe or a device is no file of a log, and reading one might never end.
        if !opened.metadata().map_err(failed)?.is_file() {
            return Err(failed(std::io::Error::other("it is no regular file")));
        }
        let mut bytes = Vec::new();
        opened.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() > limit {
            Err(SourceError::TooLong { place: place(), limit })
        } else {
            Ok(Some(bytes))
        }
    }
}

impl HttpSource {
    /// The log below `base`; a slash at its end does not matter.
    pub fn new(base: &str) -> Result<Self, SourceError> {
        let wrong = || SourceError::Address(base.to_owned());
        let host =
            base.strip_prefix("http://").or_else(|| base.strip_prefix("https://")).ok_or_else(wrong)?;
        if host.is_empty() || host.starts_with('/') || base.contains(['?', '#', ' ']) {
            return Err(wrong());
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(true)
            .max_redirects(0)
            .user_agent("kvasir")
            .build();
        Ok(Self { base: base.trim_end_matches('/').to_owned(), agent: config.into() })
    }
}

impl LogSource for HttpSource {
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, SourceError> {
        let place = format!("{}/{path}", self.base);
        let failed = |place: String, source| SourceError::Http { place, source: Box::new(source) };
        let answer = match self.agent.get(&place).call() {
            Ok(answer) => answer,
            Err(ureq::Error::StatusCode(404)) => return Ok(None),
            Err(error) => return Err(failed(place, error)),
        };
        let body = answer.into_body().into_with_config().limit(limit as u64 + 1).read_to_vec();
        match body {
            Ok(bytes) if bytes.len() <= limit => Ok(Some(bytes)),
            Ok(_) | Err(ureq::Error::BodyExceedsLimit(_)) => Err(SourceError::TooLong { place, limit }),
            Err(error) => Err(failed(place, error)),
        }
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}
