//! A client of HTTP of a few lines, for services of ours on loopback. It says and hears JSON, whole or as events.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// How long an answer may keep one waiting before it counts as hanging. No figure of it is asserted.
const PATIENCE: Duration = Duration::from_secs(120);

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    /// Where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }
}

/// Asks for a path.
///
/// # Errors
/// Where the service cannot be reached, or the connection breaks.
pub fn get(address: &str, path: &str) -> io::Result<Answer> {
    whole(ask(address, "GET", path, "")?)
}

/// Posts JSON.
///
/// # Errors
/// As [`get`].
pub fn post(address: &str, path: &str, body: &Value) -> io::Result<Answer> {
    whole(ask(address, "POST", path, &body.to_string())?)
}

/// An answer as it comes, event by event. Dropping it closes the connection.
#[derive(Debug)]
pub struct Events(BufReader<TcpStream>);

impl Events {
    /// Posts JSON that asks for a stream. Reads nothing yet.
    ///
    /// # Errors
    /// Where the service cannot be reached.
    pub fn of(address: &str, path: &str, body: &Value) -> io::Result<Events> {
        Ok(Events(BufReader::new(ask(address, "POST", path, &body.to_string())?)))
    }
}

impl Iterator for Events {
    type Item = String;

    /// The data of the next event; nothing at the end. What frames an event lies on lines of its own.
    fn next(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            match self.0.read_line(&mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => panic!("a stream broke off: {error}"),
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(data.trim_end().to_owned());
            }
        }
    }
}

fn ask(address: &str, method: &str, path: &str, body: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    Ok(stream)
}

/// Reads to the end of the connection. A whole answer of ours says its length, so that nothing is in chunks.
fn whole(mut stream: TcpStream) -> io::Result<Answer> {
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let parts = text.split_once("\r\n\r\n").and_then(|(head, body)| {
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Answer { status, body: body.to_owned() })
    });
    parts.ok_or_else(|| io::Error::other(format!("no answer: {text:?}")))
}
