//! Which experts to give away, and whether to: every candidate is predicted, and one that memory does not hold or that loses
//! against this machine alone is refused, with the figures.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use kvasir_dispatch::{Placement, deal, with_copies};

use super::footprint::{Footprint, Needs, Picks};
use super::scene::{Computing, RemoteLayer, Scene, Shape, Worker};
use super::{FRAMING, Prediction, predict};

/// A placement that leaves less than this share of the local rate loses. (The scheduler takes back what loses as much.)
pub const LOSES: f64 = 0.98;

/// Numbers of whole layers that are tried at most.
const MOST_STEPS: usize = 64;

/// Parts of all experts that are tried as a cold tail, in sixteenths.
const TAILS: [usize; 6] = [1, 2, 4, 6, 8, 12];

/// What a placement is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Tokens a second: it must not lose against this machine alone.
    Speed,
    /// Room: what loses is taken all the same.
    Capacity,
}

/// How experts are given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Not at all.
    Here,
    /// Whole layers, in turn over workers; or what is chosen of them, which stays together.
    Layers,
    /// Expert by expert within every layer, in turn over workers.
    Dealt,
    /// The experts that are picked least, whatever their layer.
    Tail,
}

impl Kind {
    /// A few words for it.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Here => "every expert here",
            Kind::Layers => "whole layers in turn",
            Kind::Dealt => "the experts of every layer in turn",
            Kind::Tail => "the experts that are picked least",
        }
    }
}

/// What is to be planned.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// This machine.
    pub computing: &'a Computing,
    /// Its cores.
    pub cores: usize,
    /// The model.
    pub shape: Shape,
    /// Its bytes.
    pub footprint: &'a Footprint,
    /// How often its experts are picked, where that was measured.
    pub picks: Option<&'a Picks>,
    /// The workers, best first.
    pub workers: &'a [Worker],
    /// Bytes for experts that each has; what is not there has no bound.
    pub worker_memory: &'a [Option<u64>],
    /// What each holds already: a layer, and how many of its experts.
    pub holds: &'a [Vec<(u16, u32)>],
    /// Bytes that this machine has.
    pub memory: u64,
    /// Texts at once.
    pub texts: usize,
    /// Tokens that each may have, its prompt included.
    pub context: usize,
    /// Passes under way at most.
    pub most_waves: usize,
    /// Rows of prompts that a pass reads at most.
    pub prompt_rows: usize,
    /// Further workers that hold each expert.
    pub copies: usize,
    /// Those that copies are made of; where nobody says, all, or the ones that are picked most if there is no room for all.
    pub copied: Option<&'a BTreeSet<(u16, u16)>>,
    /// What it is for.
    pub purpose: Purpose,
    /// The placement to judge, ascending; where there is none, the best one is looked for.
    pub asked: Option<(Kind, &'a [(u16, u16)])>,
}

/// What a worker would hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// Its own experts, and behind them copies of others'.
    pub experts: Vec<(u16, u16)>,
    /// Their bytes.
    pub bytes: u64,
    /// Of those, bytes that have to be sent.
    pub to_send: u64,
    /// Seconds that this takes; infinite where nobody said how fast the link is.
    pub seconds: f64,
}

/// A placement and what would come of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// How experts are given away.
    pub kind: Kind,
    /// All that are.
    pub experts: Vec<(u16, u16)>,
    /// What each worker would hold.
    pub held: Vec<Held>,
    /// Whether copies are made of some experts alone: those that are picked more often than others, or that were named.
    pub copies_some: bool,
    /// What this machine would need.
    pub needs: Needs,
    /// One text.
    pub one: Prediction,
    /// As many as were asked about.
    pub many: Prediction,
    /// What is thought of it.
    pub verdict: Verdict,
}

/// What is thought of a placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// It may be.
    Fine,
    /// It is slower than this machine alone, and room is what it is for.
    Slower,
    /// It is slower than this machine alone.
    Loses {
        /// Tokens a second.
        planned: f64,
        /// The same with every expert here.
        local: f64,
    },
    /// This machine's memory does not hold what stays.
    NoMemory {
        /// Bytes that would be needed.
        needed: u64,
        /// Bytes that there are.
        there: u64,
    },
    /// A worker's does not hold what it would get.
    WorkerFull {
        /// The worker, counted from 0.
        worker: usize,
        /// Bytes that would be needed.
        needed: u64,
        /// Bytes that there are.
        there: u64,
    },
}

