//! The public log's files over HTTP, as any web server would give them.

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use kvasir_wire::note::Note;
use tracing::warn;

use super::Service;
use crate::api::PublishedHead;
use crate::log::{
    CHECKPOINT_PATH, Checkpoint, FolderSource, LogSource as _, MAX_BUNDLE_BYTES, MAX_CHECKPOINT_BYTES,
    SourceError,
};

/// Longest path below `tile/`: the largest number has seven groups, and a width follows.
const MAX_TILE_PATH: usize = 64;

pub(super) async fn checkpoint(State(service): State<Service>) -> Response {
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    match read(service, CHECKPOINT_PATH.to_owned(), MAX_CHECKPOINT_BYTES).await {
        Ok(Some(bytes)) => (headers, bytes).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, "nothing is published here yet\n").into_response(),
        Err(unreadable) => unreadable,
    }
}

pub(super) async fn tile(State(service): State<Service>, Path(rest): Path<String>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    let known = |part: &str| {
        part == "entries"
            || (!part.is_empty()
                && part
                    .trim_start_matches('x')
                    .trim_end_matches(".p")
                    .bytes()
                    .all(|byte| byte.is_ascii_digit()))
    };
    // Digits, groups and widths only: no path of this kind leads out of the folder.
    // The last part of a file's path is a number; `entries`, `x001` and `000.p` are folders.
    let is_file =
        rest.rsplit_once('/').is_some_and(|(_, last)| last.bytes().all(|byte| byte.is_ascii_digit()));
    let found = if is_file && rest.len() <= MAX_TILE_PATH && rest.split('/').all(known) {
        read(service, format!("tile/{rest}"), MAX_BUNDLE_BYTES).await
    } else {
        Ok(None)
    };
    match found {
        Ok(Some(bytes)) => (headers, bytes).into_response(),
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(unreadable) => unreadable,
    }
}

/// The published head that lies in `folder`; none where there is none, or one that cannot be read. `now` in Unix seconds.
pub(super) fn head(folder: &std::path::Path, now: u64) -> Option<PublishedHead> {
    let bytes = FolderSource(folder.to_owned()).read(CHECKPOINT_PATH, MAX_CHECKPOINT_BYTES).ok()??;
    let head = Checkpoint::parse(Note::parse(&bytes).ok()?.text()).ok()?;
    let placed = std::fs::metadata(folder.join(CHECKPOINT_PATH)).ok()?.modified().ok()?;
    let at = placed.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs();
    Some(PublishedHead { size: head.size, at, age_seconds: now.saturating_sub(at) })
}

/// The file; none where there is none. What is there and cannot be read is this machine's trouble and must not look like a file
/// that the log never published, which an audit counts against it.
async fn read(service: Service, path: String, limit: usize) -> Result<Option<Vec<u8>>, Response> {
    let Some(folder) = service.0.log_folder.clone() else { return Ok(None) };
    let said = path.clone();
    let read = tokio::task::spawn_blocking(move || FolderSource(folder).read(&path, limit)).await;
    let reason = match read {
        Ok(Ok(found)) => return Ok(found),
        // Longer than any file of a log: it is none.
        Ok(Err(SourceError::TooLong { .. })) => return Ok(None),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    warn!(path = said, reason, "a file of the log cannot be read");
    Err((StatusCode::INTERNAL_SERVER_ERROR, "this file cannot be read now\n").into_response())
}
