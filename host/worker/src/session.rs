//! One session of a worker: what the backbone and the hub send, until it ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kvasir_link::{LinkError, LinkReceiver, unix_now};
use kvasir_model::{ExpertIndex, LayerIndex, Model};
use kvasir_wire::assemble::Payload;
use kvasir_wire::codec::DecodeError;
use kvasir_wire::frame::{HUB_STREAM, Kind, PAIR_STREAM, StreamClass};
use kvasir_wire::id::{ModelDigest, SessionId};
use kvasir_wire::key::{PublicKey, SecretKey};
use kvasir_wire::message::{
    Assign, Assigned, Cancel, Countersign, Drain, DrainReason, ExpertName, Have, Held, NotHeld,
    NotHeldReason, ReceiptMessage, Release, Report, call_of_stream,
};
use kvasir_wire::money::PricePerByte;
use kvasir_wire::receipt::Receipt;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::books::BooksError;
use crate::canary::{Canary, Verdict};
use crate::changeover::Standing;
use crate::event::{Event, EventSink};
use crate::fetch::{Beginnings, Extent, Fetches, Purpose, Taken};
use crate::life::Reporter;
use crate::options::UnsignedWindow;
use crate::paystub::Paystub;
use crate::serving::Serving;
use crate::store::{LoadError, Room, Store};
use crate::workbench::Workbench;

/// After a failure of the GPU's process, how long at least until experts are loaded again: several may be lost at once.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How long a worker that was asked to stop waits for its final receipt.
const LAST_RECEIPT: Duration = Duration::from_secs(15);

/// A little call that takes so long on this task's thread is the last one that is computed there.
const HELD_UP: Duration = Duration::from_millis(500);

/// How often a session looks at what was served and not signed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A session that has begun.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) backbone: PublicKey,
    pub(crate) receiver: LinkReceiver,
    pub(crate) serving: Arc<Serving>,
    pub(crate) store: Arc<Store>,
    pub(crate) bench: Arc<Workbench>,
    pub(crate) fetches: Fetches,
    pub(crate) model: Option<Arc<Model>>,
    pub(crate) key: SecretKey,
    pub(crate) paystub: Paystub,
    /// How much is served ahead of signatures.
    pub(crate) window: UnsignedWindow,
    /// Since when something served waits for a receipt.
    pub(crate) unsigned_since: Option<Instant>,
    pub(crate) events: EventSink,
    pub(crate) assigned: usize,
    /// Experts that the GPU's process took with it, as the workbench tells them.
    pub(crate) lost: mpsc::UnboundedReceiver<Vec<Assigned>>,
    pub(crate) again: Again,
    pub(crate) last: Option<Receipt>,
    pub(crate) model_digest: ModelDigest,
    pub(crate) reporter: Reporter,
    /// Whether a call has come.
    pub(crate) called: bool,
    /// Whether calls may be computed on this task's thread: it is one of several, and waits for another process meanwhile.
    pub(crate) computes_here: bool,
    /// What is to be told of a call that was, once its answer is written.
    pub(crate) answered: Option<Answered>,
    /// Whether it has been told that all assigned experts are here.
    pub(crate) holding: bool,
    /// The candidate, as it comes and goes.
    pub(crate) canaries: watch::Receiver<Option<Arc<Canary>>>,
    pub(crate) shadow: Option<Shadow>,
}

/// A call was answered on the network's thread; with what is to be told of it.
pub(crate) struct Answered(Option<Event>);

/// A candidate whose experts this session fetches.
pub(crate) struct Shadow {
    canary: Arc<Canary>,
    /// Experts that it is still to be given.
    experts: VecDeque<Assigned>,
    /// One of them is on its way or being loaded: the next one waits, so that serving comes first.
    busy: bool,
}

/// Experts to be loaded again, and when.
#[derive(Default)]
pub(crate) struct Again {
    experts: Vec<Assigned>,
    at: Option<Instant>,
}

impl Again {
    /// One more, not before `wait` is over. All are loaded at one time, the last one's.
    fn add(&mut self, assigned: Assigned, wait: Duration) {
        let at = Instant::now() + wait.max(AGAIN_AFTER);
        self.at = self.at.max(Some(at));
        self.experts.push(assigned);
    }

