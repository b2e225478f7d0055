//! Trials: a worker that missed deadlines is sent calls that others answer, one at a time, until it answers one in time and
//! right. Nobody waits for it meanwhile, and its answer is not used; it is paid for like any other.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use kvasir_backbone::{Call, CallId, Experts};
use kvasir_experts::ExpertRows;

use crate::check::{Check, Verify, recompute};
use crate::outstanding::{Arrival, Place};
use crate::session::Session;
use crate::split::{Part, split};
use crate::swarm::Shared;

/// A call that one worker is tried with.
pub(crate) struct Trial {
    pub(crate) session: Arc<Session>,
    pub(crate) wire_call: u64,
    pub(crate) deadline: Instant,
    call: Call,
    groups: Vec<ExpertRows>,
    part: Part,
}

impl Trial {
    /// Sends what `call` asks of the session's experts, at most a message; nothing where it asks none of them.
    pub(crate) fn begin(
        shared: &Shared,
        session: Arc<Session>,
        call: &Call,
        groups: &[ExpertRows],
        (id, arrive): (CallId, &mpsc::Sender<Arrival>),
    ) -> Option<Trial> {
        let layer = call.layer.0;
        let held = session.holds(layer, groups.iter().map(|group| group.expert.0));
        let owners: Vec<_> = held.into_iter().map(|held| held.then_some(session.slot)).collect();
        let part = split(groups, &owners, shared.most_rows()).parts.into_iter().next()?;
        let place = Place { call: id, part: 0, turn: 0 };
        let wire_call = session.ask_on_trial(call, &part, shared.hidden, place, arrive)?;
        let deadline = Instant::now() + session.allowance(part.expert_rows(), shared.deadlines);
        Some(Trial { session, wire_call, deadline, call: call.clone(), groups: groups.to_vec(), part })
    }

    /// Whether its deadline has passed without an answer: then the worker is left alone again, for longer.
    pub(crate) fn is_over(&self, now: Instant, shared: &Shared) -> bool {
        // An answer that came in this very moment is already in the channel.
        if self.deadline > now || !self.session.give_up(self.wire_call, true) {
            return false;
        }
        self.session.miss(now, shared.options.pauses);
        true
    }

    /// It was answered in time: the worker is asked again if the answer is right.
    pub(crate) fn judge(self, values: Vec<f32>, local: &mut dyn Experts, shared: &Shared) {
        let Trial { session, wire_call, call, groups, part, .. } = self;
        // Where nothing is checked, what is computed here need not be exact.
        if session.is_exact && shared.options.verify != Verify::NONE {
            match recompute(&call, &groups, &part, local, shared.hidden) {
                Ok(own) => {
                    let check = Check { part, session: Arc::clone(&session), wire_call, values };
                    shared.judge(&check, &call, &own);
                }
                Err(error) => tracing::warn!(%error, "a trial cannot be computed again here"),
            }
        }
        if session.is_quarantined() {
            return;
        }
        tracing::info!(session = %session.id.short(), worker = %session.worker, "the worker is asked again");
        session.readmit();
    }
}
