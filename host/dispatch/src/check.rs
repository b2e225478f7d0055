//! Checks of answers: which are computed again on this machine before they are used, and whether they are right, bit for
//! bit.
//!
//! Whether an answer is checked is drawn once it is there, so that nobody can tell before. What is checked is replaced by
//! what was computed here: so a wrong answer that is found changes no bit of a text.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, MutexGuard, PoisonError};

use kvasir_backbone::{Call, Experts, ExpertsError, Pick, call_blocking};
use kvasir_experts::ExpertRows;
use kvasir_wire::key::PublicKey;
use kvasir_wire::message::{CallResult, Outcome};

use crate::evidence::WrongCall;
use crate::session::Session;
use crate::split::{Answer, Part};
use crate::swarm::Shared;

/// Which answers of workers whose results are exact are computed again here before they are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verify {
    /// So many answers of each worker that is new, from its first on.
    pub first: u64,
    /// Of the later ones one in so many, drawn at random; 0: none.
    pub one_in: u64,
}

impl Verify {
    /// No answer.
    pub const NONE: Verify = Verify { first: 0, one_in: 0 };
    /// Every answer. Where experts have copies, every call is sent to two workers, and this machine computes it only where
    /// they differ; where they have none, it computes everything.
    pub const ALL: Verify = Verify { first: 0, one_in: 1 };
    /// The first 256 answers, then one in 64: a worker that cheats in n of its later calls escapes with (63/64)^n.
    pub const USUAL: Verify = Verify { first: 256, one_in: 64 };

    /// Whether every answer is checked.
    pub fn is_all(self) -> bool {
        self.one_in == 1
    }

    /// Whether to check an answer of a worker that has given `before` others, by a random number.
    fn draws(self, before: u64, random: u64) -> bool {
        before < self.first || (self.one_in > 0 && random.is_multiple_of(self.one_in))
    }
}

impl Default for Verify {
    fn default() -> Self {
        Verify::USUAL
    }
}

/// What is no [`Verify`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} says not what to check: write all, none, usual, or FIRST,ONE_IN such as 256,64")]
pub struct VerifyTextError(String);

impl FromStr for Verify {
    type Err = VerifyTextError;

