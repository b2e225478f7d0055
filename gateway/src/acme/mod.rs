//! The edge's certificate by ACME (RFC 8555), as an option beside files: ordered, proved on the edge's own port by TLS-ALPN-01
//! (RFC 8737), kept in a folder, and renewed when a third of its lifetime is left. No second port, no second program.
//!
//! An edge starts with the certificate that was kept, or without one: then it answers challenges and nobody else, and is not
//! ready. A server that refuses, or is silent, costs nothing but the renewal: the certificate in use stays, tries go on with
//! pauses that grow, and log, metrics and status say why the last one failed.

mod cache;
mod challenges;
mod http;
mod options;
mod order;
mod pauses;

use std::{
    fs::File,
    io,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use kvasir_ledger::plain_text::one_line;
use kvasir_link::unix_now;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

pub use cache::CacheError;
pub(crate) use challenges::PROTOCOL;
pub use http::RootsError;
pub use options::{
    AcmeOptions, AcmeOptionsError, DEFAULT_CACHE, MAX_CONTACTS, MAX_DOMAINS, Pauses, RETRY_CEILING,
    RETRY_FLOOR,
};

use crate::{
    metrics::gauge,
    secret_file::SecretFileError,
    served_certificate::{ServedCertificate, Validity},
};
use cache::Cache;
use challenges::{Challenges, Offered};
use http::Http;
use order::{Issued, OrderError};

/// How long an order may take, from the account to the chain.
const ORDER_TIME: Duration = Duration::from_secs(10 * 60);
/// Longest stretch between two looks at the clock, which may be set meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// Between two looks whether another process still holds the folder.
const HOLD_INTERVAL: Duration = Duration::from_secs(1);
/// Between two looks meanwhile for what that process has put there.
const HELD_LOOK_INTERVAL: Duration = Duration::from_secs(60);
/// Most characters of a server's words that are shown.
const MAX_WHY_CHARS: usize = 512;

/// Why an edge with ACME cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AcmeError {
    /// The folder cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The file of authorities cannot be used.
    #[error(transparent)]
    Roots(#[from] RootsError),
}

impl From<SecretFileError> for AcmeError {
    fn from(error: SecretFileError) -> Self {
        AcmeError::Cache(error.into())
    }
}

/// A certificate that is ordered and renewed, and the challenges that prove its names.
pub struct Acme {
    options: AcmeOptions,
    cache: Cache,
    http: Http,
    challenges: Challenges,
    current: RwLock<Option<ServedCertificate>>,
    /// What is in use and could not be put into the folder.
    unkept: Mutex<Option<Issued>>,
    /// Why the last order failed, or why what it brought is not in the folder; nothing once both are well.
    failure: Mutex<Option<String>>,
    figures: AcmeFigures,
    nudge: Notify,
}

/// What is counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcmeFigures {
    /// Orders that brought a certificate.
    pub(crate) issued: Counter,
    /// Orders that did not.
    pub(crate) failed: Counter,
    /// When the last order failed, in unix seconds; 0 once one has succeeded.
    pub(crate) last_failure: Gauge,
}

impl std::fmt::Debug for Acme {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Acme").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Acme {
    /// Takes what is in the folder, which is made if it is missing. No certificate there, or one that has expired, is no error.
    pub fn open(options: AcmeOptions) -> Result<Arc<Self>, AcmeError> {
        let cache = Cache::open(&options.cache, &options.directory)?;
        let http = Http::new(&options.directory, options.directory_roots.as_deref())?;
        let acme = Acme {
            options,
            cache,
            http,
            challenges: Challenges::default(),
            current: RwLock::default(),
            unkept: Mutex::default(),
            failure: Mutex::default(),
            figures: AcmeFigures::default(),
            nudge: Notify::new(),
        };
        acme.look()?;
        if acme.validity().is_none() {
            tracing::warn!(
                folder = %acme.options.cache.display(),
                "no certificate yet: until one is issued only challenges are answered"
            );
        }
        Ok(Arc::new(acme))
    }

