//! A wide-area delay between two programs on one machine: a TCP relay that holds every byte back for half a round trip.
//!
//! Good for showing what round trips cost where nobody is root. It ends the TCP connection on both sides, so it hides
//! congestion windows, pacing and loss; measuring those needs a delayed link between network namespaces.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Bytes read at once; a chunk keeps the time at which it arrived.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks that may be under way in one direction; a sender that is faster waits.
const CHUNKS_IN_FLIGHT: usize = 4096;

/// Listen on a free loopback port and relay every connection to `target`, each direction delayed by half of `round_trip`.
/// Returns the address to connect to. The relay lives as long as the process.
///
/// # Errors
/// Where no loopback port can be had.
pub fn start(target: SocketAddr, round_trip: Duration) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no loopback port for the delay relay")?;
    let address = listener.local_addr().context("the delay relay has no address")?;
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || {
                if let Err(error) = relay(&connection, target, round_trip / 2) {
                    tracing::debug!(%error, "a delayed connection ended");
                    let _ = connection.shutdown(Shutdown::Both);
                }
            });
        }
    });
    Ok(address)
}

fn relay(near: &TcpStream, target: SocketAddr, one_way: Duration) -> std::io::Result<()> {
    let far = TcpStream::connect(target)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    forward(near.try_clone()?, far.try_clone()?, one_way);
    forward(far, near.try_clone()?, one_way);
    Ok(())
}

/// Two threads: one reads and stamps, the other waits until a chunk is due and writes it.
fn forward(mut from: TcpStream, mut to: TcpStream, one_way: Duration) {
    let (queue, due) = mpsc::sync_channel::<(Instant, Vec<u8>)>(CHUNKS_IN_FLIGHT);
    thread::spawn(move || {
        while let Ok((at, bytes)) = due.recv() {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if queue.send((Instant::now() + one_way, buffer[..count].to_vec())).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_whole_and_in_order_and_not_before_their_time() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let target = server.local_addr().unwrap();
        thread::spawn(move || {
            let (mut peer, _) = server.accept().unwrap();
            let mut echo = peer.try_clone().unwrap();
            std::io::copy(&mut peer, &mut echo).unwrap();
            echo.shutdown(Shutdown::Write).unwrap();
        });
        let mut client = TcpStream::connect(start(target, Duration::from_millis(40)).unwrap()).unwrap();
        let sent: Vec<u8> = (0..200_000u32).map(|i| (i * 7) as u8).collect();
        let begun = Instant::now();
        let mut writer = client.try_clone().unwrap();
        let copy = sent.clone();
        thread::spawn(move || {
            writer.write_all(&copy).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert_eq!(received, sent);
        assert!(begun.elapsed() >= Duration::from_millis(40), "a delay is a lower bound");
    }
}
