//! A request's body: refused by its head where that says enough, read within limits otherwise.

use axum::body::Bytes;
use axum::extract::{FromRequest as _, Request};
use axum::http::{HeaderMap, StatusCode, header};

use super::Limits;
use super::error::ApiError;

/// Reads the JSON text of a request.
///
/// # Errors
/// 408, 413, 415, and 400 where the connection gives no whole body. Nothing is read of what the head rules out.
pub(super) async fn read(request: Request, limits: &Limits) -> Result<Bytes, ApiError> {
    let headers = request.headers();
    check_type(headers)?;
    let announced =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if let Some(bytes) = announced.filter(|&bytes| bytes > limits.body_bytes as u64) {
        return Err(ApiError::too_large(Some(bytes), limits.body_bytes));
    }
    // The limit itself stands in the request, where the routes put it.
    match tokio::time::timeout(limits.request_time, Bytes::from_request(request, &())).await {
        Err(_) => Err(ApiError::too_slow(limits.request_time)),
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            Err(ApiError::too_large(None, limits.body_bytes))
        }
        Ok(Err(error)) => Err(ApiError::bad_request("bad_body", error.body_text())),
    }
}

/// Only JSON is taken. A page of another origin cannot send that type without being asked first whether it may.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let found = headers.get(header::CONTENT_TYPE).map(|found| found.to_str().unwrap_or_default());
    let kind = found.and_then(|found| found.split(';').next()).unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let found = found.map_or("there is none".to_owned(), |found| {
            format!("it is `{}`", super::error::shortened(found))
        });
        return Err(ApiError::wrong_type(format!("the Content-Type must be application/json; {found}")));
    }
    let coded = headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity");
    if coded {
        return Err(ApiError::wrong_type("the body must come as it is, without a Content-Encoding"));
    }
    Ok(())
}
