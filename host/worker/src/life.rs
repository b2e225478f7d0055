//! One version of a worker at the network: dial, serve, dial again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kvasir_link::{Backoff, LinkError, SessionNumbers, TlsTrust, connect_worker, unix_now};
use kvasir_wire::handshake::{Features, WorkerOffer};
use kvasir_wire::id::{PluginDigest, WalletDigest};
use kvasir_wire::limits::CLOCK_SKEW_SECONDS;
use kvasir_wire::pairing::Expectation;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Notify, mpsc, watch};

use crate::books::Books;
use crate::canary::Canary;
use crate::changeover::{News, Standing};
use crate::event::Event;
use crate::failures::FailureBounds;
use crate::fetch::{Beginnings, Fetches};
use crate::options::{Summary, WorkerError, WorkerOptions};
use crate::paystub::Paystub;
use crate::serving::Serving;
use crate::session::{Again, End, Session};
use crate::store::Budget;
use crate::switch::PluginSwitch;
use crate::version::Version;
use crate::workbench::Workbench;

/// What all versions of a worker share.
pub(crate) struct Common {
    pub(crate) options: WorkerOptions,
    pub(crate) trust: TlsTrust,
    pub(crate) wallet: WalletDigest,
    pub(crate) budget: Arc<Budget>,
    pub(crate) bench: Arc<Workbench>,
    /// Results sent in the worker's life.
    pub(crate) results: Arc<AtomicU64>,
    pub(crate) switch: PluginSwitch,
    /// The candidate that the sessions of the plugin in use compute beside it.
    pub(crate) canary: watch::Sender<Option<Arc<Canary>>>,
    /// Of all sessions since the worker was started.
    pub(crate) numbers: SessionNumbers,
}

/// One version's life.
pub(crate) struct Life {
    pub(crate) number: u64,
    pub(crate) common: Arc<Common>,
    pub(crate) version: Arc<Version>,
    pub(crate) tell: mpsc::UnboundedSender<News>,
    offer: WorkerOffer,
    /// What the last session left half way.
    beginnings: Beginnings,
}

/// Tells whoever follows a life how it stands.
#[derive(Clone)]
pub(crate) struct Reporter {
    life: u64,
    tell: mpsc::UnboundedSender<News>,
}

impl Reporter {
    pub(crate) fn tell(&self, standing: Standing) {
        // Fails only when the worker has ended.
        let _ = self.tell.send(News::Standing { life: self.life, standing });
    }
}

impl Life {
    pub(crate) fn new(
        number: u64,
        common: Arc<Common>,
        version: Arc<Version>,
        tell: mpsc::UnboundedSender<News>,
    ) -> Self {
        let offer = version.offer.clone();
        Self { number, common, version, tell, offer, beginnings: Beginnings::default() }
    }

    fn reporter(&self) -> Reporter {
        Reporter { life: self.number, tell: self.tell.clone() }
    }

