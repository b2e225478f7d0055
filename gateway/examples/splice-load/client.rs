//! The clients: how a connection is opened each way, and what is measured on one.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::parties::Ends;

/// Echoes before those that count.
const WARM_UP: usize = 200;
/// Bytes of one read or write of bulk.
pub const PIECE: usize = 64 * 1024;
/// Most bytes of an answer to the upgrade request.
const MAX_ANSWER_BYTES: usize = 8 * 1024;

/// How a connection reaches the upstream.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// No proxy and no TLS: what the hop is compared with.
    Direct,
    /// TLS ends at the proxy, which passes the upgrade on without it.
    Terminating,
    /// The proxy reads the name in a ClientHello and passes everything on. Plain bytes follow the hello, so that what is
    /// measured is the proxy's part and not the TLS of the two ends.
    PassThrough,
}

/// Which way bulk goes.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Towards {
    /// As weights go: from the hub's side to the worker's.
    Client,
    /// The other way.
    Upstream,
}

/// Any stream.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection that has reached the upstream.
pub type Wire = Box<dyn Stream>;

/// Opens a connection.
pub async fn open(ends: &Ends, way: Way, address: SocketAddr) -> anyhow::Result<Wire> {
    let mut stream = TcpStream::connect(address).await.with_context(|| format!("dialling {address}"))?;
    stream.set_nodelay(true)?;
    match way {
        Way::Direct => {
            upgrade(&mut stream, &ends.head).await?;
            Ok(Box::new(stream))
        }
        Way::Terminating => {
            let mut stream = ends.tls.connect(ends.name.clone(), stream).await.context("TLS")?;
            upgrade(&mut stream, &ends.head).await?;
            Ok(Box::new(stream))
        }
        Way::PassThrough => {
            stream.write_all(&ends.hello).await?;
            Ok(Box::new(stream))
        }
    }
}

/// Sends the request head and reads the answer, after which the upstream says nothing before it is asked.
async fn upgrade<S: Stream>(stream: &mut S, head: &str) -> anyhow::Result<()> {
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let count = stream.read_buf(&mut answer).await?;
        ensure!(count > 0, "closed without a whole answer: {}", String::from_utf8_lossy(&answer));
        ensure!(answer.len() <= MAX_ANSWER_BYTES, "an answer without an end");
    }
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer.starts_with("HTTP/1.1 101 "), "not upgraded: {answer}");
    Ok(())
}

/// Tells the upstream what comes next on this connection.
async fn tell(wire: &mut Wire, what: u8, bytes: u64, count: u64) -> std::io::Result<()> {
    let mut told = vec![what];
    told.extend(bytes.to_le_bytes());
    told.extend(count.to_le_bytes());
    wire.write_all(&told).await?;
    wire.flush().await
}

/// One message and its answer.
pub async fn echo(wire: &mut Wire, bytes: usize) -> anyhow::Result<()> {
    tell(wire, b'e', bytes as u64, 1).await?;
    exchange(wire, &vec![7; bytes], &mut vec![0; bytes]).await
}

async fn exchange(wire: &mut Wire, message: &[u8], answer: &mut [u8]) -> anyhow::Result<()> {
    wire.write_all(message).await?;
    wire.flush().await?;
    wire.read_exact(answer).await.context("reading an answer")?;
    Ok(())
}

/// The times of `samples` messages of `bytes`, each sent once the one before was answered.
pub async fn echoes(
    ends: &Ends,
    way: Way,
    address: SocketAddr,
    bytes: usize,
    samples: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut wire = open(ends, way, address).await?;
    let all = WARM_UP + samples;
    tell(&mut wire, b'e', bytes as u64, all as u64).await?;
    let message: Vec<u8> = (0..bytes).map(|place| (place % 251) as u8).collect();
    let mut answer = vec![0; bytes];
    let mut times = Vec::with_capacity(samples);
    for number in 0..all {
        let began = Instant::now();
        exchange(&mut wire, &message, &mut answer).await?;
        if number >= WARM_UP {
            times.push(began.elapsed());
        }
    }
    ensure!(answer == message, "the answer is not what was sent");
    Ok(times)
}

/// Bytes a second of bulk one way, after an eighth as much that does not count.
pub async fn bulk(
    ends: &Ends,
    way: Way,
    address: SocketAddr,
    towards: Towards,
    bytes: u64,
) -> anyhow::Result<f64> {
    let mut wire = open(ends, way, address).await?;
    transfer(&mut wire, towards, bytes / 8).await?;
    let began = Instant::now();
    transfer(&mut wire, towards, bytes).await?;
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}

async fn transfer(wire: &mut Wire, towards: Towards, bytes: u64) -> anyhow::Result<()> {
    let mut piece = vec![1_u8; PIECE];
    let mut left = bytes;
    match towards {
        Towards::Client => {
            tell(wire, b'd', bytes, 1).await?;
            while left > 0 {
                let count = wire.read(&mut piece).await?;
                ensure!(count > 0, "closed {left} bytes before the end");
                left = left.checked_sub(count as u64).context("more came than was asked for")?;
            }
        }
        Towards::Upstream => {
            tell(wire, b'u', bytes, 1).await?;
            while left > 0 {
                let count = left.min(PIECE as u64);
                wire.write_all(&piece[..count as usize]).await?;
                left -= count;
            }
            wire.flush().await?;
            // The upstream has them all.
            wire.read_u8().await?;
        }
    }
    Ok(())
}
