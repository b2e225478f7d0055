//! [`RemoteExperts`]: the backbone's trait answered by workers, with this machine standing in for whatever they miss.
//!
//! A call is dealt out when it is submitted and put together when its parts have come. A part whose deadline passes,
//! whose worker is lost or refuses, or whose answer cannot be right in form, is computed here instead: so the sums are
//! the same bits whatever happens to workers. A worker that answers well-formed wrong numbers is found out where its
//! answer is drawn for a check (`check.rs`); for the rest there are replay and receipts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use kvasir_backbone::{Call, CallId, Completed, Experts, ExpertsError, Pick, Progress, call_blocking};
use kvasir_experts::{ExpertRows, combine, group};

use crate::check::{Check, recompute};
use crate::outstanding::{Arrival, Failure};
use crate::session::Session;
use crate::split::{Answer, Part, split};
use crate::swarm::Shared;

/// Routed experts, computed by a swarm's workers where they hold them and by `local` where they do not.
pub struct RemoteExperts {
    shared: Arc<Shared>,
    local: Box<dyn Experts>,
    next: u64,
    open: BTreeMap<CallId, Open>,
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

/// A call that is not answered yet.
struct Open {
    call: Call,
    groups: Vec<ExpertRows>,
    /// Values of the answer so far: sums of `count` rows, or every group's rows one after the other.
    values: Vec<f32>,
    /// Where each group's rows begin in `values`, in rows; empty in sum mode.
    offsets: Vec<usize>,
    parts: Vec<PartState>,
    /// Groups to compute here, from the start or because a worker failed: (group, its rows).
    here: Vec<Piece>,
    /// Answers that are used once they were computed again.
    checks: Vec<Check>,
}

/// Work for this machine.
enum Piece {
    /// Nothing of the call went to a worker.
    Whole,
    /// The sums of these rows.
    Sums(Vec<u32>),
    /// These rows of a group, one by one.
    Rows(usize, std::ops::Range<usize>),
}

enum PartState {
    Waiting { part: Part, session: Arc<Session>, wire_call: u64, deadline: Instant },
    Done,
}

impl RemoteExperts {
    pub(crate) fn new(shared: Arc<Shared>, local: Box<dyn Experts>) -> Self {
        let (arrive, arrivals) = mpsc::channel();
        Self {
            shared,
            local,
            next: 1,
            open: BTreeMap::new(),
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
        let id = CallId(self.next);
        self.next += 1;
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
            self.give_up_overdue(now);
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
            match self.arrivals.recv_timeout(wait) {
                Ok(arrival) => self.take_in(arrival),
                // `arrive` lives as long as `arrivals`, so a channel without senders cannot happen; the deadlines
                // would handle it.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    fn cancel(&mut self, call: CallId) {
        let Some(open) = self.open.remove(&call) else { return };
        for part in open.parts {
            if let PartState::Waiting { session, wire_call, .. } = part {
                session.give_up(wire_call, false);
            }
        }
    }
}

/// An upper bound on one sleep; there is always a deadline while a part is out, so it is never what wakes us.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl RemoteExperts {
    /// Sends a call's parts to those who hold its experts.
    fn deal_out(&self, id: CallId, call: Call) -> Open {
        let layer = call.layer.0;
        let hidden = self.shared.hidden;
        let sessions = if self.shared.is_remote(layer) { self.shared.usable_sessions() } else { Vec::new() };
        if sessions.iter().all(Option::is_none) {
            self.shared.count(|statistics| statistics.local_calls += 1);
            return Open::whole(call);
        }
        let groups = group(&call);
        let owner = |expert: u16| {
            let slot = self.shared.slot_of(layer, expert)?;
            sessions.get(slot)?.as_ref()?.holds(layer, expert).then_some(slot)
        };
        let plan = split(&groups, owner, self.shared.most_rows());
        if plan.parts.is_empty() {
            self.shared.count(|statistics| statistics.local_calls += 1);
            return Open::whole(call);
        }
        self.shared.count(|statistics| statistics.round_trips += 1);
        let probe = self.probing.is_on();
        let keep = self.shared.options.keep.of(probe);

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
        let mut open = Open {
            call,
            groups,
            values: vec![0.0; rows * hidden],
            offsets,
            parts: Vec::new(),
            here,
            checks: Vec::new(),
        };
        for part in plan.parts {
            let ask = |session: &Arc<Session>| {
                let expert_rows = part.expert_rows();
                let place = (id, open.parts.len());
                let asked = session.ask(&open.call, &part, hidden, place, &self.arrive, keep)?;
                if probe {
                    self.shared.count(|statistics| statistics.records.probe_calls += 1);
                }
                let allowance = session.allowance(expert_rows, self.shared.deadlines);
                Some((Arc::clone(session), asked, Instant::now() + allowance))
            };
            let session = sessions.get(part.slot).and_then(Option::as_ref);
            let sent = session.and_then(&ask).or_else(|| {
                // It may have handed its slot over this very moment.
                let heir = self.shared.usable_session(part.slot)?;
                let holds = part.requests.iter().all(|request| heir.holds(layer, request.expert.0));
                if holds { ask(&heir) } else { None }
            });
            match sent {
                Some((session, wire_call, deadline)) => {
                    open.parts.push(PartState::Waiting { part, session, wire_call, deadline });
                }
                None => {
                    self.shared.count(|statistics| {
                        statistics.failovers += 1;
                        statistics.links_lost += 1;
                    });
                    open.here.extend(pieces_of(part));
                    open.parts.push(PartState::Done);
                }
            }
        }
        open
    }

    /// Puts what a worker sent where it belongs, or gives its part to this machine.
    fn take_in(&mut self, arrival: Arrival) {
        // The call may have been cancelled, the part may have been given up: then nobody waits for it.
        let Some(open) = self.open.get_mut(&arrival.call) else { return };
        let Some(state) = open.parts.get_mut(arrival.part) else { return };
        let PartState::Waiting { part, session, wire_call, .. } = std::mem::replace(state, PartState::Done)
        else {
            return;
        };
        match arrival.outcome {
            Ok(values) if self.shared.draws_check(&session) => {
                open.checks.push(Check { part, session, wire_call, values });
            }
            Ok(values) => open.place(&part, &values, self.shared.hidden),
            Err(failure) => {
                self.shared.count(|statistics| {
                    statistics.failovers += 1;
                    match failure {
                        Failure::LinkLost => statistics.links_lost += 1,
                        Failure::Refused => statistics.answers_refused += 1,
                    }
                });
                open.here.extend(pieces_of(part));
            }
        }
    }

    /// Takes away from workers what they owe too long.
    fn give_up_overdue(&mut self, now: Instant) {
        for open in self.open.values_mut() {
            for state in &mut open.parts {
                let PartState::Waiting { session, wire_call, deadline, .. } = state else { continue };
                // If the answer came in this very moment, it is already in the channel and the part stays waiting.
                if *deadline > now || !session.give_up(*wire_call, true) {
                    continue;
                }
                let is_away = session.is_away();
                if let PartState::Waiting { part, .. } = std::mem::replace(state, PartState::Done) {
                    open.here.extend(pieces_of(part));
                    self.shared.count(|statistics| {
                        statistics.failovers += 1;
                        if is_away {
                            statistics.links_lost += 1;
                        } else {
                            statistics.deadlines_missed += 1;
                        }
                    });
                }
            }
        }
    }

    /// Computes the oldest call's share of this machine, if there is one. A call that fails is over.
    fn compute_one_here(&mut self) -> Option<Result<(), (CallId, ExpertsError)>> {
        let has_work = |open: &Open| !open.here.is_empty() || !open.checks.is_empty();
        let (&id, open) = self.open.iter_mut().find(|(_, open)| has_work(open))?;
        if let Some(check) = open.checks.pop() {
            open.check(&check, self.local.as_mut(), &self.shared);
            return Some(Ok(()));
        }
        let pieces = std::mem::take(&mut open.here);
        let done = open.compute(pieces, self.local.as_mut(), self.shared.hidden);
        Some(done.map_err(|error| {
            self.cancel(id);
            (id, error)
        }))
    }

    fn take_completed(&mut self) -> Option<Completed> {
        let (&id, _) = self.open.iter().find(|(_, open)| open.is_complete())?;
        let open = self.open.remove(&id)?;
        Some(Completed { call: id, sums: open.into_sums(self.shared.hidden) })
    }

    fn next_deadline(&self) -> Option<Instant> {
        let parts = self.open.values().flat_map(|open| &open.parts);
        parts
            .filter_map(|state| match state {
                PartState::Waiting { deadline, .. } => Some(*deadline),
                PartState::Done => None,
            })
            .min()
    }
}

impl Drop for RemoteExperts {
    fn drop(&mut self) {
        for id in self.open.keys().copied().collect::<Vec<_>>() {
            self.cancel(id);
        }
    }
}

impl Open {
    fn whole(call: Call) -> Self {
        Self {
            call,
            groups: Vec::new(),
            values: Vec::new(),
            offsets: Vec::new(),
            parts: Vec::new(),
            here: vec![Piece::Whole],
            checks: Vec::new(),
        }
    }