impl Verdict {
    /// Whether it is refused.
    pub fn is_refusal(self) -> bool {
        !matches!(self, Verdict::Fine | Verdict::Slower)
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Everything here.
    pub here: Planned,
    /// The placements that were looked at; where one was asked about, that one.
    pub others: Vec<Planned>,
}

impl Plan {
    /// The one to take: of those that are not refused the fastest, everything here before what is as fast. Where all are
    /// refused, nothing.
    pub fn best(&self) -> Option<&Planned> {
        let mut best: Option<&Planned> = None;
        for planned in std::iter::once(&self.here).chain(&self.others) {
            let rate = planned.many.tokens_per_second;
            let is_better = best.is_none_or(|best| rate > best.many.tokens_per_second);
            if !planned.verdict.is_refusal() && is_better {
                best = Some(planned);
            }
        }
        best
    }
}

/// Judges what was asked about, or looks for the best placement.
pub fn plan(question: &Question<'_>) -> Plan {
    let here = judged(question, Kind::Here, &[], None);
    let local = (!here.verdict.is_refusal()).then_some(here.many.tokens_per_second);
    let others = match question.asked {
        Some((kind, experts)) => vec![judged(question, kind, experts, local)],
        None if question.workers.is_empty() => Vec::new(),
        None => {
            let candidates = candidates(question, &here.needs);
            candidates.iter().map(|(kind, experts)| judged(question, *kind, experts, local)).collect()
        }
    };
    Plan { here, others }
}

/// The placements that are looked at, each ascending.
fn candidates(question: &Question<'_>, here: &Needs) -> Vec<(Kind, Vec<(u16, u16)>)> {
    let footprint = question.footprint;
    let layers = footprint.experts.len();
    // The largest first: as few round trips as can be for the room that they make.
    let mut order: Vec<usize> = (0..layers).collect();
    order.sort_by_key(|layer| (Reverse(footprint.layer(*layer)), *layer));
    let mut found = Vec::new();
    let step = layers.div_ceil(MOST_STEPS).max(1);
    let leaves_out_the_last = layers > 0 && !(layers - 1).is_multiple_of(step);
    let counts = (1..=layers).step_by(step).chain(leaves_out_the_last.then_some(layers));
    for count in counts {
        let mut experts: Vec<(u16, u16)> = Vec::new();
        for &layer in &order[..count] {
            experts.extend((0..footprint.experts[layer].len()).map(|expert| (layer as u16, expert as u16)));
        }
        experts.sort_unstable();
        if question.workers.len() > 1 {
            found.push((Kind::Dealt, experts.clone()));
        }
        found.push((Kind::Layers, experts));
    }
    if let Some(picks) = question.picks {
        let coldest = picks.coldest_first();
        let missing = here.total().saturating_sub(question.memory);
        let mut counts: Vec<usize> = TAILS.iter().map(|sixteenths| coldest.len() * sixteenths / 16).collect();
        // As many as make room for what is missing.
        let mut room = 0;
        let enough = coldest.iter().position(|expert| {
            room += footprint.bytes_of(std::slice::from_ref(expert));
            room >= missing
        });
        counts.extend(enough.filter(|_| missing > 0).map(|last| last + 1));
        for count in counts.into_iter().filter(|count| *count > 0) {
            let mut experts = coldest[..count].to_vec();
            experts.sort_unstable();
            found.push((Kind::Tail, experts));
        }
    }
    found
}

/// Predicts a placement and judges it against the local rate, where everything fits here.
fn judged(question: &Question<'_>, kind: Kind, experts: &[(u16, u16)], local: Option<f64>) -> Planned {
    let footprint = question.footprint;
    let placement = if kind == Kind::Dealt { Placement::Experts } else { Placement::WholeLayers };
    let shares = deal(placement, experts, question.workers.len());
    let remote = remote_layers(question, &shares);
    let scene = Scene {
        computing: question.computing,
        cores: question.cores,
        shape: question.shape,
        workers: question.workers,
        remote: &remote,
        most_waves: question.most_waves,
    };
    let (one, many) = (predict(&scene, 1), predict(&scene, question.texts));
    let elsewhere = footprint.bytes_of(experts);
    let passes = (many.waves, question.prompt_rows);
    let needs = footprint.needs(elsewhere, question.texts, question.context, passes);

    let is_copied = |address: (u16, u16)| question.copied.is_none_or(|copied| copied.contains(&address));
    let held = holdings(question, &with_copies(&shares, question.copies, is_copied));
    let full = |held: &[Held]| {
        let memory = |worker: usize| question.worker_memory.get(worker).copied().flatten();
        let overfull = |(worker, held): (usize, &Held)| {
            let there = memory(worker)?;
            (held.bytes > there).then_some(Verdict::WorkerFull { worker, needed: held.bytes, there })
        };
        held.iter().enumerate().find_map(overfull)
    };
    // Where there is no room for all copies, those count most that are asked for most.
    let (held, copies_some) = match (full(&held), question.picks) {
        (Some(_), Some(picks)) if question.copies > 0 && question.copied.is_none() => {
            let is_hot = |(layer, expert): (u16, u16)| {
                let experts = footprint.experts.get(usize::from(layer)).map_or(1, Vec::len);
                picks.share((layer, expert)) > 1.0 / experts.max(1) as f64
            };
            (holdings(question, &with_copies(&shares, question.copies, is_hot)), true)
        }
        _ => (held, question.copies > 0 && question.copied.is_some()),
    };

    let verdict = if needs.total() > question.memory {
        Verdict::NoMemory { needed: needs.total(), there: question.memory }
    } else if let Some(full) = full(&held) {
        full
    } else {
        match local {
            Some(local) if many.tokens_per_second < LOSES * local => match question.purpose {
                Purpose::Capacity => Verdict::Slower,
                Purpose::Speed => Verdict::Loses { planned: many.tokens_per_second, local },
            },
            _ => Verdict::Fine,
        }
    };
    Planned { kind, experts: experts.to_vec(), held, copies_some, needs, one, many, verdict }
}

/// By layer, which part of the picks goes to whom.
fn remote_layers(question: &Question<'_>, shares: &[Vec<(u16, u16)>]) -> Vec<RemoteLayer> {
    let experts = &question.footprint.experts;
    let mut layers: Vec<(RemoteLayer, usize)> =
        vec![(RemoteLayer { share: 0.0, workers: Vec::new() }, 0); experts.len()];
    for (worker, share) in shares.iter().enumerate() {
        for &(layer, expert) in share {
            let of_layer = experts.get(usize::from(layer)).map_or(1, |experts| experts.len().max(1));
            let Some((remote, count)) = layers.get_mut(usize::from(layer)) else { continue };
            let even = 1.0 / of_layer as f64;
            remote.share += question.picks.map_or(even, |picks| picks.share((layer, expert)));
            if remote.workers.last() != Some(&worker) {
                remote.workers.push(worker);
            }
            *count += 1;
        }
    }
    let whole = layers.into_iter().zip(experts).map(|((mut remote, count), experts)| {
        // Sums of parts are not exact, and all is all.
        if count == experts.len() {
            remote.share = 1.0;
        }
        remote
    });
    whole.filter(|remote| !remote.workers.is_empty()).collect()
}

/// What each worker would hold, and how long the way there takes.
fn holdings(question: &Question<'_>, shares: &[Vec<(u16, u16)>]) -> Vec<Held> {
    let of_worker = |(worker, experts): (usize, &Vec<(u16, u16)>)| {
        let bytes = question.footprint.bytes_of(experts);
        let has = question.holds.get(worker).map(Vec::as_slice).unwrap_or_default();
        let to_send = bytes.saturating_sub(already_there(question.footprint, experts, has));
        let rate = question.workers.get(worker).map_or(f64::INFINITY, |worker| worker.up);
        let seconds = match to_send {
            0 => 0.0,
            _ if rate.is_finite() && rate > 0.0 => to_send as f64 * FRAMING / rate,
            _ => f64::INFINITY,
        };
        Held { experts: experts.clone(), bytes, to_send, seconds }
    };
    shares.iter().enumerate().map(of_worker).collect()
}

/// Bytes of `experts` that a worker with so many experts of each layer has already, about: which they are is not known.
fn already_there(footprint: &Footprint, experts: &[(u16, u16)], has: &[(u16, u32)]) -> u64 {
    let of_layer = |&(layer, count): &(u16, u32)| {
        let wanted: Vec<(u16, u16)> = experts.iter().copied().filter(|expert| expert.0 == layer).collect();
        let bytes = footprint.bytes_of(&wanted);
        bytes / (wanted.len().max(1) as u64) * u64::from(count).min(wanted.len() as u64)
    };
    has.iter().map(of_layer).sum()
}

#[cfg(test)]
mod tests;