    /// Returns when it is time; never while there is none.
    async fn due(&self) {
        match self.at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    fn take(&mut self) -> Vec<Assigned> {
        self.at = None;
        std::mem::take(&mut self.experts)
    }

    /// Not any more.
    fn forget(&mut self, name: ExpertName) {
        self.experts.retain(|assigned| assigned.name != name);
    }
}

/// How a session ended.
#[derive(Debug)]
pub(crate) enum End {
    /// In order, with a final receipt.
    Drained {
        /// How long to wait before connecting again, if the hub said.
        reconnect_in: Option<Duration>,
    },
    /// The link ended.
    Link(LinkError),
    /// A fault demanded it.
    Died,
}

/// What the workbench tells the session.
struct Loaded {
    assigned: Assigned,
    purpose: Purpose,
    outcome: Outcome,
}

enum Outcome {
    Held,
    Refused(LoadError),
    /// The model on this machine holds another expert of this name: it must come over the link.
    NotHere,
}

impl Session {
    /// Serves until the session ends. Gives how, the session's last complete receipt, and what came of blobs that are half way.
    pub(crate) async fn serve(
        mut self,
        mut stop: watch::Receiver<bool>,
    ) -> (End, Option<Receipt>, Beginnings) {
        let (loaded, mut loads) = mpsc::unbounded_channel();
        let mut look = tokio::time::interval(LOOK_EVERY);
        let mut leaving = None;
        let mut reconnect_in = None;
        let end = loop {
            self.look_if_holding();
            let taken = tokio::select! {
                received = self.receiver.recv() => match received {
                    Ok(payload) => self.take(payload, &loaded, &mut reconnect_in),
                    Err(error) => break End::Link(error),
                },
                Some(done) = loads.recv() => self.settle(done),
                Ok(()) = self.canaries.changed() => self.canary_changed(),
                Some(lost) = self.lost.recv() => {
                    lost.into_iter().for_each(|assigned| self.again.add(assigned, Duration::ZERO));
                    Ok(false)
                }
                () = self.again.due(), if leaving.is_none() => self.load_again(),
                () = self.serving.quarantine.notified(), if leaving.is_none() => {
                    leaving = Some(Box::pin(tokio::time::sleep(LAST_RECEIPT)));
                    self.give_plugin_up()
                }
                () = self.serving.death.notified() => break End::Died,
                _ = look.tick() => self.look_at_unsigned().map(|()| false),
                _ = stop.wait_for(|stop| *stop), if leaving.is_none() => {
                    if !self.serving.link.is_whole() {
                        // Nobody hears that it leaves: a lost connection is as good an end as any.
                        break End::Link(LinkError::Ended);
                    }
                    leaving = Some(Box::pin(tokio::time::sleep(LAST_RECEIPT)));
                    self.ask_to_drain()
                }
                () = async { if let Some(timer) = &mut leaving { timer.await } }, if leaving.is_some() => {
                    break End::Link(LinkError::TimedOut { what: "the final receipt", within: LAST_RECEIPT });
                }
            };
            if let Some(Answered(event)) = self.answered.take() {
                // The answer goes out first, and whatever else waits for this thread.
                tokio::task::yield_now().await;
                if let Some(event) = event {
                    (self.events)(event);
                }
            }
            match taken {
                Ok(false) => {}
                Ok(true) => {
                    (self.events)(Event::Drained);
                    break End::Drained { reconnect_in };
                }
                Err(refusal) => {
                    self.serving.link.refuse(refusal.clone());
                    break End::Link(LinkError::RefusedPeer(refusal));
                }
            }
        };
        self.serving.set_canary(None);
        self.bench.clear(self.id.0);
        if matches!(end, End::Died) {
            // Dying without a word is the point; dropping the receiver would say goodbye.
            std::mem::forget(self.receiver);
        } else {
            self.serving.link.close();
        }
        (end, self.last, self.fetches.leave(self.backbone))
    }