    fn is_complete(&self) -> bool {
        self.here.is_empty()
            && self.checks.is_empty()
            && self.parts.iter().all(|part| matches!(part, PartState::Done))
    }

    fn row_of_group(&self, group: usize) -> usize {
        self.offsets.get(group).copied().unwrap_or_default()
    }

    /// Computes an answer again, judges whoever gave it, and uses what was computed here.
    fn check(&mut self, check: &Check, local: &mut dyn Experts, shared: &Shared) {
        match recompute(&self.call, &self.groups, &check.part, local, shared.hidden) {
            Ok(own) => {
                shared.judge(check, self.call.layer.0, &own);
                self.place(&check.part, &own, shared.hidden);
            }
            Err(error) => {
                tracing::warn!(%error, "an answer cannot be computed again here, and is used unchecked");
                self.place(&check.part, &check.values, shared.hidden);
            }
        }
    }

    /// Copies an answer of the right length.
    fn place(&mut self, part: &Part, values: &[f32], hidden: usize) {
        let mut rows = values.chunks_exact(hidden);
        match &part.answer {
            Answer::Sums => {
                for (&row, values) in part.rows.iter().zip(rows) {
                    self.values[row as usize * hidden..][..hidden].copy_from_slice(values);
                }
            }
            Answer::Rows(pieces) => {
                for (group, range) in pieces {
                    let start = self.row_of_group(*group) + range.start;
                    for (at, values) in rows.by_ref().take(range.len()).enumerate() {
                        self.values[(start + at) * hidden..][..hidden].copy_from_slice(values);
                    }
                }
            }
        }
    }

