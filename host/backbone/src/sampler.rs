//! Choosing the next token from logits: greedy, or drawn with temperature, top-k and top-p from a seeded generator.
//!
//! The algorithm, so that a seed gives the same text on every machine:
//!
//! 1. With temperature 0 the largest logit wins, ties go to the lower token.
//! 2. Otherwise tokens are ordered by logit, largest first, ties by lower token, and cut to the first `top_k` (0: all).
//! 3. Their probabilities are the softmax of exact-v1 of `logit / temperature` in that order.
//! 4. The list is cut behind the first token at which the running sum of probabilities reaches `top_p`.
//! 5. `u` is drawn from [0, 1) as the upper 24 bits of a 32-bit output of ChaCha with 12 rounds, keyed with the seed
//!    (little-endian, then zeros). The first token whose running sum of probabilities exceeds `u * (sum of the cut
//!    list)` is taken. Running sums are f32, from zero, in list order.

use std::cmp::Ordering;

use kvasir_model::TokenId;
use kvasir_numerics::{InstructionSet, softmax};
use rand::rngs::ChaCha12Rng;
use rand::{Rng, SeedableRng};

use crate::error::BackboneError;

/// How tokens are chosen. The default is greedy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerOptions {
    /// Logits are divided by it; 0 is greedy. At most [`MAX_TEMPERATURE`].
    pub temperature: f32,
    /// Only the so many most probable tokens are drawn from; 0 means all.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this probability are drawn from; 1 means all.
    pub top_p: f32,
    /// Seed of the generator.
    pub seed: u64,
}

/// The largest temperature: beyond it every token is nearly as probable as any other.
pub const MAX_TEMPERATURE: f32 = 100.0;

