//! One forward pass of a wave: several sequences together, in a form that can be put aside while a call is out.
//!
//! The rows of all members go through each layer together and to their experts in one call. Between [`Backbone::advance`]
//! and the answer, the thread is free to compute another pass; a pass that waits keeps its residual stream and little
//! else. Members are independent: one that fails or is taken out leaves, and the others have the bits that they would
//! have had without it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use kvasir_model::TokenId;

use crate::backbone::{Backbone, Wanted};
use crate::error::{BackboneError, Place};
use crate::experts::{Call, CallId, Experts, ExpertsError};
use crate::logits::Logits;
use crate::observer::{Observer, Timing, Watch};
use crate::part::Part;
use crate::scratch::{Carried, Scratch};
use crate::sequence::Sequence;

/// A sequence that takes part in a pass, and what it reads.
#[derive(Debug)]
pub struct Member {
    /// The sequence.
    pub sequence: Sequence,
    /// The tokens, at least one.
    pub tokens: Vec<TokenId>,
    /// For which of them logits are wanted.
    pub logits: Wanted,
}

/// What became of a member.
#[derive(Debug)]
pub struct Outcome {
    /// The sequence; after an error of a pass that had begun it is spoiled.
    pub sequence: Sequence,
    /// The logits that were wanted, or why there are none: what [`Backbone::forward`] says, for this member alone.
    pub logits: Result<Logits, BackboneError>,
}

/// How far a pass came.
#[derive(Debug)]
pub enum Step {
    /// Its experts are asked: go on once [`Backbone::receive`] says so.
    Waiting,
    /// It is over: one outcome for each member, in their order.
    Finished(Vec<Outcome>),
}

/// A pass under way. One that is not gone on with leaves its calls in flight: end it with [`Pass::take_out`].
#[derive(Debug)]
pub struct Pass {
    members: Vec<Held>,
    carried: Carried,
    /// Rows of those that are in it.
    count: usize,
    /// Members have left whose rows are still there.
    gaps: bool,
    /// The layer at hand.
    pub(crate) layer: usize,
    /// Calls in flight for it: one, or one for each member where that one came to nothing.
    asked: Vec<Asked>,
    /// Whether `sums` holds the answer for it.
    answered: bool,
    /// When its latest call went out, until what is computed with behind it was read ahead.
    pub(crate) unread: Option<Instant>,
    sums: Vec<f32>,
    timing: Timing,
}

#[derive(Debug)]
struct Held {
    sequence: Sequence,
    logits: Wanted,
    /// Empty from the moment its rows are gone.
    rows: Range<usize>,
    /// Why it left.
    over: Option<BackboneError>,
}

#[derive(Debug)]
struct Asked {
    call: CallId,
    rows: Range<usize>,
    /// For one member alone, after a call for all came to nothing.
    again: bool,
}

impl Backbone {
    /// Starts a pass of `members` and computes nothing yet but embeddings. Members that cannot take part (no tokens, unknown
    /// ones, a full context, another backbone's or a spoiled sequence, no memory, rows beyond [`crate::MAX_ROWS`]) are over at
    /// once, unchanged; the others begin.
    pub fn begin(&self, members: Vec<Member>) -> Pass {
        let layers = 0..self.layers.len();
        let mut tokens: Vec<TokenId> = Vec::new();
        let mut held: Vec<Held> = Vec::with_capacity(members.len());
        for Member { mut sequence, tokens: fed, logits } in members {
            let admitted = self
                .check_tokens(&fed)
                .and_then(|()| self.admit(&mut sequence, fed.len(), tokens.len(), &layers));
            let (rows, over) = match admitted {
                Ok(rows) => {
                    tokens.extend_from_slice(&fed);
                    sequence.begin(&layers);
                    (rows, None)
                }
                Err(error) => (0..0, Some(error)),
            };
            held.push(Held { sequence, logits, rows, over });
        }
        let mut pass = Pass {
            members: held,
            carried: self.take_carried(),
            count: tokens.len(),
            gaps: false,
            layer: 0,
            asked: Vec::new(),
            answered: false,
            unread: None,
            sums: Vec::new(),
            timing: Timing { passes: 1, rows: tokens.len() as u64, ..Timing::default() },
        };
        let started = Instant::now();
        self.embed(&tokens, &mut pass.carried.hidden);
        self.rotate(&mut pass.carried, &parts(&mut pass.members));
        pass.timing.embedding = started.elapsed();
        pass
    }

    /// Computes until experts have to be waited for, or to the end. A pass that is waiting stays as it is.
    pub fn advance(&self, pass: &mut Pass, experts: &mut dyn Experts) -> Step {
        if !pass.is_ready() {
            return Step::Waiting;
        }
        self.within(|| {
            let mut scratch = self.take_scratch();
            let step = self.next_layer(pass, experts, &mut scratch);
            self.give_scratch(scratch);
            step
        })
    }

