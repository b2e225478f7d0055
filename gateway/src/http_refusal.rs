//! Refusals before the upgrade: an HTTP status and a JSON body `{code, message, what_to_do}`, the same from the edge and
//! from the hub. What is refused after the upgrade travels as a `refuse` frame instead.
//!
//! The sentences name the limit or the value that was broken, never a secret: a ticket or a key is not quoted.

use std::fmt;

use kvasir_wire::refusal::Refusal;
use serde::{Deserialize, Serialize};

/// One answer that is not an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRefusal {
    status: u16,
    code: &'static str,
    retry_after_seconds: Option<u32>,
    body: RefusalBody,
}

/// The JSON body of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalBody {
    /// A word for programs, for example `ticket_expired`.
    pub code: String,
    /// A sentence that says what failed and with which value or limit.
    pub message: String,
    /// What the person at the other end can do about it.
    pub what_to_do: String,
}

impl HttpRefusal {
    /// A refusal with everything stated; the named constructors below are the ones in use.
    pub fn new(
        status: u16,
        code: &'static str,
        message: impl Into<String>,
        what_to_do: impl Into<String>,
    ) -> Self {
        let body = RefusalBody { code: code.into(), message: message.into(), what_to_do: what_to_do.into() };
        HttpRefusal { status, code, retry_after_seconds: None, body }
    }

    /// The HTTP form of a refusal that the protocol also knows as a frame: same code, sentence and remedy.
    pub fn of(refusal: &Refusal) -> Self {
        let mut http = Self::new(
            refusal.code.http_status(),
            refusal.code.name(),
            refusal.sentence.as_str(),
            refusal.what_to_do.as_str(),
        );
        http.retry_after_seconds = refusal.retry_after;
        http
    }

    /// 400: the request itself is wrong.
    pub fn bad_request(message: String) -> Self {
        Self::new(
            400,
            "bad_request",
            message,
            "use a kvasir worker or backbone, or send what docs/protocol.md asks for",
        )
    }

    /// 431: the head is larger than the limit.
    pub fn head_too_large() -> Self {
        let message = format!(
            "the request head is larger than {} bytes or {} lines",
            crate::http_head::MAX_HEAD_BYTES,
            crate::http_head::MAX_HEADERS
        );
        Self::new(431, "head_too_large", message, "send fewer or shorter headers")
    }

    /// 401: no ticket came along, or not in the one place where it is read.
    pub fn no_ticket() -> Self {
        Self::new(
            401,
            "ticket_missing",
            "no ticket in the header Authorization: Bearer",
            "ask the operator of the network for a ticket and pass its file to the worker",
        )
    }

    /// 404: another path.
    pub fn no_such_path(path: &str, routes: &[&str]) -> Self {
        let shown: String = path.chars().take(80).collect();
        Self::new(
            404,
            "no_such_path",
            format!("nothing is served at {shown}"),
            format!("served here: {}", routes.join(", ")),
        )
    }

    /// 426: the path exists but only for a WebSocket of our protocol.
    pub fn upgrade_required(message: String) -> Self {
        Self::new(426, "upgrade_required", message, "connect with a WebSocket client that offers kvasir.v1")
    }

    /// 429: this address or key has too many connections.
    pub fn too_many(message: String, retry_after_seconds: u32) -> Self {
        let mut refusal = Self::new(
            429,
            "too_many_connections",
            message,
            "close connections that are not needed, then try again",
        );
        refusal.retry_after_seconds = Some(retry_after_seconds);
        refusal
    }

    /// 503: this side cannot take the connection now.
    pub fn unavailable(message: String, retry_after_seconds: u32) -> Self {
        let mut refusal = Self::new(
            503,
            "unavailable",
            message,
            "try again; the network's operator can see why in the log",
        );
        refusal.retry_after_seconds = Some(retry_after_seconds);
        refusal
    }

    /// The same refusal with another remedy.
    pub fn with_remedy(mut self, what_to_do: &str) -> Self {
        self.body.what_to_do = what_to_do.into();
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The word for programs; one of this program's own, never one from outside.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The JSON body.
    pub fn body(&self) -> &RefusalBody {
        &self.body
    }

    /// The whole HTTP/1.1 response; the connection closes after it.
    pub fn to_response(&self) -> Vec<u8> {
        let body = serde_json::to_string(&self.body).unwrap_or_default();
        let mut extra = String::new();
        if let Some(seconds) = self.retry_after_seconds {
            extra.push_str(&format!("Retry-After: {seconds}\r\n"));
        }
        match self.status {
            401 => extra.push_str("WWW-Authenticate: Bearer\r\n"),
            426 => extra.push_str("Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"),
            _ => {}
        }
        json_response(self.status, &extra, &body)
    }
}

impl fmt::Display for HttpRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}: {}", self.status, self.body.code, self.body.message)
    }
}

/// An HTTP/1.1 response with a JSON body; see [`response`].
pub fn json_response(status: u16, extra: &str, body: &str) -> Vec<u8> {
    response(status, "application/json", extra, body)
}

/// A whole HTTP/1.1 response, behind which the connection closes; `extra` holds whole header lines, each with its line end.
pub fn response(status: u16, content_type: &str, extra: &str, body: &str) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        402 => "Payment Required",
        408 => "Request Timeout",
        409 => "Conflict",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Error",
    };
    // 426 wants `Upgrade` named in `Connection` too (RFC 9110, section 7.8).
    let connection = if status == 426 { "close, Upgrade" } else { "close" };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Connection: {connection}\r\n{extra}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_parsable_response_with_its_body() {
        let refusal = HttpRefusal::unavailable("the hub does not answer".into(), 7);
        let bytes = refusal.to_response();
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head) = response.parse(&bytes).unwrap() else { panic!("whole head") };
        assert_eq!(response.code, Some(503));
        let retry = response.headers.iter().find(|line| line.name == "Retry-After").unwrap();
        assert_eq!(retry.value, b"7");
        let body: RefusalBody = serde_json::from_slice(&bytes[head..]).unwrap();
        assert_eq!(&body, refusal.body());
        let length = response.headers.iter().find(|line| line.name == "Content-Length").unwrap();
        assert_eq!(length.value, (bytes.len() - head).to_string().as_bytes());
    }

    #[test]
    fn a_path_from_outside_is_shown_cut() {
        let refusal = HttpRefusal::no_such_path(&"x".repeat(5000), &["/v1/worker"]);
        assert!(refusal.to_response().len() < 600);
    }
}
