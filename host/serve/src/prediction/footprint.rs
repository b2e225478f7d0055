//! What a model and its texts take in memory, from the file's metadata, and how often its experts are picked. No weight is
//! read.

use kvasir_backbone::{SequenceCost, pass_row_bytes};
use kvasir_model::{ExpertIndex, LayerIndex, Mixer, Model, ModelError, Tensor};

/// Bytes of a model's parts, and of a text of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    /// Everything but routed experts.
    pub dense: u64,
    /// Of that, what a token reads: all but the embedding, of which it reads a row.
    pub read: u64,
    /// Of that, shared experts.
    pub shared: u64,
    /// Each routed expert's, by layer and number.
    pub experts: Vec<Vec<u64>>,
    /// A text's caches and states.
    pub text: SequenceCost,
    /// A row while it is in a pass.
    pub row: u64,
}

/// What has to be in memory at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Everything of the model but routed experts.
    pub dense: u64,
    /// Routed experts that stay here.
    pub experts: u64,
    /// Texts.
    pub texts: u64,
    /// Passes.
    pub passes: u64,
}

impl Needs {
    /// All of it.
    pub fn total(&self) -> u64 {
        [self.dense, self.experts, self.texts, self.passes]
            .iter()
            .fold(0_u64, |sum, part| sum.saturating_add(*part))
    }
}

impl Footprint {
    /// That of a model.
    ///
    /// # Errors
    /// Where an expert cannot be found.
    pub fn of(model: &Model) -> Result<Footprint, ModelError> {
        let config = model.config();
        let bytes =
            |tensors: &[&Tensor]| tensors.iter().map(|tensor| tensor.bytes().len() as u64).sum::<u64>();
        let (embedding, output) = (model.embedding(), model.output());
        let is_tied = {
            let (one, other) = (embedding.place(), output.place());
            one.file == other.file && one.offset == other.offset
        };
        let mut read = bytes(&[&output]);
        let mut shared = 0;
        for index in config.layer_indices() {
            let layer = model.layer(index);
            let expert = layer.shared_expert.stored_bytes() as u64;
            shared += expert;
            read += expert + bytes(&[&layer.router, &layer.shared_expert_gate]);
            read += match &layer.mixer {
                Mixer::DeltaNet { qkv, z, beta, alpha, out, .. } => bytes(&[qkv, z, beta, alpha, out]),
                Mixer::Attention { q, k, v, output, .. } => bytes(&[q, k, v, output]),
            };
        }
        let mut experts = Vec::with_capacity(config.layers as usize);
        for layer in 0..config.layers as u16 {
            let sizes = (0..config.experts as u16).map(|expert| -> Result<u64, ModelError> {
                let tensors = model.expert(LayerIndex(layer), ExpertIndex(expert))?;
                Ok(tensors.stored_bytes() as u64)
            });
            experts.push(sizes.collect::<Result<Vec<u64>, ModelError>>()?);
        }
        Ok(Footprint {
            dense: if is_tied { read } else { read + bytes(&[&embedding]) },
            read,
            shared,
            experts,
            text: SequenceCost::of(config),
            row: pass_row_bytes(config),
        })
    }

    /// Bytes of some experts; those that the model does not have are none.
    pub fn bytes_of(&self, experts: &[(u16, u16)]) -> u64 {
        let bytes = |&(layer, expert): &(u16, u16)| {
            self.experts.get(usize::from(layer)).and_then(|layer| layer.get(usize::from(expert)))
        };
        experts.iter().filter_map(bytes).sum()
    }

    /// Bytes of all routed experts of a layer.
    pub fn layer(&self, layer: usize) -> u64 {
        self.experts.get(layer).map_or(0, |experts| experts.iter().sum())
    }

    /// Bytes of all routed experts.
    pub fn all_experts(&self) -> u64 {
        self.experts.iter().flatten().sum()
    }

    /// What is needed with so many bytes of experts elsewhere, for so many texts of up to `context` tokens, and for passes
    /// of which `waves` read prompts of up to `prompt_rows` rows at once.
    pub fn needs(
        &self,
        elsewhere: u64,
        texts: usize,
        context: usize,
        (waves, prompt_rows): (usize, usize),
    ) -> Needs {
        let rows = (texts as u64).saturating_add((waves as u64).saturating_mul(prompt_rows as u64));
        Needs {
            dense: self.dense,
            experts: self.all_experts().saturating_sub(elsewhere),
            texts: self.text.bytes(context).saturating_mul(texts as u64),
            passes: self.row.saturating_mul(rows),
        }
    }

    /// The parts of a pass that routed and shared experts are, where `picks` of a layer's are read for a token, by the bytes
    /// that a token reads. For whoever has not measured it.
    pub fn shares(&self, picks: usize) -> (f64, f64) {
        let count: usize = self.experts.iter().map(Vec::len).sum();
        let mean = self.all_experts() as f64 / count.max(1) as f64;
        let routed = mean * picks as f64 * self.experts.len() as f64;
        let all = (routed + self.read as f64).max(1.0);
        (routed / all, self.shared as f64 / all)
    }
}

