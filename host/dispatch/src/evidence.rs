//! Evidence against a worker: the call whose answer was found wrong, under a receipt that the worker signed.
//!
//! Nothing is kept of answers that nobody finds wrong. Of one that is, the call and the worker's values are still at hand, and from
//! these its payload and its rows are made again, byte for byte. They wait for the next receipt, which leaves the call out: the
//! worker signs that, and with it the root over all that it answered. One call a session is kept, which is enough.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use kvasir_backbone::Call;
use kvasir_wire::id::{SessionId, sha256};
use kvasir_wire::message::{self, CallResult, Mode};
use kvasir_wire::note::Note;
use kvasir_wire::probe::ProbeFile;
use kvasir_wire::receipt::ReceiptKeys;
use kvasir_wire::work::WorkItem;

use crate::split::{Answer, Part};

/// What convicts a worker: whoever has the model and the plugin can compute the call again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The keys of the session's parties, which the receipt names by their digests.
    pub keys: ReceiptKeys,
    /// The receipt, with all three signatures.
    pub receipt: Note,
    /// The call, the rows that the worker answered, and the proof that both are under the receipt's work root.
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
    /// A part of `call` that went out under this number and was answered with these values. The bytes are those that
    /// `Session::ask` sent, since one call has one encoding.
    pub(crate) fn again(call: &Call, part: &Part, number: u64, values: &[f32]) -> Option<WrongCall> {
        let mode = match part.answer {
            Answer::Sums => Mode::Sum,
            Answer::Rows(_) => Mode::Each,
        };
        let experts = part.requests.iter().map(|request| message::ExpertRows {
            expert: request.expert.0,
            rows: request.rows.clone(),
            weights: if mode == Mode::Sum { request.weights.clone() } else { Vec::new() },
        });
        let row_bytes = call.rows.len() / call.count().max(1);
        let rows_sent = part.rows.iter().map(|&row| &call.rows[row as usize * row_bytes..][..row_bytes]);
        let data: Vec<u8> = rows_sent.flatten().copied().collect();
        let sent = message::Call {
            call: number,
            layer: call.layer.0,
            mode,
            row_format: message::RowFormat::from_number(call.row_format.number())?,
            rows: part.rows.len() as u32,
            experts: experts.collect(),
            data: &data,
        };
        let payload = sent.encode().ok()?;
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

/// Of each session the latest call that was found wrong, until a receipt leaves it out. The latest, since a receipt may cover an earlier
/// one already; checks are done in any order.
#[derive(Debug, Default)]
pub(crate) struct WrongCalls(Mutex<HashMap<SessionId, WrongCall>>);

impl WrongCalls {
    fn calls(&self) -> MutexGuard<'_, HashMap<SessionId, WrongCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, session: SessionId, wrong: WrongCall) {
        let mut calls = self.calls();
        if calls.get(&session).is_none_or(|kept| kept.item.call < wrong.item.call) {
            calls.insert(session, wrong);
        }
    }

    /// The session's, if it is the call with this number.
    pub(crate) fn take(&self, session: SessionId, call: u64) -> Option<WrongCall> {
        let mut calls = self.calls();
        calls.get(&session).filter(|wrong| wrong.item.call == call)?;
        calls.remove(&session)
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

    use super::*;

    fn wrong(call: u64) -> WrongCall {
        let item = WorkItem { call, layer: 0, mode: 1, payload: [1; 32], rows: [2; 32] };
        WrongCall { item, payload: vec![1], rows: vec![2] }
    }

    #[test]
    fn a_session_has_its_latest_wrong_call_until_it_is_asked_for_or_over() {
        let (calls, session) = (WrongCalls::default(), SessionId([1; 32]));
        calls.put(session, wrong(3));
        calls.put(session, wrong(5));
        calls.put(session, wrong(4));
        assert_eq!(calls.take(session, 3), None, "a later one took its place");
        assert_eq!(calls.take(session, 4), None, "an earlier one that is found later does not");
        assert_eq!(calls.take(SessionId([2; 32]), 5), None);
        assert_eq!(calls.take(session, 5), Some(wrong(5)));
        assert_eq!(calls.take(session, 5), None);
        calls.put(session, wrong(7));
        calls.forget(session);
        assert_eq!(calls.take(session, 7), None);
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
