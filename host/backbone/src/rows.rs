//! Rows that products read: floats, and their quantised forms made once per row format.

use kvasir_numerics::{NotFinite, RowFormat, quantise_row};

use crate::faults::Faults;
use crate::parallel::{Cost, share, stretch};

/// Cost of quantising one value, in multiply-adds.
const QUANTISE_COST: usize = 16;

/// `count` rows of `width` floats, row-major, with the forms that matrices read. Buffers are kept between uses.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    width: usize,
    count: usize,
    values: Vec<f32>,
    forms: [Form; 3],
}

#[derive(Debug, Default)]
struct Form {
    bytes: Vec<u8>,
    ready: bool,
}

impl Rows {
    /// Makes room for `count` rows of `width` floats and forgets all forms. The floats are to be written next.
    pub(crate) fn reset(&mut self, count: usize, width: usize) -> &mut [f32] {
        self.width = width;
        self.count = count;
        self.values.resize(count * width, 0.0);
        self.forms.iter_mut().for_each(|form| form.ready = false);
        &mut self.values
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// All floats, row-major.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Makes the form for `format` unless it is there. `width` must be whole blocks of it, which holds for every
    /// format that a matrix of `width` columns reads. Rows that are not finite become zero and are noted in `faults`.
    pub(crate) fn prepare(&mut self, format: RowFormat, faults: &mut Faults) {
        let form = &mut self.forms[usize::from(format.number())];
        if form.ready {
            return;
        }
        let row_bytes = row_bytes(format, self.width);
        form.bytes.resize(self.count * row_bytes, 0);
        let rows = stretch(self.count, self.width * QUANTISE_COST);
        let values = self.values.chunks(rows * self.width);
        let mut tasks: Vec<QuantiseTask<'_>> = values
            .zip(form.bytes.chunks_mut(rows * row_bytes))
            .map(|(values, bytes)| QuantiseTask { values, bytes, outcome: Ok(()) })
            .collect();
        share(&mut tasks, &|task| {
            let rows = task.values.chunks_exact(self.width).zip(task.bytes.chunks_exact_mut(row_bytes));
            task.outcome = rows.into_iter().try_for_each(|(row, bytes)| quantise_row(row, format, bytes));
        });
        if tasks.iter().any(|task| task.outcome.is_err()) {
            let rows = self.values.chunks_exact_mut(self.width).zip(form.bytes.chunks_exact_mut(row_bytes));
            for (number, (row, bytes)) in rows.enumerate() {
                if quantise_row(row, format, bytes).is_err() {
                    row.fill(0.0);
                    // The zero row, in every format.
                    bytes.fill(0);
                    faults.note(number);
                }
            }
        }
        form.ready = true;
    }

    /// The rows in `format`, back to back. [`Rows::prepare`] must have made it.
    pub(crate) fn bytes(&self, format: RowFormat) -> &[u8] {
        let form = &self.forms[usize::from(format.number())];
        assert!(form.ready, "the rows were not prepared in the format of the matrix");
        &form.bytes
    }
}

/// A stretch of rows.
struct QuantiseTask<'a> {
    values: &'a [f32],
    bytes: &'a mut [u8],
    outcome: Result<(), NotFinite>,
}

impl Cost for QuantiseTask<'_> {
    fn cost(&self) -> usize {
        self.values.len() * QUANTISE_COST
    }
}

/// Bytes of a row of `width` values whose width is known to be whole blocks.
pub(crate) fn row_bytes(format: RowFormat, width: usize) -> usize {
    match format.row_bytes(width) {
        Some(bytes) => bytes,
        None => unreachable!("{width} columns are whole blocks: the matrix that reads the row was checked"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_not_finite_becomes_zero_and_leaves_the_others_as_they_are() {
        for format in [RowFormat::Float32, RowFormat::Q8, RowFormat::Q8K] {
            let good: Vec<f32> = (0..256).map(|at| (at as f32 * 0.3).sin()).collect();
            let mut expected = vec![0; row_bytes(format, 256)];
            quantise_row(&good, format, &mut expected).unwrap();
            let (mut rows, mut faults) = (Rows::default(), Faults::default());
            let values = rows.reset(3, 256);
            values[..256].copy_from_slice(&good);
            values[256..512].copy_from_slice(&good);
            values[300] = f32::INFINITY;
            values[512..].copy_from_slice(&good);
            rows.prepare(format, &mut faults);
            assert_eq!(faults.take(), [1]);
            let bytes: Vec<&[u8]> = rows.bytes(format).chunks_exact(expected.len()).collect();
            assert_eq!(bytes, [&expected[..], &vec![0; expected.len()][..], &expected[..]]);
        }
    }
}
