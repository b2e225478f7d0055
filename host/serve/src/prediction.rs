//! How fast texts would be written where workers held some of the experts: predicted before anything is moved.
//!
//! For S texts in W waves of S / W rows, a pass computes for C here and waits for its remote layers for R in all. The S
//! texts take a step in
//!
//! ```text
//! max(W * C,             this machine computes all the time
//!     C + R,             a pass waits, and nobody covers more of it
//!     W * bytes / rate,  a link carries bytes all the time
//!     W * T)             a worker computes all the time
//! ```
//!
//! Where workers are on this machine, computing of both sides and what moves bytes between them add up to one more bound, of
//! which the scheduler does not know.
//!
//! and W is what the scheduler would choose of these ([`crate::scheduler`] and this module ask the same function). C is what a pass
//! takes with every expert here, less the experts that are elsewhere, and a little for each call and for checks. A remote layer is waited
//! for as long as its slowest worker takes, round trip, bytes and computing, less what the shared expert computes meanwhile.
//! A layer of which a part is elsewhere waits where one of its rows goes to that part.
//!
//! Left out: what varies from call to call, congestion of the path, the window of a connection that was silent, prompts.

mod curve;
mod footprint;
mod placing;
mod scene;

use crate::scheduler::as_good;

pub use curve::Curve;
pub use footprint::{Footprint, Needs, Picks};
pub use placing::{Held, Kind, LOSES, Plan, Planned, Purpose, Question, Verdict, plan};
pub use scene::{Computing, RemoteLayer, Scene, Shape, Worker};

/// Seconds that this machine computes for one message to a worker: putting it together, handing it over, taking in the answer.
pub const CALL_COMPUTE: f64 = 40e-6;

/// The part of workers' answers that is computed again here before it is used (`--verify`, which draws one in 64 once a
/// worker is known).
const CHECKED: f64 = 1.0 / 64.0;

/// Bytes on a link for each byte of a payload: frames, WebSocket, TLS, TCP and IP.
const FRAMING: f64 = 1.05;

/// Seconds of a core that a payload byte takes where all programs on its way are on this machine: hashed, copied and put
/// together at both ends, once through TLS, some sockets. An estimate from what hashing and copying take, not measured by itself.
const MOVING: f64 = 10e-9;

/// Bytes of a call beside its rows and experts, and of a result beside its rows (docs/protocol.md, section 9).
const CALL_HEAD: f64 = 18.0;
const RESULT_HEAD: f64 = 44.0;
/// Bytes of a call for each expert, and for each row that goes to it, without and with its weight.
const EXPERT_BYTES: f64 = 6.0;
const PICK_BYTES: f64 = 4.0;
const WEIGHTED_PICK_BYTES: f64 = 8.0;

/// What would happen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Texts at once.
    pub streams: usize,
    /// Waves that the scheduler would make of them.
    pub waves: usize,
    /// Tokens a second, all texts together.
    pub tokens_per_second: f64,
    /// The same with every expert here.
    pub local_tokens_per_second: f64,
    /// What perfect hiding of the wait would give: the local rate, or, where that is less, a token of each text every
    /// remote layers x round trip and the computing of a pass of one row.
    pub ideal_tokens_per_second: f64,
    /// Seconds in which every text takes a step.
    pub step: f64,
    /// Of it, the share in which this machine has nothing to compute.
    pub waiting_share: f64,
    /// Rows of a call.
    pub rows_per_call: f64,
    /// Calls that are waited for, for each token.
    pub round_trips_per_token: f64,
    /// Payload bytes, both ways, for each token.
    pub bytes_per_token: f64,
    /// What it is that takes so long.
    pub bound: Bound,
}

/// What limits a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// This machine computes all the time.
    Computing,
    /// There are not enough texts to cover the wait.
    Waiting,
    /// The link of this worker is full.
    Link(usize),
    /// This worker computes all the time.
    Worker(usize),
    /// Workers and backbone are on one machine, which computes all the time.
    Processor,
}

