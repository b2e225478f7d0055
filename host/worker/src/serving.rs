//! Answering calls: what runs on the workbench for one session, or with a turn at it.
//!
//! Results are booked and queued under one lock, so the order of the books is the order on the link, in which the hub
//! meters and the backbone books. Every call is answered exactly once, if only with the reason why not.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvasir_experts::{
    ExpertIndex, ExpertRows, ExpertRunner, GpuError, KernelError, LayerIndex, RowFormat, RunnerError,
};
use kvasir_link::LinkSender;
use kvasir_wire::frame::{Kind, Lane, PAIR_STREAM};
use kvasir_wire::id::sha256;
use kvasir_wire::limits::MAX_PAYLOAD_BYTES;
use kvasir_wire::message::{
    Assigned, Call, CallResult, ExpertName, Failure, FailureCode, Have, Mode, NotHeld, NotHeldReason,
    Outcome, call_of_stream,
};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::work::WorkItem;
use tokio::sync::{Notify, mpsc};

use crate::books::Books;
use crate::canary::Canary;
use crate::event::{Event, EventSink, Fault};
use crate::failures::FailureBounds;
use crate::store::Store;

/// Calls that may wait for the workbench.
const MAX_WAITING_CALLS: usize = 512;
/// Bytes of calls that may wait for the workbench.
const MAX_WAITING_BYTES: usize = 4 * MAX_PAYLOAD_BYTES;
/// Bytes of a call that may be computed on a thread of the network: some rows of a small model. What more of them ask for, or one row of
/// a large model, computes for so long that a wake-up is nothing beside it.
const MAX_LITTLE_BYTES: usize = 2 * 1024;
/// Result bytes that may wait for the link before the workbench pauses.
const MAX_UNSENT_BYTES: usize = MAX_PAYLOAD_BYTES;
/// How long it pauses before it looks again.
const PAUSE: Duration = Duration::from_millis(2);

/// What the network's side and the workbench share of one session.
pub(crate) struct Serving {
    pub(crate) link: LinkSender,
    pub(crate) runner: Arc<ExpertRunner>,
    pub(crate) store: Arc<Store>,
    pub(crate) events: EventSink,
    pub(crate) fault: Option<Fault>,
    /// Results answered in the worker's life: what faults count by.
    pub(crate) life: Arc<AtomicU64>,
    /// Told when a fault demands the worker's death.
    pub(crate) death: Arc<Notify>,
    /// Where the plugin's failures are counted, if they are.
    pub(crate) bounds: FailureBounds,
    /// Told when the plugin has failed too often.
    pub(crate) quarantine: Notify,
    /// Told experts that a failed process took with it, to be loaded again.
    pub(crate) lost: mpsc::UnboundedSender<Vec<Assigned>>,
    /// The candidate that computes the same calls, if there is one.
    canary: Mutex<Option<Arc<Canary>>>,
    books: Mutex<Books>,
    bytes: Mutex<(u64, u64)>,
    cancelled: Mutex<HashSet<u64>>,
    waiting_calls: AtomicUsize,
    waiting_bytes: AtomicUsize,
}

/// What a call's answer is booked under.
struct Asked {
    call: u64,
    layer: u16,
    mode: u8,
    rows: u32,
    payload: [u8; 32],
    up: u64,
}

impl Serving {
    #[allow(clippy::too_many_arguments)] // each is a field, named at the one place that calls this
    pub(crate) fn new(
        link: LinkSender,
        runner: Arc<ExpertRunner>,
        store: Arc<Store>,
        events: EventSink,
        fault: Option<Fault>,
        life: Arc<AtomicU64>,
        death: Arc<Notify>,
        bounds: FailureBounds,
        lost: mpsc::UnboundedSender<Vec<Assigned>>,
        books: Books,
    ) -> Self {
        Self {
            link,
            runner,
            store,
            events,
            fault,
            life,
            death,
            bounds,
            quarantine: Notify::new(),
            lost,
            canary: Mutex::default(),
            books: Mutex::new(books),
            bytes: Mutex::new((0, 0)),
            cancelled: Mutex::default(),
            waiting_calls: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
        }
    }

