//! A server of one answer a connection, whose handler may do with the connection what it likes. Over TLS where asked.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// What was asked.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub authorization: Option<String>,
    pub content_type: String,
    pub body: Vec<u8>,
}

pub type Writer = Box<dyn FnOnce(&mut dyn Write) -> std::io::Result<()> + Send>;

/// What is said to it.
pub enum Reply {
    /// Status, headers, body.
    Plain(u16, Vec<(String, String)>, Vec<u8>),
    /// Whatever this writes.
    Raw(Writer),
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Reply::Plain(status, Vec::new(), Vec::new())
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        if let Reply::Plain(_, headers, _) = &mut self {
            headers.push((name.to_owned(), value.to_owned()));
        }
        self
    }

    pub fn body(status: u16, media_type: &str, body: &[u8]) -> Self {
        Reply::Plain(status, vec![("content-type".to_owned(), media_type.to_owned())], body.to_vec())
    }
}

pub type Handler = Arc<dyn Fn(&Request) -> Reply + Send + Sync>;

/// Serves `handler` on a port of this machine until the process ends; gives `127.0.0.1:PORT`.
pub fn serve(handler: Handler, tls: Option<Arc<rustls::ServerConfig>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let (handler, tls) = (handler.clone(), tls.clone());
            // A client that has seen enough hangs up; that is no failure here.
            std::thread::spawn(move || {
                let _ = connection.set_read_timeout(Some(Duration::from_secs(20)));
                let _ = match tls {
                    None => answer(connection, &handler),
                    Some(config) => {
                        let session = rustls::ServerConnection::new(config).unwrap();
                        answer(rustls::StreamOwned::new(session, connection), &handler)
                    }
                };
            });
        }
    });
    host
}

/// A certificate for `127.0.0.1`: what a server needs, and the PEM that a client is to trust.
pub fn certificate() -> (Arc<rustls::ServerConfig>, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
    (Arc::new(config), made.cert.pem())
}

fn answer<S: Read + Write + Shutdown>(mut stream: S, handler: &Handler) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 || head.len() > 64 << 10 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut words = lines.next().unwrap().split(' ');
    let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let header =
        |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
    let length = header("content-length").map_or(0, |value| value.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let request = Request {
        method,
        target,
        authorization: header("authorization"),
        content_type: header("content-type").unwrap_or_default(),
        body,
    };
    match handler(&request) {
        Reply::Raw(write) => write(&mut stream)?,
        Reply::Plain(status, headers, body) => {
            let mut text = format!("HTTP/1.1 {status} Word\r\nconnection: close\r\n");
            for (name, value) in headers {
                text += &format!("{name}: {value}\r\n");
            }
            text += &format!("content-length: {}\r\n\r\n", body.len());
            stream.write_all(text.as_bytes())?;
            if request.method != "HEAD" {
                stream.write_all(&body)?;
            }
        }
    }
    stream.flush()?;
    stream.shut()
}

trait Shutdown {
    fn shut(&mut self) -> std::io::Result<()>;
}

impl Shutdown for TcpStream {
    fn shut(&mut self) -> std::io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

impl Shutdown for rustls::StreamOwned<rustls::ServerConnection, TcpStream> {
    fn shut(&mut self) -> std::io::Result<()> {
        self.conn.send_close_notify();
        self.flush()
    }
}
