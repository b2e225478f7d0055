//! The router: which experts each row goes to, and with what weight. Nothing outside this file decides that.

use kvasir_model::ExpertIndex;
use kvasir_numerics::{InstructionSet, softmax};

use crate::experts::Pick;

/// Turns one row's router logits (one per expert) into probabilities, in place, and picks the `per_token` largest.
pub(crate) fn route(instructions: InstructionSet, logits: &mut [f32], per_token: usize) -> Vec<Pick> {
    softmax(instructions, logits);
    pick(logits, per_token)
}

/// The `per_token` largest probabilities, highest first, equal ones in ascending index; their weights are the
/// probabilities divided by their sum, which is added up in that order from zero.
fn pick(probabilities: &[f32], per_token: usize) -> Vec<Pick> {
    let mut picks: Vec<Pick> = Vec::with_capacity(per_token + 1);
    for (expert, &probability) in probabilities.iter().enumerate() {
        if picks.len() == per_token && probability <= picks[per_token - 1].weight {
            continue;
        }
        // Behind every pick that is as large: those have lower indices.
        let at = picks.partition_point(|pick| pick.weight >= probability);
        picks.insert(at, Pick { expert: ExpertIndex(expert as u16), weight: probability });
        picks.truncate(per_token);
    }
    let sum = picks.iter().fold(0.0, |sum, pick| sum + pick.weight);
    picks.iter_mut().for_each(|pick| pick.weight /= sum);
    picks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experts(picks: &[Pick]) -> Vec<u16> {
        picks.iter().map(|pick| pick.expert.0).collect()
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        assert_eq!(experts(&pick(&[0.1, 0.3, 0.3, 0.3], 2)), [1, 2]);
        assert_eq!(experts(&pick(&[0.25; 4], 3)), [0, 1, 2]);
        assert_eq!(experts(&pick(&[0.1, 0.2, 0.4, 0.2, 0.1], 2)), [2, 1]);
    }

    #[test]
    fn picks_come_highest_first_and_sum_to_one() {
        let picks = pick(&[0.05, 0.5, 0.15, 0.3], 3);
        assert_eq!(experts(&picks), [1, 3, 2]);
        let sum = (0.0f32 + 0.5) + 0.3 + 0.15;
        assert_eq!(picks[0].weight, 0.5 / sum);
        assert_eq!(picks[2].weight, 0.15 / sum);
    }

    #[test]
    fn all_experts_may_be_picked() {
        assert_eq!(experts(&pick(&[0.2, 0.5, 0.3], 3)), [1, 2, 0]);
    }

    #[test]
    fn equal_logits_stay_equal_through_the_softmax() {
        let mut logits = [1.5; 8];
        assert_eq!(experts(&route(InstructionSet::detect(), &mut logits, 2)), [0, 1]);
    }
}
