//! What the hub tells an operator: metrics, readiness, and the status page.

use std::sync::{Arc, Weak};

use kvasir_link::unix_now;
use maud::{Markup, html};

use super::{
    Hub,
    meter::LaneBytes,
    metrics::HubMetrics,
    status::{BackboneReport, SessionReport, Status, WaitingReport},
};
use crate::{
    accept::SharedLimits,
    edge::Gate,
    operations::Served,
    page::{Tile, bytes, grouped, list, page, refusals, short, span, tiles},
    stop::Stop,
};

/// What a hub tells. It holds the hub weakly: who looks must not keep a stopped hub's filer waiting.
pub(super) struct HubReport {
    hub: Weak<Hub>,
    network: String,
    metrics: Arc<HubMetrics>,
    gate: Arc<Gate>,
    accept: SharedLimits,
    stop: Stop,
}

impl HubReport {
    pub(super) fn new(hub: &Arc<Hub>, gate: Arc<Gate>, accept: SharedLimits, stop: Stop) -> Self {
        HubReport {
            hub: Arc::downgrade(hub),
            network: hub.identity.network.clone(),
            metrics: hub.metrics.clone(),
            gate,
            accept,
            stop,
        }
    }

    fn report(&self) -> Status {
        self.hub.upgrade().map(|hub| hub.status()).unwrap_or_default()
    }
}

impl Served for HubReport {
    fn metrics(&self) -> String {
        self.metrics.door.look(self.gate.counts(), self.accept.get().descriptors);
        self.metrics.text(&self.report())
    }

    fn ready(&self) -> Result<(), String> {
        match self.hub.upgrade() {
            Some(hub) => hub.ready(&self.stop),
            None => Err("it has stopped; receipts are being filed".into()),
        }
    }

    fn status(&self) -> String {
        serde_json::to_string(&self.report()).unwrap_or_default()
    }

    fn page(&self) -> String {
        page("hub", &self.network, &self.ready(), body(&self.report(), unix_now()))
    }
}

fn body(status: &Status, now: u64) -> Markup {
    let carried = |side: fn(&SessionReport) -> &LaneBytes| {
        status.sessions.iter().fold(0_u64, |sum, session| sum.saturating_add(side(session).sum()))
    };
    html! {
        (tiles(&[
            Tile::count("Backbones", status.backbones.len() as u64),
            Tile::count("Sessions", status.sessions.len() as u64),
            Tile::count("Workers waiting", status.waiting.len() as u64),
            Tile::count("Sessions ended", status.closed_sessions),
            Tile::bytes("To workers, open sessions", carried(|session| &session.to_worker)),
            Tile::bytes("To backbones, open sessions", carried(|session| &session.to_backbone)),
            Tile::count("Receipts in the spool", status.receipts_in_spool as u64),
            Tile::count("Receipts postponed", status.receipts_postponed as u64),
            Tile::count("Receipts refused", status.receipts_refused as u64),
        ]))
        @if let Some(why) = &status.postponed_because {
            p { span .state .bad { "receipts wait" } " The ledger says: " (why) }
        }
        (list("Sessions", &status.sessions, "No session.", &SESSION, session))
        (list("Workers waiting", &status.waiting, "Nobody waits.", &WAITING, |row| waiting(row, now)))
        (list("Backbones", &status.backbones, "No backbone is connected.", &BACKBONE, |row| backbone(row, now)))
        (refusals(&status.refusals, now, |key| html! { code title=(key) { (short(key)) } }))
        p.soft { "A refusal stands here in the words that the one who was refused was told." }
    }
}

const SESSION: [&str; 8] =
    ["Session", "Worker", "Backbone", "For", "Round trip", "To the worker", "To the backbone", "Stalls"];
const WAITING: [&str; 4] = ["Worker", "For", "Round trip", "Waits since"];
const BACKBONE: [&str; 5] = ["Backbone", "Model", "Sessions", "For", "Round trip"];

fn session(row: &SessionReport) -> Markup {
    html! {
        td data-name=(SESSION[0]) { code title=(row.session) { (short(&row.session)) } }
        td data-name=(SESSION[1]) { code title=(row.worker) { (short(&row.worker)) } }
        td data-name=(SESSION[2]) { code title=(row.backbone) { (short(&row.backbone)) } }
        td data-name=(SESSION[3]) {
            (span(row.seconds))
            @if row.resumed > 0 { ", resumed " (grouped(row.resumed)) "x" }
        }
        td data-name=(SESSION[4]) {
            (round_trip(row.worker_round_trip_us)) " / " (round_trip(row.backbone_round_trip_us))
        }
        td data-name=(SESSION[5]) { (lanes(&row.to_worker)) }
        td data-name=(SESSION[6]) { (lanes(&row.to_backbone)) }
        td data-name=(SESSION[7]) {
            @if row.stalls == 0 { "none" } @else { (grouped(row.stalls)) ", " (grouped(row.stalled_ms)) " ms" }
        }
    }
}

