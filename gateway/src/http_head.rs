//! One HTTP/1.1 request head: reading it from a stream under a size limit, and asking it the few questions that a
//! WebSocket upgrade needs. Used by the edge (on TLS) and by the hub (on the LAN).
//!
//! It reads exactly one head per connection and keeps its bytes, because the edge forwards them as they came. It never
//! reads a body, and it sets no deadline: the caller owns the one deadline of the connection.

use std::io;

use kvasir_link::SUBPROTOCOL;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::http_refusal::HttpRefusal;

/// Most bytes of a request head, request line and blank line included.
pub const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Most header lines in a head.
pub const MAX_HEADERS: usize = 64;

/// Why no head could be had from a stream.
#[derive(Debug, thiserror::Error)]
pub enum HeadError {
    /// The peer's fault, and it can still be told: the answer to send.
    #[error("{0}")]
    Refused(HttpRefusal),
    /// The peer went away before the blank line.
    #[error("the connection ended before the request head did")]
    Ended,
    /// The stream failed.
    #[error("reading the request head: {0}")]
    Stream(#[from] io::Error),
}

/// A complete request head and whatever followed it in the same reads.
pub struct RequestHead {
    bytes: Vec<u8>,
    head_len: usize,
    method: String,
    path: String,
    headers: Vec<(String, Vec<u8>)>,
}

/// Values of headers are left out: one of them is the ticket.
impl std::fmt::Debug for RequestHead {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let shown = (&self.method, &self.path, names);
        formatter.debug_tuple("RequestHead").field(&shown).finish()
    }
}

impl RequestHead {
    /// Reads one head; at most [`MAX_HEAD_BYTES`] of head are accepted, bytes after the blank line are kept aside
    /// ([`RequestHead::rest`]) and never exceed that limit either.
    pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Self, HeadError> {
        let mut bytes = Vec::with_capacity(1024);
        loop {
            // The buffer never holds more than one byte beyond the limit, so that an endless header costs 8 KiB.
            let room = MAX_HEAD_BYTES + 1 - bytes.len();
            let read = (&mut *stream).take(room.min(2048) as u64).read_buf(&mut bytes).await?;
            if read == 0 {
                return Err(HeadError::Ended);
            }
            if let Some(head) = Self::parse(&mut bytes)? {
                return Ok(head);
            }
            if bytes.len() > MAX_HEAD_BYTES {
                return Err(HeadError::Refused(HttpRefusal::head_too_large()));
            }
        }
    }

