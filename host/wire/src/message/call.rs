//! `call` and `result`: rows to experts and back.

use std::fmt;

use crate::codec::{DecodeError, Reader, Writer, within};
use crate::id::sha256;
use crate::limits::{
    MAX_CALL_EXPERTS, MAX_CALL_ID, MAX_CALL_REQUESTS, MAX_CALL_ROWS, MAX_COLUMNS, MAX_PAYLOAD_BYTES,
    MAX_SENTENCE_BYTES,
};
use crate::refusal::sentence_within_limit;

/// The stream of a call: twice its number. Numbers count from 1 per session.
pub const fn stream_of_call(call: u64) -> Option<u32> {
    if call == 0 || call > MAX_CALL_ID { None } else { Some((call * 2) as u32) }
}

/// The call of a stream.
pub const fn call_of_stream(stream: u32) -> u64 {
    (stream / 2) as u64
}

/// What a worker gives back for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Every expert's rows by themselves, expert by expert; the backbone sums.
    Each = 0,
    /// One weighted sum a row, over the call's experts in ascending order; for workers that hold the whole layer.
    Sum = 1,
}

/// Layout of the rows of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RowFormat {
    /// f32.
    Float32 = 0,
    /// Blocks of 32: f32 scale, 32 i8.
    Q8 = 1,
    /// Blocks of 256: f32 scale, 256 i8.
    Q8K = 2,
}

impl RowFormat {
    /// The format of a number, if there is one.
    pub const fn from_number(number: u8) -> Option<RowFormat> {
        match number {
            0 => Some(RowFormat::Float32),
            1 => Some(RowFormat::Q8),
            2 => Some(RowFormat::Q8K),
            _ => None,
        }
    }

    /// Values and bytes of one block.
    pub const fn block(self) -> (usize, usize) {
        match self {
            RowFormat::Float32 => (1, 4),
            RowFormat::Q8 => (32, 4 + 32),
            RowFormat::Q8K => (256, 4 + 256),
        }
    }

    /// Columns of a row of `row_bytes` bytes; `None` if that is no whole number of blocks.
    pub const fn columns(self, row_bytes: usize) -> Option<usize> {
        let (values, bytes) = self.block();
        if row_bytes == 0 || !row_bytes.is_multiple_of(bytes) {
            None
        } else {
            Some(row_bytes / bytes * values)
        }
    }
}

/// The rows that one expert gets.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertRows {
    /// The expert's index in its layer.
    pub expert: u16,
    /// Row numbers, strictly ascending.
    pub rows: Vec<u32>,
    /// Sum mode: the gate weight of each of those rows. Each mode: empty.
    pub weights: Vec<f32>,
}

/// The payload of a `call` frame. `data` borrows from the payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Call<'a> {
    /// Number of the call in its session, from 1.
    pub call: u64,
    /// Layer.
    pub layer: u16,
    /// What to give back.
    pub mode: Mode,
    /// Layout of the rows.
    pub row_format: RowFormat,
    /// Number of rows.
    pub rows: u32,
    /// Experts by ascending index.
    pub experts: Vec<ExpertRows>,
    /// The rows, back to back.
    pub data: &'a [u8],
}

