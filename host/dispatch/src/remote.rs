//! [`RemoteExperts`]: the backbone's trait answered by workers, with this machine standing in for whatever they miss.
//!
//! A call is dealt out when it is submitted and put together when its parts have come. A part whose deadline passes is
//! asked of a worker that holds the same experts too, and the first answer counts; where there is none, or the worker is
//! lost, refuses or answers what cannot be right in form, it is computed here: so the sums are the same bits whatever
//! happens to workers. A worker that answers well-formed wrong numbers is found out where its answer is drawn for a check
//! (`check.rs`); for the rest there are replay and receipts. One that misses deadlines is asked again once it has
//! answered a trial (`ejection.rs`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, LazyLock, MutexGuard};
use std::time::{Duration, Instant};

use kvasir_backbone::{Call, CallId, Completed, Experts, ExpertsError, Progress};
use kvasir_experts::{ExpertRows, group};

use crate::asking::Asker;
use crate::check::Check;
use crate::open::{Asked, Held, Open, PartState, Piece, Waiting};
use crate::outstanding::{Arrival, Failure};
use crate::session::{Session, State};
use crate::split::{Answer, split};
use crate::swarm::Shared;
use crate::trial::Trial;

/// Whether another processor runs whoever brings an answer while this one looks out for it.
static HAS_COMPANY: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1));

/// Routed experts, computed by a swarm's workers where they hold them and by `local` where they do not.
pub struct RemoteExperts {
    shared: Arc<Shared>,
    local: Box<dyn Experts>,
    next: u64,
    open: BTreeMap<CallId, Open>,
    /// Trials of workers that missed deadlines; nobody waits for them.
    trials: BTreeMap<CallId, Trial>,
    /// Answered ones.
    answered: Vec<(Trial, Vec<f32>)>,
    arrivals: mpsc::Receiver<Arrival>,
    arrive: mpsc::Sender<Arrival>,
    probing: ProbeSwitch,
}

/// Says of calls, from the moment they are submitted, whether they are probes: calls whose rows may be published. Workers
/// are told nothing of it. Off at first; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ProbeSwitch(Arc<AtomicBool>);