impl Bound {
    /// A few words for it.
    pub fn words(self) -> String {
        match self {
            Bound::Computing => "this machine's computing".to_owned(),
            Bound::Waiting => "waiting for answers".to_owned(),
            Bound::Link(worker) => format!("the link of worker {}", worker + 1),
            Bound::Worker(worker) => format!("the computing of worker {}", worker + 1),
            Bound::Processor => "the processor that this machine and its workers share".to_owned(),
        }
    }
}

/// Predicts for `streams` texts, at least 1, of which each writes a token a step.
pub fn predict(scene: &Scene<'_>, streams: usize) -> Prediction {
    let streams = streams.max(1);
    let (texts, computing) = (streams as f64, scene.computing);
    let local_tokens_per_second = rate(texts, computing.pass.at(texts));
    let most = scene.most_waves.min(streams).max(1);
    let waves = if scene.remote.is_empty() {
        1
    } else {
        let step = |waves: usize| Cost::of(scene, texts / waves as f64).apart(waves as f64).0;
        as_good(most, step).first().copied().unwrap_or(1)
    };
    let rows = texts / waves as f64;
    let cost = Cost::of(scene, rows);
    let (step, bound) = cost.step(scene, waves as f64);
    let trip: f64 = scene.remote.iter().map(|layer| round_trip(scene, layer)).sum();
    let ideal = if scene.remote.is_empty() {
        local_tokens_per_second
    } else {
        local_tokens_per_second.min(rate(texts, trip + computing.pass.at(1.0)))
    };
    Prediction {
        streams,
        waves,
        tokens_per_second: rate(texts, step),
        local_tokens_per_second,
        ideal_tokens_per_second: ideal,
        step,
        waiting_share: if step > 0.0 { (1.0 - waves as f64 * cost.compute / step).max(0.0) } else { 0.0 },
        rows_per_call: rows,
        round_trips_per_token: cost.calls / rows,
        bytes_per_token: cost.bytes / rows,
        bound,
    }
}

fn rate(texts: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { texts / seconds } else { f64::INFINITY }
}

/// Seconds to the farthest of those that one row of a layer waits for, as often as it does.
fn round_trip(scene: &Scene<'_>, layer: &RemoteLayer) -> f64 {
    let longest = workers_of(scene, layer).map(|(_, worker)| worker.round_trip).fold(0.0, f64::max);
    longest * layer.waits(scene.shape, 1.0)
}

fn workers_of<'a>(
    scene: &'a Scene<'_>,
    layer: &'a RemoteLayer,
) -> impl Iterator<Item = (usize, &'a Worker)> + 'a {
    layer.workers.iter().filter_map(move |&at| scene.workers.get(at).map(|worker| (at, worker)))
}

/// What one pass costs.
#[derive(Debug)]
struct Cost {
    /// Seconds that this machine computes.
    compute: f64,
    /// Seconds that the pass waits.
    wait: f64,
    /// Calls that are waited for, layer by layer.
    calls: f64,
    /// Payload bytes.
    bytes: f64,
    /// Of each worker.
    each: Vec<Share>,
}

/// What one pass costs one worker, in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    computing: f64,
    up: f64,
    down: f64,
    /// Of one core of this machine, where it is here: programs on the way.
    moving: f64,
    /// Calls to it.
    calls: f64,
}

