//! The pages: what a person sees who opens the ledger's address in a browser.
//!
//! HTML from the server, one stylesheet, no script, nothing from anywhere else. Pages change nothing and need no
//! credentials; they show what the ledger holds and whose signatures stand on it. Whatever a note says was written by
//! somebody else: it is escaped, shortened where it is long, and never obeyed. Every question is bounded (see [`index`]),
//! so that a visitor cannot make the ledger slow. The API under `/v1` is not touched by any of this.

mod chart;
mod entry;
mod frame;
mod index;
mod lists;
mod named;
mod overview;
mod published;
mod question;
mod show;
mod signers;
mod wallet;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use kvasir_wire::note::NetworkName;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::refusal::LedgerError;
use crate::server::{Clock, Readers};
use crate::store::Answers;
use frame::{Page, Problem};
use index::Index;

pub(crate) use frame::no_such_page;
pub(crate) use published::PublicLog;

/// Entries that one visit takes into the index at most; the rest is read between visits.
const ENTRIES_A_VISIT: u32 = 256;
/// Pause between two stretches that are read between visits, so that visitors and writers get their turn.
const PAUSE: Duration = Duration::from_millis(2);

/// The pages of one ledger.
#[derive(Clone)]
pub(crate) struct Explorer(Arc<Inner>);

struct Inner {
    readers: Arc<Readers>,
    /// Pages are made one at a time: whoever hangs up before its turn has cost nothing, and no question to the API waits for one.
    turns: Arc<Semaphore>,
    /// Where the ledger's file lies, and the index beside it.
    folder: PathBuf,
    /// The log that this process publishes, where it does.
    log: Option<PublicLog>,
    network: NetworkName,
    clock: Clock,
    /// Opened by the first visitor: a ledger that nobody looks at has none.
    index: Mutex<Opened>,
}

#[derive(Default)]
struct Opened {
    index: Option<Index>,
    /// A thread is reading what visits left unread.
    reading: bool,
}

/// What one page is made from: the index, brought up to date, and the ledger.
struct View<'a> {
    inner: &'a Inner,
    index: &'a Index,
    now: u64,
}

impl Explorer {
    /// Pages of the ledger in `folder`. Nothing is opened yet.
    pub(crate) fn new(
        readers: Arc<Readers>,
        folder: PathBuf,
        log: Option<PublicLog>,
        network: NetworkName,
        clock: Clock,
    ) -> Self {
        Self(Arc::new(Inner {
            readers,
            turns: Arc::new(Semaphore::new(1)),
            folder,
            log,
            network,
            clock,
            index: Mutex::default(),
        }))
    }

    /// The paths of all pages.
    pub(crate) fn routes<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        Router::new()
            .route("/", get(overview::overview))
            .route("/log", get(published::log))
            .route("/entries", get(lists::entries))
            .route("/receipts", get(lists::receipts))
            .route("/settlements", get(lists::settlements))
            .route("/wallets", get(lists::wallets))
            .route("/search", get(named::search))
            .route("/digest/{digest}", get(named::digest))
            .route("/session/{session}", get(named::session))
            .route("/wallet/{digest}", get(wallet::wallet))
            .route("/wallet/{digest}/moves", get(wallet::wallet_moves))
            .route("/account/{digest}", get(wallet::account))
            .route("/account/{digest}/moves", get(wallet::account_moves))
            .route("/entry/{number}", get(entry::entry))
            .route("/entry/{number}/note", get(entry::note))
            .route("/entry/{number}/proof", get(published::proof))
            .route("/style.css", get(style))
            .route("/icon.svg", get(icon))
            .with_state(self)
    }

    /// Makes a page away from the threads that serve connections.
    async fn page<T: Send + 'static>(
        &self,
        make: impl FnOnce(&View<'_>) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let explorer = self.clone();
        let turn = Arc::clone(&explorer.0.turns).acquire_owned().await;
        let turn = turn.map_err(|_| LedgerError::Busy("the pages have ended"))?;
        let made = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            explorer.make(make)
        });
        made.await.map_err(|_| LedgerError::Busy("the page could not be made"))?
    }

    fn make<T>(&self, make: impl FnOnce(&View<'_>) -> Result<T, Problem>) -> Result<T, Problem> {
        let inner = &*self.0;
        let mut opened = inner.opened();
        let more = inner.read_on(&mut opened)?;
        if more && !opened.reading {
            opened.reading = true;
            let weak = Arc::downgrade(&self.0);
            // A plain thread: one of the runtime's own would keep a stopped ledger waiting for it.
            let reading =
                std::thread::Builder::new().name("explorer".into()).spawn(move || keep_reading(&weak));
            if reading.is_err() {
                opened.reading = false;
            }
        }
        let Some(index) = &opened.index else {
            return Err(LedgerError::Busy("the index is not open").into());
        };
        make(&View { inner, index, now: (inner.clock)() })
    }
}

impl Inner {
    fn opened(&self) -> MutexGuard<'_, Opened> {
        // What a panic left is either a whole transaction or none.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stretch of the ledger into the index. True where there is more.
    fn read_on(&self, opened: &mut Opened) -> Result<bool, LedgerError> {
        let index = match &mut opened.index {
            Some(index) => index,
            closed => closed.insert(Index::open(&self.folder, &self.network)?),
        };
        let following = self.readers.ask(|answers| answers.following(index.point(), ENTRIES_A_VISIT))?;
        let took = index.take(&following)?;
        Ok(took && !following_is_all(&following, index))
    }
}

fn following_is_all(following: &crate::store::Following, index: &Index) -> bool {
    let full = ENTRIES_A_VISIT as usize;
    index.point().entries >= following.total
        && following.postings.len() < full
        && following.conflicts.len() < full
}

/// Reads until nothing is left or the ledger stops.
fn keep_reading(explorer: &Weak<Inner>) {
    while let Some(inner) = explorer.upgrade() {
        {
            let mut opened = inner.opened();
            let more = inner.read_on(&mut opened);
            if let Err(error) = &more {
                warn!(%error, "the explorer cannot read on; it tries again at the next visit");
            }
            if !more.unwrap_or(false) {
                opened.reading = false;
                return;
            }
        }
        drop(inner);
        std::thread::sleep(PAUSE);
    }
}

impl View<'_> {
    /// Asks the ledger itself.
    fn ask<T>(&self, question: impl FnOnce(Answers<'_>) -> Result<T, LedgerError>) -> Result<T, LedgerError> {
        self.inner.readers.ask(question)
    }

    /// A page of this ledger with what every page has around it.
    fn page(&self, title: impl Into<String>, body: maud::Markup) -> Page {
        let (read, total) = (self.index.point().entries, self.index.total());
        Page::new(self.inner.network.as_str(), title.into(), body).behind(read, total)
    }
}

async fn style() -> impl IntoResponse {
    let headers = [(header::CONTENT_TYPE, "text/css; charset=utf-8"), (header::CACHE_CONTROL, "max-age=600")];
    (frame::strict_headers(), headers, include_str!("explorer/style.css"))
}

async fn icon() -> impl IntoResponse {
    let headers = [(header::CONTENT_TYPE, "image/svg+xml"), (header::CACHE_CONTROL, "max-age=86400")];
    (frame::strict_headers(), headers, include_str!("explorer/icon.svg"))
}
