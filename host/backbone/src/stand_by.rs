//! Getting ready for an answer that is due. Threads that slept while it was out are awake when it comes, so that what follows is shared
//! out from its first piece on; and what follows reads weights that a small processor has forgotten meanwhile, so they are
//! read once before.

use std::time::{Duration, Instant};

use kvasir_model::Tensor;
use kvasir_threads::{current_count, rouse, share};

use crate::backbone::Backbone;
use crate::experts::Experts;
use crate::layer::Layer;
use crate::pass::Pass;

/// How often threads are roused while an answer is due: they stay awake for longer.
const AGAIN: Duration = Duration::from_micros(100);
/// A call that was out for less has left everything as it was.
const COLD_AFTER: Duration = Duration::from_millis(1);
/// Most bytes that are read ahead: what a core keeps to itself holds as much. Of a layer that is larger nothing is, since it would be
/// gone again before it is used, or is read for so long that this is nothing beside it.
const MOST_AHEAD: usize = 1 << 20;
/// Most time for it. Nobody looks for the answer meanwhile, so it is over before that comes.
const READING: Duration = Duration::from_micros(150);
/// Bytes between two looks at the clock.
const STRETCH: usize = 16 << 10;
/// Bytes that come together.
const LINE: usize = 64;

impl Backbone {
    /// For whoever has nothing to do but to wait for the `experts` that `pass` has asked, `until` at the longest: until when to wait,
    /// and then to ask again. At the time at which an answer is expected the threads that compute are woken, or kept awake, and
    /// only then. Changes nothing but time.
    pub fn stand_by(&self, pass: &mut Pass, experts: &dyn Experts, until: Instant) -> Instant {
        self.stand_by_at(pass.layer, &mut pass.unread, experts).map_or(until, |next| until.min(next))
    }

    /// As [`Backbone::stand_by`] at a layer, where `unread` says when its call went out, until the weights behind it were read ahead.
    /// Nothing where no answer is expected.
    pub(crate) fn stand_by_at(
        &self,
        layer: usize,
        unread: &mut Option<Instant>,
        experts: &dyn Experts,
    ) -> Option<Instant> {
        let expected = experts.expected()?;
        let now = Instant::now();
        if now < expected.start {
            return Some(expected.start);
        }
        self.within(|| {
            rouse();
            if unread.is_some_and(|asked| now.saturating_duration_since(asked) >= COLD_AFTER) {
                *unread = None;
                self.read_ahead(layer);
            }
        });
        Some(Instant::now() + AGAIN)
    }

    /// Every thread reads what any of them may compute with behind `layer`: it is not known who will.
    fn read_ahead(&self, layer: usize) {
        let (done, next) = self.layers.split_at(self.layers.len().min(layer + 1));
        let matrices = next.iter().flat_map(Layer::matrices).chain([&self.output]);
        // Behind the last one comes the next token.
        let matrices = matrices.chain(done.iter().flat_map(Layer::matrices));
        let ahead = up_to(matrices.map(Tensor::bytes), MOST_AHEAD);
        let until = Instant::now() + READING;
        let mut seen = vec![0; current_count()];
        share(&mut seen, |seen: &mut u8| *seen = read(&ahead, until));
        std::hint::black_box(seen);
    }
}

/// The first ones, as long as all of them together have no more than so many bytes.
fn up_to<'a>(pieces: impl Iterator<Item = &'a [u8]>, most: usize) -> Vec<&'a [u8]> {
    let mut left = Some(most);
    let fits = |piece: &&[u8]| {
        left = left.and_then(|left| left.checked_sub(piece.len()));
        left.is_some()
    };
    pieces.take_while(fits).collect()
}

/// A byte of every line, for as long as there is time.
fn read(pieces: &[&[u8]], until: Instant) -> u8 {
    let mut seen = 0;
    for stretch in pieces.iter().flat_map(|piece| piece.chunks(STRETCH)) {
        if Instant::now() >= until {
            break;
        }
        seen = stretch.iter().step_by(LINE).fold(seen, |seen, byte| seen ^ byte);
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_ahead_is_bounded_in_bytes_and_time() {
        let (small, large) = (vec![1; LINE], vec![2; 2 * STRETCH]);
        let pieces = || [&small[..], &large[..], &small[..]].into_iter();
        let lengths = |most: usize| up_to(pieces(), most).iter().map(|piece| piece.len()).collect::<Vec<_>>();
        assert!(lengths(0).is_empty());
        assert_eq!(lengths(2 * STRETCH), [LINE], "what stands behind one that is too large is not next");
        assert_eq!(lengths(LINE + 2 * STRETCH), [LINE, 2 * STRETCH]);
        assert_eq!(lengths(usize::MAX).len(), 3);
        let long = Instant::now() + Duration::from_secs(3600);
        assert_eq!(read(&[&small[..]], long), 1);
        assert_eq!(read(&[&small[..]], Instant::now()), 0, "the time is over");
    }
}
