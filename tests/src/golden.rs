//! Comparing a forward pass with reference outputs that transformers computed in float32.
//!
//! The rules are those that come with the reference outputs: teacher forcing; the largest logit where the reference
//! is sure of it; the cosine of the logits at every position; the routed sets but for near ties. The checks take any
//! `Experts`, so one set of references judges every way to compute them. A failed check names layer and position.
//!
//! A check counts what it compared and fails where that is not everything: nothing seen is not nothing wrong.

use std::sync::Arc;

use kvasir_backbone::{Backbone, Experts};
use kvasir_model::Model;

pub use end_to_end::{EndToEnd, Rules, Seen, judge, observe};
pub use layers::{LayerByLayer, check_layer_by_layer};
pub use measure::cosine;
pub use reference::{Case, Golden, Shape, Stream};

mod end_to_end;
mod layers;
mod measure;
mod reference;

/// Makes the experts that a check runs with.
pub type MakeExperts<'a> = &'a dyn Fn(&Arc<Model>) -> Box<dyn Experts>;

/// Compares the tokens that the model's tokenizer makes of every prompt.
pub fn check_tokens(model: &Model, golden: &Golden) -> Result<(), String> {
    golden.check_shape(Shape::of(model))?;
    for case in &golden.cases {
        let tokens = model.tokenizer().encode(&case.text).map_err(|error| error.to_string())?;
        if tokens != case.tokens[..case.prompt] {
            return Err(format!(
                "{:?} gives tokens {tokens:?}, the reference {:?}",
                case.text,
                &case.tokens[..case.prompt]
            ));
        }
    }
    Ok(())
}

/// Compares logits and routing of every prompt, all tokens fed, then what is generated from the prompts alone. A fault
/// comes with a report on each layer alone.
pub fn check_end_to_end(
    model: &Arc<Model>,
    golden: &Golden,
    rules: Rules,
    make_experts: MakeExperts<'_>,
) -> Result<EndToEnd, String> {
    let backbone = Backbone::new(model.clone(), None).map_err(|error| error.to_string())?;
    let seen = golden
        .cases
        .iter()
        .map(|case| observe(&backbone, case, make_experts(model).as_mut()))
        .collect::<Result<Vec<_>, _>>()?;
    judge(Shape::of(model), golden, &seen, rules)
        .map_err(|faults| layers::with_report(&faults, &backbone, golden, make_experts))
}
