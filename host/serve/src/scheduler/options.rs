//! How a scheduler is told to work, and the bounds of it.

use kvasir_backbone::MAX_ROWS;

/// How a scheduler works.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerOptions {
    /// How waves are made.
    pub waves: WaveOptions,
    /// Texts that may wait while as many are written as may be; at most [`SchedulerOptions::MOST_QUEUED`].
    pub queue: usize,
}

impl SchedulerOptions {
    /// Texts that may wait by default.
    pub const QUEUE: usize = 256;
    /// More texts than this never wait: each keeps its prompt.
    pub const MOST_QUEUED: usize = 64 * 1024;

    /// The usual ones, with so much memory for texts and passes.
    pub fn new(memory: u64) -> SchedulerOptions {
        SchedulerOptions { waves: WaveOptions::new(memory), queue: SchedulerOptions::QUEUE }
    }

    /// With every number within its bounds.
    pub(super) fn bounded(self) -> SchedulerOptions {
        SchedulerOptions { waves: self.waves.bounded(), queue: self.queue.min(SchedulerOptions::MOST_QUEUED) }
    }
}

/// How waves are made.
#[derive(Debug, Clone, Copy)]
pub struct WaveOptions {
    /// Rows of prompts that one pass reads at most, all its texts together; it changes no bit. At least 1, and at most
    /// half of [`MAX_ROWS`].
    pub prefill_rows: usize,
    /// Passes under way at most; at least 1, and at most [`WaveOptions::MOST_WAVES`].
    pub waves: usize,
    /// Texts written at once at most; at least 1, and at most [`WaveOptions::MOST_TEXTS`].
    pub texts: usize,
    /// Bytes that texts and passes may take.
    pub memory: u64,
}

impl WaveOptions {
    /// Rows of prompts in a pass by default: enough that a layer's experts see several rows each, few enough that the
    /// texts beside them are not held up for long.
    pub const PREFILL_ROWS: usize = 128;
    /// Passes under way by default, at most.
    pub const WAVES: usize = 16;
    /// Texts at once by default, at most.
    pub const TEXTS: usize = 256;
    /// More passes under way than this are never wanted: each has a call in flight, and a worker queues hundreds of them
    /// at most.
    pub const MOST_WAVES: usize = 64;
    /// More texts at once than this are never written: with a row for each, a pass of all of them has room for prompts.
    pub const MOST_TEXTS: usize = MAX_ROWS / 2;

    /// The usual ones, with so much memory for texts and passes.
    pub fn new(memory: u64) -> WaveOptions {
        WaveOptions {
            prefill_rows: WaveOptions::PREFILL_ROWS,
            waves: WaveOptions::WAVES,
            texts: WaveOptions::TEXTS,
            memory,
        }
    }

    /// With every number within its bounds.
    pub(super) fn bounded(self) -> WaveOptions {
        WaveOptions {
            prefill_rows: self.prefill_rows.clamp(1, MAX_ROWS / 2),
            waves: self.waves.clamp(1, WaveOptions::MOST_WAVES),
            texts: self.texts.clamp(1, WaveOptions::MOST_TEXTS),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_bounds_are_brought_within() {
        let nothing = WaveOptions { prefill_rows: 0, waves: 0, texts: 0, memory: 0 };
        let bounded = SchedulerOptions { waves: nothing, queue: 0 }.bounded();
        let WaveOptions { prefill_rows, waves, texts, memory } = bounded.waves;
        assert_eq!((prefill_rows, waves, texts, memory, bounded.queue), (1, 1, 1, 0, 0));
        let most = usize::MAX;
        let all = WaveOptions { prefill_rows: most, waves: most, texts: most, memory: u64::MAX };
        let bounded = SchedulerOptions { waves: all, queue: most }.bounded();
        assert_eq!(bounded.waves.prefill_rows + bounded.waves.texts, MAX_ROWS);
        assert_eq!(bounded.waves.waves, WaveOptions::MOST_WAVES);
        assert_eq!(bounded.queue, SchedulerOptions::MOST_QUEUED);
        let usual = SchedulerOptions::new(5).bounded();
        assert_eq!((usual.waves.texts, usual.queue), (WaveOptions::TEXTS, SchedulerOptions::QUEUE));
    }
}