    fn compute(
        &mut self,
        pieces: Vec<Piece>,
        local: &mut dyn Experts,
        hidden: usize,
    ) -> Result<(), ExpertsError> {
        let mut rows_of_groups = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Whole => {
                    self.values =
                        checked(call_blocking(local, self.call.clone())?, self.call.count() * hidden)?;
                }
                Piece::Sums(rows) => {
                    let picks = rows.iter().map(|&row| self.call.picks[row as usize].clone()).collect();
                    let call = part_call(&self.call, &rows, picks);
                    let sums = checked(call_blocking(local, call)?, rows.len() * hidden)?;
                    for (&row, values) in rows.iter().zip(sums.chunks_exact(hidden)) {
                        self.values[row as usize * hidden..][..hidden].copy_from_slice(values);
                    }
                }
                Piece::Rows(group, range) => rows_of_groups.push((group, range)),
            }
        }
        if rows_of_groups.is_empty() {
            return Ok(());
        }
        // One call in which every row stands once for each of its experts, picked alone with weight one: its "sums"
        // are the experts' rows. (0 + 1 * y is y but for -0, and no sum can tell -0 from 0: it starts at +0.)
        let mut rows = Vec::new();
        let mut picks = Vec::new();
        for (index, range) in &rows_of_groups {
            let group = &self.groups[*index];
            rows.extend_from_slice(&group.rows[range.clone()]);
            picks.resize(rows.len(), vec![Pick { expert: group.expert, weight: 1.0 }]);
        }
        let call = part_call(&self.call, &rows, picks);
        let values = checked(call_blocking(local, call)?, rows.len() * hidden)?;
        let mut values = values.chunks_exact(hidden);
        for (group, range) in rows_of_groups {
            let start = self.row_of_group(group) + range.start;
            for (at, values) in values.by_ref().take(range.len()).enumerate() {
                self.values[(start + at) * hidden..][..hidden].copy_from_slice(values);
            }
        }
        Ok(())
    }

    fn into_sums(self, hidden: usize) -> Vec<f32> {
        if self.offsets.is_empty() {
            return self.values;
        }
        combine(self.call.count(), hidden, &self.groups, &self.values)
    }
}

/// What this machine must do when a part fails.
fn pieces_of(part: Part) -> Vec<Piece> {
    match part.answer {
        Answer::Sums => vec![Piece::Sums(part.rows)],
        Answer::Rows(pieces) => pieces.into_iter().map(|(group, range)| Piece::Rows(group, range)).collect(),
    }
}

/// A call with some rows of another, in the order given; a row may appear more than once.
pub(crate) fn part_call(call: &Call, rows: &[u32], picks: Vec<Vec<Pick>>) -> Call {
    let row_bytes = call.rows.len() / call.count().max(1);
    let rows: Vec<u8> =
        rows.iter().flat_map(|&row| &call.rows[row as usize * row_bytes..][..row_bytes]).copied().collect();
    Call { layer: call.layer, row_format: call.row_format, rows: rows.into(), picks }
}

/// The values of an answer, if they are as many as there should be.
pub(crate) fn checked(completed: Completed, expected: usize) -> Result<Vec<f32>, ExpertsError> {
    if completed.sums.len() != expected {
        return Err(ExpertsError::WrongLength {
            call: completed.call,
            expected,
            received: completed.sums.len(),
        });
    }
    Ok(completed.sums)
}