impl Default for SamplerOptions {
    fn default() -> SamplerOptions {
        SamplerOptions { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Chooses one token after the other; its generator moves on with every draw.
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    random: ChaCha12Rng,
    instructions: InstructionSet,
}

impl Sampler {
    /// # Errors
    /// A temperature that is negative, not finite or above [`MAX_TEMPERATURE`]; a `top_p` outside (0, 1].
    pub fn new(options: SamplerOptions) -> Result<Sampler, BackboneError> {
        let SamplerOptions { temperature, top_p, seed, .. } = options;
        if !(0.0..=MAX_TEMPERATURE).contains(&temperature) {
            return Err(BackboneError::SamplerOption {
                option: "temperature",
                value: temperature,
                expected: "it must lie between 0 and 100",
            });
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(BackboneError::SamplerOption {
                option: "top_p",
                value: top_p,
                expected: "it must lie above 0 and not above 1",
            });
        }
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let random = ChaCha12Rng::from_seed(key);
        Ok(Sampler { options, random, instructions: InstructionSet::detect() })
    }

    /// Chooses a token. `logits` must be finite and not empty, as those of a forward pass are.
    pub fn choose(&mut self, logits: &[f32]) -> TokenId {
        if self.options.temperature == 0.0 {
            return greedy(logits);
        }
        let mut tokens = self.most_probable(logits);
        let mut probabilities: Vec<f32> =
            tokens.iter().map(|&token| logits[token as usize] / self.options.temperature).collect();
        softmax(self.instructions, &mut probabilities);
        let mut sum = 0.0;
        let reached = probabilities.iter().position(|probability| {
            sum += probability;
            sum >= self.options.top_p
        });
        tokens.truncate(reached.map_or(tokens.len(), |last| last + 1));
        let sum = probabilities[..tokens.len()].iter().fold(0.0, |sum, probability| sum + probability);
        let mark = self.uniform() * sum;
        let mut running = 0.0;
        let drawn = probabilities[..tokens.len()].iter().position(|probability| {
            running += probability;
            running > mark
        });
        // u < 1 can still round to the whole sum.
        TokenId(tokens[drawn.unwrap_or(tokens.len() - 1)])
    }

    /// Tokens by descending logit, ties by ascending token, at most `top_k`.
    fn most_probable(&self, logits: &[f32]) -> Vec<u32> {
        let by_logit = |a: &u32, b: &u32| {
            let order = logits[*b as usize].partial_cmp(&logits[*a as usize]);
            order.unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
        let top_k = self.options.top_k;
        if (1..tokens.len()).contains(&top_k) {
            tokens.select_nth_unstable_by(top_k - 1, by_logit);
            tokens.truncate(top_k);
        }
        tokens.sort_unstable_by(by_logit);
        tokens
    }

    /// A multiple of 2^-24 in [0, 1).
    fn uniform(&mut self) -> f32 {
        (self.random.next_u32() >> 8) as f32 / (1 << 24) as f32
    }
}

/// The token with the largest logit, the lowest of equals.
pub fn greedy(logits: &[f32]) -> TokenId {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    TokenId(best as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(options: SamplerOptions, logits: &[f32], draws: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(options).unwrap();
        (0..draws).map(|_| sampler.choose(logits).0).collect()
    }

    #[test]
    fn greedy_ties_take_the_lower_token() {
        assert_eq!(greedy(&[1.0, 3.0, 3.0, 2.0]), TokenId(1));
        assert_eq!(greedy(&[-0.0, 0.0]), TokenId(0));
        assert_eq!(drawn(SamplerOptions::default(), &[0.5, 0.5], 3), [0, 0, 0]);
    }

    #[test]
    fn top_k_of_one_is_greedy_with_ties_to_the_lower_token() {
        let options = SamplerOptions { temperature: 2.0, top_k: 1, ..SamplerOptions::default() };
        assert_eq!(drawn(options, &[0.0, 7.0, 7.0, 1.0], 20), [1; 20]);
    }

    #[test]
    fn a_small_top_p_leaves_the_most_probable_token() {
        let options = SamplerOptions { temperature: 1.0, top_p: 1e-6, ..SamplerOptions::default() };
        assert_eq!(drawn(options, &[0.0, 0.1, 0.2, 0.1], 20), [2; 20]);
    }

    #[test]
    fn top_p_keeps_the_token_that_reaches_it() {
        // Probabilities 0.5, 0.25, 0.25: half is reached by the first, a little more needs the second.
        let logits = [2.0f32.ln(), 0.0, 0.0];
        let options = SamplerOptions { temperature: 1.0, top_p: 0.499, ..SamplerOptions::default() };
        assert_eq!(drawn(options, &logits, 50), [0; 50]);
        let tokens = drawn(SamplerOptions { top_p: 0.6, ..options }, &logits, 200);
        assert!(tokens.contains(&0) && tokens.contains(&1) && !tokens.contains(&2));
    }

    #[test]
    fn a_top_k_beyond_the_vocabulary_keeps_all() {
        let all = SamplerOptions { temperature: 1.0, ..SamplerOptions::default() };
        let logits = [0.3, 0.1, 0.2];
        assert_eq!(
            drawn(SamplerOptions { top_k: 99, ..all }, &logits, 50),
            drawn(SamplerOptions { top_k: 3, ..all }, &logits, 50)
        );
        assert_eq!(drawn(SamplerOptions { top_k: 99, ..all }, &logits, 50), drawn(all, &logits, 50));
    }

    #[test]
    fn a_seed_gives_the_same_tokens_and_another_seed_others() {
        let logits: Vec<f32> = (0..50).map(|at| (at as f32 * 0.7).sin()).collect();
        let options = SamplerOptions { temperature: 1.0, seed: 7, ..SamplerOptions::default() };
        assert_eq!(drawn(options, &logits, 40), drawn(options, &logits, 40));
        assert_ne!(drawn(options, &logits, 40), drawn(SamplerOptions { seed: 8, ..options }, &logits, 40));
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [3.0f32.ln(), 0.0];
        let options = SamplerOptions { temperature: 1.0, seed: 1, ..SamplerOptions::default() };
        let first = drawn(options, &logits, 4000).iter().filter(|&&token| token == 0).count();
        assert!((2850..3150).contains(&first), "{first} of 4000 draws at a probability of 3/4");
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for (temperature, top_p) in [(-1.0, 1.0), (f32::NAN, 1.0), (101.0, 1.0), (1.0, 0.0), (1.0, 1.5)] {
            let options = SamplerOptions { temperature, top_p, ..SamplerOptions::default() };
            assert!(matches!(Sampler::new(options), Err(BackboneError::SamplerOption { .. })));
        }
    }
}
