//! One session with one worker: calls out, results in, experts handed over, receipts signed.
//!
//! [`Session`] is what callers share; `SessionTask` owns the receiving side of the link and runs until the link ends or
//! either side is done. Whether an answer counts is decided the moment it arrives, under the lock that a caller's
//! deadline needs too, so books and callers can never disagree.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kvasir_backbone::Call;
use kvasir_link::LinkSender;
use kvasir_wire::frame::{HUB_STREAM, Kind, PAIR_STREAM};
use kvasir_wire::handshake::Class;
use kvasir_wire::id::{PluginDigest, SessionId};
use kvasir_wire::key::PublicKey;
use kvasir_wire::message::{
    Assign, Assigned, Cancel, Drain, DrainReason, NotHeldReason, Report, stream_of_call,
};
use kvasir_wire::pairing::PairRequest;
use kvasir_wire::refusal::{Refusal, RefusalCode};

use crate::assigning::in_messages;
use crate::ejection::{Ejection, Pauses};
use crate::latency::{Deadlines, Latency, Percentiles};
use crate::outstanding::{Arrival, Awaited, Outstanding, Place, Sent, SentPayload};
use crate::payload::Unnumbered;
use crate::placement::ExpertAddress;
use crate::records::Keeping;
use crate::split::Part;
use crate::statistics::{WorkerState, WorkerStatistics};

/// What callers and the session's task share.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) slot: usize,
    pub(crate) worker: PublicKey,
    pub(crate) plugin: PluginDigest,
    /// Whether its results are bit for bit what this machine computes.
    pub(crate) is_exact: bool,
    pub(crate) link: LinkSender,
    /// Held over numbering, booking and queueing a call: call numbers must ascend on the link.
    sending: Mutex<u64>,
    state: Mutex<State>,
}

/// The mutable part of a session.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) calls: Outstanding,
    /// What the worker was asked to hold.
    pub(crate) assigned: HashSet<ExpertAddress>,
    pub(crate) held: HashSet<ExpertAddress>,
    /// Assigned, but not held, and why.
    pub(crate) not_held: HashMap<ExpertAddress, NotHeldReason>,
    pub(crate) latency: Latency,
    pub(crate) ejection: Ejection,
    pub(crate) numbers: WorkerStatistics,
    /// Answers in a row that could not be accepted although they came in time.
    pub(crate) refused_in_row: u32,
    /// The hub has lost the worker's connection, and waits for another one.
    pub(crate) worker_away: bool,
    /// Either connection is gone for longer than a call waits for it.
    pub(crate) lost: bool,
    /// No new calls.
    pub(crate) draining: bool,
    /// An answer was wrong.
    wrong: Option<Wrong>,
    /// Another session has its slot: once it owes nothing it asks for its final receipt.
    leaving: bool,
    pub(crate) ended: Option<String>,
}

/// Why a worker is in quarantine.
struct Wrong {
    why: String,
    since: Instant,
    /// Calls that no receipt has left out yet.
    calls: Vec<u64>,
}

