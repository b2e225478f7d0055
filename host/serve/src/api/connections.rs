//! Accepting connections: how many there may be, how long one may say nothing, and which one goes when all places are
//! taken. What a request is answered is not decided here.
//!
//! A connection is busy from a request's head to the end of its answer, streams included. Where all places are taken, the
//! address that holds most idle ones loses the one that has been idle longest; a busy one is never closed for a newcomer,
//! which is told 503 where there is no idle one.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;
use tracing::{debug, warn};

use super::Limits;

/// Pause after a failed accept, for example when no descriptor is left: without it the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// A flood is said this often, not once a connection.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// Lines of a request's head.
const MAX_HEADERS: usize = 64;
/// How long what a client still sends is read and thrown away after it was refused. A client that sends a body of many
/// megabytes would otherwise find its connection reset before it reads why.
const LINGER: Duration = Duration::from_secs(5);
/// Bytes that are thrown away so.
const LINGER_BYTES: u64 = 256 * 1024 * 1024;
/// Newcomers without a place that are told so at one time; more are closed unread.
const MAX_TURNED_AWAY: usize = 64;
/// What a newcomer without a place is told.
const TURNED_AWAY: &str = concat!(
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 5\r\nConnection: close\r\n",
    "Content-Length: 138\r\n\r\n",
    r#"{"error":{"message":"all connections are taken; come back in a few seconds","type":"server_error","param":null,"code":"connections_full"}}"#,
);

/// Serves until `stop` completes; then ends what is idle, and waits for the rest for as long as one request may take.
pub(super) async fn run(
    listener: TcpListener,
    routes: Router,
    limits: Limits,
    places: Arc<Places>,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let (tell, told) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut turned_away = JoinSet::new();
    let mut said: Option<Instant> = None;
    tokio::pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            Some(_) = turned_away.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => match places.take(peer.ip()) {
                    Some(place) => {
                        connections.spawn(serve_one(stream, peer, routes.clone(), limits, place, told.clone()));
                    }
                    None => {
                        if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                            said = Some(Instant::now());
                            warn!(limit = limits.connections, "all connections are busy: newcomers are turned away");
                        }
                        if turned_away.len() < MAX_TURNED_AWAY {
                            turned_away.spawn(turn_away(stream));
                        }
                    }
                },
                Err(error) => {
                    warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let _ = tell.send(true);
    let finished = async { while connections.join_next().await.is_some() {} };
    // A client that never finishes its request must not keep a stopped service alive.
    if tokio::time::timeout(limits.request_time, finished).await.is_err() {
        warn!("some requests were not complete and are dropped");
    }
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    routes: Router,
    limits: Limits,
    place: Place,
    mut stop: watch::Receiver<bool>,
) {
    // A token is small, and nobody wants to wait for more of them.
    let _ = stream.set_nodelay(true);
    // A reader that takes nothing any more would keep its answer, and what computes it, for ever.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.write_time));
    let place = Arc::new(place);
    let refused = Arc::new(AtomicBool::new(false));
    let service = {
        let (routes, place, refused) = (TowerToHyperService::new(routes), place.clone(), refused.clone());
        service_fn(move |request: hyper::Request<Incoming>| {
            let (busy, refused, answer) = (place.clone().busy(), refused.clone(), routes.call(request));
            Box::pin(async move {
                let answer = answer.await?;
                let status = answer.status();
                refused.store(status.is_client_error() || status.is_server_error(), Ordering::Relaxed);
                Ok::<_, std::convert::Infallible>(
                    answer.map(|body| Body::new(BusyBody { body, _busy: busy })),
                )
            })
        })
    };
    let mut builder = http1::Builder::new();
    // Without a timer the time limit would be ignored.
    builder.timer(TokioTimer::new()).header_read_timeout(limits.request_time).max_headers(MAX_HEADERS);
    let mut connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = poll_fn(|context| connection.poll_without_shutdown(context)) => {
                if let Err(error) = ended {
                    debug!(%peer, %error, "connection ended");
                    return;
                }
                break;
            }
            () = place.evicted.notified() => {
                debug!(%peer, "connection closed for a newer one");
                return;
            }
            _ = stop.changed(), if !stopping => {
                stopping = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
        }
    }
    let mut stream = connection.into_parts().io.into_inner();
    if stream.shutdown().await.is_ok() && refused.load(Ordering::Relaxed) {
        throw_away(&mut stream).await;
    }
}

async fn turn_away(mut stream: TcpStream) {
    let told = async {
        stream.write_all(TURNED_AWAY.as_bytes()).await?;
        stream.shutdown().await
    };
    if let Ok(Ok(())) = tokio::time::timeout(LINGER, told).await {
        throw_away(&mut stream).await;
    }
}

