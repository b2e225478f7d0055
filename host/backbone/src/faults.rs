//! Rows in which a value arose that is not finite.
//!
//! Such a row is set to zero where it is met and noted here. Its batch goes on: no row's bits depend on another's, so
//! the others have the bits that they would have without it. Whoever runs the pass ends the row's sequence.

/// Rows of a pass, by their number in the batch.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    rows: Vec<usize>,
}

impl Faults {
    /// A value of `row` is not finite. Noting a row twice changes nothing.
    pub(crate) fn note(&mut self, row: usize) {
        if !self.rows.contains(&row) {
            self.rows.push(row);
        }
    }

    /// The rows noted since the last time, which are then forgotten.
    pub(crate) fn take(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.rows)
    }

    /// Sets the rows of `values` to zero that are not finite, and notes them. Rows are `width` wide.
    pub(crate) fn silence(&mut self, values: &mut [f32], width: usize) {
        for (number, row) in values.chunks_exact_mut(width).enumerate() {
            if row.iter().any(|value| !value.is_finite()) {
                row.fill(0.0);
                self.note(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_not_finite_are_silenced_and_noted_once() {
        let mut faults = Faults::default();
        let mut values = [1.0, 2.0, f32::NAN, 3.0, 4.0, f32::NEG_INFINITY];
        faults.silence(&mut values, 2);
        faults.note(1);
        assert_eq!(values, [1.0, 2.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(faults.take(), [1, 2]);
        assert!(faults.take().is_empty());
    }
}
