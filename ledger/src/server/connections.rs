//! Accepting connections: how many there may be, how long one may say nothing, and which one goes when all places are
//! taken. What a request is answered is not decided here.
//!
//! The service has no credentials, so nobody can be told from a stranger by a connection that says nothing. A newcomer
//! therefore always gets in: where all places are taken, the address that holds most of them loses the connection that
//! has been idle longest. A caller that loses one sends its request again, which is always safe.

use std::collections::HashMap;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;
use tracing::{debug, warn};

use super::ServeLimits;

/// Pause after a failed accept, for example when no descriptor is left: without it the loop would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// A flood is said this often, not once a connection.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// Serves until `stop` completes; then answers what is in flight, for as long as one request may take.
pub(crate) async fn run(
    listener: TcpListener,
    routes: Router,
    limits: ServeLimits,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let places = Arc::new(Places::new(limits.connections));
    let (tell, told) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut said: Option<Instant> = None;
    tokio::pin!(stop);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let (place, evicted) = places.take(peer.ip());
                    if let Some(address) = evicted && said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
                        said = Some(Instant::now());
                        warn!(
                            limit = limits.connections, %address,
                            "all connections are taken: the address that holds most loses its idle ones",
                        );
                    }
                    connections.spawn(serve_one(stream, peer, routes.clone(), limits, place, told.clone()));
                }
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
    // A caller that never finishes its request must not keep a stopped ledger alive.
    if tokio::time::timeout(limits.request_time, finished).await.is_err() {
        warn!("some requests were not complete and are dropped");
    }
}

async fn serve_one(
    stream: TcpStream,
    peer: SocketAddr,
    routes: Router,
    limits: ServeLimits,
    place: Place,
    mut stop: watch::Receiver<bool>,
) {
    // Answers are small and wait for nothing.
    let _ = stream.set_nodelay(true);
    // A reader that takes nothing any more would keep its answer in memory for ever.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.request_time));
    let place = Arc::new(place);
    let routes = TowerToHyperService::new(routes);
    let asked = place.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (busy, answer) = (asked.clone().busy(), routes.call(request));
        async move {
            let answer = answer.await;
            drop(busy);
            answer
        }
    });
    let mut builder = http1::Builder::new();
    // Without a timer the time limit would be ignored.
    builder.timer(TokioTimer::new()).header_read_timeout(limits.request_time);
    let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), service);
    tokio::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    debug!(%peer, %error, "connection ended");
                }
                return;
            }
            () = place.evicted.notified() => {
                debug!(%peer, "connection closed for a newer one");
                return;
            }
            _ = stop.changed(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// The places for connections.
struct Places {
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
    fn new(most: usize) -> Self {
        Self { most: most.max(1), taken: Mutex::default() }
    }

    /// A place for a newcomer, and the address of the connection that had to make room for it.
    fn take(self: &Arc<Self>, address: IpAddr) -> (Place, Option<IpAddr>) {
        let mut taken = self.lock();
        let victim = if taken.places.len() >= self.most { taken.make_room() } else { None };
        taken.events += 1;
        let number = taken.events;
        let evicted = Arc::new(Notify::new());
        taken.places.insert(number, Held { address, since: number, busy: false, evicted: evicted.clone() });
        (Place { places: self.clone(), number, evicted }, victim)
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // The map is whole after every statement that could panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Of the address that holds most places the longest idle connection goes, else the one that has been busy longest.
    fn make_room(&mut self) -> Option<IpAddr> {
        let mut held: HashMap<IpAddr, usize> = HashMap::new();
        for place in self.places.values() {
            *held.entry(place.address).or_default() += 1;
        }
        let worst = |place: &Held| {
            let count = held.get(&place.address).copied().unwrap_or_default();
            (std::cmp::Reverse(count), place.busy, place.since)
        };
        let number = self.places.iter().min_by_key(|(_, place)| worst(place)).map(|(number, _)| *number)?;
        let place = self.places.remove(&number)?;
        place.evicted.notify_one();
        Some(place.address)
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
    fn the_address_that_holds_most_makes_room_with_its_longest_idle_connection() {
        let places = Arc::new(Places::new(3));
        let (honest, _) = places.take(address(1));
        let (one, _) = places.take(address(2));
        let one = Arc::new(one);
        let busy = one.clone().busy();
        let (two, none) = places.take(address(2));
        assert_eq!(none, None);
        let (three, evicted) = places.take(address(3));
        assert_eq!(evicted, Some(address(2)));
        let kept = |place: &Place| places.lock().places.contains_key(&place.number);
        assert!(
            kept(&honest) && kept(&one) && !kept(&two) && kept(&three),
            "the idle one went, not the busy one"
        );
        drop(busy);
        drop((honest, one, two, three));
        assert!(places.lock().places.is_empty());
    }
}