impl ProbeSwitch {
    /// What is submitted from now on is, or is not, a probe.
    pub fn set(&self, on: bool) {
        self.0.store(on, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl RemoteExperts {
    pub(crate) fn new(shared: Arc<Shared>, local: Box<dyn Experts>) -> Self {
        let (arrive, arrivals) = mpsc::channel();
        Self {
            shared,
            local,
            next: 1,
            open: BTreeMap::new(),
            trials: BTreeMap::new(),
            answered: Vec::new(),
            arrivals,
            arrive,
            probing: ProbeSwitch::default(),
        }
    }

    /// The switch of these experts: it must be thrown on the thread that submits, between its calls.
    pub fn probe_switch(&self) -> ProbeSwitch {
        self.probing.clone()
    }
}

impl Experts for RemoteExperts {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        call.check(self.shared.hidden, self.shared.experts)?;
        let id = self.new_id();
        let open = self.deal_out(id, call);
        self.open.insert(id, open);
        Ok(id)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        if self.open.is_empty() {
            return Err(ExpertsError::NothingInFlight);
        }
        loop {
            while let Ok(arrival) = self.arrivals.try_recv() {
                self.take_in(arrival);
            }
            if let Some(completed) = self.take_completed() {
                return Ok(Progress::Completed(completed));
            }
            let now = Instant::now();
            self.look_for_overdue(now);
            // Before the deadline is looked at: somebody who never waits, because there is always something else to
            // compute, must get this machine's share all the same.
            match self.compute_one_here() {
                Some(Ok(())) => continue,
                Some(Err((call, error))) => return Ok(Progress::Failed { call, error }),
                None => {}
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                return Ok(Progress::Pending);
            }
            let until = self.next_deadline().into_iter().chain(deadline).min();
            let wait = until.map_or(LONGEST_WAIT, |until| until.saturating_duration_since(now));
            if let Some(arrival) = self.wait_for_arrival(now, wait) {
                self.take_in(arrival);
            }
        }
    }

    fn expected(&self) -> Option<Range<Instant>> {
        self.likely_arrival(Instant::now())
    }

    fn cancel(&mut self, call: CallId) {
        let Some(open) = self.open.remove(&call) else { return };
        for part in open.parts {
            if let PartState::Waiting(waiting) = part {
                for asked in waiting.asked {
                    asked.session.give_up(asked.wire_call, asked.missed);
                }
            }
        }
    }
}

/// An upper bound on one sleep; there is always a deadline while a part is out, so it is never what wakes us.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl RemoteExperts {
    fn new_id(&mut self) -> CallId {
        let id = CallId(self.next);
        self.next += 1;
        id
    }

    /// Sends a call's parts to those who hold its experts.
    fn deal_out(&mut self, id: CallId, call: Call) -> Open {
        let layer = call.layer.0;
        let hidden = self.shared.hidden;
        if !self.shared.is_remote(layer) {
            self.shared.count(|statistics| statistics.local_calls += 1);
            return Open::whole(call);
        }
        let sessions = self.shared.usable_sessions();
        let groups = group(&call);
        if sessions.iter().any(Option::is_none) {
            self.begin_trials(&call, &groups);
        }
        let plan = split(&groups, &self.owners_of(layer, &groups, &sessions), self.shared.most_rows());
        if plan.parts.is_empty() {
            self.shared.count(|statistics| statistics.local_calls += 1);
            return Open::whole(call);
        }
        self.shared.count(|statistics| statistics.round_trips += 1);

        let sums = plan.parts.iter().all(|part| part.answer == Answer::Sums);
        let mut offsets = Vec::new();
        let mut rows = 0;
        if sums {
            rows = call.count();
        } else {
            for group in &groups {
                offsets.push(rows);
                rows += group.rows.len();
            }
        }
        let here = plan.local.iter().map(|&index| Piece::Rows(index, 0..groups[index].rows.len())).collect();
        let values = vec![0.0; rows * hidden];
        let (parts, checks) = (Vec::with_capacity(plan.parts.len()), Vec::new());
        let (probe, at) = (self.probing.is_on(), Instant::now());
        let mut open = Open { call, probe, groups, values, offsets, parts, here, checks, at };
        let asker = Asker { shared: &self.shared, arrive: &self.arrive };
        for (index, part) in plan.parts.into_iter().enumerate() {
            open.parts.push(PartState::Waiting(Waiting::new(part)));
            if !asker.ask_next(&mut open, id, index) {
                // It left this very moment.
                self.shared.count(|statistics| {
                    statistics.failovers += 1;
                    statistics.links_lost += 1;
                });
                open.take_home(index);
            } else if self.shared.compares_pairs() {
                // Where nobody else holds the experts, this machine compares.
                asker.ask_next(&mut open, id, index);
            }
        }
        open
    }

    /// For each group the slot that holds its expert and may be asked: of those that were to hold it, the first that does.
    fn owners_of(
        &self,
        layer: u16,
        groups: &[ExpertRows],
        sessions: &[Option<Arc<Session>>],
    ) -> Vec<Option<usize>> {
        // Locked once for a call, not once for each of its experts. Nobody else waits for a session's lock while holding
        // another's, and a session sits in one slot.
        let states: Vec<Option<MutexGuard<'_, State>>> =
            sessions.iter().map(|session| session.as_ref().map(|session| session.state())).collect();
        let owner_of = |group: &ExpertRows| {
            let expert = (layer, group.expert.0);
            let holds = |slot: &usize| {
                states.get(*slot).and_then(Option::as_ref).is_some_and(|state| state.held.contains(&expert))
            };
            self.shared.slots_of(layer, group.expert.0).find(holds)
        };
        groups.iter().map(owner_of).collect()
    }

    /// Puts what a worker sent where it belongs, or gives its part to another or to this machine.
    fn take_in(&mut self, arrival: Arrival) {
        if let Some(trial) = self.trials.remove(&arrival.call) {
            match arrival.outcome {
                Ok(values) => self.answered.push((trial, values)),
                Err(_) => trial.session.drop_trial(),
            }
            return;
        }
        // The call may have been cancelled, the part may have been given up: then nobody waits for it.
        let Some(open) = self.open.get_mut(&arrival.call) else { return };
        let Some(PartState::Waiting(waiting)) = open.parts.get_mut(arrival.part) else { return };
        let Some(at) = waiting.asked.iter().position(|asked| asked.turn == arrival.turn) else { return };
        let asked = waiting.asked.remove(at);
        open.at = open.at.max(arrival.at);
        match arrival.outcome {
            Ok(values) if self.shared.compares_pairs() && asked.session.is_exact => {
                let held = Held { session: asked.session, wire_call: asked.wire_call, values };
                self.hold(arrival.call, arrival.part, held);
            }
            Ok(values) => {
                // The first answer counts; what others still send is not wanted.
                for other in waiting.asked.drain(..) {
                    other.session.give_up(other.wire_call, other.missed);
                }
                let state = std::mem::replace(&mut open.parts[arrival.part], PartState::Done);
                let PartState::Waiting(Waiting { part, .. }) = state else { return };
                if self.shared.draws_check(&asked.session) {
                    let (session, wire_call) = (asked.session, asked.wire_call);
                    open.checks.push(Check { part, session, wire_call, values });
                } else {
                    open.place(&part, &values, self.shared.hidden);
                }
            }
            Err(failure) => {
                // One that was late already is counted.
                if !asked.missed {
                    self.shared.count(|statistics| match failure {
                        Failure::LinkLost => statistics.links_lost += 1,
                        Failure::Refused => statistics.answers_refused += 1,
                    });
                }
                // Those who are late may never answer: they are no reason to wait.
                if !waiting.is_answered_in_time() {
                    let asker = Asker { shared: &self.shared, arrive: &self.arrive };
                    asker.ask_another(open, arrival.call, arrival.part);
                }
            }
        }
    }

    /// Keeps the first of two answers to a part until the other is there, and compares them then.
    fn hold(&mut self, id: CallId, index: usize, held: Held) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let Some(PartState::Waiting(waiting)) = open.parts.get_mut(index) else { return };
        let Some(first) = waiting.held.take() else {
            waiting.held = Some(held);
            if !waiting.is_answered_in_time() {
                let asker = Asker { shared: &self.shared, arrive: &self.arrive };
                asker.ask_another(open, id, index);
            }
            return;
        };
        for other in waiting.asked.drain(..) {
            other.session.give_up(other.wire_call, other.missed);
        }
        let state = std::mem::replace(&mut open.parts[index], PartState::Done);
        if let PartState::Waiting(Waiting { part, .. }) = state {
            open.compare(part, first, held, &self.shared);
        }
    }

