//! What is around every page: head, navigation, search, headers of the answer; and the page that says why there is none.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use tracing::warn;

use super::question::MAX_SEARCH_CHARACTERS;
use super::show::grouped;
use crate::refusal::LedgerError;

/// No script, nothing from elsewhere, nobody's frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";

/// A page on its way to a visitor.
pub(super) struct Page {
    network: String,
    title: String,
    body: Markup,
    status: StatusCode,
    /// Entries read into the index, and entries there are.
    read: (u64, u64),
}

/// Why there is no such page.
pub(super) enum Problem {
    /// The visitor's question cannot be answered: status, what is wrong, what to do.
    Question(StatusCode, String, String),
    /// The ledger cannot answer.
    Ledger(LedgerError),
    /// The page lies elsewhere.
    Elsewhere(String),
}

impl Page {
    pub(super) fn new(network: &str, title: String, body: Markup) -> Self {
        Self { network: network.to_owned(), title, body, status: StatusCode::OK, read: (0, 0) }
    }

    /// Says on the page that the index is behind the ledger, where it is.
    pub(super) fn behind(self, read: u64, total: u64) -> Self {
        Self { read: (read, total), ..self }
    }

    fn markup(&self) -> Markup {
        let (read, total) = self.read;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) @if !self.network.is_empty() { " · " (self.network) } " · ledger" }
                    link rel="stylesheet" href="/style.css";
                    link rel="icon" href="/icon.svg" type="image/svg+xml";
                }
                body {
                    a.skip href="#content" { "Skip to content" }
                    header.top {
                        div.inner {
                            a.brand href="/" {
                                img src="/icon.svg" alt="" width="24" height="24";
                                strong { @if self.network.is_empty() { "ledger" } @else { (self.network) } }
                                @if !self.network.is_empty() { span { "ledger" } }
                            }
                            nav aria-label="Ledger" {
                                ul {
                                    @for (path, name) in NAVIGATION {
                                        li { a href=(path) { (name) } }
                                    }
                                }
                            }
                            form.search role="search" action="/search" {
                                label.unseen for="q" { "Search for a digest, a key or an entry's number" }
                                input #q name="q" type="search" maxlength=(MAX_SEARCH_CHARACTERS) required
                                    placeholder="Digest, key, number" autocomplete="off" spellcheck="false";
                                button { "Search" }
                            }
                        }
                    }
                    main #content tabindex="-1" {
                        @if read < total {
                            p.notice role="status" {
                                "This page is being brought up to date: " (grouped(read)) " of " (grouped(total))
                                " entries are read. Sums and lists are as of entry " (grouped(read.saturating_sub(1))) "."
                            }
                        }
                        (self.body)
                    }
                    footer {
                        p {
                            "Times are UTC. 1 KVR = 1,000,000,000 nanoKVR. These pages show what this ledger says; whoever "
                            "needs to know checks its signatures, its log and its sums without it."
                        }
                    }
                }
            }
        }
    }
}

const NAVIGATION: [(&str, &str); 5] = [
    ("/receipts", "Receipts"),
    ("/settlements", "Settlements"),
    ("/wallets", "Wallets"),
    ("/entries", "Entries"),
    ("/log", "Log"),
];

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let kind = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        ];
        (self.status, strict_headers(), kind, self.markup().into_string()).into_response()
    }
}

impl<E: Into<LedgerError>> From<E> for Problem {
    fn from(error: E) -> Self {
        Problem::Ledger(error.into())
    }
}

impl Problem {
    /// There is nothing at this address.
    pub(super) fn unknown(what: impl Into<String>) -> Self {
        let advice = "Check the digest or the number, or search for the beginning of it.";
        Problem::Question(StatusCode::NOT_FOUND, what.into(), advice.into())
    }

    /// The question cannot be read.
    pub(super) fn unreadable(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Problem::Question(StatusCode::BAD_REQUEST, what.into(), advice.into())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, what, advice) = match self {
            Problem::Question(status, what, advice) => (status, what, advice),
            Problem::Ledger(error) => {
                let (status, body) = error.answer();
                // The operator's log has the file's path and SQLite's words; a visitor needs neither.
                warn!(status, code = body.code, why = body.message, "a page cannot be made");
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let what = format!("The ledger cannot answer now ({}).", body.code);
                (status, what, "Try again in a minute; the operator's log says why.".to_owned())
            }
            Problem::Elsewhere(path) => return redirect(&path),
        };
        let title = status.canonical_reason().unwrap_or("No page");
        let body = html! {
            h1 { (title) }
            p { (what) }
            p { (advice) }
            p { a href="/" { "Back to the overview" } }
        };
        Page { status, ..Page::new("", title.to_owned(), body) }.into_response()
    }
}

/// The page for a path that is none, for visitors who read HTML.
pub(crate) fn no_such_page() -> Response {
    Problem::unknown("There is no page at this address.").into_response()
}

/// Headers of everything that pages are made of.
pub(super) fn strict_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
}

fn redirect(path: &str) -> Response {
    // Paths are put together here, from digits and hexadecimal digits.
    match HeaderValue::from_str(path) {
        Ok(path) => (StatusCode::SEE_OTHER, strict_headers(), [(header::LOCATION, path)]).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
