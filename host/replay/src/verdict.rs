//! What three answers and one signed digest say of a worker.
//!
//! A worker is convicted by bytes alone, and only where the three engines agree: with each other, not with it. Where they
//! differ among themselves the plugin is at fault and nobody is convicted; where one of them has no answer, nothing is known.

use kvasir_plugin::{MAX_TOLERANCE_ABS, MAX_TOLERANCE_REL, MIN_TOLERANCE_COSINE};
use kvasir_wire::handshake::Class;
use kvasir_wire::id::sha256;
use kvasir_wire::work::WorkItem;

use crate::engines::{Answer, EngineKind};

/// What a replay found of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The worker's rows are the right ones, bit for bit.
    Right,
    /// The engines agree with each other and not with the worker.
    Convicted(Conviction),
    /// The engines differ from each other: the plugin's result is not defined, nobody is convicted, the plugin goes into
    /// quarantine.
    Plugin {
        /// What each engine says: SHA-256 of its rows, or the reason of its refusal.
        answers: [(EngineKind, String); 3],
        /// SHA-256 of each engine's rows, of nothing where it refuses, in the order of [`EngineKind::ALL`].
        digests: [[u8; 32]; 3],
    },
    /// The session was of class `tolerance`: its bytes are not defined, and bytes convict nobody.
    Tolerance {
        /// The largest distance of a value from the exact one, as text for people; nothing where the rows cannot be compared.
        deviation: Option<String>,
        /// Whether the rows are as near to the exact ones as the widest tolerance demands that a manifest may state. What is
        /// farther away is no rounding of any kernel, and all is not well.
        plausible: bool,
    },
    /// The worker reported that it failed; it claims no rows and is paid for none.
    Failed,
    /// Nothing is known: an engine gave up.
    Unknown {
        /// Which, and why.
        reason: String,
    },
}

/// A wrong result, as the audit statement names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conviction {
    /// SHA-256 of the right rows; of nothing where the call has no right answer.
    pub expected: [u8; 32],
    /// SHA-256 of the worker's rows, from the work item.
    pub got: [u8; 32],
    /// What differs first, for people.
    pub first_difference: String,
}

impl Verdict {
    /// Its name in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Verdict::Right => "right",
            Verdict::Convicted(_) => "convicted",
            Verdict::Plugin { .. } => "plugin",
            Verdict::Tolerance { .. } => "tolerance",
            Verdict::Failed => "failed",
            Verdict::Unknown { .. } => "unknown",
        }
    }

    /// Whether somebody has to act on it.
    pub const fn is_finding(&self) -> bool {
        matches!(self, Verdict::Convicted(_) | Verdict::Plugin { .. })
    }
}

/// Whether the worker claims rows for this item: a failed call has the digest of nothing.
pub fn claims_rows(item: &WorkItem) -> bool {
    item.rows != sha256(&[])
}

/// Judges an item: `rows` are the rows published with it (their digest is the item's), of `columns` values each.
pub fn judge(
    item: &WorkItem,
    class: Class,
    rows: &[u8],
    columns: usize,
    answers: &[(EngineKind, Answer); 3],
) -> Verdict {
    if !claims_rows(item) {
        return Verdict::Failed;
    }
    if let Some((kind, reason)) = answers.iter().find_map(|(kind, answer)| match answer {
        Answer::GaveUp(reason) => Some((kind, reason)),
        _ => None,
    }) {
        return Verdict::Unknown { reason: format!("{}: {reason}", kind.name()) };
    }
    let [(_, first), rest @ ..] = answers;
    if rest.iter().any(|(_, answer)| answer != first) {
        return Verdict::Plugin {
            answers: answers.clone().map(|(kind, answer)| (kind, named(&answer))),
            digests: answers.clone().map(|(_, answer)| digest(&answer)),
        };
    }
    let (expected, right): (_, &[u8]) = match first {
        Answer::Rows(right) => (sha256(&[right]), right),
        Answer::Refused(_) | Answer::GaveUp(_) => (sha256(&[]), &[]),
    };
    if expected == item.rows {
        return Verdict::Right;
    }
    if class == Class::Tolerance {
        let plausible = is_plausible(right, rows, columns);
        return Verdict::Tolerance { deviation: deviation(right, rows), plausible };
    }
    let first_difference = match first {
        Answer::Refused(reason) => format!("rows for a call that has none: {reason}"),
        _ => difference(right, rows, columns),
    };
    Verdict::Convicted(Conviction { expected, got: item.rows, first_difference })
}