    /// Takes a payload; true when the session is over.
    fn take(
        &mut self,
        payload: Payload,
        loaded: &mpsc::UnboundedSender<Loaded>,
        reconnect_in: &mut Option<Duration>,
    ) -> Result<bool, Refusal> {
        let Payload { kind, stream, more, bytes, .. } = payload;
        match kind {
            Kind::Call => {
                if !std::mem::replace(&mut self.called, true) {
                    self.reporter.tell(Standing::Called);
                }
                self.look_at_unsigned()?;
                if self.serving.admit(stream, &bytes) {
                    self.answer_here(stream, &bytes);
                    if self.answered.is_none() {
                        let serving = Arc::clone(&self.serving);
                        self.bench.call(self.id.0, move || serving.serve(stream, &bytes));
                    }
                }
            }
            Kind::Chunk => {
                let taken = self.fetches.take(stream, &bytes, more)?;
                self.take_chunk(taken, stream, loaded)?;
            }
            Kind::Assign => self.take_assign(Assign::decode(&bytes)?)?,
            Kind::Release => self.take_release(Release::decode(&bytes)?)?,
            Kind::Cancel => {
                let streams = Cancel::decode(&bytes)?.streams;
                let calls = streams.iter().filter(|stream| StreamClass::of(**stream) == StreamClass::Call);
                self.serving.cancel(calls.map(|stream| call_of_stream(*stream)));
            }
            Kind::Receipt => return self.take_receipt(ReceiptMessage::decode(&bytes)?),
            Kind::Drain => {
                let drain = Drain::decode(&bytes)?;
                tracing::info!(reason = ?drain.reason, "the session is being drained");
                *reconnect_in =
                    (drain.reconnect_in_ms > 0).then(|| Duration::from_millis(drain.reconnect_in_ms.into()));
            }
            Kind::Refuse => {
                let refusal = Refusal::decode(&bytes)?;
                (self.events)(Event::Refused {
                    code: refusal.code.name().to_owned(),
                    reason: refusal.to_string(),
                    can_heal: true,
                });
            }
            other => {
                return Err(Refusal::new(
                    RefusalCode::ProtocolError,
                    format!("{} is not for a worker in a session", other.name()),
                    "update the older of the two sides",
                ));
            }
        }
        Ok(false)
    }

    /// Computes and answers a little call on this thread, if the bench is free. Not where something has come behind it: that may cancel
    /// it, or be another call to be read meanwhile.
    fn answer_here(&mut self, stream: u32, bytes: &[u8]) {
        if !self.computes_here || self.receiver.has_more() || !self.serving.is_little(bytes) {
            return;
        }
        let Some(turn) = self.bench.turn() else { return };
        let begun = Instant::now();
        let event = turn.run(|| self.serving.serve_quietly(stream, bytes));
        // A kernel that holds this task up does it once.
        self.computes_here = begun.elapsed() < HELD_UP;
        self.answered = Some(Answered(event));
    }

    fn take_assign(&mut self, assign: Assign) -> Result<(), Refusal> {
        let mut have = Have { free_bytes: 0, held: Vec::new(), not_held: Vec::new() };
        self.assigned += assign.experts.len();
        (self.events)(Event::Assigned { experts: self.assigned });
        self.store.name(&assign.experts);
        for assigned in assign.experts {
            let Assigned { name, digest, blob_bytes } = assigned;
            match self.store.reserve(name, digest, blob_bytes) {
                Room::Held => have.held.push(Held { name, digest }),
                Room::Underway => {}
                Room::None => {
                    have.not_held.push(NotHeld { name, reason: NotHeldReason::NoMemory });
                    let sentence =
                        format!("no room for {blob_bytes} bytes; raise the worker's store or assign less");
                    self.tell_refused(name, sentence);
                }
                Room::Reserved if self.model.is_some() => self.queue(assigned, Extent::Proof)?,
                Room::Reserved => self.queue(assigned, Extent::Whole)?,
            }
        }
        self.tell_have(have)?;
        self.want_more()
    }

