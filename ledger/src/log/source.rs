//! Where a log's files are read from: a folder, or a web server.

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use super::tile::{BundleCoordinates, MAX_BUNDLE_BYTES, TILE_HASHES, TileCoordinates};
use crate::files::read_regular;

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
    /// The server does not answer, or not over HTTP.
    #[error("{place} cannot be fetched: {source}")]
    Http {
        /// What was asked.
        place: String,
        /// Why it failed.
        source: Box<ureq::Error>,
    },
    /// The server answers with neither a file nor 404: such as an address that moved, which is not followed.
    #[error("{place} cannot be fetched: the server answers with status {status}")]
    Status {
        /// What was asked.
        place: String,
        /// HTTP status.
        status: u16,
    },
}

/// A tile or bundle as it lies there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The whole file.
    pub bytes: Vec<u8>,
    /// Hashes or entries in it, by its path.
    pub width: u16,
    /// Its path.
    pub path: String,
}

/// The log at an address, or else in a folder. Nothing is read yet: a folder that is not there has no files.
pub fn source_at(place: &str) -> Result<Box<dyn LogSource>, SourceError> {
    if place.contains("://") {
        Ok(Box::new(HttpSource::new(place)?))
    } else {
        Ok(Box::new(FolderSource(place.into())))
    }
}

/// The bundle of this width, or the full one: a log may drop partial files of what has become full.
pub fn find_bundle(source: &dyn LogSource, bundle: &BundleCoordinates) -> Result<Option<Found>, SourceError> {
    let full = bundle.full();
    find(source, [(bundle.path(), bundle.width), (full.path(), full.width)], MAX_BUNDLE_BYTES)
}

/// The tile of this width, or the full one.
pub fn find_tile(source: &dyn LogSource, tile: &TileCoordinates) -> Result<Option<Found>, SourceError> {
    let full = tile.full();
    find(source, [(tile.path(), tile.width), (full.path(), full.width)], TILE_HASHES as usize * 32)
}

fn find(
    source: &dyn LogSource,
    places: [(String, u16); 2],
    limit: usize,
) -> Result<Option<Found>, SourceError> {
    let is_full = places[0] == places[1];
    for (path, width) in places.into_iter().take(if is_full { 1 } else { 2 }) {
        if let Some(bytes) = source.read(&path, limit)? {
            return Ok(Some(Found { bytes, width, path }));
        }
    }
    Ok(None)
}

impl LogSource for FolderSource {
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, SourceError> {
        let file = self.0.join(path);
        let place = || file.display().to_string();
        match read_regular(&file, limit as u64) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
                Err(SourceError::TooLong { place: place(), limit })
            }
            Err(source) => Err(SourceError::File { place: place(), source }),
        }
    }
}

impl HttpSource {
    /// The log below `base`; a slash at its end does not matter.
    pub fn new(base: &str) -> Result<Self, SourceError> {
        // A password that somebody put there is not shown on a terminal or in a log.
        let wrong = || match base.rsplit_once('@') {
            Some((_, host)) => SourceError::Address(format!("...@{host}")),
            None => SourceError::Address(base.to_owned()),
        };
        let host =
            base.strip_prefix("http://").or_else(|| base.strip_prefix("https://")).ok_or_else(wrong)?;
        let names_a_user = host.split('/').next().is_some_and(|host| host.contains('@'));
        if host.is_empty() || host.starts_with('/') || names_a_user || base.contains(['?', '#', ' ']) {
            return Err(wrong());
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
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
            Err(error) => return Err(failed(place, error)),
        };
        // What comes with a redirect, or with any other word than 200, is the server's and no file of the log.
        match answer.status().as_u16() {
            200 => {}
            404 => return Ok(None),
            status => return Err(SourceError::Status { place, status }),
        }
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
