//! Routed experts straight from the model by the exact arithmetic: no plugin, no sandbox, no worker.
//!
//! What every other implementor of `Experts` must return, to the last bit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use kvasir_backbone::{Call, CallId, Completed, ExpertIndex, Experts, ExpertsError, Progress};
use kvasir_model::Model;
use kvasir_numerics::{InstructionSet, NotFinite, Swiglu, swiglu};
use kvasir_threads::share;

/// Computes calls in the order of their submission, when polled.
pub struct ReferenceExperts {
    model: Arc<Model>,
    manner: Manner,
    last_call: u64,
    in_flight: VecDeque<(CallId, Call)>,
    /// Calls answered so far.
    pub answered: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// The scalar reference, one row at a time.
    RowByRow,
    /// The machine's fastest instructions, the rows of an expert together, experts on several threads.
    Grouped,
}

impl ReferenceExperts {
    /// The plainest: scalar arithmetic, row by row, in the order of the definition.
    pub fn plain(model: &Arc<Model>) -> ReferenceExperts {
        ReferenceExperts::new(model, Manner::RowByRow)
    }

    /// The same bits, as fast as this process can give them.
    pub fn fast(model: &Arc<Model>) -> ReferenceExperts {
        ReferenceExperts::new(model, Manner::Grouped)
    }

    fn new(model: &Arc<Model>, manner: Manner) -> ReferenceExperts {
        ReferenceExperts {
            model: model.clone(),
            manner,
            last_call: 0,
            in_flight: VecDeque::new(),
            answered: 0,
        }
    }

    fn row_by_row(&self, call: &Call) -> Result<Vec<f32>, ExpertsError> {
        let hidden = self.model.config().hidden as usize;
        let mut sums = vec![0.0; call.count() * hidden];
        let row_bytes = call.rows.len() / call.count().max(1);
        for ((row, picks), sum) in
            call.rows.chunks_exact(row_bytes).zip(&call.picks).zip(sums.chunks_exact_mut(hidden))
        {
            let mut picks = picks.clone();
            picks.sort_by_key(|pick| pick.expert);
            for pick in picks {
                let values = self.expert(call, pick.expert, row, 1, InstructionSet::SCALAR)?;
                for (sum, value) in sum.iter_mut().zip(values) {
                    *sum += pick.weight * value;
                }
            }
        }
        Ok(sums)
    }

    fn grouped(&self, call: &Call) -> Result<Vec<f32>, ExpertsError> {
        let config = self.model.config();
        let (hidden, experts) = (config.hidden as usize, config.experts as usize);
        let row_bytes = call.rows.len() / call.count().max(1);
        let mut requests: Vec<Vec<(usize, f32)>> = vec![Vec::new(); experts];
        for (row, picks) in call.picks.iter().enumerate() {
            for pick in picks {
                requests[usize::from(pick.expert.0)].push((row, pick.weight));
            }
        }
        let mut answers: Vec<Result<Vec<f32>, ExpertsError>> =
            requests.iter().map(|_| Ok(Vec::new())).collect();
        let mut tasks: Vec<_> = requests.iter().zip(&mut answers).enumerate().collect();
        share(&mut tasks, |(expert, (requests, answer))| {
            if requests.is_empty() {
                return;
            }
            let rows: Vec<u8> = requests
                .iter()
                .flat_map(|(row, _)| &call.rows[row * row_bytes..(row + 1) * row_bytes])
                .copied()
                .collect();
            let expert = ExpertIndex(*expert as u16);
            **answer = self.expert(call, expert, &rows, requests.len(), InstructionSet::detect());
        });
        let answers: Vec<Vec<f32>> = answers.into_iter().collect::<Result<_, ExpertsError>>()?;
        let mut sums = vec![0.0; call.count() * hidden];
        for (requests, answers) in requests.iter().zip(&answers) {
            for (&(row, weight), values) in requests.iter().zip(answers.chunks_exact(hidden)) {
                for (sum, value) in sums[row * hidden..][..hidden].iter_mut().zip(values) {
                    *sum += weight * value;
                }
            }
        }
        Ok(sums)
    }

    fn expert(
        &self,
        call: &Call,
        expert: ExpertIndex,
        rows: &[u8],
        count: usize,
        instructions: InstructionSet,
    ) -> Result<Vec<f32>, ExpertsError> {
        let backend = |error: Box<dyn std::error::Error + Send + Sync>| ExpertsError::Backend(error);
        let tensors = self.model.expert(call.layer, expert).map_err(|error| backend(error.into()))?;
        let swiglu_expert = Swiglu::new(tensors.gate.matrix(), tensors.up.matrix(), tensors.down.matrix())
            .map_err(|error| backend(error.into()))?;
        let length = swiglu_expert.scratch_len(count).ok_or_else(|| backend("too many rows".into()))?;
        let mut scratch = vec![0.0; length];
        let mut out = vec![0.0; count * swiglu_expert.hidden()];
        swiglu(instructions, &swiglu_expert, rows, count, &mut scratch, &mut out)
            .map_err(|NotFinite| ExpertsError::NotFinite { layer: call.layer, expert })?;
        Ok(out)
    }
}

impl Experts for ReferenceExperts {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        let config = self.model.config();
        call.check(config.hidden as usize, config.experts as usize)?;
        self.last_call += 1;
        let id = CallId(self.last_call);
        self.in_flight.push_back((id, call));
        Ok(id)
    }

    fn poll(&mut self, _deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        let (id, call) = self.in_flight.pop_front().ok_or(ExpertsError::NothingInFlight)?;
        let sums = match self.manner {
            Manner::RowByRow => self.row_by_row(&call),
            Manner::Grouped => self.grouped(&call),
        };
        Ok(match sums {
            Ok(sums) => {
                self.answered += 1;
                Progress::Completed(Completed { call: id, sums, at: Instant::now() })
            }
            Err(error) => Progress::Failed { call: id, error },
        })
    }

    fn cancel(&mut self, call: CallId) {
        self.in_flight.retain(|(id, _)| *id != call);
    }
}
