//! The receiving side of a session: what a worker and the hub send, until the session ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_link::{LinkError, LinkReceiver};
use kvasir_wire::assemble::Payload;
use kvasir_wire::codec::DecodeError;
use kvasir_wire::frame::{HUB_STREAM, Kind};
use kvasir_wire::key::SecretKey;
use kvasir_wire::message::{
    CallResult, Cancel, CutRequest, Have, Outcome, Pause, ReceiptMessage, Report, Want, call_of_stream,
};
use kvasir_wire::money::PricePerByte;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::work::WorkItem;

use crate::books::{Books, BooksError};
use crate::outstanding::{Failure, Owed, SentPayload};
use crate::serve_blobs::BlobServer;
use crate::session::Session;
use crate::swarm::Shared;

/// How often a session looks for answers that are owed far too long.
const TICK: Duration = Duration::from_secs(1);

/// A worker that refuses so many calls in a row, or answers them with nonsense, is let go.
const MAX_REFUSED_IN_ROW: u32 = 16;

/// A worker that owes an answer for so many of the longest deadlines is not slow but gone.
const GONE_AFTER_CEILINGS: u32 = 3;

/// The task of one session.
pub(crate) struct SessionTask {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: Arc<Session>,
    pub(crate) receiver: LinkReceiver,
    pub(crate) books: Books,
    pub(crate) key: SecretKey,
    pub(crate) blobs: BlobServer,
    pub(crate) pending_cut: Option<CutRequest>,
    /// While the worker's connection or this side's is gone: until when its calls are waited for.
    pub(crate) patience: Option<tokio::time::Instant>,
}

/// Why a session is over.
enum Over {
    /// Its final receipt is complete.
    Finished,
    /// This side ends it, and says why to the hub, which tells the worker.
    Refuse(Refusal),
    /// The link ended.
    Link(String),
}

impl From<DecodeError> for Over {
    fn from(error: DecodeError) -> Self {
        Over::Refuse(error.into())
    }
}

impl From<BooksError> for Over {
    fn from(error: BooksError) -> Self {
        let remedy = "the session ends; what earlier receipts state stays paid; compare both ends' versions if it repeats";
        Over::Refuse(Refusal::new(RefusalCode::ReceiptDisputed, error.to_string(), remedy))
    }
}

impl SessionTask {
    /// Serves until the session is over.
    pub(crate) async fn run(mut self) {
        let over = self.serve().await;
        let why = match over {
            Over::Finished => "finished in order".to_owned(),
            Over::Link(why) => why,
            Over::Refuse(refusal) => {
                let why = refusal.to_string();
                self.session.link.refuse(refusal.about(self.session.id));
                why
            }
        };
        tracing::info!(session = %self.session.id.short(), worker = %self.session.worker, why, "session ended");
        self.session.end(why);
        self.shared.session_ended(&self.session);
        self.session.link.close();
    }

    async fn serve(&mut self) -> Over {
        let mut tick = tokio::time::interval(TICK);
        let mut standing = self.session.link.standing();
        loop {
            let received = tokio::select! {
                received = self.receiver.recv() => received,
                Ok(()) = standing.changed() => {
                    self.connections_changed();
                    continue;
                }
                () = at(self.patience) => {
                    self.patience = None;
                    self.give_up_waiting();
                    continue;
                }
                _ = tick.tick() => {
                    if let Some(refusal) = self.session.wrong_result(self.shared.options.last_receipt) {
                        return Over::Refuse(refusal);
                    }
                    self.session.leave_if_done();
                    if let Some(over) = self.look_for_overdue() {
                        return over;
                    }
                    continue;
                }
            };
            let payload = match received {
                Ok(payload) => payload,
                Err(LinkError::Refused(refusal)) => return Over::Link(refusal.to_string()),
                Err(error) => return Over::Link(error.to_string()),
            };
            if let Err(over) = self.take(payload) {
                return over;
            }
        }
    }

