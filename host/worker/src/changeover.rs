//! Who serves: the version in use, a candidate that is watched, one that takes over, one that leaves.
//!
//! A candidate is compiled and proven apart, computes live calls beside the version in use (`canary`), and takes over by
//! opening sessions of its own. Where the ticket allows two sessions and the experts fit twice, its session begins before
//! the old one is drained, so the backbone always has somebody to ask; otherwise the old one is drained first, and in
//! between the backbone computes. In no case is a session cut or a call left unanswered. Whatever goes wrong with the
//! candidate, the version in use stays, or comes back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvasir_wire::handshake::Class;
use kvasir_wire::id::{KeyDigest, PluginDigest};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::canary::{Canary, Verdict};
use crate::event::Event;
use crate::life::{Common, Life, stopped};
use crate::options::{Summary, WorkerError};
use crate::switch::Offer;
use crate::version::{Version, named};

/// How long the candidate's first session may take to come about beside the old one.
const PAIRED_WITHIN: Duration = Duration::from_secs(60);
/// How long it may then take to hold its experts: gigabytes may have to travel.
const HOLDING_WITHIN: Duration = Duration::from_secs(600);
/// Once it holds them, how long until the old session is drained at the latest; at once with the first call.
const CALLED_WITHIN: Duration = Duration::from_secs(2);

/// What a life, a candidate's proof or its comparison tells.
pub(crate) enum News {
    /// The proof of a candidate is over.
    Proven { plugin: PluginDigest, outcome: Box<Result<Version, WorkerError>> },
    /// The comparison is over.
    Verdict { plugin: PluginDigest, verdict: Verdict },
    /// A life goes on otherwise.
    Standing { life: u64, standing: Standing },
}

/// How a life stands with the network.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    /// In no session.
    Away,
    /// In one.
    Paired,
    /// It holds, or has refused, all that was assigned to it.
    Holding,
    /// It was called for the first time in this session.
    Called,
    /// Refused.
    Refused(Refusal),
}

struct Running {
    life: u64,
    version: Arc<Version>,
    stop: watch::Sender<bool>,
    in_session: bool,
}

/// Where a changeover is.
enum Step {
    /// There is none.
    Steady,
    /// The candidate is compiled and proven on its golden vectors.
    Proving(PluginDigest),
    /// It computes beside the version in use.
    Shadowing(Arc<Version>, Arc<Canary>),
    /// Its own session comes about beside the old one.
    Joining(Running),
    /// The version in use leaves first; this one comes after it.
    Emptying(Arc<Version>),
    /// As `Emptying`, but back to the version before, after which there is no other.
    Returning(Arc<Version>),
    /// The version in use has not met a backbone yet; if it is refused, the one before comes back.
    Entering(Arc<Version>),
}

/// The lives of a worker.
pub(crate) struct Changeover {
    common: Arc<Common>,
    lives: JoinSet<(u64, Result<Summary, WorkerError>)>,
    next_life: u64,
    active: Running,
    leaving: Option<Running>,
    step: Step,
    until: Option<Instant>,
    summary: Summary,
    tell: mpsc::UnboundedSender<News>,
    inbox: mpsc::UnboundedReceiver<News>,
}

type Outcome = Result<Summary, WorkerError>;

impl Changeover {
    /// Begins with a version.
    pub(crate) fn begin(common: Arc<Common>, version: Version) -> Self {
        let (tell, inbox) = mpsc::unbounded_channel();
        let mut lives = JoinSet::new();
        let active = start(&common, &mut lives, 1, Arc::new(version), &tell);
        Self {
            common,
            lives,
            next_life: 2,
            active,
            leaving: None,
            step: Step::Steady,
            until: None,
            summary: Summary::default(),
            tell,
            inbox,
        }
    }

