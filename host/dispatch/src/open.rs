//! A call of the backbone that is not answered yet: its parts and who was asked for them, the values so far, and what this
//! machine has to compute of it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use kvasir_backbone::{Call, Completed, Experts, ExpertsError, Pick, call_blocking};
use kvasir_experts::{ExpertRows, combine};
use kvasir_wire::id::SessionId;

use crate::check::{Check, difference, recompute};
use crate::session::Session;
use crate::split::{Answer, Part};
use crate::swarm::Shared;

/// A call that is not answered yet.
pub(crate) struct Open {
    pub(crate) call: Call,
    /// Whether it is a probe.
    pub(crate) probe: bool,
    pub(crate) groups: Vec<ExpertRows>,
    /// Values of the answer so far: sums of `count` rows, or every group's rows one after the other.
    pub(crate) values: Vec<f32>,
    /// Where each group's rows begin in `values`, in rows; empty in sum mode.
    pub(crate) offsets: Vec<usize>,
    pub(crate) parts: Vec<PartState>,
    /// What to compute here, from the start or because workers failed.
    pub(crate) here: Vec<Piece>,
    /// Answers that are used once they were computed again.
    pub(crate) checks: Vec<Check>,
    /// When the latest of the values came, or was computed here.
    pub(crate) at: Instant,
}

/// Work for this machine.
pub(crate) enum Piece {
    /// Nothing of the call went to a worker.
    Whole,
    /// The sums of these rows.
    Sums(Vec<u32>),
    /// These rows of a group, one by one.
    Rows(usize, Range<usize>),
}

pub(crate) enum PartState {
    Waiting(Waiting),
    Done,
}

/// A part that workers were asked for.
pub(crate) struct Waiting {
    pub(crate) part: Part,
    /// Those who may still answer, in the order in which they were asked.
    pub(crate) asked: Vec<Asked>,
    /// All that were asked: none is asked twice.
    pub(crate) sessions: Vec<SessionId>,
    /// The answer that came first, where two are compared.
    pub(crate) held: Option<Held>,
}

/// An answer and whose it is.
pub(crate) struct Held {
    pub(crate) session: Arc<Session>,
    pub(crate) wire_call: u64,
    pub(crate) values: Vec<f32>,
}

/// A worker that was asked.
pub(crate) struct Asked {
    pub(crate) session: Arc<Session>,
    pub(crate) wire_call: u64,
    /// Which question of the part it was, counted from 0.
    pub(crate) turn: usize,
    pub(crate) deadline: Instant,
    /// When its answer is likely to come, where that is known.
    pub(crate) likely: Option<Range<Instant>>,
    /// Until when it is on its way out, where its answer is known to take much longer.
    pub(crate) leaving: Option<Instant>,
    /// The deadline has passed.
    pub(crate) missed: bool,
}

impl Waiting {
    pub(crate) fn new(part: Part) -> Self {
        Self { part, asked: Vec::new(), sessions: Vec::new(), held: None }
    }

    /// Whether anybody is asked who is not late: nobody waits for one that is.
    pub(crate) fn is_answered_in_time(&self) -> bool {
        self.asked.iter().any(|asked| !asked.missed)
    }

    /// Nobody waits for anybody's answer any more, except for one that is there already. True if there is none.
    pub(crate) fn give_up(&mut self) -> bool {
        self.asked.retain(|asked| !asked.session.give_up(asked.wire_call, asked.missed));
        self.asked.is_empty()
    }
}

impl Held {
    fn check(self, part: Part) -> Check {
        Check { part, session: self.session, wire_call: self.wire_call, values: self.values }
    }
}