    /// A candidate begins or ends to compute the same calls.
    pub(crate) fn set_canary(&self, canary: Option<Arc<Canary>>) {
        *self.canary.lock().unwrap_or_else(PoisonError::into_inner) = canary;
    }

    fn canary(&self) -> Option<Arc<Canary>> {
        self.canary.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a call into the queue's account. If there is no room it is answered at once, and not to be queued.
    pub(crate) fn admit(&self, stream: u32, payload: &[u8]) -> bool {
        let calls = self.waiting_calls.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = self.waiting_bytes.fetch_add(payload.len(), Ordering::Relaxed) + payload.len();
        if calls <= MAX_WAITING_CALLS && bytes <= MAX_WAITING_BYTES {
            return true;
        }
        self.leave(payload.len());
        let sentence = format!(
            "{calls} calls of {bytes} bytes wait here; the limits are {MAX_WAITING_CALLS} and {MAX_WAITING_BYTES}"
        );
        self.fail_unread(stream, payload, FailureCode::Overloaded, sentence);
        false
    }

    /// Calls whose answer is not wanted any more.
    pub(crate) fn cancel(&self, calls: impl Iterator<Item = u64>) {
        let mut cancelled = self.cancelled.lock().unwrap_or_else(PoisonError::into_inner);
        cancelled.extend(calls);
        // Those that were answered before their cancel came are never taken out; forget all rather than grow.
        if cancelled.len() > 4 * MAX_WAITING_CALLS {
            cancelled.clear();
        }
    }

    /// Whether whoever computes a call of these bytes mostly waits for another process, and hardly for anything else: then a thread
    /// of the network may do it.
    pub(crate) fn is_little(&self, payload: &[u8]) -> bool {
        payload.len() <= MAX_LITTLE_BYTES
            && self.fault.is_none()
            // Whoever compares may have lanes of the kernel in use.
            && self.canary().is_none()
            && self.link.queued_bytes(Lane::Dispatch) <= MAX_UNSENT_BYTES
    }

    /// Computes and answers a call that was admitted, and tells of it. Runs on the workbench.
    pub(crate) fn serve(&self, stream: u32, payload: &[u8]) {
        if let Some(event) = self.serve_quietly(stream, payload) {
            (self.events)(event);
        }
    }

    /// Computes and answers a call that was admitted; gives what is to be told of it.
    pub(crate) fn serve_quietly(&self, stream: u32, payload: &[u8]) -> Option<Event> {
        self.leave(payload.len());
        let wrong = match Call::decode(payload) {
            Ok(call) if call.call == call_of_stream(stream) => return self.serve_call(&call, payload),
            Ok(_) => "the call's number is not that of its stream".to_owned(),
            Err(error) => error.to_string(),
        };
        self.refuse_peer(wrong);
        None
    }

    fn serve_call(&self, call: &Call<'_>, payload: &[u8]) -> Option<Event> {
        match self.fault {
            Some(Fault::StallAfter { results }) if self.life.load(Ordering::Relaxed) >= results => {
                return None;
            }
            Some(Fault::DieAfter { results }) if self.life.load(Ordering::Relaxed) >= results => {
                self.death.notify_one();
                return None;
            }
            _ => {}
        }
        let asked = Asked {
            call: call.call,
            layer: call.layer,
            mode: call.mode as u8,
            rows: call.rows,
            payload: sha256(&[payload]),
            up: payload.len() as u64,
        };
        let cancelled = self.cancelled.lock().unwrap_or_else(PoisonError::into_inner).remove(&call.call);
        let computed = if cancelled {
            Err(Failure {
                code: FailureCode::Cancelled,
                sentence: "cancelled before it was computed".to_owned(),
            })
        } else {
            self.compute(call)
        };
        match computed {
            Ok(values) => {
                let mut rows = CallResult::row_bytes(&values);
                let number = self.life.fetch_add(1, Ordering::Relaxed) + 1;
                let lies = match self.fault {
                    Some(Fault::FlipBit { result }) => number == result,
                    Some(Fault::TurnAfter { results }) => number > results,
                    _ => false,
                };
                if lies {
                    flip_bit(&values, &mut rows);
                }
                if let Some(Fault::Late { result, by }) = self.fault
                    && result == number
                {
                    std::thread::sleep(by);
                }
                let told = self.answer(&asked, Outcome::Rows(&rows));
                if let Some(canary) = self.canary() {
                    canary.compare(&self.runner, payload, values);
                }
                told
            }
            Err(failure) => {
                tracing::debug!(call = asked.call, %failure, "call failed");
                if failure.code == FailureCode::KernelFault || failure.code == FailureCode::NotHeld {
                    self.tell_lost(&failure);
                    self.look_at_failures();
                }
                self.answer(&asked, Outcome::Failed(failure))
            }
        }
    }

    fn compute(&self, call: &Call<'_>) -> Result<Vec<f32>, Failure> {
        let failure = |code, sentence: String| Failure { code, sentence };
        let layer = LayerIndex(call.layer);
        let missing = call
            .experts
            .iter()
            .find(|rows| !self.store.holds(ExpertName { layer: call.layer, expert: rows.expert }));
        if let Some(missing) = missing {
            let sentence = format!("expert {} of layer {layer} is not held here", missing.expert);
            return Err(failure(FailureCode::NotHeld, sentence));
        }
        let row_format = RowFormat::from_number(call.row_format as u8)
            .ok_or_else(|| failure(FailureCode::BadRows, "unknown row format".to_owned()))?;
        let hidden = call
            .columns()
            .ok_or_else(|| failure(FailureCode::BadRows, "rows are not whole blocks".to_owned()))?;
        let requests = requests(call);
        let result = match call.mode {
            Mode::Each => self.runner.each(layer, row_format, call.data, hidden, &requests),
            Mode::Sum => self.runner.sum(layer, row_format, call.data, hidden, &requests),
        };
        result.map_err(|error| {
            let code = match &error {
                RunnerError::NotHeld { .. } => FailureCode::NotHeld,
                RunnerError::WrongRowFormat { .. }
                | RunnerError::WrongHidden { .. }
                | RunnerError::Malformed { .. } => FailureCode::BadRows,
                _ => FailureCode::KernelFault,
            };
            // What a process said on its way out is for this machine's log, not for strangers.
            let sentence = match &error {
                RunnerError::Gpu(GpuError::Crashed { request, status, .. }) => {
                    format!("the GPU's process ended in {request} ({status})")
                }
                RunnerError::Process(KernelError::Crashed { request, status, .. }) => {
                    format!("the kernel's process ended in {request} ({status})")
                }
                error => error.to_string(),
            };
            failure(code, sentence)
        })
    }

    /// Books an answer and queues it; gives what is to be told of it.
    fn answer(&self, asked: &Asked, outcome: Outcome<'_>) -> Option<Event> {
        while self.link.queued_bytes(Lane::Dispatch) > MAX_UNSENT_BYTES && self.link.is_open() {
            std::thread::sleep(PAUSE);
        }
        let item = WorkItem {
            call: asked.call,
            layer: asked.layer,
            mode: asked.mode,
            payload: asked.payload,
            rows: CallResult::rows_digest(&outcome),
        };
        let succeeded = matches!(outcome, Outcome::Rows(_));
        let mut payload = CallResult { call: asked.call, outcome, work_root: [0; 32] }.encode();
        let down = payload.len() as u64;

        let mut books = self.books();
        let root = match books.record(&item, asked.up, down, asked.rows.into()) {
            Ok(root) => root,
            Err(error) => {
                drop(books);
                let remedy = "the hub should cut receipts more often";
                self.link.refuse(Refusal::new(RefusalCode::LimitReached, error.to_string(), remedy));
                return None;
            }
        };
        let root_at = payload.len() - root.0.len();
        payload[root_at..].copy_from_slice(&root.0);
        let results = books.results();
        // Twice its call's number, as it came in.
        let sent = self.link.send_at_once(Kind::Result, (asked.call * 2) as u32, payload);
        drop(books);

        if let Err(error) = sent {
            tracing::debug!(%error, "a result was not taken by the link");
            let remedy = "connect again";
            self.link.refuse(Refusal::new(RefusalCode::Internal, error.to_string(), remedy));
            return None;
        }
        succeeded.then(|| {
            let (bytes_up, bytes_down) = {
                let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.0 += asked.up;
                bytes.1 += down;
                *bytes
            };
            let (layer, rows) = (asked.layer, asked.rows);
            Event::CallServed { results, layer, rows, bytes_up, bytes_down }
        })
    }

    /// Answers a call without having computed it.
    fn fail_unread(&self, stream: u32, payload: &[u8], code: FailureCode, sentence: String) {
        match Call::decode(payload) {
            Ok(call) if call.call == call_of_stream(stream) => {
                let asked = Asked {
                    call: call.call,
                    layer: call.layer,
                    mode: call.mode as u8,
                    rows: call.rows,
                    payload: sha256(&[payload]),
                    up: payload.len() as u64,
                };
                self.answer(&asked, Outcome::Failed(Failure { code, sentence }));
            }
            Ok(_) => self.refuse_peer("the call's number is not that of its stream".to_owned()),
            Err(error) => self.refuse_peer(error.to_string()),
        }
    }

    /// Tells the backbone which experts a failed kernel took with it.
    fn tell_lost(&self, failure: &Failure) {
        let lost = self.store.drop_lost();
        if lost.is_empty() {
            return;
        }
        let reason = failure.sentence.clone();
        tracing::warn!(experts = lost.len(), reason, "a kernel failed and took experts with it");
        (self.events)(Event::Lost { experts: lost.len(), reason });
        let reason = NotHeldReason::NotReceived;
        let not_held = lost.iter().map(|assigned| NotHeld { name: assigned.name, reason }).collect();
        // Only where it is bounded how often a plugin may fail, by the quarantine.
        if self.bounds.exist() {
            // Fails only when the session is over.
            let _ = self.lost.send(lost);
        }
        let have = Have { free_bytes: self.store.free_bytes(), held: Vec::new(), not_held };
        if let Err(error) = self.link.try_send(Kind::Have, PAIR_STREAM, have.encode()) {
            tracing::debug!(%error, "the loss of experts was not told");
        }
    }

    /// Gives the plugin up once it has failed too often.
    pub(crate) fn look_at_failures(&self) {
        if self.bounds.exceeded(self.runner.plugin()).is_some() {
            self.quarantine.notify_one();
        }
    }

    /// Ends the link: its other end does not speak the protocol.
    fn refuse_peer(&self, what: String) {
        let remedy = "update the older of the two sides; if both are current, report this sentence";
        self.link.refuse(Refusal::new(RefusalCode::ProtocolError, what, remedy));
    }

    fn leave(&self, bytes: usize) {
        self.waiting_calls.fetch_sub(1, Ordering::Relaxed);
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What a call asks of each expert.
pub(crate) fn requests(call: &Call<'_>) -> Vec<ExpertRows> {
    let asked = call.experts.iter().map(|rows| ExpertRows {
        expert: ExpertIndex(rows.expert),
        rows: rows.rows.clone(),
        weights: rows.weights.clone(),
    });
    asked.collect()
}

/// The fault of the negative control: the highest mantissa bit of the largest value, so that it cannot drown.
fn flip_bit(values: &[f32], rows: &mut [u8]) {
    let largest = values.iter().enumerate().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
    if let Some((index, value)) = largest {
        let flipped = f32::from_bits(value.to_bits() ^ (1 << 22));
        rows[index * 4..index * 4 + 4].copy_from_slice(&flipped.to_le_bytes());
        tracing::warn!(index, was = value, now = flipped, "flipped a bit on purpose");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flipped_bit_is_one_and_visible() {
        let values = [0.0f32, -3.0, 2.5];
        let mut rows = CallResult::row_bytes(&values);
        let before = rows.clone();
        flip_bit(&values, &mut rows);
        let differing: u32 = rows.iter().zip(&before).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(differing, 1);
        let changed = f32::from_le_bytes([rows[4], rows[5], rows[6], rows[7]]);
        assert_eq!(changed, -2.0);
    }
}
