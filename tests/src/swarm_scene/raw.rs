//! A WebSocket client of forty lines, for holders that do not follow the rules.

use std::io::{Read, Write};
use std::net::TcpStream;

use kvasir_wire::assemble::{Assembler, Payload};
use kvasir_wire::frame::{HUB_STREAM, Header, Kind, Party, frames};
use kvasir_wire::ticket::Ticket;

/// A connection that was upgraded, before any handshake of ours.
pub struct RawLink {
    stream: TcpStream,
    sequence: u32,
    assembler: Assembler,
}

impl RawLink {
    /// Connects and upgrades with a ticket in the header.
    pub fn open(address: &str, path: &str, ticket: &Ticket) -> Self {
        let host = address.strip_prefix("ws://").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(super::PATIENCE)).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: kvasir.v1\r\nAuthorization: Bearer {}\r\n\r\n",
            ticket.to_text()
        )
        .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        Self { stream, sequence: 0, assembler: Assembler::from_peer(Party::Hub) }
    }

    /// Sends one payload on stream 0 in a message of its own.
    pub fn send(&mut self, kind: Kind, payload: &[u8]) {
        let header = Header {
            kind,
            more: false,
            length: payload.len() as u32,
            stream: HUB_STREAM,
            sequence: self.sequence,
        };
        self.sequence += 1;
        let length = (payload.len() + header.encode().len()) as u16;
        // A client masks; a mask of zeros is one.
        let mut message = vec![0x82, 0x80 | 126];
        message.extend(length.to_be_bytes());
        message.extend([0; 4]);
        message.extend(header.encode());
        message.extend(payload);
        self.stream.write_all(&message).unwrap();
    }

    /// The next payload.
    pub fn receive(&mut self) -> Payload {
        loop {
            let mut head = [0; 2];
            self.stream.read_exact(&mut head).unwrap();
            let mut length = usize::from(head[1]);
            if length == 126 {
                let mut extended = [0; 2];
                self.stream.read_exact(&mut extended).unwrap();
                length = usize::from(u16::from_be_bytes(extended));
            }
            let mut message = vec![0; length];
            self.stream.read_exact(&mut message).unwrap();
            assert_eq!(head[0], 0x82, "a whole binary message");
            for frame in frames(&message).unwrap() {
                if let Some(payload) = self.assembler.accept(frame.unwrap()).unwrap() {
                    return payload;
                }
            }
        }
    }
}

/// The hub's status report.
pub fn status(address: &str) -> serde_json::Value {
    let host = address.strip_prefix("ws://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /v1/status HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap()
}

/// Waits until the hub's status report names a refusal or report with these words.
pub fn wait_for_note(address: &str, code: &str, words: &str) {
    let begun = std::time::Instant::now();
    loop {
        let status = status(address);
        let notes = status["refusals"].as_array().unwrap();
        let fits = |note: &serde_json::Value| {
            note["code"] == code && note["message"].as_str().unwrap().contains(words)
        };
        if notes.iter().any(fits) {
            return;
        }
        assert!(begun.elapsed() < super::PATIENCE, "no {code} with {words:?} in {status:#}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
