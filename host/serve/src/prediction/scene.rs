//! What a prediction is made of: how long this machine computes, what a model's rows and experts are, who the workers are
//! and what they would hold. Figures alone; whoever measures them is elsewhere.

use kvasir_model::{ExpertIndex, LayerIndex, Model, ModelError};

use super::curve::Curve;

/// For how long this machine computes a pass with every expert on it, by the rows of the pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Computing {
    /// All of it.
    pub pass: Curve,
    /// Of it, routed experts, those of all layers together.
    pub experts: Curve,
    /// Of it, shared experts, those of all layers together. They are computed while remote ones are waited for.
    pub shared: Curve,
}

/// A model as far as calls depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Decoder layers.
    pub layers: usize,
    /// Values of a row.
    pub hidden: usize,
    /// Routed experts of a layer.
    pub experts: usize,
    /// Experts that a row goes to.
    pub picks: usize,
    /// Bytes of a row as it is sent.
    pub row_bytes: usize,
}

impl Shape {
    /// That of a model.
    ///
    /// # Errors
    /// Where its first expert cannot be found.
    pub fn of(model: &Model) -> Result<Shape, ModelError> {
        let config = model.config();
        let hidden = config.hidden as usize;
        let first = model.expert(LayerIndex(0), ExpertIndex(0))?;
        Ok(Shape {
            layers: config.layers as usize,
            hidden,
            experts: config.experts as usize,
            picks: config.experts_per_token as usize,
            // The model was opened, so its rows are whole blocks.
            row_bytes: first.gate.row_format().row_bytes(hidden).unwrap_or(4 * hidden),
        })
    }
}

/// A worker and the way to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worker {
    /// Seconds from here to it and back, for what is nearly nothing.
    pub round_trip: f64,
    /// Bytes a second to it; infinity where they cost no time.
    pub up: f64,
    /// Bytes a second from it.
    pub down: f64,
    /// Seconds that a call takes beyond round trip, bytes and computing: the programs on its way.
    pub overhead: f64,
    /// How fast it computes experts, this machine being 1.
    pub speed: f64,
    /// Whether it computes on this machine's processor, as in a trial of everything on one machine.
    pub is_here: bool,
}

impl Worker {
    /// Seconds that a call takes beyond round trip, bytes and computing unless it was measured: through hub and edge on two
    /// cores, with four changes of thread and of process.
    pub const OVERHEAD: f64 = 0.3e-3;

    /// One that is so far away, over a link that costs bytes no time, and as fast as this machine.
    pub fn at(round_trip: f64) -> Worker {
        Worker {
            round_trip,
            up: f64::INFINITY,
            down: f64::INFINITY,
            overhead: Worker::OVERHEAD,
            speed: 1.0,
            is_here: false,
        }
    }
}

/// A layer of which workers hold experts.
#[derive(Debug, Clone, PartialEq)]
pub struct RemoteLayer {
    /// The part of the layer's picks that goes to experts that workers hold: 1 where they hold all.
    pub share: f64,
    /// The workers that hold them, by their place in the list; several hold about equal parts, dealt expert by expert.
    pub workers: Vec<usize>,
}

impl RemoteLayer {
    /// How likely it is that a pass of `rows` waits for the layer: a row goes elsewhere where one of its picks does, a pass
    /// waits where one of its rows does.
    pub(super) fn waits(&self, shape: Shape, rows: f64) -> f64 {
        1.0 - (1.0 - self.share.clamp(0.0, 1.0)).powf(shape.picks as f64 * rows)
    }
}

/// Everything that a prediction depends on, texts apart.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// This machine.
    pub computing: &'a Computing,
    /// Its cores; at least 1.
    pub cores: usize,
    /// The model.
    pub shape: Shape,
    /// The workers.
    pub workers: &'a [Worker],
    /// What they hold; layers of which they hold nothing are left out.
    pub remote: &'a [RemoteLayer],
    /// Passes under way at most.
    pub most_waves: usize,
}
