//! Behind the last layer: the final norm and the output matrix, for the rows that logits are wanted for.

use std::ops::Range;

use crate::backbone::{Backbone, Wanted, check_rows};
use crate::error::{BackboneError, Place};
use crate::layer::norm_rows;
use crate::logits::Logits;
use crate::products::{Product, compute, transpose_rows};
use crate::scratch::Scratch;

impl Backbone {
    /// The final norm and the output matrix for rows of the residual stream behind the last layer (rows x hidden).
    ///
    /// # Errors
    /// No rows, too many, a number of values that is no number of rows, values that are not finite.
    pub fn output(&self, hidden: &[f32]) -> Result<Logits, BackboneError> {
        let width = self.width();
        let rows = hidden.len() / width;
        if rows == 0 || rows * width != hidden.len() {
            let what = format!("{} values are no rows of {width}", hidden.len());
            return Err(BackboneError::WrongInput { what });
        }
        check_rows(rows)?;
        self.within(|| {
            let mut scratch = self.take_scratch();
            let logits = self.project(hidden, &mut scratch);
            let finite = check_finite(&mut scratch, Place::Output);
            self.give_scratch(scratch);
            finite.map(|()| Logits::new(self.output.rows(), logits))
        })
    }

    /// Logits of the given rows, range by range. Rows that are not finite are noted by their place among the given ones.
    pub(crate) fn logits(
        &self,
        hidden: &[f32],
        wanted: &[Range<usize>],
        scratch: &mut Scratch,
    ) -> Vec<Logits> {
        let width = self.width();
        let selected: Vec<f32> =
            wanted.iter().flat_map(|rows| &hidden[rows.start * width..rows.end * width]).copied().collect();
        let vocabulary = self.output.rows();
        if selected.is_empty() {
            return wanted.iter().map(|_| Logits::new(vocabulary, Vec::new())).collect();
        }
        let mut values = self.project(&selected, scratch);
        if let [_] = wanted {
            return vec![Logits::new(vocabulary, values)];
        }
        let mut logits = Vec::with_capacity(wanted.len());
        for rows in wanted.iter().rev() {
            let rest = values.split_off(values.len() - rows.len() * vocabulary);
            logits.push(Logits::new(vocabulary, rest));
        }
        logits.reverse();
        logits
    }

    /// Final norm and output matrix; rows x vocabulary. Rows that are not finite are noted.
    fn project(&self, hidden: &[f32], scratch: &mut Scratch) -> Vec<f32> {
        let epsilon = self.model.config().rms_epsilon;
        let Scratch { normed, output, faults, .. } = scratch;
        norm_rows(hidden, self.model.output_norm(), epsilon, normed, self.instructions);
        let count = normed.count();
        normed.prepare(self.output.row_format(), faults);
        let rows = normed.bytes(self.output.row_format());
        compute(self.instructions, [Product::new(self.output.matrix(), rows, count, output)]);
        let mut logits = vec![0.0; output.len()];
        transpose_rows(output, count, 0..count, &mut logits);
        if !logits.iter().fold(true, |finite, logit| finite & logit.is_finite()) {
            faults.silence(&mut logits, self.output.rows());
        }
        logits
    }
}

impl Wanted {
    /// Which of a feed's rows are meant.
    pub(crate) fn of(self, rows: &Range<usize>) -> Range<usize> {
        match self {
            Wanted::None => rows.end..rows.end,
            Wanted::Last => rows.end - 1..rows.end,
            Wanted::All => rows.clone(),
        }
    }
}

/// An error where a row of the pass is not finite.
pub(crate) fn check_finite(scratch: &mut Scratch, place: Place) -> Result<(), BackboneError> {
    if scratch.faults.take().is_empty() { Ok(()) } else { Err(BackboneError::NotFinite { place }) }
}
