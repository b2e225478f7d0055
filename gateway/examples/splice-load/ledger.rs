//! A ledger's stand-in for the hub that is looked at: names a price, without which no worker is paired, and takes every note.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use anyhow::Context as _;
use kvasir_ledger::api::{Accepted, CurrentPrice};

/// Most bytes of a request's lines, and of its note.
const MAX_REQUEST_BYTES: u64 = 64 * 1024;
/// How long a request may take to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// Starts it on a thread of its own, where it stays until the process ends.
pub fn start() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("the ledger's socket")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(answer) {
                eprintln!("the ledger's stand-in: {error}");
            }
        }
    });
    Ok(address)
}

/// One request on each connection.
fn answer(stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = BufReader::new((&stream).take(MAX_REQUEST_BYTES));
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if request.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            Some(_) => {}
            None => break,
        }
    }
    io::copy(&mut request.take(length), &mut io::sink())?;
    let body = match first.starts_with("GET ") {
        true => serde_json::to_string(&price())?,
        false => serde_json::to_string(&taken())?,
    };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length:";
    (&stream).write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes())
}

fn price() -> CurrentPrice {
    CurrentPrice { leaf: "77".repeat(32), nanokvr_per_byte: 7, from: 0, note: String::new() }
}

/// Nobody looks at what it says.
fn taken() -> Accepted {
    Accepted {
        index: 0,
        kind: String::new(),
        id: String::new(),
        leaf: String::new(),
        settlement: None,
        repeated: false,
    }
}
