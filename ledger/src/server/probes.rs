//! `/probes/...`: the files of a folder of probe records, for auditors who replay them.
//!
//! The files are public and are served as they lie; whoever reads them checks them (`kvasir_wire::probe`). A name is
//! parsed before the disk is asked, so none leads out of the folder, and nothing but regular files of the right size is
//! opened. Any web server that carries the folder, and a file `index` beside it, does as well.

use std::fs;
use std::io::{self, Read};
use std::path::{Path as FilePath, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::body::{Frame, SizeHint};
use kvasir_wire::probe::{MAX_PROBE_FILE_BYTES, MAX_PROBE_INDEX_BYTES, PROBE_INDEX_PATH, ProbeName};
use tokio::sync::Mutex;

use super::Failure;
use crate::refusal::Refusal;

/// Bytes of a file that are in memory at one time, for each who reads it.
const PIECE_BYTES: usize = 64 * 1024;

/// The routes for a folder of probe records.
pub(super) fn routes(folder: PathBuf) -> Router {
    Router::new()
        .route(&format!("/probes/{PROBE_INDEX_PATH}"), get(index))
        .route("/probes/{session}/{file}", get(file))
        .with_state(Arc::new(Folder { path: folder, walk: Arc::default() }))
}

struct Folder {
    path: PathBuf,
    /// Whoever holds it walks over the folder, which may have a million files: one at a time, however many ask.
    walk: Arc<Mutex<()>>,
}

/// A line for every file that there is now, in the order of sessions and numbers.
async fn index(State(folder): State<Arc<Folder>>) -> Result<Response, Failure> {
    let alone = folder.walk.clone().lock_owned().await;
    let listed = tokio::task::spawn_blocking(move || {
        // Held by the walk, not by who asked for it: it goes on where the caller hangs up.
        let _alone = alone;
        list(&folder.path)
    });
    let listed = listed.await;
    let names = listed.map_err(|_| unreadable("the folder"))?.map_err(|error| {
        tracing::warn!(%error, "the folder of probe records cannot be read");
        unreadable("the folder")
    })?;
    let text: String = names.iter().map(ProbeName::line).collect();
    if text.len() > MAX_PROBE_INDEX_BYTES {
        let message = format!("{} files are more than a list holds", names.len());
        return Err(
            Refusal::new(503, "too_many_probes", message, "move old sessions out of the folder").into()
        );
    }
    Ok(([(header::CONTENT_TYPE, "text/plain")], text).into_response())
}

async fn file(
    State(folder): State<Arc<Folder>>,
    Path((session, file)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let name: ProbeName = format!("{session}/{file}").parse().map_err(|_| no_such_file())?;
    let opened = tokio::task::spawn_blocking(move || open(&folder.path.join(name.to_string()))).await;
    let (file, left) = match opened {
        Ok(Ok(Some(opened))) => opened,
        Ok(Ok(None)) => return Err(no_such_file()),
        Ok(Err(error)) => {
            tracing::warn!(%name, %error, "probe records cannot be read");
            return Err(unreadable("this file"));
        }
        Err(_) => return Err(unreadable("this file")),
    };
    let mut response = Body::new(FileBody { file, left }).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    // A file is written once, whole.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=604800, immutable"));
    Ok(response)
}

/// A regular file of at most the bytes that a reader takes, and its length; nothing where there is none.
fn open(path: &FilePath) -> io::Result<Option<(fs::File, u64)>> {
    let about = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        about => about?,
    };
    // What a link leads to is not listed, so it is not there either.
    let is_link = |folder: &FilePath| fs::symlink_metadata(folder).is_ok_and(|about| about.is_symlink());
    if !is_served(&about) || path.parent().is_some_and(is_link) {
        return Ok(None);
    }
    let file = fs::File::open(path)?;
    Ok(Some((file, about.len())))
}

/// The same is listed and opened.
fn is_served(about: &fs::Metadata) -> bool {
    about.is_file() && about.len() <= MAX_PROBE_FILE_BYTES as u64
}

fn list(folder: &FilePath) -> io::Result<Vec<ProbeName>> {
    let mut names = Vec::new();
    for session in fs::read_dir(folder)? {
        let session = session?;
        if !session.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(session.path())? {
            let file = file?;
            let name = [session.file_name(), file.file_name()].map(|name| name.into_string().ok());
            if let [Some(session), Some(name)] = name
                && let Ok(name) = format!("{session}/{name}").parse()
                && file.metadata().is_ok_and(|about| is_served(&about))
            {
                names.push(name);
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn no_such_file() -> Failure {
    let message = "there are no probe records of this name";
    Refusal::new(404, "no_such_path", message, "/probes/index lists what there is").into()
}

fn unreadable(what: &str) -> Failure {
    let message = format!("{what} cannot be read");
    Refusal::new(500, "store_failed", message, "ask again later; the ledger's log says why").into()
}

/// A file on its way to a reader, piece by piece as the reader takes it.
struct FileBody {
    file: fs::File,
    left: u64,
}

impl HttpBody for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        // A read of this size from a local file is not worth a thread of its own.
        let mut piece = vec![0; self.left.min(PIECE_BYTES as u64) as usize];
        if let Err(error) = self.file.read_exact(&mut piece) {
            self.left = 0;
            return Poll::Ready(Some(Err(error)));
        }
        self.left -= piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece.into()))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
