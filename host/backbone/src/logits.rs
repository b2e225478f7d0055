//! Logits of the rows that they were wanted for.

/// Rows of logits, one value per entry of the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct Logits {
    vocabulary: usize,
    values: Vec<f32>,
}

impl Logits {
    /// `values`: rows x `vocabulary`.
    pub(crate) fn new(vocabulary: usize, values: Vec<f32>) -> Logits {
        Logits { vocabulary, values }
    }

    /// Entries of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Rows that logits were wanted for, in the order of their tokens.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.vocabulary)
    }

    /// The last row; `None` where none was wanted.
    pub fn last(&self) -> Option<&[f32]> {
        self.values.chunks_exact(self.vocabulary).next_back()
    }

    /// The last row by value; `None` where none was wanted.
    pub(crate) fn into_last(mut self) -> Option<Vec<f32>> {
        let start = self.values.len().checked_sub(self.vocabulary)?;
        Some(if start == 0 { self.values } else { self.values.split_off(start) })
    }

    /// All values, rows x vocabulary.
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}
