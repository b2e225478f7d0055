//! The reference outputs as the reference script writes them.

use std::path::Path;

use kvasir_backbone::TokenId;
use kvasir_model::Model;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

/// The reference outputs of one model file.
#[derive(Clone)]
pub struct Golden {
    /// One per prompt.
    pub cases: Vec<Case>,
    /// Values between the layers, for the first prompt.
    pub stream: Stream,
}

/// One prompt and what the reference made of it. T tokens, L layers, k experts per token, E experts.
#[derive(Clone)]
pub struct Case {
    /// The prompt.
    pub text: String,
    /// Its tokens, and 16 more that the reference chose greedily.
    pub tokens: Vec<TokenId>,
    /// Number of tokens of the prompt.
    pub prompt: usize,
    /// T x vocabulary.
    pub logits: Vec<f32>,
    /// L x T x k, highest weight first.
    pub experts: Vec<u16>,
    /// L x T x k.
    pub weights: Vec<f32>,
    /// L x T x E: probabilities.
    pub router: Vec<f32>,
}

/// Values between the layers: L x T x hidden each.
#[derive(Clone)]
pub struct Stream {
    /// The residual stream before each layer.
    pub hidden: Vec<f32>,
    /// What router and experts read.
    pub expert_in: Vec<f32>,
    /// The weighted sum of the routed experts.
    pub expert_out: Vec<f32>,
}

/// How much the reference outputs of a model must hold.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Experts of each.
    pub experts: usize,
    /// Experts that a token picks in each.
    pub per_token: usize,
    /// Values of a row.
    pub hidden: usize,
    /// Logits of a position.
    pub vocabulary: usize,
}

impl Shape {
    /// Of a model's reference outputs.
    pub fn of(model: &Model) -> Shape {
        let config = model.config();
        Shape {
            layers: config.layers as usize,
            experts: config.experts as usize,
            per_token: config.experts_per_token as usize,
            hidden: config.hidden as usize,
            vocabulary: config.vocabulary as usize,
        }
    }
}

impl Golden {
    /// Holds every length against the model's shape, so that no comparison ends early without a word.
    ///
    /// # Errors
    /// Names the first part of another length.
    pub fn check_shape(&self, shape: Shape) -> Result<(), String> {
        let Shape { layers, experts, per_token, hidden, vocabulary } = shape;
        let first = self.cases.first().ok_or("the reference holds no prompt")?;
        let length = |name: &str, found: usize, due: usize| {
            (found == due).then_some(()).ok_or_else(|| format!("{name}: {found} values instead of {due}"))
        };
        for case in &self.cases {
            let tokens = case.tokens.len();
            if !(1..tokens).contains(&case.prompt) {
                return Err(format!("{:?}: {} of {tokens} tokens are prompt", case.text, case.prompt));
            }
            length("logits", case.logits.len(), tokens * vocabulary)?;
            length("experts", case.experts.len(), layers * tokens * per_token)?;
            length("weights", case.weights.len(), layers * tokens * per_token)?;
            length("router", case.router.len(), layers * tokens * experts)?;
        }
        let values = layers * first.tokens.len() * hidden;
        length("hidden", self.stream.hidden.len(), values)?;
        length("expert_in", self.stream.expert_in.len(), values)?;
        length("expert_out", self.stream.expert_out.len(), values)
    }

    /// Reads a file written by the reference script.
    pub fn read(path: &Path) -> Result<Golden, String> {
        let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let broken = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = SafeTensors::deserialize(&bytes).map_err(|error| broken(&error))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| broken(&error))?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let prompts = metadata.get("prompts").ok_or_else(|| broken(&"no prompts"))?;
        let prompts: Vec<String> = serde_json::from_str(prompts).map_err(|error| broken(&error))?;
        let tensor = |name: &str| file.tensor(name).map_err(|error| format!("{name}: {error}"));
        let cases = prompts.into_iter().enumerate().map(|(number, text)| {
            let integers = |part: &str| integers(&tensor(&format!("p{number}.{part}"))?);
            let floats = |part: &str| floats(&tensor(&format!("p{number}.{part}"))?);
            Ok(Case {
                text,
                tokens: integers("tokens")?.into_iter().map(|token| TokenId(token as u32)).collect(),
                prompt: integers("prompt")?[0] as usize,
                logits: floats("logits")?,
                experts: integers("experts")?.into_iter().map(|expert| expert as u16).collect(),
                weights: floats("weights")?,
                router: floats("router")?,
            })
        });
        Ok(Golden {
            cases: cases.collect::<Result<_, String>>()?,
            stream: Stream {
                hidden: floats(&tensor("p0.hidden")?)?,
                expert_in: floats(&tensor("p0.expert_in")?)?,
                expert_out: floats(&tensor("p0.expert_out")?)?,
            },
        })
    }
}

fn integers(tensor: &TensorView<'_>) -> Result<Vec<i64>, String> {
    if tensor.dtype() != Dtype::I64 {
        return Err(format!("{:?} instead of I64", tensor.dtype()));
    }
    let (values, _) = tensor.data().as_chunks::<8>();
    Ok(values.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
}

fn floats(tensor: &TensorView<'_>) -> Result<Vec<f32>, String> {
    if tensor.dtype() != Dtype::F32 {
        return Err(format!("{:?} instead of F32", tensor.dtype()));
    }
    let (values, _) = tensor.data().as_chunks::<4>();
    Ok(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}
