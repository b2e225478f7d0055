//! The seam between the layers and whoever computes routed experts: calls, answers and the trait [`Experts`].
//!
//! A call is submitted and its answer polled for, because several calls may be in flight, may be cancelled, and may
//! be answered by another machine. This file moves no bytes and computes nothing; the order of the sum that every
//! implementor must return is stated at [`Completed`].

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_numerics::RowFormat;
use thiserror::Error;

/// Names one submitted call; unique within one [`Experts`] value, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub u64);

impl std::fmt::Display for CallId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "call {}", self.0)
    }
}

/// One expert that the router chose for a row, and its weight after renormalisation over the row's picks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    /// The expert within its layer.
    pub expert: ExpertIndex,
    /// Its weight; the weights of one row sum to about 1.
    pub weight: f32,
}

/// A batch of rows for the routed experts of one layer.
#[derive(Debug, Clone)]
pub struct Call {
    /// The layer whose experts are asked.
    pub layer: LayerIndex,
    /// How the rows are laid out; it is the row format of the gate and up matrices of the layer's experts.
    pub row_format: RowFormat,
    /// `picks.len()` rows back to back, each `row_format.row_bytes(hidden)` bytes.
    pub rows: Arc<[u8]>,
    /// The chosen experts of each row, highest weight first; within a row no expert appears twice.
    pub picks: Vec<Vec<Pick>>,
}

impl Call {
    /// Number of rows.
    pub fn count(&self) -> usize {
        self.picks.len()
    }

    /// Checks that the call is well formed for rows of `hidden` values and layers of `experts` experts. Implementors
    /// may call it on submit, so that a broken call is refused before it costs anything.
    pub fn check(&self, hidden: usize, experts: usize) -> Result<(), ExpertsError> {
        let malformed = |what: String| ExpertsError::MalformedCall { layer: self.layer, what };
        let row_bytes = self.row_format.row_bytes(hidden).ok_or_else(|| {
            malformed(format!("rows of {hidden} values are not whole blocks of {:?}", self.row_format))
        })?;
        if row_bytes.checked_mul(self.count()) != Some(self.rows.len()) {
            let (bytes, count) = (self.rows.len(), self.count());
            return Err(malformed(format!("{bytes} bytes are not {count} rows of {row_bytes} bytes")));
        }
        for (row, picks) in self.picks.iter().enumerate() {
            for (at, pick) in picks.iter().enumerate() {
                if usize::from(pick.expert.0) >= experts {
                    return Err(malformed(format!(
                        "row {row} asks for expert {} of {experts}",
                        pick.expert.0
                    )));
                }
                if !pick.weight.is_finite() {
                    return Err(malformed(format!("row {row} has a weight that is not finite")));
                }
                if picks[..at].iter().any(|earlier| earlier.expert == pick.expert) {
                    return Err(malformed(format!("row {row} picks expert {} twice", pick.expert.0)));
                }
            }
        }
        Ok(())
    }
}

/// The answer to a call.
#[derive(Debug, Clone)]
pub struct Completed {
    /// The call that is answered.
    pub call: CallId,
    /// Row-major, rows x hidden. For every row the weighted sum of its routed experts: from zero, in ascending expert
    /// index, `acc = acc + weight * y`, product and sum rounded separately. The shared expert is not included.
    pub sums: Vec<f32>,
    /// When the answer was whole. Whoever has something else to compute may poll for it much later.
    pub at: Instant,
}

/// What a poll found.
#[derive(Debug)]
pub enum Progress {
    /// A call was answered; each answer is reported once.
    Completed(Completed),
    /// A call came to nothing, which is reported once; others in flight are as before.
    Failed {
        /// The call.
        call: CallId,
        /// Why.
        error: ExpertsError,
    },
    /// No call was answered before the deadline.
    Pending,
}

/// Whoever computes routed experts: this process, its plugins, or workers elsewhere.
pub trait Experts: Send {
    /// Starts a call and returns without waiting for its answer. Any number of calls may be in flight.
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError>;

    /// Waits for the next answer to any call in flight. `None` waits as long as it takes; `Some(instant)` gives
    /// [`Progress::Pending`] once the instant has passed. With one in the past it does not wait, but whoever computes
    /// calls on the caller's thread does so then too: what is left to wait for is elsewhere. With no call in flight the
    /// answer is [`ExpertsError::NothingInFlight`]. What ends one call is [`Progress::Failed`]; an error ends them all.
    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError>;

    /// When the next answer is likely to come, where somebody can say: from a fraction of a millisecond before until a little after, a
    /// time that is not over yet. A hint, for whoever waits and would be ready then; nothing depends on it.
    fn expected(&self) -> Option<Range<Instant>> {
        None
    }

    /// Gives up a call: its answer will not be reported. Unknown and answered calls are ignored.
    fn cancel(&mut self, call: CallId);
}

/// Submits `call` and waits for its answer. No other call may be in flight on `experts`: its answer would be lost,
/// so meeting one is an error.
pub fn call_blocking(experts: &mut dyn Experts, call: Call) -> Result<Completed, ExpertsError> {
    let id = experts.submit(call)?;
    wait_for(experts, id, |_| None)
}

/// Waits for the answer to `call`, the only one in flight on `experts`; asks before each poll until when it waits.
pub(crate) fn wait_for(
    experts: &mut dyn Experts,
    call: CallId,
    mut until: impl FnMut(&dyn Experts) -> Option<Instant>,
) -> Result<Completed, ExpertsError> {
    loop {
        let until = until(experts);
        match experts.poll(until)? {
            Progress::Completed(completed) if completed.call == call => return Ok(completed),
            Progress::Failed { call: failed, error } if failed == call => return Err(error),
            Progress::Completed(Completed { call: other, .. }) | Progress::Failed { call: other, .. } => {
                return Err(ExpertsError::WrongCall { expected: call, received: other });
            }
            Progress::Pending => {}
        }
    }
}

/// Why routed experts could not be computed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExpertsError {
    /// The caller's fault: the call contradicts itself or the model.
    #[error("malformed call for layer {}: {what}", layer.0)]
    MalformedCall {
        /// The layer asked.
        layer: LayerIndex,
        /// What is wrong with it.
        what: String,
    },
    /// The caller's fault: it polled although nothing was submitted.
    #[error("no call is in flight, so there is nothing to wait for")]
    NothingInFlight,
    /// The caller's fault, or an implementor that mixes up calls: an answer arrived that nobody waited for.
    #[error("waited for {expected}, but {received} was answered")]
    WrongCall {
        /// The call waited for.
        expected: CallId,
        /// The call answered.
        received: CallId,
    },
    /// The implementor's fault: the answer has the wrong number of values.
    #[error("{call} was answered with {received} values instead of {expected}")]
    WrongLength {
        /// The call answered.
        call: CallId,
        /// rows x hidden.
        expected: usize,
        /// What arrived.
        received: usize,
    },
    /// A NaN or an infinity arose in an expert or in the rows sent to it.
    #[error("expert {} of layer {} met a value that is not finite", expert.0, layer.0)]
    NotFinite {
        /// The layer.
        layer: LayerIndex,
        /// The expert.
        expert: ExpertIndex,
    },
    /// Whatever else an implementor met, with its own account of it.
    #[error(transparent)]
    Backend(#[from] Box<dyn Error + Send + Sync>),
}