/// How often rows went to each expert, by layer and number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Picks(pub Vec<Vec<u64>>);

impl Picks {
    /// Whether there is a count for every expert of a model, and something was counted in every layer.
    pub fn fit(&self, footprint: &Footprint) -> bool {
        let fits = |(counts, experts): (&Vec<u64>, &Vec<u64>)| {
            counts.len() == experts.len() && counts.iter().any(|count| *count > 0)
        };
        self.0.len() == footprint.experts.len() && self.0.iter().zip(&footprint.experts).all(fits)
    }

    /// The part of its layer's picks that is expected to go to an expert. What was never picked may be yet: half a pick is
    /// added to every count.
    pub fn share(&self, (layer, expert): (u16, u16)) -> f64 {
        let Some(counts) = self.0.get(usize::from(layer)) else { return 0.0 };
        let count = counts.get(usize::from(expert)).map(|count| *count as f64);
        let all: f64 = counts.iter().map(|count| *count as f64 + 0.5).sum();
        count.map_or(0.0, |count| (count + 0.5) / all)
    }

    /// All experts, those that are picked least first.
    pub fn coldest_first(&self) -> Vec<(u16, u16)> {
        let mut all: Vec<(f64, (u16, u16))> = Vec::new();
        for (layer, counts) in self.0.iter().enumerate() {
            let names = (0..counts.len()).map(|expert| (layer as u16, expert as u16));
            all.extend(names.map(|name| (self.share(name), name)));
        }
        all.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        all.into_iter().map(|(_, name)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn tiny() -> Model {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny/tiny-f16.gguf");
        Model::open(&path).unwrap()
    }

    #[test]
    fn a_models_parts_are_its_file_without_names_and_small_tensors() {
        let model = tiny();
        let footprint = Footprint::of(&model).unwrap();
        let config = model.config();
        // Three matrices of f16 an expert.
        let expert = 3 * 2 * u64::from(config.expert_width) * u64::from(config.hidden);
        assert_eq!(footprint.experts.len(), config.layers as usize);
        assert!(footprint.experts.iter().flatten().all(|bytes| *bytes == expert));
        assert_eq!(footprint.layer(0), expert * u64::from(config.experts));
        assert_eq!(footprint.bytes_of(&[(0, 0), (1, 3), (99, 0), (0, 99)]), 2 * expert);
        assert_eq!(footprint.all_experts(), footprint.layer(0) * u64::from(config.layers));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny/tiny-f16.gguf");
        let file = std::fs::metadata(path).unwrap().len();
        let all = footprint.dense + footprint.all_experts();
        assert!(all < file && all > file / 2, "{all} of {file} bytes");
        let (routed, shared) = footprint.shares(config.experts_per_token as usize);
        assert!(routed > 0.0 && shared > 0.0 && routed + shared < 1.0, "{routed} {shared}");
    }

    #[test]
    fn what_is_needed_is_the_sum_of_its_parts() {
        let text = SequenceCost { fixed: 156_303_360, token: 49_152 };
        let footprint =
            Footprint { dense: 1000, read: 900, shared: 10, experts: vec![vec![7; 4]; 2], text, row: 3 };
        let needs = footprint.needs(28, 2, 4096, (5, 128));
        let texts = 2 * (156_303_360 + 4096 * 49_152);
        assert_eq!(needs, Needs { dense: 1000, experts: 28, texts, passes: 3 * (2 + 5 * 128) });
        assert_eq!(needs.total(), 1028 + texts + 3 * 642);
        assert_eq!(footprint.needs(u64::MAX, 0, 0, (0, 0)).experts, 0);
        assert_eq!(footprint.needs(0, usize::MAX, usize::MAX, (64, 128)).total(), u64::MAX);
    }

    #[test]
    fn experts_are_sorted_by_how_often_they_are_picked() {
        let picks = Picks(vec![vec![9, 0, 3], vec![1, 1, 10]]);
        assert_eq!(picks.coldest_first()[..3], [(0, 1), (1, 0), (1, 1)]);
        let sum: f64 = (0..3).map(|expert| picks.share((0, expert))).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert!(picks.share((0, 1)) > 0.0, "what was never picked may be yet");
        assert_eq!((picks.share((7, 0)), picks.share((0, 7))), (0.0, 0.0));
        let text = SequenceCost { fixed: 0, token: 0 };
        let footprint =
            Footprint { dense: 0, read: 0, shared: 0, experts: vec![vec![7; 3]; 2], text, row: 0 };
        assert!(picks.fit(&footprint));
        for wrong in [vec![], vec![vec![1; 3]], vec![vec![1; 3], vec![1; 2]], vec![vec![1; 3], vec![0; 3]]] {
            assert!(!Picks(wrong).fit(&footprint));
        }
    }
}
