//! The upstream: takes an upgrade request or a ClientHello, whichever comes, then does what the client tells it.

use std::{io, net::SocketAddr};

use anyhow::Context as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::client::PIECE;

/// First byte of a TLS record that holds a handshake message.
const TLS_HANDSHAKE: u8 = 0x16;
/// Most bytes of a request head: a ticket and what proxies add.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Most bytes of one echo.
const MAX_ECHO_BYTES: u64 = 1 << 20;

/// Starts it on a thread of its own, where it stays until the process ends.
pub fn start() -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("the upstream's socket")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        if let Err(error) = runtime.block_on(serve(listener)) {
            eprintln!("the upstream ended: {error}");
        }
    });
    Ok(address)
}

async fn serve(listener: std::net::TcpListener) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        // What ends a connection is seen at its other end.
        tokio::spawn(connection(stream));
    }
}

async fn connection(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut first = [0; 5];
    stream.read_exact(&mut first).await?;
    if first[0] == TLS_HANDSHAKE {
        let mut hello = vec![0; usize::from(u16::from_be_bytes([first[3], first[4]]))];
        stream.read_exact(&mut hello).await?;
    } else {
        upgrade(&mut stream, &first).await?;
    }
    loop {
        let what = stream.read_u8().await?;
        let bytes = stream.read_u64_le().await?;
        let count = stream.read_u64_le().await?;
        match what {
            b'e' if bytes <= MAX_ECHO_BYTES => echo(&mut stream, bytes as usize, count).await?,
            b'd' => send(&mut stream, bytes).await?,
            b'u' => take(&mut stream, bytes).await?,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Reads a request head, of which `head` has come already, and says yes.
async fn upgrade(stream: &mut TcpStream, head: &[u8]) -> io::Result<()> {
    let mut head = head.to_vec();
    // The client says nothing more before it has the answer.
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 || head.len() > MAX_HEAD_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    let head = String::from_utf8_lossy(&head);
    let key = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.trim())
    });
    let accept = derive_accept_key(key.unwrap_or_default().as_bytes());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {}\r\n\r\n",
        kvasir_link::SUBPROTOCOL
    );
    stream.write_all(answer.as_bytes()).await
}

/// Sends whole messages back, as a worker answers a call once it has all of it.
async fn echo(stream: &mut TcpStream, bytes: usize, count: u64) -> io::Result<()> {
    let mut message = vec![0; bytes];
    for _ in 0..count {
        stream.read_exact(&mut message).await?;
        stream.write_all(&message).await?;
    }
    Ok(())
}

async fn send(stream: &mut TcpStream, mut left: u64) -> io::Result<()> {
    let piece = vec![2_u8; PIECE];
    while left > 0 {
        let count = left.min(PIECE as u64);
        stream.write_all(&piece[..count as usize]).await?;
        left -= count;
    }
    Ok(())
}

async fn take(stream: &mut TcpStream, mut left: u64) -> io::Result<()> {
    let mut piece = vec![0_u8; PIECE];
    while left > 0 {
        let most = left.min(PIECE as u64) as usize;
        let count = stream.read(&mut piece[..most]).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= count as u64;
    }
    stream.write_u8(1).await
}
