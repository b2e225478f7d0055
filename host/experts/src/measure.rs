//! Times the evaluation of experts, for people who ask how fast a kernel is: through a runner, as every answer is computed,
//! or by the same arithmetic natively.
//!
//! Weights are made up, rows too; what comes out is thrown away, and nothing here judges a figure. Whether a kernel is right
//! is shown elsewhere (`conformance`, the differential tests).

mod timing;
mod weights;

use std::sync::Mutex;

use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_numerics::{InstructionSet, NotFinite, product, swiglu};
use kvasir_threads::share;

use crate::error::RunnerError;
use crate::request::ExpertRows;
use crate::runner::ExpertRunner;

pub use timing::{Timing, on_threads, spread, time, window};
pub use weights::{ExpertShape, MadeUpExperts, Random, made_up_rows, random_matrix};

/// The layer that made-up experts are loaded as.
pub const LAYER: LayerIndex = LayerIndex(0);
/// Most experts of one measurement: they are numbered as a model's are.
pub const MAX_EXPERTS: usize = 4096;
/// Most rows in one measured call.
pub const MAX_ROWS: usize = 1 << 16;
/// Most values in a made-up row, in and between the matrices.
pub const MAX_SIDE: usize = 1 << 15;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The caller's fault: a shape, a number of experts or rows that cannot be.
    #[error("{0}")]
    Impossible(String),
    /// The runner failed.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// The made-up weights overflowed, which they are made not to do.
    #[error("the made-up weights gave a result that is not finite: {0}")]
    NotFinite(#[from] NotFinite),
}

/// Who computes.
#[derive(Clone, Copy)]
pub enum Evaluator<'a> {
    /// A runner: the sandboxed kernel, with all that a call costs. The experts must be loaded ([`MadeUpExperts::load`]).
    Runner(&'a ExpertRunner),
    /// The same arithmetic natively, expert by expert on the threads that the caller has entered.
    Native(InstructionSet),
    /// One product alone, natively: the expert's gate matrix with rows that are quantised within the measured time. It is
    /// what other libraries call a matrix multiplication by expert number.
    Product(InstructionSet),
}

impl Evaluator<'_> {
    /// Multiply-adds of one expert and one row.
    pub fn multiply_adds(&self, shape: ExpertShape) -> u64 {
        let matrix = shape.hidden as u64 * shape.width as u64;
        if matches!(self, Evaluator::Product(_)) { matrix } else { 3 * matrix }
    }

    /// Bytes of weights that are read for one expert.
    pub fn weight_bytes(&self, shape: ExpertShape) -> u64 {
        let expert = shape.expert_bytes() as u64;
        if matches!(self, Evaluator::Product(_)) { expert / 3 } else { expert }
    }
}

/// One evaluator with the experts and the rows that it computes with.
pub struct Bench<'a> {
    evaluator: Evaluator<'a>,
    experts: &'a MadeUpExperts,
    rows: &'a [u8],
    /// Buffers that threads take and give back, so that no measured time is spent on fresh memory.
    buffers: Mutex<Vec<Buffers>>,
}

#[derive(Default)]
struct Buffers {
    rows: Vec<u8>,
    scratch: Vec<f32>,
    out: Vec<f32>,
}

impl<'a> Bench<'a> {
    /// Puts a measurement together. `rows` are whole rows in the row format of the experts' gate.
    pub fn new(evaluator: Evaluator<'a>, experts: &'a MadeUpExperts, rows: &'a [u8]) -> Self {
        Bench { evaluator, experts, rows, buffers: Mutex::new(Vec::new()) }
    }

    /// Computes one call and throws the answer away. Runs on the threads that the caller has entered.
    ///
    /// # Errors
    /// Where the runner or the arithmetic fails.
    pub fn call(&self, requests: &[ExpertRows]) -> Result<(), MeasureError> {
        let shape = self.experts.shape();
        match self.evaluator {
            Evaluator::Runner(runner) => {
                let format = shape.format.row_format();
                let out = runner.each(LAYER, format, self.rows, shape.hidden, requests)?;
                std::hint::black_box(out);
                Ok(())
            }
            Evaluator::Native(set) => self.with_buffers(requests, |request, buffers| {
                let expert = self.experts.expert(request.expert)?;
                let count = request.rows.len();
                self.gather(request, &mut buffers.rows)?;
                resize(&mut buffers.scratch, expert.scratch_len(count).unwrap_or(usize::MAX));
                resize(&mut buffers.out, shape.hidden * count);
                let (scratch, out) = (&mut buffers.scratch, &mut buffers.out[..shape.hidden * count]);
                swiglu(set, &expert, &buffers.rows, count, scratch, out)?;
                std::hint::black_box(out);
                Ok(())
            }),
            Evaluator::Product(set) => self.with_buffers(requests, |request, buffers| {
                let gate = self.experts.expert(request.expert)?.gate();
                let count = request.rows.len();
                buffers.rows.clear();
                for &row in &request.rows {
                    let start = buffers.rows.len();
                    let format = shape.format.row_format();
                    buffers.rows.resize(start + format.row_bytes(shape.hidden).unwrap_or(0), 0);
                    let values = self.experts.values(row);
                    kvasir_numerics::quantise_row(values, format, &mut buffers.rows[start..])?;
                }
                resize(&mut buffers.out, shape.width * count);
                let out = &mut buffers.out[..shape.width * count];
                product(set, gate, 0..shape.width, &buffers.rows, count, out);
                std::hint::black_box(out);
                Ok(())
            }),
        }
    }

    /// The experts measured.
    pub fn shape(&self) -> ExpertShape {
        self.experts.shape()
    }

