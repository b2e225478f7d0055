//! The HTTP/1.1 upgrade request and its answer, read to the end, since a refusal's body says what to do.

use std::time::Duration;

use kvasir_wire::refusal::{Refusal, RefusalCode};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::SUBPROTOCOL;
use crate::error::LinkError;
use crate::options::websocket_config;

/// Asks for the upgrade and gives the open WebSocket. The ticket travels in the header, never in the address.
pub(crate) async fn upgrade<S>(
    stream: S,
    host: &str,
    path: &str,
    ticket: &str,
) -> Result<WebSocketStream<S>, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut answer = ask(stream, host, path, ticket).await?;
    if answer.head.status != SWITCHING_PROTOCOLS {
        let body = answer.body().await;
        return Err(refused(host, &answer.head, &body));
    }
    if !answer.key_fits() || answer.head.protocol.as_deref() != Some(SUBPROTOCOL) {
        return Err(LinkError::Unexpected {
            found: "an upgrade that does not fit the request".to_owned(),
            expected: "an upgrade to kvasir.v1",
        });
    }
    Ok(answer.open().await)
}

/// The status of an answer that is an upgrade.
pub(crate) const SWITCHING_PROTOCOLS: u16 = 101;

/// Sends the request and reads the head of the answer, whatever it says.
pub(crate) async fn ask<S>(
    mut stream: S,
    host: &str,
    path: &str,
    ticket: &str,
) -> Result<Answer<S>, LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let key = generate_key();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\
         Authorization: Bearer {ticket}\r\nUser-Agent: kvasir/{}\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    stream.write_all(request.as_bytes()).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let (head, rest) = read_head(&mut stream, host).await?;
    Ok(Answer { head, stream, rest, key })
}

/// What came back for the request: the head, and a stream that stands behind it.
pub(crate) struct Answer<S> {
    pub(crate) head: Head,
    stream: S,
    /// Bytes that came along with the head.
    rest: Vec<u8>,
    key: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Answer<S> {
    /// Whether the answer was made for the key of this request (RFC 6455, section 4.1).
    pub(crate) fn key_fits(&self) -> bool {
        self.head.accept.as_deref() == Some(derive_accept_key(self.key.as_bytes()).as_str())
    }

    /// The WebSocket behind an answer that is an upgrade.
    pub(crate) async fn open(self) -> WebSocketStream<S> {
        let config = Some(websocket_config());
        WebSocketStream::from_partially_read(self.stream, self.rest, Role::Client, config).await
    }

    /// The beginning of the body of an answer that is none.
    pub(crate) async fn body(&mut self) -> Vec<u8> {
        read_body(&mut self.stream, std::mem::take(&mut self.rest), self.head.length).await
    }
}

/// Bytes of the head of the answer.
const MAX_HEAD_BYTES: usize = 8 * 1024;
/// Headers in it.
const MAX_HEADERS: usize = 64;
/// Bytes of a refusal's body that are read.
const MAX_BODY_BYTES: usize = 8 * 1024;
/// Time for the rest of that body.
const BODY_DEADLINE: Duration = Duration::from_secs(2);

/// What is read of the head of an answer. Texts are as they came: mask them before they are shown.
#[derive(Debug, Default)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) accept: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) length: Option<usize>,
    pub(crate) retry_after: Option<u32>,
    pub(crate) date: Option<String>,
    pub(crate) server: Option<String>,
    pub(crate) location: Option<String>,
}

async fn read_head<S: AsyncRead + Unpin>(stream: &mut S, host: &str) -> Result<(Head, Vec<u8>), LinkError> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if let Some((head, end)) = parse_head(&bytes, host)? {
            return Ok((head, bytes.split_off(end)));
        }
        if bytes.len() >= MAX_HEAD_BYTES {
            return Err(not_http(host, "its headers are longer than 8 KiB"));
        }
        let mut part = [0; 1024];
        let count = stream.read(&mut part).await.map_err(lost)?;
        if count == 0 {
            return Err(LinkError::Lost(format!("{host} closed the connection before it answered")));
        }
        bytes.extend_from_slice(&part[..count]);
    }
}

fn parse_head(bytes: &[u8], host: &str) -> Result<Option<(Head, usize)>, LinkError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let end = match response.parse(bytes) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(not_http(host, &error.to_string())),
    };
    let value = |name: &str| {
        let header = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok().map(|value| value.trim().to_owned())
    };
    let head = Head {
        status: response.code.unwrap_or(0),
        accept: value("sec-websocket-accept"),
        protocol: value("sec-websocket-protocol"),
        length: value("content-length").and_then(|length| length.parse().ok()),
        retry_after: value("retry-after").and_then(|seconds| seconds.parse().ok()),
        date: value("date"),
        server: value("server"),
        location: value("location"),
    };
    Ok(Some((head, end)))
}

/// What comes of the body, up to its length, the limit or the deadline; a cut body is only a poorer message.
async fn read_body<S: AsyncRead + Unpin>(
    stream: &mut S,
    mut body: Vec<u8>,
    length: Option<usize>,
) -> Vec<u8> {
    let want = length.unwrap_or(MAX_BODY_BYTES).min(MAX_BODY_BYTES);
    let _ = tokio::time::timeout(BODY_DEADLINE, async {
        let mut part = [0; 1024];
        while body.len() < want {
            match stream.read(&mut part).await {
                Ok(count) if count > 0 => body.extend_from_slice(&part[..count]),
                _ => break,
            }
        }
    })
    .await;
    body.truncate(want);
    body
}

/// A refusal's body.
#[derive(Deserialize)]
pub(crate) struct RefusalBody {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) what_to_do: String,
}

fn refused(host: &str, head: &Head, body: &[u8]) -> LinkError {
    let parsed = serde_json::from_slice::<RefusalBody>(body).ok();
    let known = parsed.and_then(|body| RefusalCode::from_name(&body.code).map(|code| (code, body)));
    if let Some((code, body)) = known {
        let refusal = Refusal::new(code, body.message, body.what_to_do);
        return LinkError::Refused(Refusal { retry_after: head.retry_after, ..refusal });
    }
    let body: String = String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).take(200).collect();
    LinkError::Http { host: host.to_owned(), status: head.status, body, retry_after: head.retry_after }
}

fn not_http(host: &str, problem: &str) -> LinkError {
    LinkError::Unexpected {
        found: format!("something else from {host} ({problem})"),
        expected: "an HTTP answer",
    }
}

fn lost(error: std::io::Error) -> LinkError {
    LinkError::Lost(error.to_string())
}