fn waiting(row: &WaitingReport, now: u64) -> Markup {
    html! {
        td data-name=(WAITING[0]) { code title=(row.key) { (short(&row.key)) } }
        td data-name=(WAITING[1]) { (span(now.saturating_sub(row.since))) }
        td data-name=(WAITING[2]) { (round_trip(row.round_trip_us)) }
        td.words data-name=(WAITING[3]) { (row.why) }
    }
}

fn backbone(row: &BackboneReport, now: u64) -> Markup {
    html! {
        td data-name=(BACKBONE[0]) { code title=(row.key) { (short(&row.key)) } }
        td data-name=(BACKBONE[1]) { code title=(row.model) { (short(&row.model)) } }
        td data-name=(BACKBONE[2]) { (grouped(row.sessions as u64)) }
        td data-name=(BACKBONE[3]) { (span(now.saturating_sub(row.since))) }
        td data-name=(BACKBONE[4]) { (round_trip(row.round_trip_us)) }
    }
}

fn round_trip(micros: Option<u64>) -> String {
    match micros {
        Some(micros) => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        None => "not yet".into(),
    }
}

/// Bytes by lane, those of control left out: they are few and nobody pays for them.
fn lanes(passed: &LaneBytes) -> Markup {
    html! { (bytes(passed.dispatch)) " calls, " (bytes(passed.bulk)) " experts" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hub::RefusalReport, page::MAX_ROWS};

    fn refused(message: &str) -> RefusalReport {
        RefusalReport {
            at: 90,
            whom: "10.0.0.1:5".into(),
            code: "bad_ticket".into(),
            message: message.into(),
            what_to_do: "ask for a new one".into(),
        }
    }

    #[test]
    fn every_list_is_shown_and_what_comes_from_outside_is_escaped() {
        let status = Status {
            backbones: vec![BackboneReport {
                key: "ed25519:aaaaaaaaaaaaaaaa".into(),
                model: "bbbbbbbbbbbbbbbb".into(),
                sessions: 1,
                since: 10,
                round_trip_us: Some(1_250),
            }],
            waiting: vec![WaitingReport {
                key: "ed25519:cccccccccccccccc".into(),
                why: "<img src=x onerror=alert(1)>".into(),
                since: 40,
                round_trip_us: None,
            }],
            sessions: vec![SessionReport {
                session: "dddddddddddddddd".into(),
                worker: "ed25519:eeeeeeeeeeeeeeee".into(),
                backbone: "ed25519:aaaaaaaaaaaaaaaa".into(),
                began: 20,
                seconds: 80,
                worker_round_trip_us: Some(13_370),
                backbone_round_trip_us: Some(210),
                to_worker: LaneBytes { control: 1, dispatch: 2_000, bulk: 3_000_000 },
                to_backbone: LaneBytes { control: 1, dispatch: 4_000, bulk: 0 },
                stalls: 5,
                stalled_ms: 1_234,
                resumed: 2,
                bulk_connections: 1,
            }],
            refusals: vec![refused("<script>\"' & the ticket is expired")],
            ..Status::default()
        };
        let text = body(&status, 100).into_string();
        for part in [
            "aaaaaaaaaaaa<",
            "bbbbbbbbbbbb<",
            "cccccccccccc<",
            "dddddddddddd<",
            "eeeeeeeeeeee<",
            "1.2 ms",
            "13.3 ms / 0.2 ms",
            "not yet",
            "1 min 20 s, resumed 2x",
            "2.0 kB calls, 3.0 MB experts",
            "5, 1,234 ms",
            "the ticket is expired",
            "To do: ask for a new one",
            "10 s",
            "bad_ticket",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("<script") && !text.contains("<img"), "{text}");
    }

    #[test]
    fn a_list_beyond_the_limit_says_how_many_more_there_are() {
        let refusals = vec![refused("no"); MAX_ROWS + 1_234];
        let text = body(&Status { refusals, ..Status::default() }, 100).into_string();
        assert_eq!(text.matches("<code>bad_ticket").count(), MAX_ROWS);
        assert!(text.contains("and 1,234 more"), "{text}");
    }
}
