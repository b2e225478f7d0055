//! The page: a chat, and a live picture of the swarm. Three files that are part of the program; nothing from elsewhere.

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The page's own files and its own service, and nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page's routes. They need no key: what the page asks for does.
pub(super) fn routes() -> Router {
    Router::new()
        .route("/", get(|| async { file("text/html; charset=utf-8", PAGE) }))
        .route("/style.css", get(|| async { file("text/css; charset=utf-8", STYLE) }))
        .route("/page.js", get(|| async { file("text/javascript; charset=utf-8", SCRIPT) }))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_comes_from_elsewhere() {
        for text in [PAGE, STYLE, SCRIPT] {
            assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("//cdn"));
        }
        // What the policy forbids would be silently left out.
        assert!(!PAGE.contains("<style") && !PAGE.contains(" style=") && !PAGE.contains("onclick"));
        assert!(!SCRIPT.contains("innerHTML") && !SCRIPT.contains("eval("), "text is set as text alone");
    }
}
