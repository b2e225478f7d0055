//! Experts of a model on this machine, as a backbone wants them.

use std::sync::Arc;
use std::time::Instant;

use kvasir_backbone::{Call, CallId, Experts, ExpertsError, Progress};
use kvasir_model::Model;

use crate::runner::ExpertRunner;

/// Answers a backbone's calls from a model's files through a runner: the reference against which every remote answer
/// must be equal. A call is computed when it is submitted, on the rayon pool that `submit` is called in; experts are
/// loaded when they are first picked.
pub struct LocalExperts {
    model: Arc<Model>,
    runner: Arc<ExpertRunner>,
}

impl LocalExperts {
    /// Answers with the experts of `model`, held in `runner`. A runner serves one model.
    pub fn new(model: Arc<Model>, runner: Arc<ExpertRunner>) -> Self {
        LocalExperts { model, runner }
    }
}

impl Experts for LocalExperts {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        let _ = (call, &self.model, &self.runner);
        todo!()
    }

    fn poll(&mut self, _deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        todo!()
    }

    fn cancel(&mut self, _call: CallId) {}
}
