//! The swarm as the API tells it: from what the scheduler and the swarm's books say to one entry a worker.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvasir_dispatch::{Percentiles, Watcher, WorkerState, WorkerStatistics};
use kvasir_model::Model;

use crate::api::{Held, Load, Rates, SwarmReport, SwarmWorker};
use crate::scheduler::Figures;

/// The time over which the rate of the moment is taken, where somebody looks often enough.
const LATELY: Duration = Duration::from_secs(10);
/// Looks closer together than this are one.
const LOOKS_APART: Duration = Duration::from_secs(1);

/// Tells what the swarm is.
pub struct SwarmView {
    model: String,
    layers: u32,
    experts: u32,
    watcher: Option<Watcher>,
    local: Option<f64>,
    rate: Mutex<Lately>,
}

impl SwarmView {
    /// Of a model that clients call `name`, and the swarm that computes its experts; none where this machine does alone.
    pub fn new(name: impl Into<String>, model: &Model, watcher: Option<Watcher>) -> SwarmView {
        let config = model.config();
        SwarmView {
            model: name.into(),
            layers: config.layers,
            experts: config.experts,
            watcher,
            local: None,
            rate: Mutex::new(Lately::new(Instant::now())),
        }
    }

    /// With the tokens a second that were measured with every expert computed here.
    #[must_use]
    pub fn with_local_rate(self, tokens_per_second: Option<f64>) -> SwarmView {
        SwarmView { local: tokens_per_second, ..self }
    }

    /// The swarm as it is now.
    pub fn report(&self, figures: &Figures) -> SwarmReport {
        let mut lately = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let now = lately.look(Instant::now(), figures.tokens);
        drop(lately);
        let rates = match self.watcher {
            Some(_) => Rates { now, local: self.local, swarm: now },
            None => Rates { now, local: now.or(self.local), swarm: None },
        };
        let sessions = self.watcher.as_ref().map(|watcher| watcher.statistics().workers);
        SwarmReport {
            model: self.model.clone(),
            layers: self.layers,
            experts_per_layer: self.experts,
            workers: workers(&sessions.unwrap_or_default()),
            rates,
            load: Load { running: figures.running, waiting: figures.waiting, waves: figures.waves },
        }
    }
}

/// One entry for each worker from one for each session, those that are there first.
fn workers(sessions: &[WorkerStatistics]) -> Vec<SwarmWorker> {
    let mut workers: Vec<SwarmWorker> = Vec::new();
    for session in sessions {
        let at = workers.iter().position(|worker| worker.name == session.worker).unwrap_or_else(|| {
            let name = session.worker.clone();
            workers.push(SwarmWorker { name, state: GONE.to_owned(), ..SwarmWorker::default() });
            workers.len() - 1
        });
        let worker = &mut workers[at];
        worker.calls += session.accepted;
        worker.rows += session.rows;
        worker.missed += session.missed;
        worker.checked += session.checked;
        worker.wrong += session.wrong;
        worker.countersigned_bytes += session.receipted_bytes;
        worker.credit_nanokvr += session.receipted_nano_kvr;
        // Of several sessions the latest that stands is the one that says how the worker is.
        if worker.state == GONE || session.state != WorkerState::Ended {
            describe(worker, session);
        }
    }
    workers.sort_by_key(|worker| worker.state == GONE);
    workers
}

/// The word for a worker whose sessions are all over.
const GONE: &str = "gone";

fn describe(worker: &mut SwarmWorker, session: &WorkerStatistics) {
    let milliseconds = |micros: u32| f64::from(micros) / 1e3;
    let measured = Some(session.latency).filter(|latency| *latency != Percentiles::default());
    worker.round_trip_ms = measured.map(|latency| milliseconds(latency.p50_micros)).or(worker.round_trip_ms);
    worker.round_trip_p99_ms =
        measured.map(|latency| milliseconds(latency.p99_micros)).or(worker.round_trip_p99_ms);
    worker.why.clone_from(&session.ended);
    let state = if session.state == WorkerState::Ended { GONE } else { session.state.name() };
    worker.state = state.to_owned();
    if matches!(session.state, WorkerState::Ended | WorkerState::Quarantined) {
        worker.holds = Vec::new();
        worker.held_bytes = 0;
        return;
    }
    worker.held_bytes = session.held_bytes;
    let held = |&(layer, experts): &(u16, u32)| Held { layer: u32::from(layer), experts };
    worker.holds = session.holds.iter().map(held).collect();
}