    fn take(&mut self, payload: Payload) -> Result<(), Over> {
        match payload.kind {
            Kind::Result => self.take_result(payload.stream, &payload.bytes),
            Kind::Have => self.take_have(&payload.bytes),
            Kind::Want => {
                let want = Want::decode(&payload.bytes)?;
                self.blobs.want(want).map_err(Over::Refuse)
            }
            Kind::Cancel => {
                self.blobs.cancel(&Cancel::decode(&payload.bytes)?.streams);
                Ok(())
            }
            Kind::Receipt => self.take_receipt(&payload.bytes),
            Kind::Pause => {
                let is_away = Pause::decode(&payload.bytes)?.for_ms > 0;
                tracing::info!(session = %self.session.id.short(), is_away, "the worker's connection");
                self.session.state().worker_away = is_away;
                self.connections_changed();
                Ok(())
            }
            Kind::Refuse => {
                let refusal = Refusal::decode(&payload.bytes)?;
                Err(Over::Link(format!("the other end or the hub {refusal}")))
            }
            // Whoever asks for it, the answer is the same: no new calls, a final receipt.
            Kind::Drain => {
                self.session.begin_draining();
                if payload.stream != HUB_STREAM {
                    self.session.ask_to_drain();
                }
                Ok(())
            }
            kind => Err(Over::Refuse(Refusal::new(
                RefusalCode::ProtocolError,
                format!("{} is not for a backbone in a session", kind.name()),
                "update the older of the two sides",
            ))),
        }
    }

    /// A connection is gone, or there is another one.
    fn connections_changed(&mut self) {
        if self.session.is_away() {
            let until = tokio::time::Instant::now() + self.shared.deadlines.floor;
            self.patience.get_or_insert(until);
        } else {
            self.patience = None;
            self.session.state().lost = false;
        }
        self.shared.progressed();
    }

    /// What the worker owes is computed here; it is asked again once it is back and has answered.
    fn give_up_waiting(&self) {
        {
            let mut state = self.session.state();
            state.lost = true;
            state.calls.give_all_up();
        }
        self.shared.progressed();
    }

    /// Decides whether a result counts, hands it to its caller, and books it.
    fn take_result(&mut self, stream: u32, bytes: &[u8]) -> Result<(), Over> {
        let result = CallResult::decode(bytes)?;
        let number = call_of_stream(stream);
        if result.call != number {
            let rule = "must be the call of the stream it comes on";
            return Err(DecodeError::Broken { field: "call", rule }.into());
        }
        // The long part, reading and checking the values, is done before the lock is taken.
        let expected = self.session.state().calls.expected_values(number);
        let values = match (&result.outcome, expected) {
            (Outcome::Rows(rows), Some(expected)) => CallResult::values(rows, expected, 1).map_err(|error| {
                self.report(number, RefusalCode::ProtocolError, error.to_string());
            }),
            (Outcome::Failed(failure), _) => {
                tracing::debug!(session = %self.session.id.short(), call = number, %failure, "the worker refused a call");
                self.session.state().numbers.last_failure = Some(failure.to_string());
                Err(())
            }
            (Outcome::Rows(_), None) => Err(()),
        };
        let accepted;
        let sent;
        let refused_in_row;
        {
            let mut state = self.session.state();
            let now = Instant::now();
            let Some(owed) = state.calls.answered(number) else {
                let rule = "an answer to a call that is not open";
                return Err(DecodeError::Broken { field: "call", rule }.into());
            };
            match owed {
                Owed::Awaited(awaited) => {
                    sent = awaited.sent;
                    accepted = values.is_ok();
                    state.refused_in_row = if accepted { 0 } else { state.refused_in_row + 1 };
                    if accepted {
                        state.latency.measure(awaited.expert_rows, now.saturating_duration_since(sent.at));
                    }
                    let outcome = values.map_err(|()| Failure::Refused);
                    // Before the lock is released: who fails to give a call up finds its answer in the channel.
                    let _ = awaited.arrive.send(awaited.place.arrival(outcome));
                }
                Owed::GivenUp(given_up) => {
                    sent = given_up;
                    accepted = false;
                }
            }
            refused_in_row = state.refused_in_row;
            state.numbers.bytes_down += bytes.len() as u64;
            if accepted {
                state.numbers.accepted += 1;
                state.numbers.rows += sent.rows;
                state.ejection.answered();
            } else {
                state.numbers.excluded += 1;
            }
        }
        let item = WorkItem {
            call: number,
            layer: sent.layer,
            mode: sent.mode,
            payload: sent.payload.digest(),
            rows: CallResult::rows_digest(&result.outcome),
        };
        let up = sent.payload.bytes();
        let keep = sent.keep.filter(|_| accepted);
        let index = self.books.results();
        self.books.record(&item, (up, bytes.len() as u64), sent.rows, accepted, &result.work_root)?;
        if let (Some(why), SentPayload::Whole(payload), Outcome::Rows(rows)) =
            (keep, sent.payload, &result.outcome)
            && !self.books.records.keep(index, why, item, payload, rows)
        {
            self.shared.count(|statistics| statistics.records.dropped += 1);
        }
        self.shared.progressed();
        self.session.leave_if_done();
        if refused_in_row >= MAX_REFUSED_IN_ROW {
            return Err(Over::Refuse(Refusal::new(
                RefusalCode::LimitReached,
                format!(
                    "{refused_in_row} calls in a row were refused or answered with values that cannot be right"
                ),
                "see the worker's log; it may connect again",
            )));
        }
        self.answer_cut()
    }

