//! The worker's end: answers each call with its own bytes, takes bulk and drops it, signs receipts.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kvasir_link::{Congestion, TlsTrust, connect_tcp};
use kvasir_wire::frame::{HUB_STREAM, Kind};
use kvasir_wire::handshake::Features;
use kvasir_wire::message::{Countersign, ReceiptMessage};
use kvasir_wire::receipt::Receipt;
use kvasir_wire::ticket::Role;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::holders::{holder, join, worker_expectation};
use crate::parties::{ECHO_PORT, EDGE_PORT, NETWORK, authority};

/// How long the other side may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves one session with the gateway at `address`, to its end.
pub async fn run(address: IpAddr, folder: &Path, features: Features) -> anyhow::Result<()> {
    // Where this port answers, the gateway is there and has written its certificate.
    let plain = dial_patiently(address).await?;
    tokio::spawn(echo(plain));
    let trust = TlsTrust::CaFile(authority(folder)?);
    let key = holder(Role::Worker);
    let url = format!("wss://{address}:{EDGE_PORT}");
    let link = join(&url, &trust, NETWORK, &key, features).await?;
    let mut session = link.pair(&key, &worker_expectation()).await?;
    while let Ok(payload) = session.receiver.recv().await {
        match payload.kind {
            Kind::Call => session.sender.send(Kind::Result, payload.stream, payload.bytes).await?,
            Kind::Receipt => {
                if let ReceiptMessage::Proposal { text, .. } = ReceiptMessage::decode(&payload.bytes)? {
                    let receipt = Receipt::parse(&text)?;
                    let signature = receipt.sign(&key);
                    let answer = Countersign::Worker { seq: receipt.seq, signature };
                    session.sender.send(Kind::Countersign, HUB_STREAM, answer.encode()).await?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Dials the port of the plain echo until somebody listens, 20 s at most.
async fn dial_patiently(address: IpAddr) -> anyhow::Result<TcpStream> {
    let began = Instant::now();
    loop {
        match connect_tcp((address, ECHO_PORT), &Congestion::from_environment()).await {
            Ok(stream) => return Ok(stream),
            Err(error) if began.elapsed() > PATIENCE => {
                return Err(error).with_context(|| format!("dialling {address}:{ECHO_PORT}"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Sends back what comes: the floor that the stack is compared with.
async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let count = stream.read(&mut bytes).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&bytes[..count]).await?;
    }
}