    /// Until stopped, or the version in use ends for good.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Outcome {
        let mut offers = self.common.switch.offers();
        // One may have been made already.
        offers.mark_changed();
        loop {
            let until = self.until;
            let idle = matches!(self.step, Step::Steady | Step::Shadowing(..) | Step::Entering(_));
            let listens = idle && self.leaving.is_none();
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return self.stop_all().await,
                Some(ended) = self.lives.join_next() => {
                    if let Some(outcome) = self.life_ended(ended) {
                        return self.end(outcome).await;
                    }
                }
                Some(news) = self.inbox.recv() => self.hear(news),
                // The switch is this worker's own and lives as long as it does.
                Ok(()) = offers.changed(), if listens => {
                    let offer = offers.borrow_and_update().clone();
                    if let Some(offer) = offer {
                        self.consider(offer);
                    }
                }
                () = async { if let Some(until) = until { tokio::time::sleep_until(until).await } }, if until.is_some() => {
                    self.until = None;
                    self.time_is_up();
                }
            }
        }
    }

    /// An offer: proves it, unless it is what is in use.
    fn consider(&mut self, Offer { plugin, limits }: Offer) {
        let digest = PluginDigest(plugin.digest().0);
        if let Step::Shadowing(version, _) = &self.step {
            if version.plugin() == digest {
                return;
            }
            self.reject(version.plugin(), "another plugin was offered in its place".to_owned());
        }
        if self.active.version.offer.plugins.contains(&digest) {
            return;
        }
        if let Step::Entering(previous) = std::mem::replace(&mut self.step, Step::Steady) {
            // From here on there is another to go back to.
            self.unloaded(&previous);
        }
        (self.common.options.events)(Event::CandidateOffered {
            plugin: digest.to_string(),
            name: named(&plugin),
            active: self.active.version.plugin().to_string(),
        });
        let claims = self.common.options.ticket.claims();
        let mut publishers = plugin.publishers().iter();
        if !publishers.any(|publisher| claims.allows(&digest, &KeyDigest(publisher.0))) {
            let why = "this worker's ticket lists neither it nor its publisher; ask the network's operator for a ticket with \
                       its publisher (kvasir-gateway ticket --publisher KEY)";
            return self.reject(digest, why.to_owned());
        }
        self.step = Step::Proving(digest);
        let (common, tell) = (Arc::clone(&self.common), self.tell.clone());
        let proof = std::thread::Builder::new().name("kvasir-proof".into()).spawn(move || {
            let outcome = Version::prove(&common.options, &[plugin], limits, &common.budget);
            let _ = tell.send(News::Proven { plugin: digest, outcome: Box::new(outcome) });
        });
        if let Err(error) = proof {
            self.reject(digest, format!("the system refused a thread to prove it on: {error}"));
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Proven { plugin, outcome } => {
                if matches!(&self.step, Step::Proving(proving) if *proving == plugin) {
                    match *outcome {
                        Ok(version) => self.watch(version),
                        Err(error) => self.reject(plugin, error.to_string()),
                    }
                }
            }
            News::Verdict { plugin, verdict } => {
                if matches!(&self.step, Step::Shadowing(version, _) if version.plugin() == plugin) {
                    match verdict {
                        Verdict::Alike(calls) => self.change_over(calls),
                        Verdict::Unfit(why) => self.reject(plugin, why),
                    }
                }
            }
            News::Standing { life, standing } if life == self.active.life => {
                self.active.in_session = match &standing {
                    Standing::Away | Standing::Refused(_) => false,
                    Standing::Paired | Standing::Holding | Standing::Called => true,
                };
                let Step::Entering(previous) = &self.step else { return };
                let previous = Arc::clone(previous);
                match standing {
                    Standing::Paired => {
                        self.step = Step::Steady;
                        self.unloaded(&previous);
                    }
                    Standing::Refused(refusal) if is_about_the_plugin(&refusal) => {
                        self.rejected(self.active.version.plugin(), format!("no session with it: {refusal}"));
                        self.active.stop.send_replace(true);
                        self.step = Step::Returning(previous);
                    }
                    _ => {}
                }
            }
            News::Standing { life, standing } => {
                let Step::Joining(running) = &mut self.step else { return };
                if running.life != life {
                    return;
                }
                match standing {
                    Standing::Paired => {
                        running.in_session = true;
                        self.until = Some(Instant::now() + HOLDING_WITHIN);
                    }
                    Standing::Holding => self.until = Some(Instant::now() + CALLED_WITHIN),
                    Standing::Called => self.hand_over(),
                    // Another refusal may heal; how long is waited for that is bounded.
                    Standing::Refused(refusal) if is_about_the_plugin(&refusal) => {
                        self.give_up_joining(format!("no session with it: {refusal}"))
                    }
                    Standing::Away | Standing::Refused(_) => running.in_session = false,
                }
            }
        }
    }

    /// A proven candidate begins to compute beside the version in use.
    fn watch(&mut self, version: Version) {
        let plugin = version.plugin();
        let (own, active) = (version.offer.class, self.active.version.offer.class);
        if own != active {
            let why = format!(
                "its results are of class {}, this worker's of class {}, and sessions are for one: start a worker for it",
                own.name(),
                active.name()
            );
            return self.reject(plugin, why);
        }
        let shadow = self.common.options.shadow;
        // Results within a tolerance are not equal to the bit; the proof of the shader is all that there is.
        let calls = if own == Class::Exact { shadow.calls } else { 0 };
        let version = Arc::new(version);
        match Canary::start(&version, calls, self.tell.clone()) {
            Ok(Some(canary)) => {
                self.step = Step::Shadowing(version, Arc::clone(&canary));
                if calls == 0 {
                    canary.close();
                    return self.change_over(0);
                }
                self.until = Some(Instant::now() + shadow.within);
                self.common.canary.send_replace(Some(canary));
            }
            Ok(None) => self.reject(plugin, "it has no kernel".to_owned()),
            Err(error) => self.reject(plugin, format!("the system refused a thread for it: {error}")),
        }
    }

    /// The candidate passed.
    fn change_over(&mut self, calls: u32) {
        let Step::Shadowing(version, canary) = std::mem::replace(&mut self.step, Step::Steady) else {
            return;
        };
        self.until = None;
        self.common.canary.send_replace(None);
        let sessions = self.common.options.ticket.claims().limits.sessions;
        let held = self.active.version.store.bytes();
        let room = self.common.budget.free().saturating_add(canary.store.bytes());
        drop(canary);
        let reason = if !self.active.in_session {
            Err("no session is open".to_owned())
        } else if sessions < 2 {
            Err("the ticket allows one session at a time".to_owned())
        } else if room < held {
            Err(format!("there is room for {room} bytes of experts beside the {held} held"))
        } else {
            Ok(format!("{held} bytes of experts fit twice, and the ticket allows {sessions} sessions"))
        };
        let side_by_side = reason.is_ok();
        (self.common.options.events)(Event::CandidatePassed {
            plugin: version.plugin().to_string(),
            calls,
            side_by_side,
            reason: reason.unwrap_or_else(|reason| reason),
        });
        if side_by_side {
            self.step = Step::Joining(self.start(version));
            self.until = Some(Instant::now() + PAIRED_WITHIN);
        } else {
            self.active.stop.send_replace(true);
            self.step = Step::Emptying(version);
        }
    }

    /// The candidate's session takes over; the old one is drained.
    fn hand_over(&mut self) {
        let Step::Joining(running) = std::mem::replace(&mut self.step, Step::Steady) else { return };
        self.until = None;
        let old = std::mem::replace(&mut self.active, running);
        self.switched(&old.version);
        old.stop.send_replace(true);
        self.leaving = Some(old);
    }

    fn give_up_joining(&mut self, why: String) {
        let Step::Joining(running) = std::mem::replace(&mut self.step, Step::Steady) else { return };
        self.until = None;
        self.rejected(running.version.plugin(), why);
        running.stop.send_replace(true);
        self.leaving = Some(running);
    }

    fn time_is_up(&mut self) {
        match &self.step {
            Step::Shadowing(_, canary) => {
                // Otherwise its verdict is on its way.
                if let Some(calls) = canary.close() {
                    self.change_over(calls);
                }
            }
            Step::Joining(running) if !running.in_session => {
                let why = format!("no backbone took a session with it within {} s", PAIRED_WITHIN.as_secs());
                self.give_up_joining(why);
            }
            Step::Joining(running) if running.version.store.awaits() => {
                let why = format!("its experts did not come within {} s", HOLDING_WITHIN.as_secs());
                self.give_up_joining(why);
            }
            Step::Joining(_) => self.hand_over(),
            _ => {}
        }
    }

    /// A life ended; gives the worker's outcome if it ends with it.
    fn life_ended(&mut self, ended: Result<(u64, Outcome), JoinError>) -> Option<Outcome> {
        let (life, outcome) = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => return None,
            Err(error) => {
                let what = "a session's task its way: it panicked";
                return Some(Err(WorkerError::System { what, reason: error.to_string() }));
            }
        };
        if let Ok(summary) = &outcome {
            self.summary.merge(summary);
        }
        if let Err(died @ WorkerError::DiedOnPurpose { .. }) = outcome {
            return Some(Err(died));
        }
        if let Some(left) = self.leaving.take_if(|leaving| leaving.life == life) {
            if let Err(error) = outcome {
                tracing::warn!(%error, plugin = %left.version.plugin(), "the plugin before did not leave in order");
            }
            self.unloaded(&left.version);
            return None;
        }
        if let Step::Joining(running) = &self.step
            && running.life == life
        {
            let why = outcome.err().map_or_else(|| "its life ended".to_owned(), |error| error.to_string());
            self.rejected(running.version.plugin(), why);
            (self.step, self.until) = (Step::Steady, None);
            return None;
        }
        if life != self.active.life {
            return None;
        }
        match (std::mem::replace(&mut self.step, Step::Steady), outcome) {
            (Step::Emptying(next), outcome) => {
                if let Err(error) = outcome {
                    tracing::warn!(%error, "the plugin before did not leave in order");
                }
                // Its kernels stay until a backbone has taken the other one; its experts' room is needed now.
                self.active.version.store.empty();
                let old = self.replace_active(next);
                self.step = Step::Entering(old);
                None
            }
            (Step::Returning(previous), _) => {
                self.active.version.store.empty();
                let old = self.replace_active(previous);
                self.unloaded(&old);
                None
            }
            (Step::Entering(previous), Err(WorkerError::Refused(refusal)))
                if is_about_the_plugin(&refusal) =>
            {
                self.rejected(self.active.version.plugin(), format!("no session with it: {refusal}"));
                self.active.version.store.empty();
                let old = self.replace_active(previous);
                self.unloaded(&old);
                None
            }
            (step, outcome) => {
                self.step = step;
                Some(outcome)
            }
        }
    }

    /// The candidate is dropped; the version in use stays.
    fn reject(&mut self, plugin: PluginDigest, reason: String) {
        if let Step::Shadowing(_, canary) = &self.step {
            canary.close();
        }
        (self.step, self.until) = (Step::Steady, None);
        self.common.canary.send_replace(None);
        self.rejected(plugin, reason);
    }

    fn rejected(&self, plugin: PluginDigest, reason: String) {
        tracing::warn!(%plugin, reason, "a candidate does not take over");
        (self.common.options.events)(Event::CandidateRejected { plugin: plugin.to_string(), reason });
    }

    fn switched(&self, from: &Version) {
        let (from, to) = (from.plugin().to_string(), self.active.version.plugin().to_string());
        (self.common.options.events)(Event::Switched { from, to });
    }

    fn unloaded(&self, version: &Version) {
        (self.common.options.events)(Event::Unloaded { plugin: version.plugin().to_string() });
    }

    /// Another version is in use from now on; gives the one before.
    fn replace_active(&mut self, version: Arc<Version>) -> Arc<Version> {
        let running = self.start(version);
        let old = std::mem::replace(&mut self.active, running).version;
        self.switched(&old);
        old
    }

    fn start(&mut self, version: Arc<Version>) -> Running {
        let life = self.next_life;
        self.next_life += 1;
        start(&self.common, &mut self.lives, life, version, &self.tell)
    }

    /// Every life ends in order; the outcome is that of the version in use.
    async fn stop_all(mut self) -> Outcome {
        self.active.stop.send_replace(true);
        if let Step::Joining(running) = &self.step {
            running.stop.send_replace(true);
        }
        let mut worst = None;
        while let Some(ended) = self.lives.join_next().await {
            match ended {
                Ok((_, Ok(summary))) => self.summary.merge(&summary),
                Ok((life, Err(error))) if life == self.active.life => worst = Some(error),
                Ok((_, Err(error))) => tracing::warn!(%error, "a session did not end in order"),
                Err(error) => tracing::warn!(%error, "a session's task failed"),
            }
        }
        match worst {
            Some(error) => Err(error),
            None => Ok(self.total()),
        }
    }

    /// The version in use has ended by itself; what runs beside it ends in order.
    async fn end(self, outcome: Outcome) -> Outcome {
        match outcome {
            // Dying without a word is the point.
            Err(error) => Err(error),
            Ok(_) => self.stop_all().await,
        }
    }

    fn total(&self) -> Summary {
        Summary { results: self.common.results.load(Ordering::Relaxed), ..self.summary }
    }
}

fn start(
    common: &Arc<Common>,
    lives: &mut JoinSet<(u64, Outcome)>,
    life: u64,
    version: Arc<Version>,
    tell: &mpsc::UnboundedSender<News>,
) -> Running {
    let (stop, listen) = watch::channel(false);
    let own = Life::new(life, Arc::clone(common), Arc::clone(&version), tell.clone());
    lives.spawn(async move { (life, own.run(listen).await) });
    Running { life, version, stop, in_session: false }
}

/// Whether a refusal is about what the worker computes with, so that another version may be welcome.
fn is_about_the_plugin(refusal: &Refusal) -> bool {
    matches!(
        refusal.code,
        RefusalCode::NothingInCommon | RefusalCode::PluginNotAllowed | RefusalCode::ClassNotAccepted
    )
}
