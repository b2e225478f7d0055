//! The parts of a plan as JSON.

use std::collections::BTreeSet;

use kvasir_serve::prediction::{Footprint, Kind, Needs, Planned, Prediction, Verdict, Worker};
use serde_json::{Value, json};

use super::{Told, places};

pub(super) fn planned_object(told: &Told<'_>, planned: &Planned) -> Value {
    let layers: BTreeSet<u16> = planned.experts.iter().map(|expert| expert.0).collect();
    let held = planned.held.iter().enumerate().map(|(worker, held)| {
        json!({
            "worker": worker + 1, "name": told.described.names.get(worker), "experts": held.experts.len(),
            "holds": places(told.footprint, &held.experts), "bytes": held.bytes, "to_send": held.to_send,
            "seconds": held.seconds,
        })
    });
    let local = &told.found.here;
    json!({
        "kind": match planned.kind {
            Kind::Here => "local",
            Kind::Layers => "layers",
            Kind::Dealt => "experts",
            Kind::Tail => "tail",
        },
        "remote_layers": layers, "remote_experts": planned.experts.len(), "copies_of_some_experts": planned.copies_some,
        "workers": held.collect::<Vec<_>>(), "memory": memory_object(told.footprint, &planned.needs, told.memory),
        "predictions": [prediction_object(&local.one, &planned.one), prediction_object(&local.many, &planned.many)],
        "verdict": match planned.verdict {
            Verdict::Fine => "fine",
            Verdict::Slower => "slower",
            Verdict::Loses { .. } => "loses",
            Verdict::NoMemory { .. } => "no memory",
            Verdict::WorkerFull { .. } => "worker full",
        },
    })
}

fn prediction_object(local: &Prediction, found: &Prediction) -> Value {
    json!({
        "streams": found.streams, "waves": found.waves, "tokens_per_second": found.tokens_per_second,
        "local_tokens_per_second": local.tokens_per_second,
        "share_of_local": found.tokens_per_second / local.tokens_per_second,
        "ideal_tokens_per_second": found.ideal_tokens_per_second,
        "share_of_ideal": found.tokens_per_second / found.ideal_tokens_per_second,
        "waiting_share": found.waiting_share, "rows_per_round_trip": found.rows_per_call,
        "round_trips_per_token": found.round_trips_per_token, "bytes_per_token": found.bytes_per_token,
        "limited_by": found.bound.words(),
    })
}

pub(super) fn memory_object(footprint: &Footprint, needs: &Needs, there: u64) -> Value {
    json!({
        "needed": needs.total(), "there": there, "dense": needs.dense, "experts": needs.experts, "texts": needs.texts,
        "passes": needs.passes, "text_bytes": footprint.text.fixed, "token_bytes": footprint.text.token,
    })
}

pub(super) fn workers_object(told: &Told<'_>) -> Vec<Value> {
    let described = told.described;
    let object = |(at, worker): (usize, &Worker)| {
        json!({
            "worker": at + 1, "name": described.names.get(at), "round_trip_ms": worker.round_trip * 1e3,
            "bytes_per_second": worker.up, "overhead_ms": worker.overhead * 1e3, "speed": worker.speed,
            "memory": described.memory.get(at).copied().flatten(), "same_machine": worker.is_here,
        })
    };
    described.workers.iter().enumerate().map(object).collect()
}
