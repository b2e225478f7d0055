//! When to ping and when a link is dead: any frame is a sign of life.

use std::time::Duration;

use tokio::time::Instant;

/// What a tick of the clock calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tick {
    /// Nothing yet.
    Wait,
    /// Send a ping.
    Ping,
    /// Give up.
    Dead,
}

/// Keeps the time since something was heard.
#[derive(Debug)]
pub(crate) struct Liveness {
    ping_after: Duration,
    dead_after: Duration,
    heard: Instant,
    pinged: Option<Instant>,
}

impl Liveness {
    /// `spread` (0 to 255) lengthens the silence before a ping by up to a third.
    pub(crate) fn new(ping_after: Duration, dead_after: Duration, spread: u8, now: Instant) -> Self {
        let ping_after = ping_after + ping_after.mul_f64(f64::from(spread) / 765.0);
        Liveness { ping_after, dead_after, heard: now, pinged: None }
    }

    /// Something came.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.pinged = None;
    }

    /// When to look again.
    pub(crate) fn due(&self) -> Instant {
        match self.pinged {
            Some(at) => at + self.dead_after,
            None => self.heard + self.ping_after,
        }
    }

    /// Looks. If the look itself comes late, this process was starved or asleep and could not have heard anything: the
    /// other side gets its time again.
    pub(crate) fn tick(&mut self, now: Instant) -> Tick {
        if now < self.due() {
            return Tick::Wait;
        }
        match self.pinged {
            Some(_) if now <= self.due() + GRACE => Tick::Dead,
            _ => {
                self.pinged = Some(now);
                Tick::Ping
            }
        }
    }

    /// Silence so far.
    pub(crate) fn silence(&self, now: Instant) -> Duration {
        now - self.heard
    }
}

/// Lateness of a tick from which on it counts as this process's own pause.
const GRACE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silence_leads_to_a_ping_and_then_to_death() {
        let start = Instant::now();
        let mut live = Liveness::new(15 * SECOND, 10 * SECOND, 0, start);
        assert_eq!(live.tick(start + 14 * SECOND), Tick::Wait);
        assert_eq!(live.tick(start + 15 * SECOND), Tick::Ping);
        assert_eq!(live.tick(start + 24 * SECOND), Tick::Wait);
        assert_eq!(live.tick(start + 25 * SECOND), Tick::Dead);
    }

    #[test]
    fn any_frame_is_a_sign_of_life() {
        let start = Instant::now();
        let mut live = Liveness::new(15 * SECOND, 10 * SECOND, 0, start);
        assert_eq!(live.tick(start + 15 * SECOND), Tick::Ping);
        live.heard(start + 24 * SECOND);
        assert_eq!(live.tick(start + 25 * SECOND), Tick::Wait);
        assert_eq!(live.due(), start + 39 * SECOND);
    }

    #[test]
    fn a_late_tick_grants_grace() {
        let start = Instant::now();
        let mut live = Liveness::new(15 * SECOND, 10 * SECOND, 0, start);
        assert_eq!(live.tick(start + 15 * SECOND), Tick::Ping);
        assert_eq!(live.tick(start + 100 * SECOND), Tick::Ping);
        assert_eq!(live.tick(start + 110 * SECOND), Tick::Dead);
    }
}
