//! Stopping in order: one switch that every part of a process can wait for.

use tokio::sync::watch;

/// Asks everything that holds a [`Stop`] to finish.
#[derive(Debug)]
pub struct Stopper(watch::Sender<bool>);

/// What a part waits for; cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<bool>);

/// A switch that is off. Dropping the [`Stopper`] turns it on.
pub fn switch() -> (Stopper, Stop) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), Stop(receiver))
}

impl Stopper {
    /// Turns the switch on, for good.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Stop {
    /// Returns once the switch is on. Cancelling loses nothing.
    pub async fn stopped(&mut self) {
        // An error means that the stopper is gone: then nobody is left who could want this to go on.
        let _ = self.0.wait_for(|&on| on).await;
    }

    /// Whether the switch is on.
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

/// Returns at the first SIGTERM or interrupt.
pub async fn stop_signal() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            result = tokio::signal::ctrl_c() => result,
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_is_seen_by_all_and_stays() {
        let (stopper, stop) = switch();
        let mut copy = stop.clone();
        assert!(!stop.is_stopped());
        stopper.stop();
        copy.stopped().await;
        copy.stopped().await;
        assert!(stop.is_stopped());
        let (stopper, mut stop) = switch();
        drop(stopper);
        stop.stopped().await;
        assert!(stop.is_stopped());
    }
}
