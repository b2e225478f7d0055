//! Two generations compared: token by token, and logit by logit to the last bit.

use anyhow::{Result, bail};
use serde::Serialize;

use super::generation::Generation;

/// The first logit whose bits differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Generated position, counted over all prompts.
    pub position: usize,
    /// The vocabulary entry.
    pub token: usize,
    /// Its logit with local experts.
    pub local: f32,
    /// Its logit with remote experts.
    pub remote: f32,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Whether every generated token is the same.
    pub identical_tokens: bool,
    /// Generated tokens that are the same, each in its place.
    pub equal_tokens: usize,
    /// Generated tokens of the longer generation.
    pub tokens: usize,
    /// Whether every logit at every generated position has the same bits.
    pub identical_logits: bool,
    /// The lowest cosine between the logits of one position; 1 where all bits are equal.
    pub cosine: f64,
    /// Logits compared.
    pub logits: usize,
    /// The first logit that differs.
    pub first_difference: Option<Difference>,
}

impl Comparison {
    /// Compare `remote` with `local`. Positions are compared up to the first token that differs, and that one included.
    ///
    /// # Errors
    /// Where there is nothing to compare.
    pub fn of(local: &Generation, remote: &Generation) -> Result<Comparison> {
        let vocabulary = local.vocabulary;
        if vocabulary == 0 || local.logits.is_empty() || remote.vocabulary != vocabulary {
            bail!(
                "there are no logits to compare ({} and {} values)",
                local.logits.len(),
                remote.logits.len()
            );
        }
        let tokens = |generation: &Generation| -> Vec<Vec<u64>> {
            generation.answers.iter().map(|answer| answer.tokens.clone()).collect()
        };
        let (own, others) = (tokens(local), tokens(remote));
        let identical_tokens = own == others;
        let equal_tokens =
            own.iter().zip(&others).map(|(a, b)| a.iter().zip(b).filter(|(a, b)| a == b).count()).sum();
        let count = |tokens: &[Vec<u64>]| tokens.iter().map(Vec::len).sum::<usize>();
        let pairs = local.logits.chunks(vocabulary).zip(remote.logits.chunks(vocabulary));
        let cosine = pairs.map(|(a, b)| cosine(a, b)).fold(1.0, f64::min);
        let first = local.logits.iter().zip(&remote.logits).position(|(a, b)| a.to_bits() != b.to_bits());
        Ok(Comparison {
            identical_tokens,
            equal_tokens,
            tokens: count(&own).max(count(&others)),
            identical_logits: first.is_none() && local.logits.len() == remote.logits.len(),
            cosine,
            logits: local.logits.len().min(remote.logits.len()),
            first_difference: first.map(|at| Difference {
                position: at / vocabulary,
                token: at % vocabulary,
                local: local.logits[at],
                remote: remote.logits[at],
            }),
        })
    }

    /// Tokens and logits are the same.
    pub fn identical(&self) -> bool {
        self.identical_tokens && self.identical_logits
    }
}

/// Cosine of the angle between two vectors; exactly 1 where their bits are equal.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    if a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()) {
        return 1.0;
    }
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::super::generation::Answer;
    use super::*;

    fn generation(tokens: &[u64], logits: &[f32]) -> Generation {
        Generation {
            answers: vec![Answer { prompt: "p".into(), text: "t".into(), tokens: tokens.to_vec() }],
            logits: logits.to_vec(),
            vocabulary: 2,
            ..Generation::default()
        }
    }

    #[test]
    fn equal_bits_are_identical_and_have_cosine_one() {
        let a = generation(&[1, 0], &[1.0, 2.0, 4.0, 3.0]);
        let found = Comparison::of(&a, &a.clone()).unwrap();
        assert!(found.identical());
        assert_eq!((found.equal_tokens, found.tokens), (2, 2));
        let other = Comparison::of(&a, &generation(&[1, 1], &[1.0, 2.0, 3.0, 4.0])).unwrap();
        assert_eq!((other.identical_tokens, other.equal_tokens, other.tokens), (false, 1, 2));
        assert_eq!((found.cosine, found.first_difference, found.logits), (1.0, None, 4));
    }

    #[test]
    fn one_flipped_bit_is_found_where_it_is() {
        let a = generation(&[1, 0], &[1.0, 2.0, 4.0, 3.0]);
        let mut b = a.clone();
        b.logits[2] = f32::from_bits(b.logits[2].to_bits() ^ 1);
        let found = Comparison::of(&a, &b).unwrap();
        assert!(found.identical_tokens && !found.identical_logits);
        let first = found.first_difference.unwrap();
        assert_eq!((first.position, first.token), (1, 0));
        assert!(found.cosine < 1.0 + f64::EPSILON);
    }

    #[test]
    fn zeros_of_different_sign_are_different_bits() {
        let a = generation(&[1], &[0.0, 2.0]);
        let b = generation(&[1], &[-0.0, 2.0]);
        assert!(!Comparison::of(&a, &b).unwrap().identical_logits);
    }

    #[test]
    fn a_shorter_generation_is_not_identical_and_an_empty_one_is_an_error() {
        let a = generation(&[1, 0], &[1.0, 2.0, 4.0, 3.0]);
        assert!(!Comparison::of(&a, &generation(&[1], &[1.0, 2.0])).unwrap().identical());
        assert!(Comparison::of(&generation(&[], &[]), &a).is_err());
    }
}