impl Cost {
    fn of(scene: &Scene<'_>, rows: f64) -> Cost {
        let (computing, shape) = (scene.computing, scene.shape);
        let layers = shape.layers.max(1) as f64;
        let (experts, shared) = (computing.experts.at(rows) / layers, computing.shared.at(rows) / layers);
        let mut cost = Cost {
            compute: computing.pass.at(rows),
            wait: 0.0,
            calls: 0.0,
            bytes: 0.0,
            each: vec![Share::default(); scene.workers.len()],
        };
        for layer in scene.remote {
            let asked = workers_of(scene, layer).count().max(1) as f64;
            let share = layer.share.clamp(0.0, 1.0);
            let waits = layer.waits(shape, rows);
            let part = share / asked;
            let computing_of = |worker: &Worker| experts * part / worker.speed.max(f64::MIN_POSITIVE);
            let of_all_here = |(_, worker): (usize, &Worker)| worker.is_here.then(|| computing_of(worker));
            let all_here: f64 = workers_of(scene, layer).filter_map(of_all_here).sum();
            let mut longest: f64 = 0.0;
            for (at, worker) in workers_of(scene, layer) {
                let message = Message::of(shape, rows, part);
                let took = Share {
                    computing: computing_of(worker),
                    up: message.up * FRAMING / worker.up,
                    down: message.down * FRAMING / worker.down,
                    moving: if worker.is_here { (message.up + message.down) * MOVING } else { 0.0 },
                    calls: waits,
                };
                let there = waits * (worker.round_trip + worker.overhead);
                // Those on one machine have one processor.
                let computed = if worker.is_here { all_here } else { took.computing };
                longest = longest.max(there + took.up + took.down + took.moving + computed);
                cost.bytes += message.up + message.down;
                cost.each[at].add(took);
            }
            cost.compute += CALL_COMPUTE * asked * waits - experts * share * (1.0 - CHECKED);
            cost.wait += (longest - shared * waits).max(0.0);
            cost.calls += waits;
        }
        // What is left here is never less than nothing, whatever was measured.
        cost.compute = cost.compute.max(0.0);
        cost
    }

    /// Seconds in which all texts take a step in so many waves, and what it is that takes them, if workers were elsewhere.
    fn apart(&self, waves: f64) -> (f64, Bound) {
        let mut step = (waves * self.compute, Bound::Computing);
        let mut at_least = |seconds: f64, bound: Bound| {
            if seconds > step.0 {
                step = (seconds, bound);
            }
        };
        at_least(self.compute + self.wait, Bound::Waiting);
        for (at, share) in self.each.iter().enumerate() {
            at_least(waves * share.up.max(share.down), Bound::Link(at));
            at_least(waves * share.computing, Bound::Worker(at));
        }
        step
    }

    /// The same where workers are.
    fn step(&self, scene: &Scene<'_>, waves: f64) -> (f64, Bound) {
        let mut here = 0.0;
        for (share, worker) in self.each.iter().zip(scene.workers) {
            if worker.is_here {
                // A call goes through one program after the other: of several cores it keeps one busy.
                let on_its_way = share.calls * worker.overhead + share.moving;
                here += share.computing + on_its_way / scene.cores.max(1) as f64;
            }
        }
        let (apart, together) = (self.apart(waves), waves * (self.compute + here));
        if here > 0.0 && together > apart.0 { (together, Bound::Processor) } else { apart }
    }
}

impl Share {
    fn add(&mut self, other: Share) {
        self.computing += other.computing;
        self.up += other.up;
        self.down += other.down;
        self.moving += other.moving;
        self.calls += other.calls;
    }
}

/// Payload bytes of a call and its answer.
struct Message {
    up: f64,
    down: f64,
}

impl Message {
    /// For a pass of `rows` of which one worker has the part `part` of a layer's picks. A worker that has all of them sums.
    fn of(shape: Shape, rows: f64, part: f64) -> Message {
        let picks = shape.picks as f64;
        let experts = shape.experts.max(1) as f64;
        let sums = part >= 1.0;
        let sent = if sums { rows } else { rows * (1.0 - (1.0 - part).powf(picks)) };
        let chosen = rows * picks * part;
        let distinct = experts * part * (1.0 - (1.0 - (picks / experts).min(1.0)).powf(rows));
        let pick_bytes = if sums { WEIGHTED_PICK_BYTES } else { PICK_BYTES };
        let answered = if sums { rows } else { chosen };
        Message {
            up: CALL_HEAD + EXPERT_BYTES * distinct + pick_bytes * chosen + sent * shape.row_bytes as f64,
            down: RESULT_HEAD + answered * 4.0 * shape.hidden as f64,
        }
    }
}

#[cfg(test)]
mod tests;