    /// Parses `bytes` if they hold a whole head (taking them), or answers `None` when more is needed.
    pub fn parse(bytes: &mut Vec<u8>) -> Result<Option<Self>, HeadError> {
        let mut lines = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut lines);
        let status = request.parse(bytes).map_err(|error| match error {
            httparse::Error::TooManyHeaders => HeadError::Refused(HttpRefusal::head_too_large()),
            other => HeadError::Refused(HttpRefusal::bad_request(format!(
                "the request head is not HTTP/1.1: {other}"
            ))),
        })?;
        let httparse::Status::Complete(head_len) = status else { return Ok(None) };
        if head_len > MAX_HEAD_BYTES {
            return Err(HeadError::Refused(HttpRefusal::head_too_large()));
        }
        if request.version != Some(1) {
            return Err(HeadError::Refused(HttpRefusal::bad_request("only HTTP/1.1 is spoken here".into())));
        }
        let method = request.method.unwrap_or_default().to_owned();
        let path = request.path.unwrap_or_default().to_owned();
        let headers = request
            .headers
            .iter()
            .map(|line| (line.name.to_ascii_lowercase(), line.value.to_vec()))
            .collect();
        Ok(Some(RequestHead { bytes: std::mem::take(bytes), head_len, method, path, headers }))
    }

    /// The request method as sent.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The request target as sent, query included.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The head as it came, blank line included.
    pub fn head(&self) -> &[u8] {
        &self.bytes[..self.head_len]
    }

    /// What came after the head in the same reads.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.head_len..]
    }

    /// The head and what came after it, as they came.
    pub fn all(&self) -> &[u8] {
        &self.bytes
    }

    /// The value of a header that may stand once; two of them are refused, since two readers could choose differently.
    pub fn single(&self, name: &str) -> Result<Option<&[u8]>, HttpRefusal> {
        let mut found = self.headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_slice());
        let first = found.next();
        if found.next().is_some() {
            return Err(HttpRefusal::bad_request(format!("the header {name} stands more than once")));
        }
        Ok(first)
    }

    /// The values of every line of a header, in order.
    pub fn all_of(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.headers.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_slice())
    }

    /// Whether a comma-separated header (in one or more lines) holds `word`, letter case aside.
    pub fn lists(&self, name: &str, word: &str) -> bool {
        self.headers.iter().filter(|(key, _)| key == name).any(|(_, value)| {
            value
                .split(|&byte| byte == b',')
                .any(|item| item.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
        })
    }

    /// Checks that the head asks for the path with method GET, without query or body.
    pub fn check_route(&self, routes: &[&str]) -> Result<(), HttpRefusal> {
        if let Some((path, _)) = self.path.split_once('?')
            && routes.contains(&path)
        {
            return Err(HttpRefusal::bad_request("a query string is never read here".into())
                .with_remedy("send the ticket in the Authorization header and leave the query away"));
        }
        if !routes.contains(&self.path.as_str()) {
            return Err(HttpRefusal::no_such_path(&self.path, routes));
        }
        if self.method != "GET" {
            return Err(HttpRefusal::bad_request(format!("{} must be asked for with GET", self.path)));
        }
        let body = self.single("content-length")?.is_some_and(|length| length.trim_ascii() != b"0");
        if body || self.headers.iter().any(|(key, _)| key == "transfer-encoding") {
            return Err(HttpRefusal::bad_request("an upgrade request has no body".into()));
        }
        Ok(())
    }

    /// Checks that the head asks for a WebSocket of version 13 with our subprotocol, and answers the key that the
    /// `Sec-WebSocket-Accept` header is made of.
    pub fn check_upgrade(&self) -> Result<&[u8], HttpRefusal> {
        if !self.lists("connection", "upgrade") || !self.lists("upgrade", "websocket") {
            return Err(HttpRefusal::upgrade_required("this path speaks WebSocket only".into()));
        }
        if self.single("sec-websocket-version")?.map(<[u8]>::trim_ascii) != Some(b"13") {
            return Err(HttpRefusal::upgrade_required("the WebSocket version must be 13".into()));
        }
        if !self.lists("sec-websocket-protocol", SUBPROTOCOL) {
            return Err(HttpRefusal::upgrade_required(format!(
                "the WebSocket subprotocol must be {SUBPROTOCOL}"
            ))
            .with_remedy("install a kvasir release that speaks this protocol version"));
        }
        // Sixteen bytes in base64 are 24 characters; the length is all that RFC 6455 lets a server rely on.
        match self.single("sec-websocket-key")?.map(<[u8]>::trim_ascii) {
            Some(key) if key.len() == 24 => Ok(key),
            _ => Err(HttpRefusal::bad_request("the header Sec-WebSocket-Key is missing or malformed".into())),
        }
    }

    /// The ticket's text in `Authorization: Bearer`, or the 401 that says that it is missing.
    pub fn bearer(&self) -> Result<&str, HttpRefusal> {
        let value = self.single("authorization")?.ok_or_else(HttpRefusal::no_ticket)?;
        let text = std::str::from_utf8(value).map_err(|_| HttpRefusal::no_ticket())?.trim();
        match text.split_once(' ') {
            Some((scheme, ticket)) if scheme.eq_ignore_ascii_case("bearer") && !ticket.trim().is_empty() => {
                Ok(ticket.trim())
            }
            _ => Err(HttpRefusal::no_ticket()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPGRADE: &str = "GET /v1/worker HTTP/1.1\r\nHost: edge\r\nConnection: keep-alive, Upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
        Sec-WebSocket-Protocol: other, kvasir.v1\r\nAuthorization: Bearer abc\r\n\r\n";

    fn head(text: &str) -> Result<RequestHead, HeadError> {
        RequestHead::parse(&mut text.as_bytes().to_vec()).map(|head| head.expect("whole head"))
    }

    #[test]
    fn a_worker_upgrade_passes_every_check() {
        let head = head(UPGRADE).unwrap();
        head.check_route(&["/v1/worker"]).unwrap();
        assert_eq!(head.check_upgrade().unwrap(), b"AAAAAAAAAAAAAAAAAAAAAA==");
        assert_eq!(head.bearer().unwrap(), "abc");
        assert_eq!(head.head(), UPGRADE.as_bytes());
        assert!(head.rest().is_empty());
    }

    #[test]
    fn a_head_that_is_logged_shows_no_ticket() {
        let shown =
            format!("{:?}", head(&UPGRADE.replace("Bearer abc", "Bearer kvasir-ticket-v1.s3cret")).unwrap());
        assert!(shown.contains("authorization") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn the_ticket_is_never_read_from_a_query() {
        let refusal = head(&UPGRADE.replace("/v1/worker", "/v1/worker?ticket=abc"))
            .unwrap()
            .check_route(&["/v1/worker"])
            .unwrap_err();
        assert_eq!(refusal.status(), 400);
    }

    #[test]
    fn what_is_not_an_upgrade_is_refused_with_its_status() {
        let check = |text: &str| {
            let head = match head(text) {
                Ok(head) => head,
                Err(HeadError::Refused(refusal)) => return refusal.status(),
                Err(other) => panic!("{other}"),
            };
            let result = head.check_route(&["/v1/worker"]).and_then(|()| head.check_upgrade().map(|_| ()));
            result.and_then(|()| head.bearer().map(|_| ())).map_or_else(|refusal| refusal.status(), |()| 200)
        };
        assert_eq!(check(UPGRADE), 200);
        assert_eq!(check(&UPGRADE.replace("/v1/worker", "/")), 404);
        assert_eq!(check(&UPGRADE.replace("GET", "POST")), 400);
        assert_eq!(check(&UPGRADE.replace("HTTP/1.1", "HTTP/1.0")), 400);
        assert_eq!(check(&UPGRADE.replace("Upgrade: websocket", "Upgrade: h2c")), 426);
        assert_eq!(check(&UPGRADE.replace("Version: 13", "Version: 8")), 426);
        assert_eq!(check(&UPGRADE.replace("kvasir.v1", "kvasir.v9")), 426);
        assert_eq!(check(&UPGRADE.replace("AAAAAAAAAAAAAAAAAAAAAA==", "short")), 400);
        assert_eq!(check(&UPGRADE.replace("Bearer abc", "Basic abc")), 401);
        assert_eq!(check(&UPGRADE.replace("Authorization: Bearer abc\r\n", "")), 401);
        assert_eq!(check(&UPGRADE.replace("Bearer abc", "Bearer abc\r\nAuthorization: Bearer def")), 400);
        assert_eq!(check(&UPGRADE.replace("Host: edge", "Content-Length: 5")), 400);
        assert_eq!(check(&UPGRADE.replace("Host: edge", "Transfer-Encoding: chunked")), 400);
    }

    #[tokio::test]
    async fn an_endless_head_is_refused_at_the_limit() {
        let mut endless = b"GET /v1/worker HTTP/1.1\r\nX-Padding: ".to_vec();
        endless.resize(64 * 1024, b'a');
        let mut stream = endless.as_slice();
        let error = RequestHead::read(&mut stream).await.unwrap_err();
        assert!(matches!(error, HeadError::Refused(refusal) if refusal.status() == 431));
        assert!(endless.len() - stream.len() <= MAX_HEAD_BYTES + 1, "nothing is read beyond the limit");
    }

    #[tokio::test]
    async fn too_many_headers_are_refused() {
        let mut text = String::from("GET /v1/worker HTTP/1.1\r\n");
        for index in 0..=MAX_HEADERS {
            text.push_str(&format!("x-{index}: y\r\n"));
        }
        text.push_str("\r\n");
        assert!(matches!(RequestHead::read(&mut text.as_bytes()).await, Err(HeadError::Refused(_))));
    }

    #[tokio::test]
    async fn bytes_after_the_head_are_kept_aside() {
        let text = format!("{UPGRADE}tail");
        let head = RequestHead::read(&mut text.as_bytes()).await.unwrap();
        assert_eq!(head.rest(), b"tail");
        assert_eq!(head.all(), text.as_bytes());
    }
}
