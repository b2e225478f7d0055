//! The results that no receipt covers yet, in the order in which they were relayed.

use std::collections::VecDeque;

/// Sizes of results since the last cut. The tally bounds their number.
#[derive(Debug, Default)]
pub(super) struct Uncut {
    /// Bytes up and down of each.
    sizes: VecDeque<(u64, u64)>,
    bytes: u64,
    /// Bytes up and down of everything up to the last cut, those left out of receipts included.
    before: (u64, u64),
}

/// A stretch of results from the last cut on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Covered {
    /// How many.
    pub(super) results: u64,
    /// Bytes of their calls and all calls before.
    pub(super) up: u64,
    /// Bytes of these results and all before.
    pub(super) down: u64,
}

impl Uncut {
    pub(super) fn push(&mut self, up: u64, down: u64) {
        self.sizes.push_back((up, down));
        self.bytes = self.bytes.saturating_add(up).saturating_add(down);
    }

    /// Bytes up and down since the last cut.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The longest stretch of at most so many bytes.
    pub(super) fn within(&self, bytes: u64) -> Covered {
        let mut covered = Covered { results: 0, up: self.before.0, down: self.before.1 };
        let mut left = bytes;
        for (up, down) in &self.sizes {
            match left.checked_sub(up.saturating_add(*down)) {
                Some(rest) => left = rest,
                None => break,
            }
            covered.results += 1;
            covered.up = covered.up.saturating_add(*up);
            covered.down = covered.down.saturating_add(*down);
        }
        covered
    }

    /// The first so many results are covered now.
    pub(super) fn cut(&mut self, results: u64) {
        for (up, down) in self.sizes.drain(..(results as usize).min(self.sizes.len())) {
            self.bytes = self.bytes.saturating_sub(up).saturating_sub(down);
            self.before.0 = self.before.0.saturating_add(up);
            self.before.1 = self.before.1.saturating_add(down);
        }
    }
}