    /// `all`, `none`, `usual`, or two numbers: `256,64`.
    fn from_str(text: &str) -> Result<Verify, VerifyTextError> {
        match text {
            "all" => Ok(Verify::ALL),
            "none" => Ok(Verify::NONE),
            "usual" => Ok(Verify::USUAL),
            _ => {
                let numbers = text.split_once(',').and_then(|(first, one_in)| {
                    Some(Verify { first: first.trim().parse().ok()?, one_in: one_in.trim().parse().ok()? })
                });
                numbers.ok_or_else(|| VerifyTextError(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.first, self.one_in)
    }
}

/// Workers of which a swarm remembers anything at most; those that come later are as if new each time, and are checked so.
const MOST_KNOWN: usize = 16 * 1024;

/// What a swarm has learnt of workers, whatever their sessions.
#[derive(Debug, Default)]
pub(crate) struct Known(HashMap<PublicKey, Record>);

#[derive(Debug, Default)]
struct Record {
    answers: u64,
    /// Why nothing more is asked of it.
    quarantined: Option<String>,
}

impl Known {
    /// Counts one more answer of a worker, and says whether it is to be checked.
    pub(crate) fn draws(&mut self, worker: &PublicKey, verify: Verify, random: u64) -> bool {
        self.draws_within(MOST_KNOWN, worker, verify, random)
    }

    fn draws_within(&mut self, most: usize, worker: &PublicKey, verify: Verify, random: u64) -> bool {
        let before = self.record(most, worker).map_or(0, |record| {
            record.answers += 1;
            record.answers - 1
        });
        verify.draws(before, random)
    }

    /// Asks nothing more of a worker.
    pub(crate) fn quarantine(&mut self, worker: &PublicKey, why: &str) {
        // However many there are: this one must not come back.
        if let Some(record) = self.record(usize::MAX, worker) {
            record.quarantined.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Why nothing is asked of a worker, if it is in quarantine.
    pub(crate) fn quarantined(&self, worker: &PublicKey) -> Option<&str> {
        self.0.get(worker)?.quarantined.as_deref()
    }

    /// What is known of a worker; nothing where `most` others are known and it is new.
    fn record(&mut self, most: usize, worker: &PublicKey) -> Option<&mut Record> {
        if self.0.len() >= most && !self.0.contains_key(worker) {
            return None;
        }
        Some(self.0.entry(*worker).or_default())
    }
}

/// An answer that is used only once it was computed again.
pub(crate) struct Check {
    pub(crate) part: Part,
    pub(crate) session: Arc<Session>,
    /// The call's number in the session.
    pub(crate) wire_call: u64,
    pub(crate) values: Vec<f32>,
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an answer of a session's worker, and says whether it is to be computed again.
    pub(crate) fn draws_check(&self, session: &Session) -> bool {
        // Without randomness everything is checked.
        let random = getrandom::u64().unwrap_or(0);
        session.is_exact && self.known().draws(&session.worker, self.options.verify, random)
    }

    /// Whether every call is sent to two workers, whose answers are compared.
    pub(crate) fn compares_pairs(&self) -> bool {
        self.options.verify.is_all() && self.options.copies > 0
    }

    /// Why nothing is asked of a worker, if it is in quarantine.
    pub(crate) fn quarantined(&self, worker: &PublicKey) -> Option<String> {
        self.known().quarantined(worker).map(str::to_owned)
    }

    /// Judges an answer to a part of `call` by what was computed here. A worker whose answer is wrong is asked nothing more, and
    /// what it was asked and answered is kept for its next receipt.
    pub(crate) fn judge(&self, check: &Check, call: &Call, own: &[f32]) {
        let (session, number, layer) = (&check.session, check.wire_call, call.layer.0);
        let Some(at) = difference(&check.part.answer, &check.values, own) else {
            session.count_checked();
            self.count(|statistics| statistics.answers_checked += 1);
            return;
        };
        let shown = |values: &[f32]| values.get(at).map_or_else(String::new, |value| format!("{value:e}"));
        let why = format!(
            "the answer to call {number}, layer {layer}, is wrong: value {at} is {}, computed again it is {}",
            shown(&check.values),
            shown(own)
        );
        tracing::warn!(session = %session.id.short(), worker = %session.worker, "{why}; the worker is asked nothing more");
        // As a work item has it: digests of the rows that came, and of those that should have.
        let digest = |values: &[f32]| CallResult::rows_digest(&Outcome::Rows(&CallResult::row_bytes(values)));
        let evidence = [digest(&check.values), digest(own)].concat();
        self.known().quarantine(&session.worker, &why);
        // Before the session knows: the receipt that leaves the call out asks for it.
        if self.options.keep.evidence.is_some()
            && !session.has_ended()
            && let Some(wrong) = WrongCall::again(call, &check.part, number, &check.values)
        {
            self.wrong.put(session.id, wrong);
            // Its end may have come in between, and forgets before this.
            if session.has_ended() {
                self.wrong.forget(session.id);
            }
        }
        self.count(|statistics| {
            statistics.answers_checked += 1;
            statistics.answers_wrong += 1;
            statistics.failovers += 1;
        });
        session.quarantine(number, &why, evidence);
    }
}

/// What this machine finds for a part of a call: values in the order in which a worker answers.
pub(crate) fn recompute(
    call: &Call,
    groups: &[ExpertRows],
    part: &Part,
    local: &mut dyn Experts,
    hidden: usize,
) -> Result<Vec<f32>, ExpertsError> {
    let (rows, picks): (Vec<u32>, Vec<Vec<Pick>>) = match &part.answer {
        Answer::Sums => {
            let picks = part.rows.iter().map(|&row| call.picks[row as usize].clone());
            (part.rows.clone(), picks.collect())
        }
        Answer::Rows(pieces) => {
            // As `Open::compute` does: each row stands once for each of its experts, picked alone with weight one.
            let mut rows = Vec::new();
            let mut picks = Vec::new();
            for (index, range) in pieces {
                let group = &groups[*index];
                rows.extend_from_slice(&group.rows[range.clone()]);
                picks.resize(rows.len(), vec![Pick { expert: group.expert, weight: 1.0 }]);
            }
            (rows, picks)
        }
    };
    let expected = rows.len() * hidden;
    let completed = call_blocking(local, crate::open::part_call(call, &rows, picks))?;
    crate::open::checked(completed, expected)
}

/// The first place at which a worker's values are not those that were computed here. In sums every bit counts; rows that
/// this machine adds up may differ in the sign of a zero, which no sum can tell.
pub(crate) fn difference(answer: &Answer, theirs: &[f32], own: &[f32]) -> Option<usize> {
    let same = |(theirs, own): (&f32, &f32)| match answer {
        Answer::Sums => theirs.to_bits() == own.to_bits(),
        Answer::Rows(_) => theirs == own,
    };
    theirs
        .iter()
        .zip(own)
        .position(|pair| !same(pair))
        .or_else(|| (theirs.len() != own.len()).then(|| theirs.len().min(own.len())))
}

#[cfg(test)]
mod tests {
    use kvasir_wire::key::SecretKey;

    use super::*;

    fn worker(seed: u8) -> PublicKey {
        SecretKey::from_seed([seed; 32]).public()
    }

    #[test]
    fn the_first_answers_are_checked_and_then_one_in_so_many() {
        let verify = Verify { first: 3, one_in: 64 };
        let mut known = Known::default();
        let drawn: Vec<bool> = (0..6).map(|_| known.draws(&worker(1), verify, 65)).collect();
        assert_eq!(drawn, [true, true, true, false, false, false]);
        assert!(known.draws(&worker(1), verify, 128), "drawn");
        assert!(known.draws(&worker(2), verify, 65), "another worker is new");
        assert!((0..100).all(|random| !Verify::NONE.draws(0, random) && Verify::ALL.draws(1 << 40, random)));
    }

    #[test]
    fn a_worker_in_quarantine_is_remembered_with_the_first_reason() {
        let mut known = Known::default();
        assert_eq!(known.quarantined(&worker(1)), None);
        known.quarantine(&worker(1), "call 3");
        known.quarantine(&worker(1), "call 4");
        assert_eq!(known.quarantined(&worker(1)), Some("call 3"));
        assert_eq!(known.quarantined(&worker(2)), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_who_is_not_is_new_each_time() {
        let verify = Verify { first: 1, one_in: 0 };
        let mut known = Known::default();
        // What a full memory does is seen at a small one.
        for seed in 0..4 {
            assert!(known.draws_within(2, &worker(seed), verify, 1), "{seed} is new");
        }
        assert_eq!(known.0.len(), 2);
        assert!(!known.draws_within(2, &worker(0), verify, 1), "it is known");
        assert!(known.draws_within(2, &worker(3), verify, 1), "there was no room for it");
    }

    #[test]
    fn what_to_check_is_written_in_words_or_numbers() {
        assert_eq!("all".parse::<Verify>(), Ok(Verify::ALL));
        assert_eq!("none".parse::<Verify>(), Ok(Verify::NONE));
        assert_eq!("usual".parse::<Verify>(), Ok(Verify::default()));
        assert_eq!("10, 7".parse::<Verify>(), Ok(Verify { first: 10, one_in: 7 }));
        assert_eq!(Verify::USUAL.to_string().parse::<Verify>(), Ok(Verify::USUAL));
        for wrong in ["", "some", "1", "1,", "-1,2", "1,2,3"] {
            assert!(wrong.parse::<Verify>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_bit_of_a_sum_counts_and_of_a_row_all_but_the_sign_of_a_zero() {
        let (sums, rows) = (Answer::Sums, Answer::Rows(Vec::new()));
        assert_eq!(difference(&sums, &[1.0, 0.0], &[1.0, 0.0]), None);
        assert_eq!(difference(&sums, &[1.0, -0.0], &[1.0, 0.0]), Some(1));
        assert_eq!(difference(&rows, &[1.0, -0.0], &[1.0, 0.0]), None);
        let next = f32::from_bits(1.0f32.to_bits() + 1);
        assert_eq!(difference(&rows, &[next, 0.0], &[1.0, 0.0]), Some(0));
        assert_eq!(difference(&sums, &[1.0], &[1.0, 0.0]), Some(1));
    }
}
