//! The first look at a connection that was just accepted, before a byte of it is read: are there descriptors for it, and do
//! connections come faster than they may?
//!
//! Both limits are for all peers together; of the second an address has a share, so that one that floods does not use it up for
//! all. How many connections an address may have open is the business of [`crate::edge::Gate`].

mod shares;

use std::{
    io::Write as _,
    net::{IpAddr, Shutdown},
    num::NonZeroU32,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::net::TcpStream;

use crate::{descriptors::DescriptorLimit, http_refusal::HttpRefusal};
use shares::Shares;

/// Connections a second that are accepted for long. A TLS handshake takes about a millisecond of a processor.
pub const ACCEPTS_PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(499);
/// Seconds' worth of connections that may come at once. With the rate above a thousand workers that lost one edge, and as
/// many again.
pub const BURST_SECONDS: NonZeroU32 = NonZeroU32::MIN.saturating_add(3);
/// A flood of refusals is said this often, not once a connection.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// When a peer that is refused here should come back, in seconds.
const RETRY_SECONDS: u32 = 10;

/// What is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptLimits {
    /// Connections a second, for long.
    pub per_second: NonZeroU32,
    /// Connections at once.
    pub burst: NonZeroU32,
    /// The limit on descriptors that holds for this process.
    pub descriptors: DescriptorLimit,
}

impl AcceptLimits {
    /// So many a second, the burst that goes with it, and this process's limit on descriptors.
    pub fn per_second(per_second: NonZeroU32) -> Self {
        let burst = per_second.saturating_mul(BURST_SECONDS);
        AcceptLimits { per_second, burst, descriptors: DescriptorLimit::of_process() }
    }
}

impl Default for AcceptLimits {
    fn default() -> Self {
        Self::per_second(ACCEPTS_PER_SECOND)
    }
}

/// Limits that may change while accept loops run. Clones share them.
#[derive(Clone, Debug)]
pub struct SharedLimits(Arc<Mutex<AcceptLimits>>);

impl SharedLimits {
    /// These, until others are set.
    pub fn new(limits: AcceptLimits) -> Self {
        SharedLimits(Arc::new(Mutex::new(limits)))
    }

    /// Those that hold now.
    pub fn get(&self) -> AcceptLimits {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the next connection on, these hold.
    pub fn set(&self, limits: AcceptLimits) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }
}

/// Why a connection is closed unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// Too few descriptors are left.
    Descriptors,
    /// Connections come too fast.
    Rate,
    /// Connections of this address come too fast.
    AddressRate,
}

impl Turned {
    /// One word for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Turned::Descriptors => "descriptors",
            Turned::Rate => "accept_rate",
            Turned::AddressRate => "address_rate",
        }
    }

    /// The answer, for a door that can tell without reading.
    pub fn refusal(self) -> HttpRefusal {
        let why = match self {
            Turned::Descriptors => "too few descriptors are left for a new connection",
            Turned::Rate => "connections come faster than they are accepted here",
            Turned::AddressRate => "connections of one address come faster than they are accepted here",
        };
        HttpRefusal::unavailable(why.into(), RETRY_SECONDS)
    }
}

/// Looks at connections; one for each accept loop.
#[derive(Debug)]
pub struct Doorkeeper {
    shared: SharedLimits,
    /// Those that the bucket was made for.
    limits: AcceptLimits,
    bucket: TokenBucket,
    shares: Shares,
    started: Instant,
    said: Option<Instant>,
    unsaid: u64,
}

impl Doorkeeper {
    /// A doorkeeper with a full bucket.
    pub fn new(shared: SharedLimits) -> Self {
        let limits = shared.get();
        let bucket = TokenBucket::new(limits.per_second, limits.burst);
        let shares = Shares::default();
        Doorkeeper { shared, limits, bucket, shares, started: Instant::now(), said: None, unsaid: 0 }
    }

    /// Whether this connection may be served. `of`: whose it is, and how many connections that address may have; none where many
    /// come from one address as a matter of course.
    pub fn admit(&mut self, stream: &TcpStream, of: Option<(IpAddr, usize)>) -> Result<(), Turned> {
        let limits = self.shared.get();
        if limits != self.limits {
            self.bucket.change(limits.per_second, limits.burst);
            self.limits = limits;
        }
        #[cfg(unix)]
        {
            use std::os::fd::AsRawFd as _;
            if self.limits.descriptors.is_beyond(u64::try_from(stream.as_raw_fd()).unwrap_or(0)) {
                return Err(Turned::Descriptors);
            }
        }
        #[cfg(not(unix))]
        let _ = stream;
        let now = self.started.elapsed();
        // First: what an address is denied is not to cost the others.
        if let Some(of) = of
            && !self.shares.take(&self.limits, of, now)
        {
            return Err(Turned::AddressRate);
        }
        match self.bucket.take(now) {
            true => Ok(()),
            false => Err(Turned::Rate),
        }
    }

    /// Says that connections are closed unread, now and then. `why` names the limit.
    pub fn say(&mut self, why: &str) {
        self.unsaid += 1;
        if self.said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            tracing::warn!(
                connections = self.unsaid,
                limit_of_descriptors = %self.limits.descriptors,
                "closed unread, the latest for: {why}"
            );
            (self.said, self.unsaid) = (Some(Instant::now()), 0);
        }
    }
}

