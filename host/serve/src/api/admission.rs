//! How many texts there may be at one time, and what becomes of requests while the service stops.
//!
//! A stop has two steps. First nothing new is taken (503), and what is being written is written to its end. Then, after
//! a time, what is still being written is cut short, and its client is told so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::error::ApiError;

/// Bounds of the time after which a client that was turned away is to come back.
const RETRY_SECONDS: std::ops::RangeInclusive<u64> = 1..=60;
/// A request moves the mean of the times by so much of its difference from it.
const MEAN_SHARE: u64 = 8;

/// Where the service stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Phase {
    Serving,
    Draining,
    Cut,
}

/// Lets requests in.
#[derive(Debug)]
pub(super) struct Admission {
    places: Arc<Semaphore>,
    most: u32,
    phase: watch::Sender<Phase>,
    /// Mean time of a request in milliseconds.
    mean: Arc<AtomicU64>,
}

impl Admission {
    /// `most`: texts being written or waiting for it.
    pub(super) fn new(most: usize) -> Admission {
        let most = u32::try_from(most).unwrap_or(u32::MAX).clamp(1, MOST_TEXTS);
        Admission {
            places: Arc::new(Semaphore::new(most as usize)),
            most,
            phase: watch::Sender::new(Phase::Serving),
            mean: Arc::new(AtomicU64::new(0)),
        }
    }

    /// Whether a request has any chance, asked before anything is spent on it.
    ///
    /// # Errors
    /// 429, 503.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        if self.is_draining() {
            return Err(ApiError::draining());
        }
        if self.places.available_permits() == 0 { Err(self.full()) } else { Ok(()) }
    }

    /// Places for the texts of a request.
    ///
    /// # Errors
    /// 429, 503.
    pub(super) fn enter(&self, texts: usize) -> Result<Admitted, ApiError> {
        self.check()?;
        let wanted = u32::try_from(texts).unwrap_or(u32::MAX);
        match self.places.clone().try_acquire_many_owned(wanted) {
            Ok(place) => Ok(Admitted { _place: place, since: Instant::now(), mean: self.mean.clone() }),
            Err(_) => Err(self.full()),
        }
    }

    /// Texts that have a place.
    pub(super) fn taken(&self) -> usize {
        (self.most as usize).saturating_sub(self.places.available_permits())
    }

    /// Whether nothing new is taken any more.
    pub(super) fn is_draining(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    /// From now on nothing new is taken.
    pub(super) fn drain(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Ends what is still being written.
    pub(super) fn cut(&self) {
        self.phase.send_replace(Phase::Cut);
    }

    /// Waits until no text has a place.
    pub(super) async fn idle(&self) {
        // It fails only where the semaphore is closed, which nobody does.
        let _ = self.places.acquire_many(self.most).await;
    }

    /// For whoever has to know when texts are cut short.
    pub(super) fn phases(&self) -> Phases {
        Phases(self.phase.subscribe())
    }

    fn full(&self) -> ApiError {
        let seconds = self.mean.load(Ordering::Relaxed).div_ceil(1_000);
        let after = seconds.clamp(*RETRY_SECONDS.start(), *RETRY_SECONDS.end());
        let message = format!(
            "all places for texts are taken ({} of {}): come back after {after} s",
            self.taken(),
            self.most
        );
        ApiError::queue_full(message, Duration::from_secs(after))
    }
}

/// As many places as a semaphore may count.
const MOST_TEXTS: u32 = 1 << 20;

/// Tells when texts are cut short.
#[derive(Debug, Clone)]
pub(super) struct Phases(watch::Receiver<Phase>);

impl Phases {
    /// Waits until texts are cut short.
    pub(super) async fn cut(&mut self) {
        if self.0.wait_for(|phase| *phase == Phase::Cut).await.is_err() {
            // The service is gone, and with it whoever would say so.
            std::future::pending::<()>().await;
        }
    }
}

/// The places of one request; dropping it gives them back.
#[derive(Debug)]
pub(super) struct Admitted {
    _place: OwnedSemaphorePermit,
    since: Instant,
    mean: Arc<AtomicU64>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let took = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mean = self.mean.load(Ordering::Relaxed);
        // Two at a time may lose one of the two, which a mean survives.
        let moved = mean - mean / MEAN_SHARE + took.min(1 << 40) / MEAN_SHARE;
        self.mean.store(moved, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back() {
        let admission = Admission::new(4);
        let three = admission.enter(3).unwrap();
        assert_eq!(admission.enter(2).unwrap_err().status(), 429);
        let one = admission.enter(1).unwrap();
        assert_eq!((admission.check().unwrap_err().status(), admission.taken()), (429, 4));
        drop((three, one));
        assert_eq!(admission.taken(), 0);
        admission.check().unwrap();
    }

    #[tokio::test]
    async fn a_service_that_stops_takes_nothing_new_and_waits_for_what_it_has() {
        let admission = Admission::new(2);
        let place = admission.enter(1).unwrap();
        admission.drain();
        assert_eq!(admission.enter(1).unwrap_err().status(), 503);
        let mut phases = admission.phases();
        tokio::select! {
            biased;
            () = phases.cut() => panic!("nothing was cut"),
            () = admission.idle() => panic!("a text has a place"),
            () = tokio::task::yield_now() => {}
        }
        admission.cut();
        phases.cut().await;
        drop(place);
        admission.idle().await;
    }
}
