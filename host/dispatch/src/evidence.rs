//! Evidence against a worker: the call whose answer was found wrong, under a receipt that the worker signed.
//!
//! Nothing is kept of answers that nobody finds wrong. Of one that is, the call and the worker's values are still at hand, and from
//! these its payload and its rows are made again, byte for byte. They wait for the next receipt, which leaves the call out unless it
//! covers it already: the worker signs that, and with it the root over all that it answered. A few calls of a session may wait at one
//! time, and stand in one file together; one is enough to convict.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use kvasir_backbone::Call;
use kvasir_wire::id::{SessionId, sha256};
use kvasir_wire::message::CallResult;
use kvasir_wire::note::Note;
use kvasir_wire::probe::{ProbeFile, ProbeRecord};
use kvasir_wire::receipt::ReceiptKeys;
use kvasir_wire::work::WorkItem;

use crate::payload::Unnumbered;
use crate::split::Part;

/// What convicts a worker: whoever has the model and the plugin can compute the call again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The keys of the session's parties, which the receipt names by their digests.
    pub keys: ReceiptKeys,
    /// The receipt, with all three signatures.
    pub receipt: Note,
    /// The calls, the rows that the worker answered, and the proofs that both are under the receipt's work root.
    pub record: ProbeFile,
}

/// Where evidence goes. It is called before anybody is told of the receipt, on a thread that may wait for a disk.
#[derive(Clone)]
pub struct EvidenceSink(Arc<Take>);

type Take = dyn Fn(&Evidence) -> io::Result<()> + Send + Sync;

impl EvidenceSink {
    /// Gives all evidence to `take`. What it fails with is logged and counted; work goes on.
    pub fn new(take: impl Fn(&Evidence) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    pub(crate) fn take(&self, evidence: &Evidence) -> io::Result<()> {
        (self.0)(evidence)
    }
}

impl fmt::Debug for EvidenceSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EvidenceSink")
    }
}

/// A call whose answer was found wrong, as it was sent and as it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrongCall {
    pub(crate) item: WorkItem,
    pub(crate) payload: Vec<u8>,
    pub(crate) rows: Vec<u8>,
}

impl WrongCall {
    /// A part of `call` that went out under this number and was answered with these values. The bytes are those that were sent: the
    /// same function makes both.
    pub(crate) fn again(call: &Call, part: &Part, number: u64, values: &[f32]) -> Option<WrongCall> {
        let unnumbered = Unnumbered::of(call, part)?;
        let mode = unnumbered.mode;
        let payload = unnumbered.numbered(number).ok()?;
        let rows = CallResult::row_bytes(values);
        let item = WorkItem {
            call: number,
            layer: call.layer.0,
            mode: mode as u8,
            payload: sha256(&[&payload]),
            rows: sha256(&[&rows]),
        };
        Some(WrongCall { item, payload, rows })
    }
}

/// Wrong calls of one session that may wait, and stand in one piece of evidence.
const MOST_CALLS: usize = 4;
/// Most bytes of payloads and rows of these together; one call has room whatever it weighs.
const MOST_BYTES: usize = 16 << 20;

/// Whether a piece of evidence with these calls takes another one.
pub(crate) fn takes_another(records: &[ProbeRecord], another: &ProbeRecord) -> bool {
    let all = records.iter().chain([another]);
    is_bounded(records.len() + 1, all.map(|record| record.payload.len() + record.rows.len()).sum())
}

fn bytes_of(calls: &[WrongCall]) -> usize {
    calls.iter().map(|wrong| wrong.payload.len() + wrong.rows.len()).sum()
}

fn is_bounded(calls: usize, bytes: usize) -> bool {
    calls <= 1 || (calls <= MOST_CALLS && bytes <= MOST_BYTES)
}

/// Of each session the calls that were found wrong, ascending by number, until a receipt leaves them out. Checks are done in any order,
/// and which calls a receipt covers already is not known here: so some wait beside each other, the latest ones where they are many.
#[derive(Debug, Default)]
pub(crate) struct WrongCalls(Mutex<HashMap<SessionId, Vec<WrongCall>>>);