/// Answers a connection that is not served, without reading from it or waiting for it. A peer whose request is on its way
/// may see a reset instead.
pub fn turn_away(stream: TcpStream, refusal: &HttpRefusal) {
    let answer = || {
        let mut stream = stream.into_std()?;
        // It fits into the send buffer of a connection on which nothing was sent yet.
        stream.write_all(&refusal.to_response())?;
        stream.shutdown(Shutdown::Write)
    };
    if let Err(error) = answer() {
        tracing::debug!("turning a connection away: {error}");
    }
}

/// A token bucket in whole nanoseconds: no clock, no floating point.
///
/// Within any stretch of time it grants at most its burst, and one more for every `1 / per_second`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// What one costs.
    cost: u128,
    /// The most that can be saved up.
    most: u128,
    saved: u128,
    latest: Duration,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(per_second: NonZeroU32, burst: NonZeroU32) -> Self {
        // Rounded up, so that the rate is never exceeded.
        let cost = 1_000_000_000_u128.div_ceil(per_second.get().into());
        let most = cost * u128::from(burst.get());
        TokenBucket { cost, most, saved: most, latest: Duration::ZERO }
    }

    /// Another rate and burst; what was saved up stays, as far as it fits.
    pub fn change(&mut self, per_second: NonZeroU32, burst: NonZeroU32) {
        let saved = self.saved / self.cost;
        let full = TokenBucket::new(per_second, burst);
        *self = TokenBucket { saved: (saved * full.cost).min(full.most), latest: self.latest, ..full };
    }

    /// Takes one, if there is one. `now` is the time since a fixed moment; one before an earlier `now` saves nothing up.
    pub fn take(&mut self, now: Duration) -> bool {
        let passed = now.saturating_sub(self.latest);
        self.latest = self.latest.max(now);
        self.saved = (self.saved + passed.as_nanos()).min(self.most);
        let enough = self.saved >= self.cost;
        if enough {
            self.saved -= self.cost;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(per_second: u32, burst: u32) -> TokenBucket {
        TokenBucket::new(NonZeroU32::new(per_second).unwrap(), NonZeroU32::new(burst).unwrap())
    }

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = bucket(10, 3);
        let at = Duration::from_millis;
        let granted: Vec<bool> = (0..4).map(|_| bucket.take(at(0))).collect();
        assert_eq!(granted, [true, true, true, false]);
        assert!(!bucket.take(at(99)));
        assert!(bucket.take(at(100)));
        assert!(!bucket.take(at(100)));
        assert!(bucket.take(at(u64::MAX)), "a long pause overflows nothing");
    }

    #[test]
    fn a_change_neither_fills_nor_empties_the_bucket() {
        let number = |number| NonZeroU32::new(number).unwrap();
        let mut bucket = bucket(10, 5);
        let now = Duration::from_secs(1);
        assert!(bucket.take(now) && bucket.take(now));
        bucket.change(number(1_000), number(100));
        let granted = (0..10).filter(|_| bucket.take(now)).count();
        assert_eq!(granted, 3, "what was left of the five");
        assert!(bucket.take(now + Duration::from_millis(1)), "at the new rate");
        bucket.change(number(10), number(2));
        assert!(!bucket.take(now + Duration::from_millis(1)));
        let granted = (0..10).filter(|_| bucket.take(now + Duration::from_secs(60))).count();
        assert_eq!(granted, 2, "the new burst");
    }

    #[tokio::test]
    async fn who_has_used_its_share_up_is_turned_away_and_who_has_none_of_its_own_is_not() {
        let (per_second, burst) = (NonZeroU32::MIN, NonZeroU32::new(800).unwrap());
        let limits = AcceptLimits { per_second, burst, descriptors: DescriptorLimit::new(None) };
        let mut doorkeeper = Doorkeeper::new(SharedLimits::new(limits));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let of = Some((IpAddr::from([203, 0, 113, 7]), 1));
        let turned = (0..700).find_map(|_| doorkeeper.admit(&stream, of).err());
        assert_eq!(turned, Some(Turned::AddressRate), "a hundred, and one a second");
        assert_eq!(doorkeeper.admit(&stream, None), Ok(()));
    }

    proptest! {
        #[test]
        fn no_stretch_of_time_grants_more_than_burst_and_rate(
            per_second in 1..5_000_u32,
            burst in 1..100_u32,
            // Steps forwards and, since clocks are what they are, backwards.
            steps in prop::collection::vec(-2_000_000..20_000_000_i64, 1..300),
        ) {
            let mut bucket = bucket(per_second, burst);
            let mut now = 1_000_000_000_i64;
            let (mut latest, mut granted) = (now, Vec::new());
            for step in steps {
                now = (now + step).max(0);
                latest = latest.max(now);
                if bucket.take(Duration::from_nanos(now as u64)) {
                    granted.push(latest);
                }
            }
            for (first, start) in granted.iter().enumerate() {
                for (last, end) in granted.iter().enumerate().skip(first) {
                    let nanos = (end - start) as u128;
                    let allowed = u128::from(burst) + nanos * u128::from(per_second) / 1_000_000_000;
                    prop_assert!((last - first) as u128 <= allowed);
                }
            }
        }

        #[test]
        fn who_keeps_to_the_rate_is_never_turned_away(per_second in 1..5_000_u32, burst in 1..100_u32) {
            let mut bucket = bucket(per_second, burst);
            let between = Duration::from_nanos(1_000_000_000_u64.div_ceil(per_second.into()));
            for index in 0..500 {
                prop_assert!(bucket.take(between * index));
            }
        }
    }
}