/// Tokens a second of late, from how many there were whenever somebody looked.
struct Lately {
    looks: VecDeque<(Instant, u64)>,
}

impl Lately {
    fn new(now: Instant) -> Lately {
        Lately { looks: VecDeque::from([(now, 0)]) }
    }

    /// The rate, `tokens` having been written so far; nothing where none were of late.
    fn look(&mut self, now: Instant, tokens: u64) -> Option<f64> {
        // One look that is old enough stays, to count from.
        while self.looks.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= LATELY) {
            self.looks.pop_front();
        }
        let &(since, before) = self.looks.front()?;
        if self.looks.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= LOOKS_APART) {
            self.looks.push_back((now, tokens));
        }
        let (written, elapsed) = (tokens.saturating_sub(before), now.saturating_duration_since(since));
        (written > 0 && !elapsed.is_zero()).then(|| written as f64 / elapsed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(worker: &str, state: WorkerState, accepted: u64) -> WorkerStatistics {
        let latency = Percentiles { p50_micros: 13_000, p99_micros: 21_500, ..Percentiles::default() };
        WorkerStatistics {
            worker: worker.to_owned(),
            state,
            accepted,
            rows: 3 * accepted,
            missed: 1,
            holds: vec![(0, 16), (2, 4)],
            held_bytes: 100,
            receipted_bytes: 10,
            receipted_nano_kvr: 70,
            latency: if accepted > 0 { latency } else { Percentiles::default() },
            ended: (state == WorkerState::Ended).then(|| "finished in order".to_owned()),
            ..WorkerStatistics::default()
        }
    }

    #[test]
    fn sessions_of_one_worker_are_one_entry_and_those_that_are_there_come_first() {
        let told = workers(&[
            session("gone", WorkerState::Ended, 5),
            session("back", WorkerState::Ended, 7),
            session("back", WorkerState::Joining, 0),
            session("here", WorkerState::Serving, 2),
        ]);
        let names: Vec<_> = told.iter().map(|worker| (worker.name.as_str(), worker.state.as_str())).collect();
        assert_eq!(names, [("back", "joining"), ("here", "serving"), ("gone", "gone")]);
        let back = &told[0];
        assert_eq!((back.calls, back.rows, back.missed), (7, 21, 2));
        assert_eq!((back.countersigned_bytes, back.credit_nanokvr, back.held_bytes), (20, 140, 100));
        assert_eq!((back.round_trip_ms, back.round_trip_p99_ms), (Some(13.0), Some(21.5)), "of before");
        assert_eq!(back.holds, [Held { layer: 0, experts: 16 }, Held { layer: 2, experts: 4 }]);
        assert_eq!(back.why, None);
        let gone = &told[2];
        assert_eq!((gone.why.as_deref(), gone.held_bytes), (Some("finished in order"), 0));
        assert!(gone.holds.is_empty());
    }

    #[test]
    fn a_session_that_ended_does_not_hide_one_that_stands() {
        let told = workers(&[session("a", WorkerState::Serving, 1), session("a", WorkerState::Ended, 1)]);
        assert_eq!((told.len(), told[0].state.as_str()), (1, "serving"));
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        let mut lately = Lately::new(begun);
        assert_eq!(lately.look(begun, 0), None, "nothing was computed");
        assert_eq!(lately.look(at(2), 40), Some(20.0));
        for second in 3..=30 {
            lately.look(at(second), 40);
        }
        assert_eq!(lately.look(at(31), 40), None, "nothing of late");
        assert!(lately.looks.len() <= 13, "{}", lately.looks.len());
        // Whoever comes back after an hour hears of that hour.
        assert_eq!(lately.look(at(31 + 3600), 40 + 3600), Some(1.0));
    }
}