    /// Serves until stopped, refused for good, or out of attempts.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<Summary, WorkerError> {
        let common = Arc::clone(&self.common);
        let options = &common.options;
        let mut summary = Summary::default();
        let mut backoff = Backoff::new();
        let mut failures = 0u32;
        loop {
            let begun = Instant::now();
            let mut paired = false;
            let end = tokio::select! {
                // First, or a worker that was stopped before it was paired would dial once more.
                biased;
                () = stopped(&mut stop), if !paired => return Ok(summary),
                session = self.connect() => match session {
                    Ok(session) => {
                        paired = true;
                        summary.sessions += 1;
                        self.reporter().tell(Standing::Paired);
                        let (end, receipt, beginnings) = session.serve(stop.clone()).await;
                        self.beginnings = beginnings;
                        self.reporter().tell(Standing::Away);
                        if let Some(receipt) = receipt {
                            summary.add(&receipt);
                        }
                        end
                    }
                    Err(error) => End::Link(error),
                },
            };
            if paired {
                failures = 0;
            }
            if let Some(plugin) = self.give_up_quarantined()
                && self.offer.plugins.is_empty()
            {
                return Err(WorkerError::Quarantined { plugin });
            }
            let (reason, asked) = match end {
                End::Died => {
                    return Err(WorkerError::DiedOnPurpose {
                        results: common.results.load(Ordering::Relaxed),
                    });
                }
                End::Drained { .. } if options.once || *stop.borrow() => return Ok(summary),
                End::Drained { reconnect_in } => ("the session ended in order".to_owned(), reconnect_in),
                End::Link(_) if *stop.borrow() => return Ok(summary),
                End::Link(error) => {
                    failures += u32::from(!paired);
                    self.tell(&error);
                    if let (true, LinkError::Refused(refusal) | LinkError::RefusedPeer(refusal)) =
                        (error.is_permanent(), &error)
                    {
                        return Err(WorkerError::Refused(refusal.clone()));
                    }
                    if error.is_permanent() || options.attempts.is_some_and(|limit| failures >= limit) {
                        return Err(WorkerError::GaveUp {
                            attempts: failures.max(1),
                            last: error.to_string(),
                        });
                    }
                    let asked = error.retry_after().map(|seconds| Duration::from_secs(seconds.into()));
                    (error.to_string(), asked)
                }
            };
            backoff.lasted(begun.elapsed());
            let wait = backoff.next_wait(getrandom::u64().unwrap_or(u64::MAX / 2), asked);
            (options.events)(Event::Reconnecting { reason, wait });
            tokio::select! {
                () = stopped(&mut stop) => return Ok(summary),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Dials, is admitted, and waits for a backbone.
    async fn connect(&mut self) -> Result<Session, LinkError> {
        let common = &self.common;
        let options = &common.options;
        let (ticket, key) = (&options.ticket, &options.key);
        let store = &self.version.store;
        // What another version holds at this moment is not to be had.
        let memory_bytes = common.budget.free().saturating_add(store.bytes());
        let offer = WorkerOffer { memory_bytes, ..self.offer.clone() };
        let features = match options.bulk_connection {
            true => Features::RESUME.with(Features::BULK_CONNECTION),
            false => Features::RESUME,
        };
        let connected =
            connect_worker(&options.gateway, &common.trust, ticket, key, offer, features, &options.link)
                .await?;
        (options.events)(Event::Connected { gateway: options.gateway.clone() });
        // Every receipt would end ahead of this machine's clock (`Books::check`): better known before anything is served for nothing.
        let behind = connected.hub_time.saturating_sub(unix_now());
        if behind > CLOCK_SKEW_SECONDS {
            let sentence = format!(
                "this machine's clock is {behind} s behind the hub's: no receipt of a session could be signed here"
            );
            let refusal = Refusal::new(RefusalCode::ReceiptDisputed, sentence, "set the clock that is wrong");
            connected.sender.refuse(refusal.clone());
            return Err(LinkError::RefusedPeer(refusal));
        }
        // The model is the backbone's to name; every expert is then held against it.
        let expectation = Expectation {
            plugins: self.offer.plugins.clone(),
            class: Some(self.offer.class),
            ..Expectation::default()
        };
        let link = connected.pair(key, &expectation).await?;

        let transcript = link.transcript;
        let is_new = common.numbers.begin(transcript.session);
        let paystub =
            is_new.then(|| Paystub::begin(options.paystubs.as_deref(), transcript.session)).flatten();
        let Some(paystub) = paystub else {
            let refusal = SessionNumbers::refusal(transcript.session);
            link.sender.refuse(refusal.clone());
            return Err(LinkError::RefusedPeer(refusal));
        };
        // In the expectation, so in the transcript.
        let runner = Arc::clone(&self.version.runners[&transcript.plugin]);
        (options.events)(Event::Paired {
            session: transcript.session.to_string(),
            model: transcript.model.to_string(),
            plugin: transcript.plugin.to_string(),
            class: transcript.class.name(),
        });
        store.begin(transcript.plugin, transcript.model, &runner);
        // A wait can be left to the process alone only where another thread can take over from this one.
        let computes_here =
            runner.is_apart() && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
        let (tell_lost, lost) = mpsc::unbounded_channel();
        let books = Books::new(transcript.clone(), ticket.claims().hub, common.wallet);
        let serving = Serving::new(
            link.sender,
            runner,
            Arc::clone(store),
            Arc::clone(&options.events),
            options.danger_fault,
            Arc::clone(&common.results),
            Arc::new(Notify::new()),
            FailureBounds::new(&options.device, &options.isolation),
            tell_lost,
            books,
        );
        let mut canaries = common.canary.subscribe();
        // One may be there already.
        canaries.mark_changed();
        Ok(Session {
            id: transcript.session,
            backbone: transcript.backbone.key,
            model_digest: transcript.model,
            receiver: link.receiver,
            serving: Arc::new(serving),
            store: Arc::clone(store),
            bench: Arc::clone(&common.bench),
            fetches: Fetches::going_on(
                transcript.model,
                transcript.backbone.key,
                std::mem::take(&mut self.beginnings),
            ),
            model: options.model.clone(),
            key: key.clone(),
            paystub,
            window: options.unsigned_window,
            unsigned_since: None,
            events: Arc::clone(&options.events),
            assigned: 0,
            lost,
            again: Again::default(),
            last: None,
            reporter: self.reporter(),
            called: false,
            computes_here,
            answered: None,
            holding: false,
            canaries,
            shadow: None,
        })
    }

    /// Takes plugins that failed too often out of the offer; gives one of them.
    fn give_up_quarantined(&mut self) -> Option<PluginDigest> {
        let options = &self.common.options;
        let bounds = FailureBounds::new(&options.device, &options.isolation);
        let quarantined =
            |plugin: &PluginDigest| bounds.exceeded(self.version.runners[plugin].plugin()).is_some();
        let given_up: Vec<PluginDigest> = self.offer.plugins.iter().copied().filter(quarantined).collect();
        self.offer.plugins.retain(|plugin| !given_up.contains(plugin));
        given_up.last().copied()
    }

    fn tell(&self, error: &LinkError) {
        if let LinkError::Refused(refusal) | LinkError::RefusedPeer(refusal) = error {
            self.reporter().tell(Standing::Refused(refusal.clone()));
            (self.common.options.events)(Event::Refused {
                code: refusal.code.name().to_owned(),
                reason: refusal.to_string(),
                can_heal: !error.is_permanent(),
            });
        }
    }
}

impl Summary {
    fn add(&mut self, receipt: &kvasir_wire::receipt::Receipt) {
        let bytes = receipt.billed();
        self.receipted_bytes = self.receipted_bytes.saturating_add(bytes.get());
        let credit = kvasir_wire::money::PricePerByte::FOUNDING.credit(bytes);
        self.nano_kvr = self.nano_kvr.saturating_add(credit.map_or(0, |amount| amount.get().unsigned_abs()));
    }
}

/// Returns once stopping was asked for, or everybody who could ask is gone.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
