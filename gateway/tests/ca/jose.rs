//! Requests with a signature around them (RFC 8555, section 6), and answers.

use std::collections::HashSet;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Numbers that may each be used once.
#[derive(Default)]
pub struct Nonces {
    given: u64,
    open: HashSet<String>,
}

impl Nonces {
    pub fn fresh(&mut self) -> String {
        self.given += 1;
        let nonce = format!("nonce-{}", self.given);
        self.open.insert(nonce.clone());
        nonce
    }
}

/// A request.
pub struct Asked {
    pub method: String,
    pub path: String,
    body: Vec<u8>,
}

/// What a request was signed about, and by whom. The signature itself is taken on trust.
pub struct Signed {
    /// Null where something is only read.
    pub payload: Value,
    /// The key, for a new account.
    pub key: Option<Value>,
    /// The account's number, for everything else.
    pub account: Option<usize>,
}

impl Asked {
    pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Asked> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
        });
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).await.ok()?;
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
        Some(Asked { method, path, body })
    }

    /// Opens it; the nonce must be open, and the address the one that was signed.
    pub fn signed(&self, base: &str, nonces: &mut Nonces) -> Result<Signed, Answer> {
        let outer: Value = serde_json::from_slice(&self.body).unwrap();
        let part = |name: &str| BASE64_URL_SAFE_NO_PAD.decode(outer[name].as_str().unwrap()).unwrap();
        let head: Value = serde_json::from_slice(&part("protected")).unwrap();
        assert_eq!((&head["alg"], part("signature").len()), (&json!("ES256"), 64));
        assert_eq!(head["url"], format!("{base}{}", self.path));
        if !nonces.open.remove(head["nonce"].as_str().unwrap()) {
            return Err(problem(400, "badNonce", "that one is not open"));
        }
        let payload = part("payload");
        let payload =
            if payload.is_empty() { Value::Null } else { serde_json::from_slice(&payload).unwrap() };
        let account = head["kid"]
            .as_str()
            .map(|kid| kid.strip_prefix(&format!("{base}/account/")).unwrap().parse::<usize>().unwrap());
        Ok(Signed { payload, key: head.get("jwk").cloned(), account })
    }
}

/// An answer.
pub struct Answer {
    status: u16,
    kind: &'static str,
    location: Option<String>,
    body: String,
}

pub fn problem(status: u16, kind: &str, detail: &str) -> Answer {
    let body =
        json!({"type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail, "status": status});
    Answer { kind: "application/problem+json", ..Answer::json(status, body) }
}

impl Answer {
    pub fn json(status: u16, body: Value) -> Answer {
        Answer { status, kind: "application/json", location: None, body: body.to_string() }
    }

    pub fn pem(body: String) -> Answer {
        Answer { status: 200, kind: "application/pem-certificate-chain", location: None, body }
    }

    pub fn at(self, location: String) -> Answer {
        Answer { location: Some(location), ..self }
    }

    pub fn bytes(self, nonce: &str, head_alone: bool) -> Vec<u8> {
        let body = if head_alone { String::new() } else { self.body };
        let location = self.location.map(|location| format!("Location: {location}\r\n")).unwrap_or_default();
        let head = format!(
            "HTTP/1.1 {} As It Is\r\nReplay-Nonce: {nonce}\r\n{location}Content-Type: {}\r\nContent-Length: {}\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n",
            self.status,
            self.kind,
            body.len()
        );
        format!("{head}{body}").into_bytes()
    }
}