    /// Looks whose deadline has passed: another worker is asked beside them, or, where there is none, they are given up.
    fn look_for_overdue(&mut self, now: Instant) {
        let asker = Asker { shared: &self.shared, arrive: &self.arrive };
        for (&id, open) in &mut self.open {
            for index in 0..open.parts.len() {
                asker.look_for_overdue(open, id, index, now);
            }
        }
        self.trials.retain(|_, trial| !trial.is_over(now, &self.shared));
    }

    /// Judges a trial, or computes the oldest call's share of this machine, if there is anything of it to do. A call that
    /// fails is over.
    fn compute_one_here(&mut self) -> Option<Result<(), (CallId, ExpertsError)>> {
        // First, or it would have to wait for as long as everything is computed here; and there is one in a while.
        if let Some((trial, values)) = self.answered.pop() {
            trial.judge(values, self.local.as_mut(), &self.shared);
            return Some(Ok(()));
        }
        let (&id, open) = self.open.iter_mut().find(|(_, open)| open.has_work())?;
        if let Some(check) = open.checks.pop() {
            open.check(&check, self.local.as_mut(), &self.shared);
            open.at = Instant::now();
            return Some(Ok(()));
        }
        let pieces = std::mem::take(&mut open.here);
        let done = open.compute(pieces, self.local.as_mut(), self.shared.hidden);
        open.at = Instant::now();
        Some(done.map_err(|error| {
            self.cancel(id);
            (id, error)
        }))
    }