    /// Takes in what a poll found about a call of `pass`, and says whether the pass can go on. A call that failed is asked
    /// again, once, for each member alone, so that only those end that are to blame, and those who are alone have no less.
    pub fn receive(
        &self,
        pass: &mut Pass,
        call: CallId,
        answer: Result<Vec<f32>, ExpertsError>,
        experts: &mut dyn Experts,
    ) -> bool {
        let Some(at) = pass.asked.iter().position(|asked| asked.call == call) else {
            return pass.is_ready();
        };
        let Asked { rows, again, .. } = pass.asked.swap_remove(at);
        let expected = rows.len() * self.width();
        match answer {
            Ok(sums) if sums.len() != expected => {
                let error = ExpertsError::WrongLength { call, expected, received: sums.len() };
                self.ask_apart(pass, (&rows, again), error, experts);
            }
            Ok(sums) if rows.len() == pass.count => {
                pass.sums = sums;
                pass.answered = true;
            }
            Ok(sums) => {
                pass.sums[rows.start * self.width()..][..expected].copy_from_slice(&sums);
                pass.answered = true;
            }
            Err(error) => self.ask_apart(pass, (&rows, again), error, experts),
        }
        pass.is_ready()
    }

    /// The rest of the layer whose answer is there, if there is one, and the next layer up to its call.
    fn next_layer(&self, pass: &mut Pass, experts: &mut dyn Experts, scratch: &mut Scratch) -> Step {
        let (mut observer, instructions) = (Observer::default(), self.instructions);
        if std::mem::take(&mut pass.answered) {
            let layer = &self.layers[pass.layer];
            let Pass { carried: Carried { hidden, shared, .. }, sums, timing, .. } = &mut *pass;
            let mut watch = Watch { observer: &mut observer, timing };
            layer.take(hidden, sums, shared, scratch, &mut watch);
            pass.note(scratch, Place::Experts(layer.index()));
            pass.layer += 1;
        }
        pass.close_gaps(self.width());
        let Some(layer) = self.layers.get(pass.layer).filter(|_| pass.count > 0) else {
            return Step::Finished(self.finish(pass, scratch));
        };
        {
            let Pass { members, carried: Carried { hidden, rotations, .. }, timing, .. } = &mut *pass;
            let mut watch = Watch { observer: &mut observer, timing };
            layer.mix(hidden, &mut parts(members), rotations, scratch, &mut watch, instructions);
        }
        pass.note(scratch, Place::Mixer(layer.index()));
        // Rows that are not finite are no expert's business.
        pass.close_gaps(self.width());
        if pass.count == 0 {
            return Step::Finished(self.finish(pass, scratch));
        }
        let mut watch = Watch { observer: &mut observer, timing: &mut pass.timing };
        let call = layer.call(&pass.carried.hidden, scratch, &mut watch, instructions);
        let rows = 0..pass.count;
        let submitted = experts.submit(call);
        pass.unread = Some(Instant::now());
        layer.meanwhile(scratch, &mut pass.carried.shared, &mut watch, instructions);
        pass.note(scratch, Place::Experts(layer.index()));
        match submitted {
            Ok(call) => pass.asked.push(Asked { call, rows, again: false }),
            Err(error) => self.ask_apart(pass, (&rows, false), error, experts),
        }
        if pass.is_ready() {
            // Nobody could be asked for.
            pass.close_gaps(self.width());
            return Step::Finished(self.finish(pass, scratch));
        }
        Step::Waiting
    }

    /// Asks for each member alone where a call for `rows` came to nothing; where that was asked `again`, its member is over.
    fn ask_apart(
        &self,
        pass: &mut Pass,
        (rows, again): (&Range<usize>, bool),
        error: ExpertsError,
        experts: &mut dyn Experts,
    ) {
        let layer = &self.layers[pass.layer];
        let failed = |source| BackboneError::Experts { layer: layer.index(), source };
        if again {
            if let Some(alone) = pass.members.iter_mut().find(|held| held.rows == *rows) {
                alone.leave(failed(error));
                pass.gaps = true;
            }
            return;
        }
        let call = self.within(|| {
            let mut scratch = self.take_scratch();
            let (mut observer, timing) = (Observer::default(), &mut pass.timing);
            let mut watch = Watch { observer: &mut observer, timing };
            let call = layer.call(&pass.carried.hidden, &mut scratch, &mut watch, self.instructions);
            self.give_scratch(scratch);
            call
        });
        pass.sums.clear();
        pass.sums.resize(pass.count * self.width(), 0.0);
        for held in pass.members.iter_mut().filter(|held| held.over.is_none()) {
            match experts.submit(rows_of(&call, &held.rows)) {
                Ok(call) => pass.asked.push(Asked { call, rows: held.rows.clone(), again: true }),
                Err(error) => {
                    held.leave(failed(error));
                    pass.gaps = true;
                }
            }
        }
    }

