//! Getting ready for an answer that is due: threads that slept while it was out are awake when it comes, so that what follows is
//! shared out from its first piece on.

use std::time::{Duration, Instant};

use kvasir_threads::rouse;

use crate::backbone::Backbone;
use crate::experts::Experts;

/// How often they are roused while an answer is due: they stay awake for longer.
const AGAIN: Duration = Duration::from_micros(100);

impl Backbone {
    /// For whoever has nothing to do but to wait for `experts`, `until` at the longest: until when to wait, and then to ask again. At
    /// the time at which an answer is expected the threads that compute are woken, or kept awake, and only then.
    pub fn stand_by(&self, experts: &dyn Experts, until: Option<Instant>) -> Option<Instant> {
        let Some(expected) = experts.expected() else { return until };
        let now = Instant::now();
        let next = if now < expected.start {
            expected.start
        } else {
            self.within(rouse);
            now + AGAIN
        };
        Some(until.map_or(next, |until| until.min(next)))
    }
}