    fn take_completed(&mut self) -> Option<Completed> {
        let (&id, _) = self.open.iter().find(|(_, open)| open.is_complete())?;
        let open = self.open.remove(&id)?;
        let at = open.at;
        Some(Completed { call: id, sums: open.into_sums(self.shared.hidden), at })
    }

    /// Waits for what comes, `wait` at the longest. At the time at which an answer is likely it looks without sleeping, since a thread
    /// that sleeps takes tens of microseconds to wake; and while the only call leaves, for the sake of those who pass it on.
    fn wait_for_arrival(&self, now: Instant, wait: Duration) -> Option<Arrival> {
        if let Some(leaving) = self.leaving(now) {
            return self.look_out(leaving.min(now + wait));
        }
        let likely = self.likely_arrival(now);
        let sleep = match &likely {
            Some(likely) => wait.min(likely.start.saturating_duration_since(now)),
            None => wait,
        };
        if !sleep.is_zero() {
            // `arrive` lives as long as `arrivals`, so a channel without senders cannot happen; the deadlines would handle it.
            return self.arrivals.recv_timeout(sleep).ok();
        }
        self.look_out(likely.map_or(now, |likely| likely.end.min(now + wait)))
    }

    /// Looks for what comes without sleeping.
    fn look_out(&self, until: Instant) -> Option<Arrival> {
        while Instant::now() < until {
            match self.arrivals.try_recv() {
                Ok(arrival) => return Some(arrival),
                // Whoever brings it may have to run on this very core.
                Err(_) => std::thread::yield_now(),
            }
        }
        None
    }

    /// When the next answer is likely to come, or may have come by now.
    fn likely_arrival(&self, now: Instant) -> Option<Range<Instant>> {
        // Of several calls one comes sooner or later anyway, and the others want the processor.
        if !*HAS_COMPANY || self.open.len() > 1 {
            return None;
        }
        let likely = self.asked().filter_map(|asked| asked.likely.clone());
        likely.filter(|likely| now < likely.end).min_by_key(|likely| likely.start)
    }

    /// Until when the only call under way leaves, if it does.
    fn leaving(&self, now: Instant) -> Option<Instant> {
        if !*HAS_COMPANY || self.open.len() > 1 {
            return None;
        }
        self.asked().filter_map(|asked| asked.leaving).filter(|leaving| now < *leaving).max()
    }

    fn next_deadline(&self) -> Option<Instant> {
        let open = self.asked().map(|asked| asked.deadline);
        open.chain(self.trials.values().map(|trial| trial.deadline)).min()
    }

    /// Those who may still answer in time.
    fn asked(&self) -> impl Iterator<Item = &Asked> {
        let parts = self.open.values().flat_map(|open| &open.parts);
        let asked = parts.flat_map(|state| match state {
            PartState::Waiting(waiting) => waiting.asked.as_slice(),
            PartState::Done => &[],
        });
        asked.filter(|asked| !asked.missed)
    }

    /// Sends what a call asks of workers that are to be tried to them too. Their answers are compared, not used.
    fn begin_trials(&mut self, call: &Call, groups: &[ExpertRows]) {
        for session in self.shared.sessions_to_try(Instant::now()) {
            let id = self.new_id();
            if let Some(trial) = Trial::begin(&self.shared, session, call, groups, (id, &self.arrive)) {
                self.trials.insert(id, trial);
            }
        }
    }
}

impl Drop for RemoteExperts {
    fn drop(&mut self) {
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            self.cancel(id);
        }
        for trial in std::mem::take(&mut self.trials).into_values() {
            trial.session.give_up(trial.wire_call, false);
            trial.session.drop_trial();
        }
        for (trial, _) in std::mem::take(&mut self.answered) {
            trial.session.drop_trial();
        }
    }
}