    /// The logits of those that came to the end, and everybody's outcome.
    fn finish(&self, pass: &mut Pass, scratch: &mut Scratch) -> Vec<Outcome> {
        let started = Instant::now();
        let arrived = pass.members.iter().filter(|held| held.over.is_none());
        let wanted: Vec<Range<usize>> = arrived.map(|held| held.logits.of(&held.rows)).collect();
        let logits = self.logits(&pass.carried.hidden, &wanted, scratch);
        let faults = scratch.faults.take();
        let mut logits = wanted.iter().map(|rows| rows.len()).zip(logits);
        let mut first = 0;
        let outcomes = std::mem::take(&mut pass.members).into_iter().map(|mut held| {
            let logits = match held.over.take() {
                Some(error) => Err(error),
                None => {
                    let Some((rows, logits)) = logits.next() else {
                        unreachable!("there are logits for every member that came to the end");
                    };
                    let mine = first..first + rows;
                    first = mine.end;
                    if faults.iter().any(|row| mine.contains(row)) {
                        Err(BackboneError::NotFinite { place: Place::Output })
                    } else {
                        held.sequence.advance(held.rows.len());
                        Ok(logits)
                    }
                }
            };
            Outcome { sequence: held.sequence, logits }
        });
        let outcomes = outcomes.collect();
        pass.count = 0;
        self.give_carried(std::mem::take(&mut pass.carried));
        pass.timing.output = started.elapsed();
        outcomes
    }
}

impl Pass {
    /// Whether there is something to compute: it waits for no call.
    pub fn is_ready(&self) -> bool {
        self.asked.is_empty()
    }

    /// Its calls in flight.
    pub fn calls(&self) -> impl Iterator<Item = CallId> + '_ {
        self.asked.iter().map(|asked| asked.call)
    }

    /// The layer at hand, counted from 0: the one whose calls are in flight.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// Rows of the members that are in it.
    pub fn rows(&self) -> usize {
        self.count
    }

    /// Where the time went so far. Waiting is not part of it: that is for whoever drives the pass to know.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Takes a member out, by its place among those it began with: its rows go no further than the layer at hand, and its
    /// outcome is [`BackboneError::TakenOut`] unless it was over before. With the last one the pass's calls are cancelled.
    /// Says whether the pass can go on.
    pub fn take_out(&mut self, member: usize, experts: &mut dyn Experts) -> bool {
        if let Some(held) = self.members.get_mut(member) {
            held.leave(BackboneError::TakenOut);
            self.gaps = true;
        }
        if self.members.iter().all(|held| held.over.is_some()) {
            self.asked.drain(..).for_each(|asked| experts.cancel(asked.call));
            self.answered = false;
        }
        self.is_ready()
    }

    /// Ends the members whose rows are not finite.
    fn note(&mut self, scratch: &mut Scratch, place: Place) {
        for row in scratch.faults.take() {
            if let Some(held) = self.members.iter_mut().find(|held| held.rows.contains(&row)) {
                held.leave(BackboneError::NotFinite { place });
                self.gaps = true;
            }
        }
    }

    /// Moves rows together where members have left. Only between a layer's parts: nothing but `hidden` and the rotations
    /// holds rows then.
    fn close_gaps(&mut self, width: usize) {
        if !std::mem::take(&mut self.gaps) {
            return;
        }
        let Carried { hidden, rotations, .. } = &mut self.carried;
        let mut next = 0;
        for held in &mut self.members {
            if held.over.is_some() {
                held.rows = 0..0;
                continue;
            }
            let rows = held.rows.clone();
            held.rows = next..next + rows.len();
            if rows.start != next {
                hidden.copy_within(rows.start * width..rows.end * width, next * width);
                rotations.move_rows(rows, next);
            }
            next = held.rows.end;
        }
        hidden.truncate(next * width);
        self.count = next;
    }
}

impl Held {
    /// Its first reason to leave is the one that counts.
    fn leave(&mut self, why: BackboneError) {
        if self.over.is_none() {
            self.over = Some(why);
        }
    }
}

/// The rows of those that are in the pass, in order and without a gap.
fn parts(members: &mut [Held]) -> Vec<Part<'_>> {
    members
        .iter_mut()
        .filter(|held| held.over.is_none())
        .map(|held| Part { sequence: &mut held.sequence, rows: held.rows.clone() })
        .collect()
}

/// A call with some of another's rows.
fn rows_of(call: &Call, rows: &Range<usize>) -> Call {
    let row_bytes = call.rows.len() / call.count().max(1);
    let bytes = &call.rows[rows.start * row_bytes..rows.end * row_bytes];
    let picks = call.picks[rows.clone()].to_vec();
    Call { layer: call.layer, row_format: call.row_format, rows: Arc::from(bytes), picks }
}
