//! Experts of a model on this machine, as a backbone wants them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use kvasir_backbone::{Call, CallId, Completed, Experts, ExpertsError, Progress};
use kvasir_model::{ExpertIndex, LayerIndex, Model};
use kvasir_numerics::Swiglu;

use crate::request::group;
use crate::runner::{ExpertRunner, ExpertSource, SourceError};

/// Answers a backbone's calls from a model's files through a runner: the reference against which every remote answer
/// must be equal. A call is computed when it is submitted, on the threads that the caller has entered; experts are
/// loaded when they are first picked.
pub struct LocalExperts {
    model: Arc<Model>,
    runner: Arc<ExpertRunner>,
    last: u64,
    answered: VecDeque<Completed>,
}

impl LocalExperts {
    /// Answers with the experts of `model`, held in `runner`. A runner serves one model.
    pub fn new(model: Arc<Model>, runner: Arc<ExpertRunner>) -> Self {
        LocalExperts { model, runner, last: 0, answered: VecDeque::new() }
    }
}

impl Experts for LocalExperts {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        let config = self.model.config();
        let hidden = config.hidden as usize;
        call.check(hidden, config.experts as usize)?;
        let requests = group(&call);
        let model: &Model = &self.model;
        let sums = self.runner.sum_from(model, call.layer, call.row_format, &call.rows, hidden, &requests)?;
        self.last += 1;
        let call = CallId(self.last);
        self.answered.push_back(Completed { call, sums, at: Instant::now() });
        Ok(call)
    }

    fn poll(&mut self, _deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        let completed = self.answered.pop_front().ok_or(ExpertsError::NothingInFlight)?;
        Ok(Progress::Completed(completed))
    }

    fn cancel(&mut self, call: CallId) {
        self.answered.retain(|completed| completed.call != call);
    }
}

impl ExpertSource for Model {
    fn expert(
        &self,
        layer: LayerIndex,
        expert: ExpertIndex,
        take: &mut dyn FnMut(&Swiglu<'_>),
    ) -> Result<(), SourceError> {
        let tensors = Model::expert(self, layer, expert)?;
        let weights = Swiglu::new(tensors.gate.matrix(), tensors.up.matrix(), tensors.down.matrix())?;
        take(&weights);
        Ok(())
    }
}
