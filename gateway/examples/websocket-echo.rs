//! Echoes WebSocket messages with the hub's own WebSocket settings, for `scripts/check-websocket` and for people who try
//! a client. Not part of the product: it asks for no ticket and speaks nothing of Kvasir.
//!
//! ```text
//! websocket-echo [ADDRESS:PORT]
//! ```
//!
//! Prints `ws://ADDRESS:PORT` and serves until its standard input ends.
#![allow(clippy::unwrap_used)] // stops at the first surprise

use std::io::{Read as _, Write as _};

use futures_util::{SinkExt as _, StreamExt as _};
use kvasir_link::websocket_config;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::{accept_async_with_config, tungstenite::Error};

#[tokio::main]
async fn main() {
    let listen = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(&listen).await.unwrap();
    println!("ws://{}", listener.local_addr().unwrap());
    std::io::stdout().flush().unwrap();
    let serve = async {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(echo(stream));
        }
    };
    tokio::select! {
        _ = serve => {}
        _ = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())) => {}
    }
}

/// One connection. What ends it is written to standard error; a client may do as it likes.
async fn echo(stream: TcpStream) {
    let result: Result<(), Error> = async {
        stream.set_nodelay(true)?;
        let mut socket = accept_async_with_config(stream, Some(websocket_config())).await?;
        while let Some(message) = socket.next().await {
            let message = message?;
            // Pings and closes are answered by the library, as at the hub.
            if message.is_binary() || message.is_text() {
                socket.send(message).await?;
            }
        }
        Ok(())
    }
    .await;
    if let Err(error) = result
        && !matches!(error, Error::ConnectionClosed)
    {
        eprintln!("connection ended: {error}");
    }
}