    fn take_release(&mut self, release: Release) -> Result<(), Refusal> {
        let mut have = Have { free_bytes: 0, held: Vec::new(), not_held: Vec::new() };
        let mut streams = Vec::new();
        for name in release.experts {
            streams.extend(self.fetches.forget(name));
            self.again.forget(name);
            self.store.release(name);
            if let Some(shadow) = &mut self.shadow {
                shadow.experts.retain(|assigned| assigned.name != name);
                shadow.canary.store.release(name);
            }
            have.not_held.push(NotHeld { name, reason: NotHeldReason::Released });
        }
        self.assigned = self.assigned.saturating_sub(have.not_held.len());
        self.cancel_ranges(&streams)?;
        self.tell_have(have)
    }

    fn cancel_ranges(&self, streams: &[u32]) -> Result<(), Refusal> {
        for streams in streams.chunks(kvasir_wire::limits::MAX_CANCELS) {
            self.send(Kind::Cancel, PAIR_STREAM, Cancel { streams: streams.to_vec() }.encode())?;
        }
        Ok(())
    }

    fn take_chunk(
        &mut self,
        taken: Taken,
        stream: u32,
        loaded: &mpsc::UnboundedSender<Loaded>,
    ) -> Result<(), Refusal> {
        match taken {
            Taken::More => Ok(()),
            Taken::Proven(assigned, purpose) => {
                let of = self.model_digest;
                if let Some(model) = self.model.clone() {
                    self.load(assigned, purpose, loaded, move |store| {
                        load_from_file(&model, store, of, assigned)
                    });
                }
                self.want_more()
            }
            Taken::Whole(assigned, purpose, blob) => {
                let of = self.model_digest;
                self.load(assigned, purpose, loaded, move |store| held(store, of, assigned, &blob));
                self.want_more()
            }
            Taken::Refused { name, purpose, error, cancel } => {
                if cancel {
                    self.send(Kind::Cancel, PAIR_STREAM, Cancel { streams: vec![stream] }.encode())?;
                }
                match (purpose, &mut self.shadow) {
                    // The backbone's fault and not the candidate's: it is compared on other experts.
                    (Purpose::Shadow, Some(shadow)) => {
                        shadow.canary.store.release(name);
                        shadow.busy = false;
                    }
                    (Purpose::Shadow, None) => {}
                    (Purpose::Serve, _) => {
                        self.store.release(name);
                        self.refuse_expert(name, error)?;
                    }
                }
                self.want_more()
            }
        }
    }

    /// Loads an expert where it belongs, off the network's threads, and tells this session.
    fn load(
        &self,
        assigned: Assigned,
        purpose: Purpose,
        loaded: &mpsc::UnboundedSender<Loaded>,
        load: impl FnOnce(&Store) -> Outcome + Send + 'static,
    ) {
        let loaded = loaded.clone();
        let job = move |store: &Store| {
            // The session may be over; the store knows what is held.
            let _ = loaded.send(Loaded { assigned, purpose, outcome: load(store) });
        };
        match (purpose, &self.shadow) {
            (Purpose::Serve, _) => {
                let store = Arc::clone(&self.store);
                self.bench.load(self.id.0, move || job(&store));
            }
            (Purpose::Shadow, Some(shadow)) => {
                let store = Arc::clone(&shadow.canary.store);
                shadow.canary.work(move || job(&store));
            }
            (Purpose::Shadow, None) => {}
        }
    }

    /// The workbench is done with an expert.
    fn settle(&mut self, done: Loaded) -> Result<bool, Refusal> {
        if done.purpose == Purpose::Shadow {
            return self.settle_shadow(done);
        }
        let Assigned { name, digest, .. } = done.assigned;
        match done.outcome {
            Outcome::Held => {
                let held = vec![Held { name, digest }];
                self.tell_have(Have { free_bytes: 0, held, not_held: Vec::new() })?;
            }
            Outcome::Refused(LoadError { again_after: Some(wait), sentence, .. }) => {
                tracing::info!(layer = name.layer, expert = name.expert, ?wait, sentence, "not loaded yet");
                self.again.add(done.assigned, wait);
                self.serving.look_at_failures();
            }
            Outcome::Refused(error) => self.refuse_expert(name, error)?,
            Outcome::NotHere => {
                self.queue(done.assigned, Extent::Whole)?;
                self.want_more()?;
            }
        }
        Ok(false)
    }