    /// Orders and renews, for ever; one process at a time of those that have the folder.
    pub async fn run(self: Arc<Self>) {
        let held = Arc::new(self.hold().await);
        let (mut tries, mut wait) = (0_u32, Duration::ZERO);
        loop {
            let wait_now = self.until_due().min(LOOK_INTERVAL).max(wait);
            if !wait_now.is_zero() {
                tokio::select! {
                    () = sleep(wait_now) => {}
                    () = self.nudge.notified() => {}
                }
                wait = Duration::ZERO;
                self.keep_again();
                if !self.until_due().is_zero() {
                    continue;
                }
            }
            let tried = self.order_apart(&held).await;
            // One whose time is as good as over when it comes is paused for like a failure: by a clock that is wrong, all are.
            tries = if self.until_due().is_zero() { tries.saturating_add(1) } else { 0 };
            let random = getrandom::u64().unwrap_or(u64::MAX / 2);
            wait = pauses::pause(self.options.pauses, tries, random, self.http.asked_to_wait());
            if let Err(error) = tried {
                self.failed(&error, wait);
            }
        }
    }

    /// Has the next try, if one is due, come at once instead of after its pause.
    pub fn try_now(&self) {
        // Remembered once, for an order that fails just now.
        self.nudge.notify_one();
    }

