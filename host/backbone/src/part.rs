//! One sequence's share of a forward pass.

use std::ops::Range;

use crate::sequence::Sequence;

/// Rows of a pass that belong to one sequence, in the order of its tokens.
pub(crate) struct Part<'a> {
    pub(crate) sequence: &'a mut Sequence,
    /// Never empty; the parts of a pass follow each other without a gap.
    pub(crate) rows: Range<usize>,
}

impl Part<'_> {
    /// Position in the sequence of the part's first row.
    pub(crate) fn first_position(&self) -> usize {
        self.sequence.len()
    }
}
