//! Which texts fit into memory. Everything is accounted for before it is taken, by what the model's shape says that it
//! takes at most, so that a text that was let in never meets a full machine.

use kvasir_backbone::{Backbone, SequenceCost, pass_row_bytes};

/// The memory that texts may take, and what of it is taken.
#[derive(Debug)]
pub(super) struct Memory {
    cost: SequenceCost,
    row: u64,
    budget: u64,
    /// Rows of prompts in a pass at most.
    prompt_rows: usize,
    taken: u64,
    texts: usize,
}

impl Memory {
    pub(super) fn new(backbone: &Backbone, budget: u64, prompt_rows: usize) -> Memory {
        let config = backbone.model().config();
        let (cost, row) = (SequenceCost::of(config), pass_row_bytes(config));
        Memory { cost, row, budget, prompt_rows, taken: 0, texts: 0 }
    }

    /// What a text whose sequence holds `tokens` takes, if nobody else is there.
    pub(super) fn needed(&self, tokens: usize) -> u64 {
        self.cost.bytes(tokens).saturating_add(self.passes(1, 1))
    }

    /// Whether there is memory left for a text whose sequence holds `tokens`.
    pub(super) fn fits(&self, tokens: usize) -> bool {
        let taken = self.taken.saturating_add(self.cost.bytes(tokens));
        taken.saturating_add(self.passes(self.texts + 1, 1)) <= self.budget
    }

    /// Takes the memory of a text that fits.
    pub(super) fn take(&mut self, tokens: usize) {
        self.taken = self.taken.saturating_add(self.cost.bytes(tokens));
        self.texts += 1;
    }

    /// Gives back what [`Memory::take`] took for as many tokens.
    pub(super) fn give_back(&mut self, tokens: usize) {
        self.taken = self.taken.saturating_sub(self.cost.bytes(tokens));
        self.texts = self.texts.saturating_sub(1);
    }

    /// The most passes that fit at once beside the texts, at least 1.
    pub(super) fn most_waves(&self) -> usize {
        let fixed = self.taken.saturating_add(self.passes(self.texts, 0));
        let each = self.passes(0, 1).max(1);
        usize::try_from(self.budget.saturating_sub(fixed) / each).unwrap_or(usize::MAX).max(1)
    }

    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// What passes take in all: a row for each text, wherever it is, and the prompts' rows of each pass.
    fn passes(&self, texts: usize, waves: usize) -> u64 {
        let rows = texts.saturating_add(waves.saturating_mul(self.prompt_rows));
        self.row.saturating_mul(rows as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(budget: u64) -> Memory {
        let cost = SequenceCost { fixed: 1000, token: 10 };
        Memory { cost, row: 5, budget, prompt_rows: 20, taken: 0, texts: 0 }
    }

    #[test]
    fn texts_fit_until_memory_is_full_and_again_once_one_is_over() {
        // 1,500 a text of 50 tokens, 5 its row, 100 a pass.
        let mut memory = memory(2 * 1505 + 100);
        assert_eq!(memory.needed(50), 1605);
        memory.take(50);
        assert!(memory.fits(50));
        memory.take(50);
        assert!(!memory.fits(0));
        memory.give_back(50);
        assert!(!memory.fits(51) && memory.fits(50));
        memory.take(50);
        assert_eq!((memory.taken(), memory.budget()), (3000, 3110));
    }

    #[test]
    fn passes_are_as_many_as_fit_beside_the_texts() {
        let mut memory = memory(1505 + 350);
        memory.take(50);
        assert_eq!(memory.most_waves(), 3);
        assert_eq!(self::memory(0).most_waves(), 1);
    }
}
