//! A lane's part of a call, and the plain way to compute it: one expert after the other, each read first if need be.

use crate::error::RunnerError;
use crate::lane::Rows;
use crate::request::ExpertRows;
use crate::runner::{ExpertRunner, ExpertSource};

/// What one lane has to do in a call.
pub(crate) struct LaneWork<'a> {
    /// Requests, and where their values go.
    pub jobs: Vec<(&'a ExpertRows, &'a mut [f32])>,
    /// Rows of all of them.
    pub rows: usize,
    /// The first failure; those behind it are not computed.
    pub outcome: Result<(), RunnerError>,
    /// Whether `outcome` is told already.
    pub is_done: bool,
}

impl Default for LaneWork<'_> {
    fn default() -> Self {
        LaneWork { jobs: Vec::new(), rows: 0, outcome: Ok(()), is_done: false }
    }
}

impl LaneWork<'_> {
    /// Computes it on this thread.
    pub fn run(&mut self, runner: &ExpertRunner, source: Option<&dyn ExpertSource>, rows: Rows<'_>) {
        let Some((first, _)) = self.jobs.first() else { return };
        // Work inside shared work runs where it stands, so a lane that is held never waits for itself.
        let mut lane = runner.lane(first.expert);
        self.outcome = self
            .jobs
            .iter_mut()
            .try_for_each(|(request, out)| lane.evaluate(runner.shared(), source, rows, request, out));
        self.is_done = true;
    }
}