/// Reads on until the client is done, without keeping anything.
async fn throw_away(stream: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let (mut rest, mut nowhere) = (stream.take(LINGER_BYTES), tokio::io::sink());
    // However it ends, the connection does.
    let _ = tokio::time::timeout(LINGER, tokio::io::copy(&mut rest, &mut nowhere)).await;
}

/// An answer's body; as long as it is there, its connection is busy.
struct BusyBody {
    body: Body,
    _busy: Busy,
}

impl HttpBody for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The places for connections.
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Counts what happens, so that "longest idle" needs no clock.
    events: u64,
    places: HashMap<u64, Held>,
}

struct Held {
    address: IpAddr,
    /// The event since which it is in its present state.
    since: u64,
    busy: bool,
    evicted: Arc<Notify>,
}

impl Places {
    pub(super) fn new(most: usize) -> Places {
        Places { most: most.max(1), taken: Mutex::default() }
    }

    /// Places that are taken.
    pub(super) fn taken(&self) -> usize {
        self.lock().places.len()
    }

    /// A place for a newcomer, made free where that is possible.
    fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut taken = self.lock();
        if taken.places.len() >= self.most && !taken.make_room() {
            return None;
        }
        taken.events += 1;
        let number = taken.events;
        let evicted = Arc::new(Notify::new());
        taken.places.insert(number, Held { address, since: number, busy: false, evicted: evicted.clone() });
        Some(Place { places: self.clone(), number, evicted })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // The map is whole after every statement that could panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Of the address that holds most idle places the longest idle connection goes. Says whether there was one.
    fn make_room(&mut self) -> bool {
        let mut idle: HashMap<IpAddr, usize> = HashMap::new();
        for place in self.places.values().filter(|place| !place.busy) {
            *idle.entry(place.address).or_default() += 1;
        }
        let worst = |place: &Held| {
            (std::cmp::Reverse(idle.get(&place.address).copied().unwrap_or_default()), place.since)
        };
        let waiting = self.places.iter().filter(|(_, place)| !place.busy);
        let Some(number) = waiting.min_by_key(|(_, place)| worst(place)).map(|(number, _)| *number) else {
            return false;
        };
        if let Some(place) = self.places.remove(&number) {
            place.evicted.notify_one();
        }
        true
    }

    fn set_busy(&mut self, number: u64, busy: bool) {
        self.events += 1;
        let since = self.events;
        if let Some(place) = self.places.get_mut(&number) {
            (place.busy, place.since) = (busy, since);
        }
    }
}

/// One connection's place; dropping it gives it back.
struct Place {
    places: Arc<Places>,
    number: u64,
    evicted: Arc<Notify>,
}

impl Place {
    /// Marks the connection as busy until the mark is dropped.
    fn busy(self: Arc<Self>) -> Busy {
        self.places.lock().set_busy(self.number, true);
        Busy(self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().places.remove(&self.number);
    }
}

struct Busy(Arc<Place>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.places.lock().set_busy(self.0.number, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn the_address_with_most_idle_connections_makes_room_and_busy_ones_never_do() {
        let places = Arc::new(Places::new(3));
        let kept = |place: &Place| places.lock().places.contains_key(&place.number);
        let honest = places.take(address(1)).unwrap();
        let one = Arc::new(places.take(address(2)).unwrap());
        let busy = one.clone().busy();
        let two = places.take(address(2)).unwrap();
        // One idle connection each: the one that has been idle longer goes.
        let three = places.take(address(3)).unwrap();
        assert!(!kept(&honest) && kept(&one) && kept(&two) && kept(&three));
        let four = places.take(address(3)).unwrap();
        assert!(!kept(&two) && kept(&four));
        let five = places.take(address(4)).unwrap();
        assert!(!kept(&three) && kept(&one), "of the address with two idle ones the longer idle one went");
        let (four, five) = (Arc::new(four), Arc::new(five));
        let all = [four.clone().busy(), five.clone().busy()];
        assert!(places.take(address(5)).is_none());
        drop(busy);
        assert!(places.take(address(5)).is_some() && !kept(&one));
        drop((all, honest, one, two, three, four, five));
        assert_eq!(places.taken(), 0);
    }

    #[test]
    fn what_newcomers_are_told_is_one_whole_answer() {
        let (head, body) = TURNED_AWAY.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "connections_full");
        let length = TURNED_AWAY.len() - head.len() - 4;
        assert!(head.contains(&format!("Content-Length: {length}")), "{length}");
    }
}