impl Session {
    /// The session that `request` offered and both ends signed.
    pub(crate) fn new(request: &PairRequest, slot: usize, link: LinkSender) -> Self {
        let &PairRequest { session: id, worker, plugin, class, .. } = request;
        let numbers = WorkerStatistics {
            session: id.to_string(),
            worker: worker.to_string(),
            plugin: plugin.to_string(),
            class: class.name(),
            connected: true,
            ..WorkerStatistics::default()
        };
        let state = State { numbers, ..State::default() };
        let is_exact = class == Class::Exact;
        Self { id, slot, worker, plugin, is_exact, link, sending: Mutex::new(0), state: Mutex::new(state) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the worker may be asked now: alive, and not behind with an answer. One that owes an answer which nobody
    /// waits for any more is left alone until it has given it; so a stalled worker costs one deadline, not one a call.
    pub(crate) fn is_usable(&self) -> bool {
        let state = self.state();
        let is_here = !state.worker_away && self.link.is_whole();
        let is_out = state.ejection.is_out() || state.calls.late_since().is_some();
        is_here && state.ended.is_none() && !state.draining && !is_out
    }

    /// Whether it missed deadlines and may be sent a trial: it is here and owes nothing.
    pub(crate) fn wants_trial(&self, now: Instant) -> bool {
        let state = self.state();
        let is_here = !state.worker_away && self.link.is_whole();
        let is_free = !state.draining && state.calls.owed() == 0;
        is_here && state.ended.is_none() && is_free && state.ejection.wants_trial(now)
    }

    /// A deadline passed: it is left alone for a while, and then asked again once it has passed a trial.
    pub(crate) fn miss(&self, now: Instant, pauses: Pauses) {
        let mut state = self.state();
        state.numbers.missed += 1;
        state.ejection.miss(now, pauses);
    }

    /// Its trial came to nothing without a miss.
    pub(crate) fn drop_trial(&self) {
        self.state().ejection.drop_trial();
    }

    /// It passed a trial.
    pub(crate) fn readmit(&self) {
        self.state().ejection.readmit();
    }

    /// Whether the worker's connection to the hub or this side's is gone, and may be replaced.
    pub(crate) fn is_away(&self) -> bool {
        self.state().worker_away || !self.link.is_whole()
    }

    /// Whether it is gone for so long that nobody waits for it any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.state().lost
    }

    /// Which of these experts of a layer it holds, checked and loaded.
    pub(crate) fn holds(&self, layer: u16, experts: impl Iterator<Item = u16>) -> Vec<bool> {
        let state = self.state();
        experts.map(|expert| state.held.contains(&(layer, expert))).collect()
    }

    /// Whether it holds all that a part of a call asks for.
    pub(crate) fn holds_all(&self, layer: u16, part: &Part) -> bool {
        let state = self.state();
        part.requests.iter().all(|request| state.held.contains(&(layer, request.expert.0)))
    }

    /// Whether it has said of every expert assigned to it that it holds it or why it does not.
    pub(crate) fn is_settled(&self) -> bool {
        let state = self.state();
        let is_here = !state.worker_away && self.link.is_whole();
        is_here && state.ended.is_none() && state.held.len() + state.not_held.len() >= state.assigned.len()
    }

    /// Whether an answer of its worker was wrong.
    pub(crate) fn is_quarantined(&self) -> bool {
        self.state().wrong.is_some()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended.is_some()
    }

    /// As [`Session::ask`], of a worker that is asked nothing else until it has answered.
    pub(crate) fn ask_on_trial(
        &self,
        call: &Call,
        part: &Part,
        hidden: usize,
        place: Place,
        arrive: &mpsc::Sender<Arrival>,
    ) -> Option<u64> {
        // Nobody keeps it: it is another call's work done twice.
        let number = self.ask(call, part, hidden, place, arrive, None)?;
        self.state().ejection.begin_trial();
        Some(number)
    }

    /// Sends a part of `call`; its answer goes to `arrive` with `place`. Gives the number of the call in this session, or
    /// nothing when the link takes no more. Nothing on the link depends on why the call is kept.
    pub(crate) fn ask(
        &self,
        call: &Call,
        part: &Part,
        hidden: usize,
        place: Place,
        arrive: &mpsc::Sender<Arrival>,
        keep: Option<Keeping>,
    ) -> Option<u64> {
        let unnumbered = Unnumbered::of(call, part)?;
        let mode = unnumbered.mode;

        let mut last = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *last + 1;
        let stream = stream_of_call(number)?;
        let payload = match unnumbered.numbered(number) {
            Ok(payload) => payload,
            Err(error) => {
                tracing::warn!(session = %self.id.short(), %error, "a call cannot be sent and is computed here");
                return None;
            }
        };
        let up = payload.len() as u64;
        let sent = Sent {
            layer: call.layer.0,
            mode: mode as u8,
            payload: SentPayload::Whole(payload.clone()),
            rows: part.rows.len() as u64,
            at: Instant::now(),
            keep,
        };
        {
            let mut state = self.state();
            if state.ended.is_some() || state.draining {
                return None;
            }
            let values = part.answer_rows() * hidden;
            let awaited =
                Awaited { place, arrive: arrive.clone(), values, expert_rows: part.expert_rows(), sent };
            state.calls.insert(number, awaited);
            state.numbers.calls += 1;
            state.numbers.bytes_up += up;
        }
        if let Err(error) = self.link.send_at_once(Kind::Call, stream, payload) {
            tracing::debug!(session = %self.id.short(), %error, "a call was not taken by the link");
            let mut state = self.state();
            state.calls.answered(number);
            state.numbers.calls -= 1;
            state.numbers.bytes_up -= up;
            return None;
        }
        *last = number;
        Some(number)
    }

    /// Nobody waits for a call any more; the worker is told. False if it was answered already, and then the answer is in
    /// its caller's channel.
    pub(crate) fn give_up(&self, number: u64, late: bool) -> bool {
        if !self.state().calls.give_up(number, late) {
            return false;
        }
        if let Some(stream) = stream_of_call(number) {
            let cancel = Cancel { streams: vec![stream] };
            // If the link takes no more it is ending, and the call with it.
            let _ = self.link.try_send(Kind::Cancel, PAIR_STREAM, cancel.encode());
        }
        true
    }

    /// Whether a call's answer has not come yet, and somebody waits for it.
    pub(crate) fn is_awaited(&self, number: u64) -> bool {
        self.state().calls.is_awaited(number)
    }

    /// How long a call of so many expert-rows may take.
    pub(crate) fn allowance(&self, expert_rows: usize, bounds: Deadlines) -> Duration {
        self.state().latency.allowance(expert_rows, bounds)
    }

    /// When a call of so many expert-rows is likely to be answered, from its start.
    pub(crate) fn likely(&self, expert_rows: usize) -> Option<Range<Duration>> {
        self.state().latency.likely(expert_rows)
    }

    /// Asks the worker to hold experts, of which it was asked for none before. Those that the link does not take count as never asked
    /// for, so that somebody else may be; a session that is over is asked for none.
    pub(crate) fn assign(&self, experts: Vec<Assigned>) {
        if !self.state().begin_assignment(&experts) {
            return;
        }
        let send = |assign: Assign| self.link.try_send(Kind::Assign, PAIR_STREAM, assign.encode());
        if let Err((left, error)) = in_messages(&experts, send) {
            tracing::warn!(
                session = %self.id.short(), experts = left.len(), %error, "the assignment was not taken by the link"
            );
            self.state().take_back(left);
        }
    }

    /// No new calls from now on.
    pub(crate) fn begin_draining(&self) {
        self.state().draining = true;
    }

    /// No new calls from now on, and a final receipt once those that are open are answered.
    pub(crate) fn begin_leaving(&self) {
        let mut state = self.state();
        state.draining = true;
        state.leaving = true;
    }

    /// Asks for the final receipt of a session that leaves its slot, once, when it owes nothing.
    pub(crate) fn leave_if_done(&self) {
        {
            let mut state = self.state();
            if !state.leaving || state.calls.owed() > 0 {
                return;
            }
            state.leaving = false;
        }
        self.ask_to_drain();
    }

    /// Asks the hub for a final receipt.
    pub(crate) fn ask_to_drain(&self) {
        let drain = Drain { reason: DrainReason::Finished, reconnect_in_ms: 0, try_for_ms: 0 };
        if let Err(error) = self.link.try_send(Kind::Drain, HUB_STREAM, drain.encode()) {
            tracing::debug!(session = %self.id.short(), %error, "drain was not taken by the link");
        }
    }

    /// An answer was computed again, and was as it should be.
    pub(crate) fn count_checked(&self) {
        self.state().numbers.checked += 1;
    }

    /// An answer was computed again, and was wrong: the hub is told with `evidence`, nothing more is asked, and the session
    /// ends with a receipt that leaves the call out. The worker has to sign that too, and with it what it answered.
    pub(crate) fn quarantine(&self, call: u64, why: &str, evidence: Vec<u8>) {
        {
            let mut state = self.state();
            state.numbers.checked += 1;
            state.numbers.wrong += 1;
            state.numbers.accepted = state.numbers.accepted.saturating_sub(1);
            state.numbers.excluded += 1;
            let since = Instant::now();
            let wrong =
                state.wrong.get_or_insert_with(|| Wrong { why: why.to_owned(), since, calls: Vec::new() });
            wrong.calls.push(call);
            // Others that wait for it are told; what it still answers is not used.
            state.calls.give_all_up();
            state.draining = true;
            state.leaving = true;
        }
        let code = RefusalCode::WrongResult;
        let report = Report { session: self.id, call, code, sentence: why.to_owned(), evidence };
        if let Err(error) = self.link.try_send(Kind::Report, HUB_STREAM, report.encode()) {
            tracing::debug!(session = %self.id.short(), %error, "the hub is not told");
        }
    }

    /// Calls whose answers were found wrong, each once: the next receipt leaves them out.
    pub(crate) fn take_wrong_calls(&self) -> Vec<u64> {
        self.state().wrong.as_mut().map(|wrong| std::mem::take(&mut wrong.calls)).unwrap_or_default()
    }

    /// What a worker in quarantine is told that has not signed its last receipt within `patience`.
    pub(crate) fn wrong_result(&self, patience: Duration) -> Option<Refusal> {
        let state = self.state();
        let wrong = state.wrong.as_ref().filter(|wrong| wrong.since.elapsed() > patience)?;
        let remedy = "have the machine's memory and the kernel looked at (kvasir plugin test); this backbone asks it nothing \
                      more";
        Some(Refusal::new(RefusalCode::WrongResult, wrong.why.as_str(), remedy))
    }

    /// The session is over: whoever waits is told, and `why` is kept; of a worker in quarantine, why it is there.
    pub(crate) fn end(&self, why: String) {
        let mut state = self.state();
        state.calls.fail_all();
        state.numbers.connected = false;
        if state.ended.is_none() {
            let why = state.wrong.as_ref().map_or(why, |wrong| wrong.why.clone());
            state.numbers.ended = Some(why.clone());
            state.ended = Some(why);
            // Sessions are remembered for as long as the swarm is there, and workers may come and go for months: what they held
            // is kept in numbers.
            state.numbers.experts = state.held.len();
            state.numbers.holds = by_layer(state.held.iter().copied());
            state.held = HashSet::new();
            state.assigned = HashSet::new();
            state.not_held = HashMap::new();
        }
    }

    /// Its counters, and its latest latencies in microseconds. `bytes` is the length of an expert's weights.
    pub(crate) fn statistics(&self, bytes: impl Fn(ExpertAddress) -> u64) -> (WorkerStatistics, Vec<u32>) {
        let is_whole = self.link.is_whole();
        let (mut numbers, micros, held) = {
            let state = self.state();
            let mut numbers = state.numbers.clone();
            numbers.state = state.standing(is_whole);
            let held: Vec<ExpertAddress> = state.held.iter().copied().collect();
            (numbers, state.latency.latest_micros().to_vec(), held)
        };
        if numbers.ended.is_none() {
            numbers.experts = held.len();
            numbers.holds = by_layer(held.iter().copied());
            numbers.held_bytes = held.into_iter().map(bytes).fold(0, u64::saturating_add);
        }
        numbers.latency = Percentiles::of(micros.clone());
        (numbers, micros)
    }
}

impl State {
    /// Where the session stands, given whether this side's connection is there.
    fn standing(&self, is_whole: bool) -> WorkerState {
        if self.wrong.is_some() {
            WorkerState::Quarantined
        } else if self.ended.is_some() {
            WorkerState::Ended
        } else if self.draining {
            WorkerState::Draining
        } else if self.worker_away || !is_whole {
            WorkerState::Away
        } else if self.calls.late_since().is_some() {
            WorkerState::Late
        } else if self.ejection.is_out() {
            WorkerState::Ejected
        } else if self.held.len() + self.not_held.len() < self.assigned.len() {
            WorkerState::Joining
        } else {
            WorkerState::Serving
        }
    }
}

/// How many of the experts are in each layer, by layer, ascending.
fn by_layer(experts: impl Iterator<Item = ExpertAddress>) -> Vec<(u16, u32)> {
    let mut layers: BTreeMap<u16, u32> = BTreeMap::new();
    for (layer, _) in experts {
        *layers.entry(layer).or_default() += 1;
    }
    layers.into_iter().collect()
}