impl Open {
    /// A call that no worker is asked for.
    pub(crate) fn whole(call: Call) -> Self {
        Self {
            call,
            probe: false,
            groups: Vec::new(),
            values: Vec::new(),
            offsets: Vec::new(),
            parts: Vec::new(),
            here: vec![Piece::Whole],
            checks: Vec::new(),
            at: Instant::now(),
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.here.is_empty()
            && self.checks.is_empty()
            && self.parts.iter().all(|part| matches!(part, PartState::Done))
    }

    fn row_of_group(&self, group: usize) -> usize {
        self.offsets.get(group).copied().unwrap_or_default()
    }

    /// Whether there is something to compute here.
    pub(crate) fn has_work(&self) -> bool {
        !self.here.is_empty() || !self.checks.is_empty()
    }

    /// Gives a part to this machine: to be computed in the workers' stead, which is true then, or, where one of them has
    /// answered it, to be checked.
    pub(crate) fn take_home(&mut self, index: usize) -> bool {
        let Some(state) = self.parts.get_mut(index) else { return false };
        let PartState::Waiting(waiting) = std::mem::replace(state, PartState::Done) else { return false };
        match waiting.held {
            Some(held) => {
                self.checks.push(held.check(waiting.part));
                false
            }
            None => {
                self.here.extend(pieces_of(waiting.part));
                true
            }
        }
    }

    /// Two workers answered the same part: where they agree, to the bit, that is its answer; else this machine says who is
    /// right.
    pub(crate) fn compare(&mut self, part: Part, first: Held, second: Held, shared: &Shared) {
        if difference(&part.answer, &first.values, &second.values).is_some() {
            self.checks.push(first.check(part.clone()));
            self.checks.push(second.check(part));
            return;
        }
        first.session.count_checked();
        second.session.count_checked();
        shared.count(|statistics| statistics.answers_checked += 2);
        self.place(&part, &first.values, shared.hidden);
    }

    /// Computes an answer again, judges whoever gave it, and uses what was computed here.
    pub(crate) fn check(&mut self, check: &Check, local: &mut dyn Experts, shared: &Shared) {
        match recompute(&self.call, &self.groups, &check.part, local, shared.hidden) {
            Ok(own) => {
                shared.judge(check, &self.call, &own);
                self.place(&check.part, &own, shared.hidden);
            }
            Err(error) => {
                tracing::warn!(%error, "an answer cannot be computed again here, and is used unchecked");
                self.place(&check.part, &check.values, shared.hidden);
            }
        }
    }

    /// Copies an answer of the right length.
    pub(crate) fn place(&mut self, part: &Part, values: &[f32], hidden: usize) {
        let mut rows = values.chunks_exact(hidden);
        match &part.answer {
            Answer::Sums => {
                for (&row, values) in part.rows.iter().zip(rows) {
                    self.values[row as usize * hidden..][..hidden].copy_from_slice(values);
                }
            }
            Answer::Rows(pieces) => {
                for (group, range) in pieces {
                    let start = self.row_of_group(*group) + range.start;
                    for (at, values) in rows.by_ref().take(range.len()).enumerate() {
                        self.values[(start + at) * hidden..][..hidden].copy_from_slice(values);
                    }
                }
            }
        }
    }

    /// Computes pieces of the call here.
    pub(crate) fn compute(
        &mut self,
        pieces: Vec<Piece>,
        local: &mut dyn Experts,
        hidden: usize,
    ) -> Result<(), ExpertsError> {
        let mut rows_of_groups = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Whole => {
                    self.values =
                        checked(call_blocking(local, self.call.clone())?, self.call.count() * hidden)?;
                }
                Piece::Sums(rows) => {
                    let picks = rows.iter().map(|&row| self.call.picks[row as usize].clone()).collect();
                    let call = part_call(&self.call, &rows, picks);
                    let sums = checked(call_blocking(local, call)?, rows.len() * hidden)?;
                    for (&row, values) in rows.iter().zip(sums.chunks_exact(hidden)) {
                        self.values[row as usize * hidden..][..hidden].copy_from_slice(values);
                    }
                }
                Piece::Rows(group, range) => rows_of_groups.push((group, range)),
            }
        }
        if rows_of_groups.is_empty() {
            return Ok(());
        }
        // One call in which every row stands once for each of its experts, picked alone with weight one: its "sums"
        // are the experts' rows. (0 + 1 * y is y but for -0, and no sum can tell -0 from 0: it starts at +0.)
        let mut rows = Vec::new();
        let mut picks = Vec::new();
        for (index, range) in &rows_of_groups {
            let group = &self.groups[*index];
            rows.extend_from_slice(&group.rows[range.clone()]);
            picks.resize(rows.len(), vec![Pick { expert: group.expert, weight: 1.0 }]);
        }
        let call = part_call(&self.call, &rows, picks);
        let values = checked(call_blocking(local, call)?, rows.len() * hidden)?;
        let mut values = values.chunks_exact(hidden);
        for (group, range) in rows_of_groups {
            let start = self.row_of_group(group) + range.start;
            for (at, values) in values.by_ref().take(range.len()).enumerate() {
                self.values[(start + at) * hidden..][..hidden].copy_from_slice(values);
            }
        }
        Ok(())
    }

    /// The answer, once it is complete.
    pub(crate) fn into_sums(self, hidden: usize) -> Vec<f32> {
        if self.offsets.is_empty() {
            return self.values;
        }
        combine(self.call.count(), hidden, &self.groups, &self.values)
    }
}

/// What this machine must do when a part fails.
fn pieces_of(part: Part) -> Vec<Piece> {
    match part.answer {
        Answer::Sums => vec![Piece::Sums(part.rows)],
        Answer::Rows(pieces) => pieces.into_iter().map(|(group, range)| Piece::Rows(group, range)).collect(),
    }
}

/// A call with some rows of another, in the order given; a row may appear more than once.
pub(crate) fn part_call(call: &Call, rows: &[u32], picks: Vec<Vec<Pick>>) -> Call {
    let row_bytes = call.rows.len() / call.count().max(1);
    let rows: Vec<u8> =
        rows.iter().flat_map(|&row| &call.rows[row as usize * row_bytes..][..row_bytes]).copied().collect();
    Call { layer: call.layer, row_format: call.row_format, rows: rows.into(), picks }
}

/// The values of an answer, if they are as many as there should be.
pub(crate) fn checked(completed: Completed, expected: usize) -> Result<Vec<f32>, ExpertsError> {
    if completed.sums.len() != expected {
        return Err(ExpertsError::WrongLength {
            call: completed.call,
            expected,
            received: completed.sums.len(),
        });
    }
    Ok(completed.sums)
}
