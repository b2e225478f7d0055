//! The worker's end: answers each call with its own bytes, takes bulk and drops it, signs receipts.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kvasir_link::{Congestion, LinkOptions, TlsTrust, connect_tcp, connect_worker};
use kvasir_wire::frame::{HUB_STREAM, Kind};
use kvasir_wire::handshake::{Class, Features, WorkerOffer};
use kvasir_wire::message::{Countersign, ReceiptMessage};
use kvasir_wire::pairing::Expectation;
use kvasir_wire::receipt::Receipt;
use kvasir_wire::ticket::Role;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::parties::{ECHO_PORT, EDGE_PORT, FORMAT, PLUGIN, authority, holder, ticket};

/// How long the other side may take to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// Serves one session with the gateway at `address`, to its end.
pub async fn run(address: IpAddr, folder: &Path, features: Features) -> anyhow::Result<()> {
    // Where this port answers, the gateway is there and has written its certificate.
    let plain = dial_patiently(address).await?;
    tokio::spawn(echo(plain));
    let trust = TlsTrust::CaFile(authority(folder)?);
    let key = holder(Role::Worker);
    let offer = WorkerOffer {
        plugins: vec![PLUGIN],
        formats: vec![FORMAT],
        memory_bytes: 1 << 30,
        class: Class::Exact,
    };
    let url = format!("wss://{address}:{EDGE_PORT}");
    let options = LinkOptions::default();
    let ticket = ticket(Role::Worker)?;
    let connected = connect_worker(&url, &trust, &ticket, &key, offer, features, &options).await?;
    let expectation = Expectation { plugins: vec![PLUGIN], ..Expectation::default() };
    let mut session = connected.pair(&key, &expectation).await?;
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
