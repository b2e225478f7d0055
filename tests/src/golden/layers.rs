//! Every layer alone, fed with the reference's values: what is wrong is found where it is wrong.

#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "written so that a NaN is a fault, too")]

use std::fmt::Write as _;
use std::sync::Arc;

use kvasir_backbone::{Backbone, LayerIndex, Observer, Tap};
use kvasir_model::{DeltaConfig, Mixer, Model, ValueHeadOrder};

use super::measure::{largest, product_in_order, relative_errors};
use super::reference::Shape;
use super::{Golden, MakeExperts};

/// What a check of single layers found; errors are relative, per position.
#[derive(Debug, Clone, Copy)]
pub struct LayerByLayer {
    /// Median over the positions, of the worst layer.
    pub worst_median: f64,
    /// Least share of positions within 1e-5 in any layer.
    pub least_share: f64,
    /// Largest error of any position and layer.
    pub worst: f64,
    /// Largest error of the logits.
    pub worst_logits: f64,
}

/// Compares every layer alone, fed with the reference's values; then the last layer with norm and output matrix.
pub fn check_layer_by_layer(
    model: &Arc<Model>,
    golden: &Golden,
    make_experts: MakeExperts<'_>,
) -> Result<LayerByLayer, String> {
    golden.check_shape(Shape::of(model))?;
    let backbone = Backbone::new(model.clone(), None).map_err(|error| error.to_string())?;
    let layers = model.config().layers as usize;
    let mut figures = LayerByLayer { worst_median: 0.0, least_share: 1.0, worst: 0.0, worst_logits: 0.0 };
    let mut faults = String::new();
    for layer in 0..layers {
        let found = run_layer(&backbone, golden, layer, make_experts)?;
        let width = model.config().hidden as usize;
        if layer + 1 == layers {
            let logits = backbone.output(&found.hidden).map_err(|error| error.to_string())?;
            let vocabulary = logits.vocabulary();
            figures.worst_logits =
                largest(&relative_errors(logits.values(), &golden.cases[0].logits, vocabulary));
            if !(figures.worst_logits <= 1e-5) {
                let _ = writeln!(faults, "logits behind layer {layer}: error {}", figures.worst_logits);
            }
            break;
        }
        let mut errors = relative_errors(&found.hidden, hidden_of(golden, layers, layer + 1), width);
        errors.sort_by(f64::total_cmp);
        let median = errors[errors.len() / 2];
        let share = errors.iter().filter(|&&error| error <= 1e-5).count() as f64 / errors.len() as f64;
        let worst = largest(&errors);
        figures.worst_median = figures.worst_median.max(median);
        figures.least_share = figures.least_share.min(share);
        figures.worst = figures.worst.max(worst);
        if !(median <= 1e-6 && share >= 0.75 && worst <= 2e-2) {
            let _ = writeln!(
                faults,
                "layer {layer}: median error {median:e}, {:.0} % within 1e-5, worst {worst:e}",
                share * 100.0
            );
        }
    }
    if faults.is_empty() {
        return Ok(figures);
    }
    Err(with_report(&faults, &backbone, golden, make_experts))
}

/// `faults`, and how far each layer alone strays from the reference: the part that fails first is to blame.
pub(super) fn with_report(
    faults: &str,
    backbone: &Backbone,
    golden: &Golden,
    make_experts: MakeExperts<'_>,
) -> String {
    let report = layer_report(backbone, golden, make_experts);
    format!("{faults}{}", report.unwrap_or_else(|fault| format!("the layers alone: {fault}\n")))
}

fn layer_report(
    backbone: &Backbone,
    golden: &Golden,
    make_experts: MakeExperts<'_>,
) -> Result<String, String> {
    let config = backbone.model().config();
    let (layers, width) = (config.layers as usize, config.hidden as usize);
    let length = golden.stream.hidden.len() / layers;
    let mut report =
        String::from("each layer alone, fed with the reference's values (largest relative errors):\n");
    for layer in 0..layers {
        let found = run_layer(backbone, golden, layer, make_experts)?;
        let at = layer * length..(layer + 1) * length;
        let into = largest(&relative_errors(&found.expert_in, &golden.stream.expert_in[at.clone()], width));
        let out = largest(&relative_errors(&found.expert_out, &golden.stream.expert_out[at], width));
        let _ = write!(report, "layer {layer}: behind the mixer {into:.1e}, routed experts {out:.1e}");
        if layer + 1 < layers {
            let next = hidden_of(golden, layers, layer + 1);
            let _ =
                write!(report, ", whole layer {:.1e}", largest(&relative_errors(&found.hidden, next, width)));
        }
        report.push('\n');
    }
    Ok(report)
}