    /// Whether there is a certificate to serve; else why not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        let why = match self.validity() {
            Some(validity) if validity.seconds_left(unix_now()) > 0 => return Ok(()),
            Some(_) => "the certificate has expired",
            None => "there is no certificate yet",
        };
        Err(match self.last_failure() {
            Some(failure) => format!("{why}; what failed last: {failure}"),
            None => format!("{why}; one is being ordered"),
        })
    }

    /// Seconds until the certificate in use expires; nothing where there is none.
    pub(crate) fn seconds_left(&self) -> Option<i64> {
        self.validity().map(|validity| validity.seconds_left(unix_now()))
    }

    /// Why the last order failed, or why what it brought cannot be kept; nothing where all is well.
    pub(crate) fn last_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn figures(&self) -> &AcmeFigures {
        &self.figures
    }

    fn current(&self) -> Option<ServedCertificate> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn validity(&self) -> Option<Validity> {
        self.current().and_then(|current| current.validity())
    }

    /// How long until an order is due: at once where there is nothing to serve, or a name is missing.
    fn until_due(&self) -> Duration {
        let due = |current: ServedCertificate| {
            let all = self.options.domains.iter().all(|name| current.is_for(name));
            current.validity().filter(|_| all).map(|validity| pauses::until_due(validity, unix_now()))
        };
        self.current().and_then(due).unwrap_or(Duration::ZERO)
    }

    /// Takes the certificate in the folder, if it is one to serve and holds for longer than the one in use.
    fn look(&self) -> Result<(), SecretFileError> {
        let Some(kept) = self.cache.certificate()? else { return Ok(()) };
        let Some(validity) = kept.validity() else { return Ok(()) };
        let left = validity.seconds_left(unix_now());
        if left <= 0 {
            tracing::warn!("the certificate that was kept has expired");
        } else if self.validity().is_none_or(|current| current.until < validity.until) {
            tracing::info!(seconds_left = left, "using the certificate that was kept");
            self.take(kept);
        }
        Ok(())
    }

    fn take(&self, served: ServedCertificate) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(served);
    }

    /// Waits until no other process has the folder: one that hands over, and may have put a certificate there.
    async fn hold(&self) -> File {
        let (mut said, mut looked) = (None, Instant::now());
        loop {
            let error = match self.cache.hold() {
                Ok(held) => {
                    self.say_failure(None);
                    self.look_again();
                    return held;
                }
                Err(error) => error,
            };
            if said.replace(error.kind()) != Some(error.kind()) {
                let text = format!("no certificate is ordered while the folder cannot be locked: {error}");
                match error.kind() {
                    io::ErrorKind::WouldBlock => tracing::info!("{text}"),
                    _ => {
                        tracing::error!("{text}");
                        self.say_failure(Some(text));
                    }
                }
            }
            sleep(HOLD_INTERVAL).await;
            if looked.elapsed() >= HELD_LOOK_INTERVAL {
                looked = Instant::now();
                self.look_again();
            }
        }
    }

    fn look_again(&self) {
        if let Err(error) = self.look() {
            tracing::error!("the certificate that is kept is not used: {error}");
        }
    }

    /// One order, in a task of its own: the library panics at some of what a server may say, and renewals have to outlive that.
    async fn order_apart(self: &Arc<Self>, held: &Arc<File>) -> Result<(), OrderError> {
        // Dropped with the future, it ends the task, which has the folder until then.
        let mut tasks = JoinSet::new();
        let (acme, held) = (self.clone(), held.clone());
        tasks.spawn(async move {
            let _held = held;
            acme.order().await
        });
        match tasks.join_next().await {
            Some(Ok(result)) => result,
            Some(Err(_)) | None => Err(OrderError::BrokenOff),
        }
    }

    async fn order(&self) -> Result<(), OrderError> {
        let AcmeOptions { domains, directory, .. } = &self.options;
        tracing::info!(directory, names = domains.join(" "), "ordering a certificate");
        let issued = order::issue(&self.options, &self.cache, &self.challenges, &self.http);
        let issued = timeout(ORDER_TIME, issued).await.map_err(|_| OrderError::Late(ORDER_TIME))??;
        let served = ServedCertificate::from_pem(issued.chain.as_bytes(), issued.private_key.as_bytes())?;
        if let Some(name) = domains.iter().find(|name| !served.is_for(name)) {
            return Err(OrderError::OtherName(name.clone()));
        }
        let left = served.validity().map_or(0, |validity| validity.seconds_left(unix_now()));
        if left <= 0 {
            return Err(OrderError::Expired);
        }
        tracing::info!(seconds_left = left, "a certificate was issued");
        self.take(served);
        self.keep(issued);
        self.figures.issued.inc();
        self.figures.last_failure.set(0);
        Ok(())
    }

    /// Puts what is in use into the folder. A full disk is no reason not to use it.
    fn keep(&self, issued: Issued) {
        let kept = self.cache.keep_certificate(&issued.chain, &issued.private_key);
        let failure = kept.err().map(|error| {
            format!(
                "the certificate is used and cannot be kept in the folder, the next start orders another: {error}"
            )
        });
        if let Some(failure) = &failure {
            tracing::error!("{failure}");
        }
        *self.unkept.lock().unwrap_or_else(PoisonError::into_inner) = failure.is_some().then_some(issued);
        self.say_failure(failure);
    }

    fn keep_again(&self) {
        let unkept = self.unkept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(issued) = unkept {
            self.keep(issued);
        }
    }

    fn failed(&self, error: &OrderError, wait: Duration) {
        let why: String = one_line(&error.to_string()).chars().take(MAX_WHY_CHARS).collect();
        let seconds_left = self.seconds_left().unwrap_or(0);
        tracing::error!(
            seconds_left,
            "no certificate was issued, the next try is in {} s: {why}",
            wait.as_secs()
        );
        self.figures.failed.inc();
        self.figures.last_failure.set(gauge(unix_now()));
        self.say_failure(Some(why));
    }

    fn say_failure(&self, why: Option<String>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

impl ResolvesServerCert for Acme {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match challenges::offered(&hello) {
            Offered::Alone => self.challenges.find(hello.server_name()?),
            Offered::BesideOthers => None,
            Offered::Not => self.current().map(|current| current.certified()),
        }
    }
}