    /// A candidate has come, or gone: its experts are fetched, behind all that is to be called.
    fn canary_changed(&mut self) -> Result<bool, Refusal> {
        let canary = self.canaries.borrow_and_update().clone();
        let streams = self.fetches.forget_shadow();
        self.cancel_ranges(&streams)?;
        self.shadow = canary.clone().map(|canary| {
            canary.begin(self.model_digest);
            Shadow { canary, experts: self.store.list().into(), busy: false }
        });
        self.serving.set_canary(canary);
        // Also once it is gone: its last comparison may have lanes of the kernel in use.
        self.computes_here &= self.shadow.is_none();
        self.want_more()?;
        Ok(false)
    }

    /// The candidate's thread is done with an expert.
    fn settle_shadow(&mut self, done: Loaded) -> Result<bool, Refusal> {
        let Some(shadow) = &mut self.shadow else { return Ok(false) };
        shadow.busy = false;
        let name = done.assigned.name;
        match done.outcome {
            Outcome::Held => {}
            Outcome::NotHere => {
                if let Some(want) = self.fetches.shadow_want(done.assigned, Extent::Whole) {
                    shadow.busy = true;
                    self.send(Kind::Want, PAIR_STREAM, want.encode())?;
                } else {
                    shadow.canary.store.release(name);
                    shadow.experts.push_back(done.assigned);
                }
            }
            Outcome::Refused(LoadError { reason, sentence, .. }) => match reason {
                NotHeldReason::NoMemory | NotHeldReason::DigestMismatch | NotHeldReason::Released => {
                    tracing::debug!(layer = name.layer, expert = name.expert, sentence, "not compared");
                }
                // The plugin in use holds this expert, so the candidate must be able to.
                _ => {
                    let why = format!(
                        "it does not take expert {} of layer {}, which the plugin in use holds: {sentence}",
                        name.expert, name.layer
                    );
                    shadow.canary.judge(Verdict::Unfit(why));
                }
            },
        }
        self.want_more()?;
        Ok(false)
    }

    /// Asks for one more of the candidate's experts, if none is underway and nothing that is to be called waits.
    fn want_for_shadow(&mut self) -> Result<(), Refusal> {
        let Some(shadow) = &mut self.shadow else { return Ok(()) };
        while let (false, Some(&assigned)) = (shadow.busy, shadow.experts.front()) {
            match shadow.canary.store.reserve(assigned.name, assigned.digest, assigned.blob_bytes) {
                Room::Held | Room::Underway => {
                    shadow.experts.pop_front();
                }
                // It is compared on what it has.
                Room::None => shadow.experts.clear(),
                Room::Reserved => {
                    let extent = if self.model.is_some() { Extent::Proof } else { Extent::Whole };
                    let Some(want) = self.fetches.shadow_want(assigned, extent) else {
                        shadow.canary.store.release(assigned.name);
                        return Ok(());
                    };
                    shadow.experts.pop_front();
                    shadow.busy = true;
                    return self.send(Kind::Want, PAIR_STREAM, want.encode());
                }
            }
        }
        Ok(())
    }

    /// Tells, once, that everything assigned is here or refused.
    fn look_if_holding(&mut self) {
        if self.holding || self.assigned == 0 || !self.fetches.is_empty() || self.again.at.is_some() {
            return;
        }
        if !self.store.awaits() {
            self.holding = true;
            self.reporter.tell(Standing::Holding);
        }
    }

    /// Asks once more for what a failed kernel took with it.
    fn load_again(&mut self) -> Result<bool, Refusal> {
        let mut have = Have { free_bytes: 0, held: Vec::new(), not_held: Vec::new() };
        for assigned in self.again.take() {
            let Assigned { name, digest, blob_bytes } = assigned;
            match self.store.reserve(name, digest, blob_bytes) {
                Room::Held => have.held.push(Held { name, digest }),
                Room::Underway => {}
                Room::None => have.not_held.push(NotHeld { name, reason: NotHeldReason::NoMemory }),
                Room::Reserved if self.model.is_some() => self.queue(assigned, Extent::Proof)?,
                Room::Reserved => self.queue(assigned, Extent::Whole)?,
            }
        }
        self.tell_have(have)?;
        self.want_more()?;
        Ok(false)
    }