fn digest(answer: &Answer) -> [u8; 32] {
    match answer {
        Answer::Rows(rows) => sha256(&[rows]),
        Answer::Refused(_) | Answer::GaveUp(_) => sha256(&[]),
    }
}

fn named(answer: &Answer) -> String {
    match answer {
        Answer::Rows(_) => hex::encode(digest(answer)),
        Answer::Refused(reason) | Answer::GaveUp(reason) => reason.clone(),
    }
}

/// The first value that differs, and how many do.
fn difference(right: &[u8], got: &[u8], columns: usize) -> String {
    if right.len() != got.len() {
        return format!("{} bytes of rows, {} are right", got.len(), right.len());
    }
    let differing = || right.chunks(4).zip(got.chunks(4)).enumerate().filter(|(_, (a, b))| a != b);
    let count = differing().count();
    match differing().next() {
        Some((at, (right, got))) => {
            let (row, column) = (at / columns.max(1), at % columns.max(1));
            let bits =
                |bytes: &[u8]| bytes.iter().rev().map(|byte| format!("{byte:02x}")).collect::<String>();
            let (right, got) = (bits(right), bits(got));
            format!("{count} values differ, first row {row} column {column}: {got} where {right} is right")
        }
        None => "the rows are equal".to_owned(),
    }
}

fn deviation(right: &[u8], got: &[u8]) -> Option<String> {
    if right.len() != got.len() || right.is_empty() {
        return None;
    }
    if values(got).any(|value| !value.is_finite()) {
        return Some("some values are not finite".to_owned());
    }
    let (far, large) = values(right).zip(values(got)).fold((0.0f64, 0.0f64), |(far, large), (right, got)| {
        ((right - got).abs().max(far), right.abs().max(large))
    });
    Some(format!("at most {far:e} from the exact values, the largest of which is {large:e}"))
}

/// Whether every row is within the widest tolerance of [`kvasir_plugin::Tolerance`].
fn is_plausible(right: &[u8], got: &[u8], columns: usize) -> bool {
    if right.len() != got.len() || right.is_empty() {
        return false;
    }
    let row_bytes = 4 * columns.max(1);
    right.chunks(row_bytes).zip(got.chunks(row_bytes)).all(|(right, got)| {
        let (mut product, mut right_square, mut got_square) = (0.0, 0.0, 0.0);
        for (right, got) in values(right).zip(values(got)) {
            let allowed = MAX_TOLERANCE_ABS + MAX_TOLERANCE_REL * right.abs();
            if !got.is_finite() || (right - got).abs() > allowed {
                return false;
            }
            product += right * got;
            right_square += right * right;
            got_square += got * got;
        }
        // A row of zeros has no direction; zeros are near it as far as the values above say.
        right_square == 0.0
            || product >= MIN_TOLERANCE_COSINE * (right_square * got_square).sqrt() && got_square > 0.0
    })
}