impl WrongCalls {
    fn calls(&self) -> MutexGuard<'_, HashMap<SessionId, Vec<WrongCall>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, session: SessionId, wrong: WrongCall) {
        let mut calls = self.calls();
        let waiting = calls.entry(session).or_default();
        let at = waiting.partition_point(|other| other.item.call < wrong.item.call);
        waiting.insert(at, wrong);
        while !is_bounded(waiting.len(), bytes_of(waiting)) {
            waiting.remove(0);
        }
    }

    /// The session's call with this number, if it waits.
    pub(crate) fn take(&self, session: SessionId, call: u64) -> Option<WrongCall> {
        let mut calls = self.calls();
        let waiting = calls.get_mut(&session)?;
        let at = waiting.iter().position(|wrong| wrong.item.call == call)?;
        let wrong = waiting.remove(at);
        if waiting.is_empty() {
            calls.remove(&session);
        }
        Some(wrong)
    }

    /// The session is over: nobody signs for it any more.
    pub(crate) fn forget(&self, session: SessionId) {
        self.calls().remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use kvasir_backbone::Pick;
    use kvasir_experts::{ExpertIndex, ExpertRows, LayerIndex, RowFormat};
    use kvasir_wire::message::{self, Mode};

    use super::*;
    use crate::split::Answer;

    fn wrong(call: u64) -> WrongCall {
        let item = WorkItem { call, layer: 0, mode: 1, payload: [1; 32], rows: [2; 32] };
        WrongCall { item, payload: vec![1], rows: vec![2] }
    }

    #[test]
    fn a_sessions_wrong_calls_wait_until_they_are_asked_for_or_it_is_over() {
        let (calls, session) = (WrongCalls::default(), SessionId([1; 32]));
        calls.put(session, wrong(5));
        calls.put(session, wrong(3));
        assert_eq!(calls.take(SessionId([2; 32]), 5), None);
        assert_eq!(calls.take(session, 4), None);
        assert_eq!(
            calls.take(session, 5),
            Some(wrong(5)),
            "the earlier one that was found later is beside it"
        );
        assert_eq!(calls.take(session, 5), None);
        assert_eq!(calls.take(session, 3), Some(wrong(3)));
        assert!(calls.calls().is_empty(), "nothing is left of a session without any");
        calls.put(session, wrong(7));
        calls.forget(session);
        assert_eq!(calls.take(session, 7), None);
    }

    #[test]
    fn the_latest_wait_where_there_are_many_or_they_are_large() {
        let (calls, session) = (WrongCalls::default(), SessionId([1; 32]));
        for call in [6, 2, 5, 9, 3] {
            calls.put(session, wrong(call));
        }
        let waiting = |calls: &WrongCalls| -> Vec<u64> {
            calls.calls()[&session].iter().map(|wrong| wrong.item.call).collect()
        };
        assert_eq!(waiting(&calls), [3, 5, 6, 9]);
        // Two that are beyond the bound together, of which each has room alone.
        let large = |call| WrongCall { payload: vec![0; MOST_BYTES / 2 + 1], ..wrong(call) };
        calls.put(session, large(10));
        assert_eq!(waiting(&calls), [5, 6, 9, 10]);
        calls.put(session, large(11));
        assert_eq!(waiting(&calls), [11]);
        calls.put(session, WrongCall { payload: vec![0; 2 * MOST_BYTES], ..wrong(12) });
        assert_eq!(waiting(&calls), [12], "one is enough, whatever it weighs");
    }

    #[test]
    fn a_piece_of_evidence_is_bounded_in_calls_and_bytes() {
        let record = |bytes| {
            let item = wrong(1).item.encode();
            ProbeRecord { index: 0, item, proof: Vec::new(), payload: vec![0; bytes], rows: Vec::new() }
        };
        assert!(takes_another(&[], &record(2 * MOST_BYTES)));
        let three = [record(1), record(1), record(1)];
        assert!(takes_another(&three, &record(1)));
        assert!(!takes_another(&three, &record(MOST_BYTES)));
        assert!(!takes_another(&[&three[..], &three[..1]].concat(), &record(1)), "four are enough");
    }

    #[test]
    fn a_call_is_made_again_from_the_rows_that_were_sent() {
        let picks = (0..3).map(|expert| vec![Pick { expert: ExpertIndex(expert), weight: 1.0 }]).collect();
        let rows: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        let call = Call { layer: LayerIndex(4), row_format: RowFormat::Float32, rows: rows.into(), picks };
        let request = ExpertRows { expert: ExpertIndex(2), rows: vec![0], weights: vec![1.0] };
        let part =
            Part { slot: 0, rows: vec![2], requests: vec![request], answer: Answer::Rows(vec![(0, 0..1)]) };
        let again = WrongCall::again(&call, &part, 9, &[0.5]).unwrap();
        let sent = message::Call::decode(&again.payload).unwrap();
        assert_eq!((sent.call, sent.layer, sent.mode, sent.rows), (9, 4, Mode::Each, 1));
        assert_eq!(sent.data, 3.0f32.to_le_bytes());
        assert!(sent.experts[0].weights.is_empty(), "this side adds up");
        assert_eq!(again.rows, 0.5f32.to_le_bytes());
        assert_eq!((again.item.payload, again.item.call), (sha256(&[&again.payload]), 9));
    }
}