    /// The plugin is not run here any more: the session ends in order, with a last receipt.
    fn give_plugin_up(&self) -> Result<bool, Refusal> {
        let plugin = self.serving.runner.plugin();
        let failures = self.serving.bounds.exceeded(plugin).unwrap_or(0);
        (self.events)(Event::Quarantined { plugin: plugin.to_string(), failures });
        self.ask_to_drain()
    }

    fn take_receipt(&mut self, message: ReceiptMessage) -> Result<bool, Refusal> {
        match message {
            ReceiptMessage::Cut(_) => {
                let rule = "a cut is for the backbone";
                Err(DecodeError::Broken { field: "receipt step", rule }.into())
            }
            ReceiptMessage::Proposal { text, excluded, hub, backbone } => {
                let checked = self.serving.books().check(&text, excluded, &hub, &backbone, unix_now());
                let receipt = checked.map_err(|error| {
                    if matches!(error, BooksError::Conflict { .. }) {
                        self.paystub.keep_conflict(&text);
                    }
                    self.dispute(&error, text.into_bytes())
                })?;
                self.paystub.signs();
                let countersign =
                    Countersign::Worker { seq: receipt.seq, signature: receipt.sign(&self.key) };
                self.send(Kind::Countersign, HUB_STREAM, countersign.encode())?;
                Ok(false)
            }
            ReceiptMessage::Complete { note } => {
                let (receipt, excluded) = {
                    let mut books = self.serving.books();
                    let completed = books.complete(&note);
                    (completed, books.excluded())
                };
                let receipt = receipt.map_err(|error| self.dispute(&error, note.clone().into_bytes()))?;
                self.unsigned_since = None;
                self.paystub.keep(&note);
                let bytes = receipt.billed();
                (self.events)(Event::Receipt {
                    sequence: receipt.seq,
                    bytes: bytes.get(),
                    calls: receipt.counters.calls,
                    excluded,
                    nano_kvr: PricePerByte::FOUNDING
                        .credit(bytes)
                        .map_or(0, |amount| amount.get().unsigned_abs()),
                    last: receipt.is_final,
                });
                let over = receipt.is_final;
                self.last = Some(receipt);
                Ok(over)
            }
        }
    }

    /// Ends the session once too much was served that nobody has signed for, or too long ago.
    fn look_at_unsigned(&mut self) -> Result<(), Refusal> {
        let (bytes, waits) = {
            let books = self.serving.books();
            (books.unsigned_bytes(), books.has_unsigned())
        };
        let since = if waits { Some(*self.unsigned_since.get_or_insert_with(Instant::now)) } else { None };
        self.unsigned_since = since;
        let UnsignedWindow { bytes: most, time } = self.window;
        let late = since.is_some_and(|since| since.elapsed() >= time);
        if bytes <= most && !late {
            return Ok(());
        }
        let sentence = format!(
            "{bytes} bytes were served that no receipt states; this worker serves at most {most} bytes or {} s ahead of one",
            time.as_secs()
        );
        (self.events)(Event::ReceiptDisputed { reason: sentence.clone() });
        self.report(RefusalCode::LimitReached, sentence.clone(), Vec::new());
        let remedy = "have hub and backbone sign receipts: one is due after a mebibyte or ten seconds";
        Err(Refusal::new(RefusalCode::LimitReached, sentence, remedy).about(self.id))
    }

    /// Tells everybody that a receipt is not true, and gives the refusal with which the session ends.
    fn dispute(&self, error: &BooksError, evidence: Vec<u8>) -> Refusal {
        (self.events)(Event::ReceiptDisputed { reason: error.to_string() });
        self.report(RefusalCode::ReceiptDisputed, error.to_string(), evidence);
        let remedy = "earlier receipts stay paid; compare the versions of both ends if it happens again";
        Refusal::new(RefusalCode::ReceiptDisputed, error.to_string(), remedy).about(self.id)
    }