    fn take_have(&mut self, bytes: &[u8]) -> Result<(), Over> {
        let have = Have::decode(bytes)?;
        {
            let mut state = self.session.state();
            for held in &have.held {
                let address = (held.name.layer, held.name.expert);
                // What was not asked for is of no use, and what has another digest is another expert.
                if !state.assigned.contains(&address) || self.blobs.digest(address) != Some(held.digest) {
                    let rule = "only experts that were assigned, by the digest they were assigned under";
                    return Err(DecodeError::Broken { field: "held", rule }.into());
                }
                state.not_held.remove(&address);
                state.held.insert(address);
            }
            for not_held in &have.not_held {
                let address = (not_held.name.layer, not_held.name.expert);
                state.held.remove(&address);
                if state.assigned.contains(&address) {
                    state.not_held.insert(address, not_held.reason);
                    tracing::warn!(
                        session = %self.session.id.short(), layer = address.0, expert = address.1,
                        reason = ?not_held.reason, "the worker does not hold an expert; it stays here"
                    );
                }
            }
        }
        self.shared.session_holds(&self.session);
        Ok(())
    }

    fn take_receipt(&mut self, bytes: &[u8]) -> Result<(), Over> {
        match ReceiptMessage::decode(bytes)? {
            ReceiptMessage::Cut(cut) => {
                self.pending_cut = Some(cut);
                self.answer_cut()
            }
            ReceiptMessage::Complete { note } => {
                let (receipt, records) = self.books.complete(&note)?;
                if let Some(records) = records {
                    // Before the receipt is told to anyone: who has it finds its records.
                    let written = tokio::task::block_in_place(|| records.write(&self.shared.options.keep));
                    self.shared.count(|statistics| {
                        statistics.records.files += written.files;
                        statistics.records.written += written.records;
                        statistics.records.evidence += written.evidence;
                        statistics.records.failure = written.failure.or(statistics.records.failure.take());
                    });
                }
                let bytes = receipt.billed();
                {
                    let mut state = self.session.state();
                    state.numbers.receipts = receipt.seq;
                    state.numbers.receipted_bytes = bytes.get();
                    state.numbers.receipted_nano_kvr =
                        PricePerByte::FOUNDING.credit(bytes).map_or(0, |amount| amount.get().unsigned_abs());
                }
                self.shared.progressed();
                if receipt.is_final { Err(Over::Finished) } else { Ok(()) }
            }
            ReceiptMessage::Proposal { .. } => {
                let rule = "a proposal is for the worker";
                Err(DecodeError::Broken { field: "receipt step", rule }.into())
            }
        }
    }

    /// Signs the receipt that the hub waits for, once all results that it is about have come: control frames overtake
    /// results on the link.
    fn answer_cut(&mut self) -> Result<(), Over> {
        let Some(cut) = self.pending_cut.filter(|cut| cut.results <= self.books.results()) else {
            return Ok(());
        };
        self.pending_cut = None;
        for call in self.session.take_wrong_calls() {
            self.books.exclude(call);
        }
        if cut.is_final {
            self.session.begin_draining();
        }
        let countersign = self.books.cut(&cut, &self.key)?;
        let sent = self.session.link.try_send(Kind::Countersign, HUB_STREAM, countersign.encode());
        sent.map_err(|error| Over::Link(error.to_string()))
    }

    fn look_for_overdue(&self) -> Option<Over> {
        let since = self.session.state().calls.late_since()?;
        let patience = self.shared.deadlines.ceiling.saturating_mul(GONE_AFTER_CEILINGS);
        (since.elapsed() > patience).then(|| {
            Over::Refuse(Refusal::new(
                RefusalCode::TimedOut,
                format!("the worker has not answered a call for {} s", since.elapsed().as_secs()),
                "the worker should connect again; if its machine is overloaded, give it fewer experts",
            ))
        })
    }

    /// Files evidence against the worker with the hub.
    fn report(&self, call: u64, code: RefusalCode, sentence: String) {
        let report = Report { session: self.session.id, call, code, sentence, evidence: Vec::new() };
        let _ = self.session.link.try_send(Kind::Report, HUB_STREAM, report.encode());
    }
}

/// Returns at a time; never without one.
async fn at(time: Option<tokio::time::Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