    fn with_buffers(
        &self,
        requests: &[ExpertRows],
        compute: impl Fn(&ExpertRows, &mut Buffers) -> Result<(), MeasureError> + Sync,
    ) -> Result<(), MeasureError> {
        let mut tasks: Vec<_> = requests.iter().map(|request| (request, Ok(()))).collect();
        share(&mut tasks, |(request, outcome)| {
            let taken = self.buffers.lock().ok().and_then(|mut buffers| buffers.pop());
            let mut buffers = taken.unwrap_or_default();
            *outcome = compute(request, &mut buffers);
            if let Ok(mut kept) = self.buffers.lock() {
                kept.push(buffers);
            }
        });
        tasks.into_iter().try_for_each(|(_, outcome)| outcome)
    }

    /// The rows that a request names, back to back, as a runner gathers them.
    fn gather(&self, request: &ExpertRows, into: &mut Vec<u8>) -> Result<(), MeasureError> {
        let shape = self.experts.shape();
        let row_bytes = shape.format.row_format().row_bytes(shape.hidden).unwrap_or(usize::MAX);
        into.clear();
        for &row in &request.rows {
            let start = (row as usize).saturating_mul(row_bytes);
            let bytes = start.checked_add(row_bytes).and_then(|end| self.rows.get(start..end));
            into.extend_from_slice(bytes.ok_or_else(|| {
                MeasureError::Impossible(format!("row {row} is asked for, which was not made"))
            })?);
        }
        Ok(())
    }
}

/// Made longer where it is too short, never shorter: the memory stays the same.
fn resize(buffer: &mut Vec<f32>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, 0.0);
    }
}

impl MadeUpExperts {
    /// Loads every expert into `runner`, as experts of [`LAYER`].
    ///
    /// # Errors
    /// Where the runner refuses one, for instance because its kernel does not know the format.
    pub fn load(&self, runner: &ExpertRunner) -> Result<(), MeasureError> {
        for number in 0..self.count() {
            let expert = ExpertIndex(number as u16);
            runner.load(LAYER, expert, &self.expert(expert)?)?;
        }
        Ok(())
    }

    /// Frees every expert again.
    pub fn unload(&self, runner: &ExpertRunner) {
        for number in 0..self.count() {
            runner.unload(LAYER, ExpertIndex(number as u16));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kvasir_numerics::Format;

    use super::*;

    #[test]
    fn every_format_and_set_is_measured_and_counts_what_it_computed() {
        for format in Format::ALL {
            let shape = ExpertShape { format, hidden: 512, width: 256 };
            let experts = MadeUpExperts::new(shape, 3, 2).unwrap();
            let rows = made_up_rows(&experts).unwrap();
            for set in InstructionSet::available() {
                for evaluator in [Evaluator::Native(set), Evaluator::Product(set)] {
                    let bench = Bench::new(evaluator, &experts, &rows);
                    let timing = time(&bench, Duration::ZERO, |turn| window(turn, 2, 3, 2)).unwrap();
                    assert_eq!((timing.calls, timing.expert_rows, timing.experts), (1, 4, 2), "{format}");
                    assert!(timing.median_seconds >= timing.best_seconds && timing.best_seconds > 0.0);
                }
            }
        }
    }

    #[test]
    fn impossible_measurements_are_refused_with_their_limit() {
        let shape = ExpertShape { format: Format::Q4K, hidden: 512, width: 256 };
        let refused = |shape, experts, rows| match MadeUpExperts::new(shape, experts, rows) {
            Err(MeasureError::Impossible(told)) => told,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("taken"),
        };
        assert!(refused(ExpertShape { hidden: 511, ..shape }, 1, 1).contains("511"));
        assert!(refused(ExpertShape { width: 255, ..shape }, 1, 1).contains("255"));
        assert!(refused(ExpertShape { hidden: MAX_SIDE + 256, ..shape }, 1, 1).contains("32768"));
        assert!(refused(shape, MAX_EXPERTS + 1, 1).contains("4096"));
        assert!(refused(shape, 0, 1).contains("0 experts"));
        assert!(refused(shape, 1, MAX_ROWS + 1).contains("65536"));
        let experts = MadeUpExperts::new(shape, 1, 1).unwrap();
        let rows = made_up_rows(&experts).unwrap();
        let bench = Bench::new(Evaluator::Native(InstructionSet::SCALAR), &experts, &rows);
        let ask = |expert, row| {
            bench.call(&[ExpertRows { expert: ExpertIndex(expert), rows: vec![row], weights: vec![] }])
        };
        assert!(ask(0, 0).is_ok());
        assert!(ask(0, 1).unwrap_err().to_string().contains("row 1"));
        assert!(ask(1, 0).unwrap_err().to_string().contains("expert 1"));
    }

    #[test]
    fn tokens_are_spread_over_distinct_experts_and_windows_turn_through_all() {
        let requests = spread(7, 40, 16, 4);
        let mut picks = [0; 40];
        for request in &requests {
            assert!(request.expert.0 < 16 && request.rows.is_sorted());
            assert!(request.rows.windows(2).all(|pair| pair[0] < pair[1]), "an expert twice for one token");
            request.rows.iter().for_each(|&row| picks[row as usize] += 1);
        }
        assert!(picks.iter().all(|&count| count == 4));
        assert_ne!(requests, spread(8, 40, 16, 4));
        let first = |turn| window(turn, 2, 5, 1).iter().map(|request| request.expert.0).collect::<Vec<_>>();
        assert_eq!([first(0), first(1), first(2)], [vec![0, 1], vec![2, 3], vec![4, 0]]);
    }
}