    fn refuse_expert(&self, name: ExpertName, error: LoadError) -> Result<(), Refusal> {
        let LoadError { reason, sentence, .. } = error;
        if matches!(reason, NotHeldReason::DigestMismatch | NotHeldReason::ProofFailed) {
            let sentence = format!("expert {} of layer {}: {sentence}", name.expert, name.layer);
            self.report(RefusalCode::ProtocolError, sentence, Vec::new());
        }
        self.tell_refused(name, sentence);
        self.tell_have(Have { free_bytes: 0, held: Vec::new(), not_held: vec![NotHeld { name, reason }] })
    }

    fn tell_refused(&self, name: ExpertName, reason: String) {
        tracing::warn!(layer = name.layer, expert = name.expert, reason, "an expert was refused");
        (self.events)(Event::ExpertRefused { layer: name.layer, expert: name.expert, reason });
    }

    fn tell_have(&self, mut have: Have) -> Result<(), Refusal> {
        if have.held.is_empty() && have.not_held.is_empty() {
            return Ok(());
        }
        have.free_bytes = self.store.free_bytes();
        let (experts, bytes) = self.store.loaded();
        (self.events)(Event::Holding { experts, assigned: self.assigned, bytes });
        self.send(Kind::Have, PAIR_STREAM, have.encode())
    }

    fn queue(&mut self, assigned: Assigned, extent: Extent) -> Result<(), Refusal> {
        if self.fetches.add(assigned, extent) {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::LimitReached,
            format!("more than {} experts wait to be fetched", crate::fetch::MAX_WAITING),
            "assign fewer experts at a time",
        ))
    }

    fn want_more(&mut self) -> Result<(), Refusal> {
        // While a failed kernel rests, what would come could not be loaded.
        if self.again.at.is_some() {
            return Ok(());
        }
        while let Some(want) = self.fetches.next_want() {
            self.send(Kind::Want, PAIR_STREAM, want.encode())?;
        }
        self.want_for_shadow()
    }

    fn ask_to_drain(&self) -> Result<bool, Refusal> {
        let drain = Drain { reason: DrainReason::Finished, reconnect_in_ms: 0, try_for_ms: 0 };
        self.send(Kind::Drain, HUB_STREAM, drain.encode()).map(|()| false)
    }

    fn report(&self, code: RefusalCode, sentence: String, mut evidence: Vec<u8>) {
        evidence.truncate(kvasir_wire::limits::MAX_EVIDENCE_BYTES);
        let report = Report { session: self.id, call: 0, code, sentence, evidence };
        // Only evidence for the hub's file; the session does not hang on it.
        let _ = self.serving.link.try_send(Kind::Report, HUB_STREAM, report.encode());
    }

    fn send(&self, kind: Kind, stream: u32, payload: Vec<u8>) -> Result<(), Refusal> {
        self.serving.link.try_send(kind, stream, payload).map_err(|error| match error {
            LinkError::RefusedPeer(refusal) | LinkError::Refused(refusal) => refusal,
            error => Refusal::new(RefusalCode::Internal, error.to_string(), "connect again"),
        })
    }
}

/// Loads an expert whose proof led to the model `of`.
fn held(store: &Store, of: ModelDigest, assigned: Assigned, blob: &[u8]) -> Outcome {
    match store.load(of, assigned.name, assigned.digest, blob) {
        Ok(()) => Outcome::Held,
        Err(error) => Outcome::Refused(error),
    }
}

/// Looks an assigned expert, whose proof led to the model `of`, up in the file on this machine, which may be one of another model.
fn load_from_file(file: &Model, store: &Store, of: ModelDigest, assigned: Assigned) -> Outcome {
    let name = assigned.name;
    let Ok(tensors) = file.expert(LayerIndex(name.layer), ExpertIndex(name.expert)) else {
        return Outcome::NotHere;
    };
    if tensors.digest().0 != assigned.digest.0 {
        return Outcome::NotHere;
    }
    held(store, of, assigned, &tensors.blob())
}