fn values(bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes
        .chunks(4)
        .map(|bytes| bytes.try_into().map_or(f64::NAN, |bytes| f64::from(f32::from_le_bytes(bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(rows: &[u8]) -> WorkItem {
        WorkItem { call: 1, layer: 0, mode: 1, payload: [0; 32], rows: sha256(&[rows]) }
    }

    fn all(answer: Answer) -> [(EngineKind, Answer); 3] {
        EngineKind::ALL.map(|kind| (kind, answer.clone()))
    }

    fn rows(bytes: &[u8]) -> Answer {
        Answer::Rows(bytes.to_vec())
    }

    #[test]
    fn only_three_engines_of_one_mind_convict() {
        let exact = Class::Exact;
        let told = |item: &WorkItem, got: &[u8], answers| judge(item, exact, got, 1, &answers);
        let right = [1, 0, 0, 0];
        let wrong = [2, 0, 0, 0];
        assert_eq!(told(&item(&right), &right, all(rows(&right))), Verdict::Right);
        let Verdict::Convicted(found) = told(&item(&wrong), &wrong, all(rows(&right))) else {
            panic!("a wrong row is convicted")
        };
        assert_eq!((found.expected, found.got), (sha256(&[&right]), sha256(&[&wrong])));
        assert!(found.first_difference.contains("row 0 column 0: 00000002 where 00000001"), "{found:?}");

        for odd_one in 0..3 {
            let mut answers = all(rows(&right));
            answers[odd_one].1 = rows(&wrong);
            for claimed in [right, wrong, [9; 4]] {
                let verdict = told(&item(&claimed), &claimed, answers.clone());
                assert!(matches!(verdict, Verdict::Plugin { .. }), "{verdict:?}");
            }
            answers[odd_one].1 = Answer::GaveUp("late".to_owned());
            let verdict = told(&item(&wrong), &wrong, answers);
            assert!(matches!(verdict, Verdict::Unknown { .. }), "{verdict:?}");
        }
    }

    #[test]
    fn rows_for_a_call_without_an_answer_convict_and_a_reported_failure_does_not() {
        let refused = || all(Answer::Refused("no such expert".to_owned()));
        let claimed = [1, 0, 0, 0];
        let verdict = judge(&item(&claimed), Class::Exact, &claimed, 1, &refused());
        assert!(matches!(verdict, Verdict::Convicted(found) if found.expected == sha256(&[])));
        assert_eq!(judge(&item(&[]), Class::Exact, &[], 1, &refused()), Verdict::Failed);
        assert_eq!(judge(&item(&[]), Class::Exact, &[], 1, &all(rows(&claimed))), Verdict::Failed);
    }

    #[test]
    fn bytes_do_not_convict_the_class_tolerance() {
        let (right, near) = (1.0f32.to_le_bytes(), 1.001f32.to_le_bytes());
        let verdict = judge(&item(&near), Class::Tolerance, &near, 1, &all(rows(&right)));
        let Verdict::Tolerance { deviation: Some(text), plausible: true } = &verdict else {
            panic!("{verdict:?}")
        };
        assert!(text.starts_with("at most 1.0") && !verdict.is_finding(), "{text}");
        assert_eq!(judge(&item(&right), Class::Tolerance, &right, 1, &all(rows(&right))), Verdict::Right);
    }

    #[test]
    fn what_no_kernel_rounds_to_is_not_plausible() {
        let bytes =
            |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_le_bytes()).collect() };
        let right = bytes(&[0.5, -0.25, 0.125, 0.5, 0.25, -0.5]);
        let plausible = |got: &[u8]| {
            let verdict = judge(&item(got), Class::Tolerance, got, 3, &all(rows(&right)));
            let Verdict::Tolerance { plausible, .. } = verdict else { panic!("{verdict:?}") };
            plausible
        };
        assert!(plausible(&bytes(&[0.5, -0.25, 0.126, 0.5, 0.25, -0.5])));
        for wrong in [
            &[0.0; 6][..],                        // zeros
            &[0.5, -0.25, 0.125, 0.0, 0.0, 0.0],  // zeros in one row
            &[0.5, 0.25, 0.125, 0.5, 0.25, -0.5], // a sign
            &[0.5, -0.25, f32::NAN, 0.5, 0.25, -0.5],
            &[0.5, -0.25, f32::INFINITY, 0.5, 0.25, -0.5],
            &[0.5, -0.25, 0.125], // a row is missing
        ] {
            assert!(!plausible(&bytes(wrong)), "{wrong:?}");
        }
    }
}
