//! A TCP relay whose two directions can be made to fail, each in its own way, while connections are open.
//!
//! It sits where the internet does: between an end and the edge, or between an end and the hub. What cannot be had this
//! way is what lives below a byte stream: loss, reordering, another congestion window.

#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do
#![allow(dead_code)] // each test binary uses a part of it

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::watch,
    time::sleep,
};

/// What becomes of the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They go on.
    Pass,
    /// They are left where they are, and the sender's window fills.
    Hold,
    /// They vanish, ends of connections too: a middlebox that has forgotten the connection.
    Vanish,
    /// So many go on every 5 ms.
    Slow(usize),
}

/// A running relay.
pub struct Relay {
    pub address: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
    /// The address that new connections come from; none: what the system takes.
    from: Arc<Mutex<Option<IpAddr>>>,
    faults: Arc<Mutex<watch::Sender<Faults>>>,
    /// The switches of forgotten connections, kept so that they stay as they are.
    forgotten: Mutex<Vec<watch::Sender<Faults>>>,
    opened: Arc<AtomicUsize>,
}

#[derive(Clone, Copy)]
struct Faults {
    /// From whom dialled to whom was dialled.
    up: Flow,
    down: Flow,
    reset: bool,
}

impl Relay {
    pub async fn start(to: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let to = Arc::new(Mutex::new(to));
        let from = Arc::new(Mutex::new(None));
        let faults = Arc::new(Mutex::new(fresh()));
        let opened = Arc::new(AtomicUsize::new(0));
        let (target, source, switch, count) = (to.clone(), from.clone(), faults.clone(), opened.clone());
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let (to, from) = (*target.lock().unwrap(), *source.lock().unwrap());
                let faults = switch.lock().unwrap().subscribe();
                tokio::spawn(async move {
                    // Nobody there: the client's connection ends, as it would at a load balancer.
                    if let Ok(server) = connect(from, to).await {
                        join(client, server, faults).await;
                    }
                });
            }
        });
        Relay { address, to, from, faults, forgotten: Mutex::default(), opened }
    }

    /// What becomes of bytes from now on, on connections that are open and on new ones.
    pub fn set(&self, up: Flow, down: Flow) {
        self.faults.lock().unwrap().send_modify(|faults| (faults.up, faults.down) = (up, down));
    }

    /// Resets every open connection, both sides of it.
    pub fn reset(&self) {
        self.faults.lock().unwrap().send_modify(|faults| faults.reset = true);
        *self.faults.lock().unwrap() = fresh();
    }

    /// Open connections stay as they are for ever; new ones pass. After [`Flow::Vanish`] this is a NAT whose mapping is
    /// gone: nobody is told, and a new connection works.
    pub fn forget(&self) {
        let old = std::mem::replace(&mut *self.faults.lock().unwrap(), fresh());
        self.forgotten.lock().unwrap().push(old);
    }

    /// Open connections are a part of their own from here on, as they are; what is set on the relay is for new ones. The part has
    /// to be kept as long as its connections.
    pub fn part(&self) -> Part {
        Part(std::mem::replace(&mut *self.faults.lock().unwrap(), fresh()))
    }

    /// Resets what was forgotten, both sides of it.
    pub fn reset_forgotten(&self) {
        for old in self.forgotten.lock().unwrap().drain(..) {
            old.send_modify(|faults| faults.reset = true);
        }
    }

    /// New connections go there.
    pub fn retarget(&self, to: SocketAddr) {
        *self.to.lock().unwrap() = to;
    }

    /// New connections come from this IPv4 address of this machine. With what is forgotten this is a NAT that has given its
    /// client another address.
    pub fn come_from(&self, address: IpAddr) {
        *self.from.lock().unwrap() = Some(address);
    }

    /// Connections ever taken.
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }
}

/// Some connections of a relay.
pub struct Part(watch::Sender<Faults>);

impl Part {
    /// What becomes of bytes on them from now on.
    pub fn set(&self, up: Flow, down: Flow) {
        self.0.send_modify(|faults| (faults.up, faults.down) = (up, down));
    }

    /// Resets them, both sides of each.
    pub fn reset(&self) {
        self.0.send_modify(|faults| faults.reset = true);
    }
}

fn fresh() -> watch::Sender<Faults> {
    watch::Sender::new(Faults { up: Flow::Pass, down: Flow::Pass, reset: false })
}

async fn connect(from: Option<IpAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let Some(from) = from else { return TcpStream::connect(to).await };
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from, 0))?;
    socket.connect(to).await
}

async fn join(mut client: TcpStream, mut server: TcpStream, mut faults: watch::Receiver<Faults>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (client_reader, client_writer) = client.split();
    let (server_reader, server_writer) = server.split();
    let (up, down) = (faults.clone(), faults.clone());
    let both = async {
        tokio::join!(
            carry(client_reader, server_writer, up, |faults| faults.up),
            carry(server_reader, client_writer, down, |faults| faults.down),
        )
    };
    let was_reset = tokio::select! {
        _ = both => false,
        changed = faults.wait_for(|faults| faults.reset) => changed.is_ok(),
    };
    if was_reset {
        client.set_zero_linger().unwrap();
        server.set_zero_linger().unwrap();
    }
}

/// Moves one direction until it ends or fails.
async fn carry(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut faults: watch::Receiver<Faults>,
    way: fn(&Faults) -> Flow,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let flow = way(&faults.borrow_and_update());
        let most = match flow {
            Flow::Hold => {
                changed(&mut faults).await;
                continue;
            }
            Flow::Slow(bytes) => {
                sleep(Duration::from_millis(5)).await;
                bytes.min(buffer.len())
            }
            Flow::Pass | Flow::Vanish => buffer.len(),
        };
        let count = tokio::select! {
            read = from.read(&mut buffer[..most]) => read.unwrap_or(0),
            () = changed(&mut faults) => continue,
        };
        match (flow, count) {
            (Flow::Vanish, 0) => std::future::pending().await,
            (Flow::Vanish, _) => {}
            (_, 0) => break,
            (_, count) => {
                if to.write_all(&buffer[..count]).await.is_err() {
                    break;
                }
            }
        }
    }
    let _ = to.shutdown().await;
}

/// Waits for another setting; for ever where the test has dropped the relay.
async fn changed(faults: &mut watch::Receiver<Faults>) {
    if faults.changed().await.is_err() {
        std::future::pending().await
    }
}