impl<'a> Call<'a> {
    /// The payload. A call that breaks a rule is an error here already, not first at its receiver.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        self.check()?;
        let requests = self.requests();
        let sum = self.mode == Mode::Sum;
        let mut w = Writer::with_capacity(18 + self.experts.len() * 6 + requests * 8 + self.data.len());
        w.u64(self.call).u16(self.layer).u8(self.mode as u8).u8(self.row_format as u8);
        w.u32(self.rows).u16(self.experts.len() as u16);
        for expert in &self.experts {
            w.u16(expert.expert).u32(expert.rows.len() as u32);
            for row in &expert.rows {
                w.u32(*row);
            }
            if sum {
                for weight in &expert.weights {
                    w.u32(weight.to_bits());
                }
            }
        }
        w.bytes(self.data);
        let payload = w.finish();
        within("call", payload.len() as u64, MAX_PAYLOAD_BYTES as u64)?;
        Ok(payload)
    }

    /// Reads the payload and checks every rule that needs no model.
    pub fn decode(payload: &'a [u8]) -> Result<Call<'a>, DecodeError> {
        let mut r = Reader::new(payload);
        let call = r.u64("call")?;
        let layer = r.u16("layer")?;
        let mode = match r.u8("mode")? {
            0 => Mode::Each,
            1 => Mode::Sum,
            value => return Err(DecodeError::UnknownValue { field: "mode", value: value.into() }),
        };
        let row_format = r.u8("row format")?;
        let row_format = RowFormat::from_number(row_format)
            .ok_or(DecodeError::UnknownValue { field: "row format", value: row_format.into() })?;
        let rows = r.u32("rows")?;
        within("rows", rows.into(), MAX_CALL_ROWS.into())?;
        let count = r.u16("experts")?;
        let count = r.check_count("experts", count.into(), MAX_CALL_EXPERTS.into(), 6)?;
        let request_bytes = if mode == Mode::Sum { 8 } else { 4 };
        let mut experts = Vec::with_capacity(count);
        for _ in 0..count {
            let expert = r.u16("expert")?;
            let count = r.u32("row count")?;
            let count = r.check_count("row count", count.into(), rows as usize, request_bytes)?;
            let rows = (0..count).map(|_| r.u32("row number")).collect::<Result<Vec<_>, _>>()?;
            let weights = if mode == Mode::Sum {
                (0..count).map(|_| r.u32("gate weight").map(f32::from_bits)).collect::<Result<Vec<_>, _>>()?
            } else {
                Vec::new()
            };
            experts.push(ExpertRows { expert, rows, weights });
        }
        let call = Call { call, layer, mode, row_format, rows, experts, data: r.rest() };
        call.check()?;
        Ok(call)
    }

    /// Columns of a row, from the length of the data.
    pub fn columns(&self) -> Option<usize> {
        let rows = self.rows as usize;
        if rows == 0 || !self.data.len().is_multiple_of(rows) {
            return None;
        }
        self.row_format.columns(self.data.len() / rows)
    }

    /// Row requests: the sum over experts of their row counts.
    pub fn requests(&self) -> usize {
        self.experts.iter().map(|expert| expert.rows.len()).sum()
    }

    /// Rows of the result: a row request each, or in sum mode a row of the call each.
    pub fn result_rows(&self) -> usize {
        match self.mode {
            Mode::Each => self.requests(),
            Mode::Sum => self.rows as usize,
        }
    }

    fn check(&self) -> Result<(), DecodeError> {
        let broken = |field, rule| Err(DecodeError::Broken { field, rule });
        if stream_of_call(self.call).is_none() {
            return broken("call", "numbers run from 1 to 2,147,483,647");
        }
        within("rows", self.rows.into(), MAX_CALL_ROWS.into())?;
        within("experts", self.experts.len() as u64, MAX_CALL_EXPERTS.into())?;
        within("row requests", self.requests() as u64, MAX_CALL_REQUESTS as u64)?;
        if self.rows == 0 || self.experts.is_empty() {
            return broken("rows", "a call has at least one row and one expert");
        }
        if self.experts.windows(2).any(|pair| pair[0].expert >= pair[1].expert) {
            return broken("expert", "indices ascend strictly");
        }
        for expert in &self.experts {
            if expert.rows.is_empty() {
                return broken("row count", "an expert gets at least one row");
            }
            if expert.rows.windows(2).any(|pair| pair[0] >= pair[1]) {
                return broken("row number", "numbers ascend strictly");
            }
            if expert.rows.last().is_some_and(|row| *row >= self.rows) {
                return broken("row number", "must be below the number of rows");
            }
            let weights = if self.mode == Mode::Sum { expert.rows.len() } else { 0 };
            if expert.weights.len() != weights {
                return broken("gate weight", "sum mode has one per row request, each mode none");
            }
            if expert.weights.iter().any(|weight| !weight.is_finite()) {
                return broken("gate weight", "must be finite");
            }
        }
        let Some(columns) = self.columns() else {
            return broken("data", "must be whole rows of whole blocks");
        };
        within("columns", columns as u64, MAX_COLUMNS as u64)?;
        // Refused here, before any arithmetic: the answer could not be sent.
        let result = (self.result_rows() * columns * 4) as u64;
        within("result bytes", result, (MAX_PAYLOAD_BYTES - RESULT_OVERHEAD_BYTES) as u64)?;
        Ok(())
    }
}

/// Why a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FailureCode {
    /// Cancelled before it was computed.
    Cancelled = 1,
    /// An expert of it is not held.
    NotHeld = 2,
    /// The worker has more to do than it takes.
    Overloaded = 3,
    /// Rows that no kernel accepts: not finite, or of another width.
    BadRows = 4,
    /// The kernel faulted or ran out of fuel or time.
    KernelFault = 5,
    /// The call breaks a rule.
    BadCall = 6,
    /// The worker is stopping.
    Draining = 7,
}