fn run_layer(
    backbone: &Backbone,
    golden: &Golden,
    layer: usize,
    make_experts: MakeExperts<'_>,
) -> Result<Recorder, String> {
    let layers = backbone.model().config().layers as usize;
    let mut hidden = hidden_of(golden, layers, layer).to_vec();
    let mut recorder = Recorder { regroup: Some(backbone.model().clone()), ..Recorder::default() };
    let mut observer = Observer { tap: Some(&mut recorder), timing: None };
    backbone
        .forward_layers(
            layer..layer + 1,
            &mut backbone.start(),
            &mut hidden,
            make_experts(backbone.model()).as_mut(),
            &mut observer,
        )
        .map_err(|error| error.to_string())?;
    recorder.hidden = hidden;
    let delta_net = matches!(backbone.model().layer(LayerIndex(layer as u16)).mixer, Mixer::DeltaNet { .. });
    recorder.check(layer, delta_net, golden.cases[0].tokens.len())?;
    Ok(recorder)
}

fn hidden_of(golden: &Golden, layers: usize, layer: usize) -> &[f32] {
    let length = golden.stream.hidden.len() / layers;
    &golden.stream.hidden[layer * length..][..length]
}

/// Keeps what the pass of one layer shows.
#[derive(Default)]
struct Recorder {
    expert_in: Vec<f32>,
    expert_out: Vec<f32>,
    /// Behind the layer; filled in by the caller.
    hidden: Vec<f32>,
    /// Where set, outputs of delta nets are replaced by what the reference makes of the same rows.
    regroup: Option<Arc<Model>>,
    /// Rows of delta nets' output products that were held against the same products in f64.
    products: usize,
    /// Largest relative error of those.
    worst_product: f64,
}

impl Recorder {
    /// A layer is judged only where it was shown in full: all `positions` rows of it.
    fn check(&self, layer: usize, delta_net: bool, positions: usize) -> Result<(), String> {
        let due = if delta_net { positions } else { 0 };
        if self.products != due {
            return Err(format!(
                "layer {layer}: {} rows of the mixer were shown, {due} are due",
                self.products
            ));
        }
        if self.expert_in.len() != self.hidden.len() || self.expert_out.len() != self.hidden.len() {
            return Err(format!("layer {layer}: the experts' values were not shown"));
        }
        if !(self.worst_product <= 1e-6) {
            let error = self.worst_product;
            return Err(format!(
                "layer {layer}: the product of the mixer's output matrix strays by {error:e}"
            ));
        }
        Ok(())
    }
}

impl Tap for Recorder {
    fn mixer_out(&mut self, layer: LayerIndex, rows: &[f32], out: &mut [f32]) {
        let Some(model) = &self.regroup else { return };
        let Mixer::DeltaNet { out: matrix, .. } = model.layer(layer).mixer else { return };
        let file_order = |head: usize| head;
        let product = product_in_order(&matrix, rows, &model.config().delta, &file_order);
        self.products += out.len() / matrix.rows();
        self.worst_product = largest(&relative_errors(out, &product, matrix.rows())).max(self.worst_product);
        if model.config().value_head_order == ValueHeadOrder::Tiled {
            let DeltaConfig { key_heads, value_heads, .. } = model.config().delta;
            let (key_heads, served) = (key_heads as usize, (value_heads / key_heads) as usize);
            let grouped = |head: usize| head % key_heads * served + head / key_heads;
            out.copy_from_slice(&product_in_order(&matrix, rows, &model.config().delta, &grouped));
        }
    }

    fn expert_in(&mut self, _: LayerIndex, rows: &[f32]) {
        self.expert_in = rows.to_vec();
    }

    fn expert_out(&mut self, _: LayerIndex, sums: &[f32]) {
        self.expert_out = sums.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_that_was_not_shown_in_full_is_a_fault() {
        let shown = |products, expert_in, expert_out, worst_product| Recorder {
            expert_in: vec![1.0; expert_in],
            expert_out: vec![1.0; expert_out],
            hidden: vec![1.0; 12],
            regroup: None,
            products,
            worst_product,
        };
        assert_eq!(shown(3, 12, 12, 0.0).check(0, true, 3), Ok(()));
        assert_eq!(shown(0, 12, 12, 0.0).check(0, false, 3), Ok(()));
        for wrong in [
            shown(0, 12, 12, 0.0),
            shown(2, 12, 12, 0.0),
            shown(3, 0, 12, 0.0),
            shown(3, 12, 8, 0.0),
            shown(3, 12, 12, 2e-6),
            shown(3, 12, 12, f64::NAN),
        ] {
            assert!(wrong.check(0, true, 3).is_err());
        }
    }
}
