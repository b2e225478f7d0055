//! A part of a call in the form in which it goes to a worker: what is sent, and, where its answer was found wrong, what evidence repeats.
//! Both have to be the same bytes, so both are made here.

use std::borrow::Cow;

use kvasir_backbone::Call;
use kvasir_wire::codec::DecodeError;
use kvasir_wire::message::{self, Mode, RowFormat};

use crate::split::{Answer, Part};

/// The payload of a `call` frame, but for the number that the call gets in its session.
pub(crate) struct Unnumbered<'a> {
    layer: u16,
    pub(crate) mode: Mode,
    row_format: RowFormat,
    rows: u32,
    experts: Vec<message::ExpertRows>,
    data: Cow<'a, [u8]>,
}

impl<'a> Unnumbered<'a> {
    /// What asks a worker for a part of `call`; nothing where the protocol has no number for the layout of its rows.
    pub(crate) fn of(call: &'a Call, part: &Part) -> Option<Self> {
        let mode = match part.answer {
            Answer::Sums => Mode::Sum,
            Answer::Rows(_) => Mode::Each,
        };
        let experts = part.requests.iter().map(|request| message::ExpertRows {
            expert: request.expert.0,
            rows: request.rows.clone(),
            weights: if mode == Mode::Sum { request.weights.clone() } else { Vec::new() },
        });
        Some(Self {
            layer: call.layer.0,
            mode,
            row_format: RowFormat::from_number(call.row_format.number())?,
            rows: part.rows.len() as u32,
            experts: experts.collect(),
            data: rows_of(call, &part.rows),
        })
    }

    /// The payload of call `number`. An error where the call breaks a rule of the protocol.
    pub(crate) fn numbered(self, number: u64) -> Result<Vec<u8>, DecodeError> {
        let Self { layer, mode, row_format, rows, experts, data } = self;
        message::Call { call: number, layer, mode, row_format, rows, experts, data: &data }.encode()
    }
}

/// The rows to send: all of the call's, or a copy of some.
fn rows_of<'a>(call: &'a Call, rows: &[u32]) -> Cow<'a, [u8]> {
    if rows.len() == call.count() {
        return Cow::Borrowed(&call.rows);
    }
    let row_bytes = call.rows.len() / call.count().max(1);
    Cow::Owned(
        rows.iter().flat_map(|&row| &call.rows[row as usize * row_bytes..][..row_bytes]).copied().collect(),
    )
}

#[cfg(test)]
mod tests {
    use kvasir_backbone::Pick;
    use kvasir_experts::{ExpertIndex, ExpertRows, LayerIndex, RowFormat};

    use super::{Answer, Call, Mode, Part, Unnumbered, message};

    /// Three rows of one number each, all for expert 2.
    fn call() -> Call {
        let picks = vec![vec![Pick { expert: ExpertIndex(2), weight: 0.5 }]; 3];
        let rows: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
        Call { layer: LayerIndex(4), row_format: RowFormat::Float32, rows: rows.into(), picks }
    }

    fn part(rows: &[u32], answer: Answer) -> Part {
        let numbers: Vec<u32> = (0..rows.len() as u32).collect();
        let weights = vec![0.5; rows.len()];
        let request = ExpertRows { expert: ExpertIndex(2), rows: numbers, weights };
        Part { slot: 0, rows: rows.to_vec(), requests: vec![request], answer }
    }

    #[test]
    fn a_part_carries_its_rows_and_where_the_worker_sums_the_weights() {
        let call = call();
        let sum = Unnumbered::of(&call, &part(&[0, 2], Answer::Sums)).unwrap().numbered(7).unwrap();
        let sum = message::Call::decode(&sum).unwrap();
        assert_eq!((sum.call, sum.layer, sum.mode, sum.rows), (7, 4, Mode::Sum, 2));
        assert_eq!(sum.experts[0].weights, [0.5, 0.5]);
        assert_eq!(sum.data, [1.0f32.to_le_bytes(), 3.0f32.to_le_bytes()].concat());

        let each = part(&[0, 1, 2], Answer::Rows(vec![(0, 0..3)]));
        let each = Unnumbered::of(&call, &each).unwrap().numbered(8).unwrap();
        let each = message::Call::decode(&each).unwrap();
        assert_eq!((each.call, each.mode, each.rows), (8, Mode::Each, 3));
        assert!(each.experts[0].weights.is_empty(), "this side adds up");
        assert_eq!(each.data, &call.rows[..]);
    }

    #[test]
    fn a_call_that_breaks_a_rule_has_no_payload() {
        let (call, nothing) = (call(), part(&[], Answer::Sums));
        assert!(Unnumbered::of(&call, &nothing).unwrap().numbered(1).is_err(), "no rows");
    }
}