impl FailureCode {
    /// The code of a number, if there is one.
    pub const fn from_number(number: u8) -> Option<FailureCode> {
        match number {
            1 => Some(FailureCode::Cancelled),
            2 => Some(FailureCode::NotHeld),
            3 => Some(FailureCode::Overloaded),
            4 => Some(FailureCode::BadRows),
            5 => Some(FailureCode::KernelFault),
            6 => Some(FailureCode::BadCall),
            7 => Some(FailureCode::Draining),
            _ => None,
        }
    }
}

/// A call that failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub code: FailureCode,
    /// For people.
    pub sentence: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.sentence)
    }
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// f32 rows, little-endian, in the order asked; the bytes whose SHA-256 a work item holds.
    Rows(&'a [u8]),
    /// No rows.
    Failed(Failure),
}

/// The payload of a `result` frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallResult<'a> {
    /// The call that it answers.
    pub call: u64,
    /// How it ended.
    pub outcome: Outcome<'a>,
    /// Root over the session's work items up to and including this one.
    pub work_root: [u8; 32],
}

impl<'a> CallResult<'a> {
    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        let rows = if let Outcome::Rows(rows) = &self.outcome { rows.len() } else { 0 };
        let mut w = Writer::with_capacity(RESULT_OVERHEAD_BYTES + rows);
        w.u64(self.call);
        match &self.outcome {
            Outcome::Rows(rows) => w.u8(0).bytes(&[0; 3]).bytes(rows),
            Outcome::Failed(failure) => {
                w.u8(failure.code as u8).bytes(&[0; 3]).string(&sentence_within_limit(&failure.sentence))
            }
        };
        w.bytes(&self.work_root);
        w.finish()
    }

    /// Reads the payload.
    pub fn decode(payload: &'a [u8]) -> Result<CallResult<'a>, DecodeError> {
        let (body, work_root) = payload
            .split_last_chunk::<32>()
            .ok_or(DecodeError::Truncated { field: "work root", missing: 32 - payload.len().min(32) })?;
        let mut r = Reader::new(body);
        let call = r.u64("call")?;
        if stream_of_call(call).is_none() {
            return Err(DecodeError::Broken { field: "call", rule: "numbers run from 1 to 2,147,483,647" });
        }
        let status = r.u8("status")?;
        if r.array::<3>("reserved")? != [0; 3] {
            return Err(DecodeError::Broken { field: "reserved", rule: "must be zero" });
        }
        let outcome = if status == 0 {
            let rows = r.rest();
            if rows.is_empty() || !rows.len().is_multiple_of(4) {
                return Err(DecodeError::Broken { field: "rows", rule: "at least one f32, and whole ones" });
            }
            Outcome::Rows(rows)
        } else {
            let code = FailureCode::from_number(status)
                .ok_or(DecodeError::UnknownValue { field: "status", value: status.into() })?;
            let sentence = r.string("sentence", MAX_SENTENCE_BYTES)?.to_owned();
            Outcome::Failed(Failure { code, sentence })
        };
        r.end()?;
        Ok(CallResult { call, outcome, work_root: *work_root })
    }

    /// The rows as numbers, `count * columns` of them; an error for another length or one that is not finite.
    pub fn values(rows: &[u8], count: usize, columns: usize) -> Result<Vec<f32>, DecodeError> {
        if rows.len() != count * columns * 4 {
            return Err(DecodeError::Broken {
                field: "rows",
                rule: "not the number of values that was asked for",
            });
        }
        let values: Vec<f32> =
            rows.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if !values.iter().all(|value| value.is_finite()) {
            return Err(DecodeError::Broken { field: "rows", rule: "every value must be finite" });
        }
        Ok(values)
    }

    /// Numbers as the bytes of [`Outcome::Rows`].
    pub fn row_bytes(values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; size_of_val(values)];
        // In a form that is compiled to a copy where numbers stand in memory in this order.
        for (to, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
            *to = value.to_le_bytes();
        }
        bytes
    }

    /// SHA-256 of what the work item holds of this outcome: the rows, or nothing if it failed.
    pub fn rows_digest(outcome: &Outcome<'_>) -> [u8; 32] {
        match outcome {
            Outcome::Rows(rows) => sha256(&[rows]),
            Outcome::Failed(_) => sha256(&[]),
        }
    }
}

/// Bytes of a result beside its rows.
const RESULT_OVERHEAD_BYTES: usize = 12 + 32;
