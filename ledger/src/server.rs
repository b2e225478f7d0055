//! The HTTP service: one writer thread that owns the store, readers beside it, bounded everything.
//!
//! A note is answered after the transaction that holds it is on the disk. A caller that hangs up changes nothing: its
//! note is stored or not, and sending it again gives the answer. For the LAN: no TLS, no credentials; what a note may do
//! hangs on its signatures.

mod checking;
pub(crate) mod connections;
mod gate;
mod log_files;
mod probes;
mod publishing;
mod reader;
mod writer;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use kvasir_merkle::Hash;
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::MAX_NOTE_BYTES;
use kvasir_wire::note::NetworkName;
use serde::Deserialize;
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::api::{
    Accepted, AccountStatement, DEFAULT_PAGE, Ready, STORED_BEFORE, STORED_HEADER, STORED_NOW, Side,
    StatementQuery,
};
use crate::clock_watch::ClockWatch;
use crate::explorer::{self, Explorer, PublicLog};
use crate::publish::Publisher;
use crate::refusal::{LedgerError, Refusal};
use crate::space::SpaceMark;
use crate::store::{Answers, Incoming, Store, sqlite_version};
use checking::Checking;
use gate::Gate;
use publishing::Publishing;
pub(crate) use reader::Readers;
use writer::Writer;

/// How long one request may take: its head, again its body until the answer begins, and again each time that the reader of the
/// answer takes nothing.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections held at one time; beyond it idle ones make room for newcomers.
pub const MAX_CONNECTIONS: usize = 256;
/// How often new entries are published.
pub const PUBLISH_EVERY: Duration = Duration::from_secs(1);
/// How often pending credit is looked at.
pub const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// Writes that may wait; beyond it callers are told to come back.
pub const MAX_WAITING_WRITES: usize = 256;

/// Reads the time in Unix seconds; tests hand in their own.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's clock.
pub fn system_clock() -> Clock {
    Arc::new(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs())
    })
}

/// Limits of the service; the defaults but in tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeLimits {
    /// [`REQUEST_TIMEOUT`]. A connection that is silent for as long, before or between requests, is closed.
    pub request_time: Duration,
    /// [`MAX_CONNECTIONS`].
    pub connections: usize,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self { request_time: REQUEST_TIMEOUT, connections: MAX_CONNECTIONS }
    }
}

/// Serves `store` on `listener` until `stop` completes; then answers what is in flight and closes the file.
pub async fn serve(
    listener: TcpListener,
    store: Store,
    network: NetworkName,
    clock: Clock,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), LedgerError> {
    serve_within(ServeLimits::default(), listener, store, network, clock, stop).await
}

/// [`serve`] with limits of one's own.
pub async fn serve_within(
    limits: ServeLimits,
    listener: TcpListener,
    store: Store,
    network: NetworkName,
    clock: Clock,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), LedgerError> {
    serve_log(limits, listener, store, network, clock, None, stop).await
}

/// [`serve_within`], which also publishes the entries as a public log and serves its files.
pub async fn serve_log(
    limits: ServeLimits,
    listener: TcpListener,
    store: Store,
    network: NetworkName,
    clock: Clock,
    log: Option<Publisher>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), LedgerError> {
    serve_beside(limits, listener, store, network, clock, Beside { log, ..Beside::default() }, stop).await
}

/// What is served beside the API.
#[derive(Default)]
pub struct Beside {
    /// Publishes the entries as a public log, whose files are served.
    pub log: Option<Publisher>,
    /// A folder of probe records (`kvasir_wire::probe`), served under `/probes`.
    pub probes: Option<PathBuf>,
    /// Space that must be free on the disk for a note to be taken.
    pub space: Option<SpaceMark>,
    /// Watches the clock: while it cannot be believed no note is taken and nothing is posted.
    pub watch: Option<ClockWatch>,
    /// Signs what the settings say about keys, where that could not be written down yet; no note is taken before it is.
    pub undeclared: Option<SecretKey>,
}

/// [`serve_within`] with more beside the API.
pub async fn serve_beside(
    limits: ServeLimits,
    listener: TcpListener,
    store: Store,
    network: NetworkName,
    clock: Clock,
    beside: Beside,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), LedgerError> {
    let readers = Arc::new(Readers::open(store.path(), &network)?);
    let folder = store.path().parent().map(ToOwned::to_owned).unwrap_or_default();
    let log = beside.log;
    let public_log = log.as_ref().map(PublicLog::of);
    let pages = Explorer::new(readers.clone(), folder, public_log, network.clone(), clock.clone());
    let log_folder = log.as_ref().map(|log| log.folder().to_owned());
    let publishing = log.map(Publishing::start);
    let checking = Checking::new(store.keys().clone());
    let gate = Gate { space: beside.space.clone(), watch: beside.watch, undeclared: beside.undeclared };
    let (writer, writing) = Writer::start(store, clock.clone(), gate)
        .map_err(|_| LedgerError::Busy("the system gives no thread to write with"))?;
    let more = beside.probes.map(probes::routes).unwrap_or_default();
    let space = beside.space;
    let inner = Inner { writer: writer.clone(), checking, readers, network, clock, log_folder, space };
    let service = Service(Arc::new(inner));
    connections::run(listener, routes(service, pages, more, limits.request_time), limits, stop).await;
    let _ = tokio::task::spawn_blocking(move || {
        writer.end();
        let ended = writing.join();
        // After the writer, so that what it stored last is published.
        if let Some(publishing) = publishing {
            publishing.end();
        }
        ended
    })
    .await;
    info!("stopped");
    Ok(())
}

/// The address that a listener has got, for the line that tells it.
pub async fn listen(address: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

#[derive(Clone)]
struct Service(Arc<Inner>);

struct Inner {
    writer: Writer,
    checking: Checking,
    readers: Arc<Readers>,
    network: NetworkName,
    clock: Clock,
    /// Folder of the public log, where there is one.
    log_folder: Option<PathBuf>,
    space: Option<SpaceMark>,
}

fn routes(service: Service, pages: Explorer, more: Router, request_time: Duration) -> Router {
    Router::new()
        .route("/v1/receipts", post(post_receipt).get(receipts))
        .route("/v1/notes", post(post_note))
        .route("/v1/notes/{leaf}", get(note))
        .route("/v1/settlements", post(post_settlement))
        .route("/v1/unsettled", get(unsettled))
        .route("/v1/wallets/{payee}", get(wallet))
        .route("/v1/accounts/{account}", get(account))
        .route("/v1/wallets/{payee}/statement", get(wallet_statement))
        .route("/v1/accounts/{account}/statement", get(account_statement))
        .route("/v1/price", get(price))
        .route("/ready", get(ready))
        .route("/checkpoint", get(log_files::checkpoint))
        .route("/tile/{*rest}", get(log_files::tile))
        .with_state(service)
        .merge(pages.routes())
        .merge(more)
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_NOTE_BYTES))
        .layer(middleware::from_fn(move |request, next| limit_time(request_time, request, next)))
}

impl Service {
    /// Verifies a note beside the writer, then has it stored. The answer comes after the commit.
    async fn accept(
        &self,
        read: impl FnOnce() -> Result<Incoming, LedgerError> + Send + 'static,
    ) -> Result<Accepted, Failure> {
        let note = self.0.checking.check(self.0.readers.clone(), read).await?;
        Ok(self.0.writer.accept(note).await?)
    }

    async fn read<T: Send + 'static>(
        &self,
        question: impl FnOnce(Answers<'_>) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<Json<T>, Failure> {
        let inner = self.0.clone();
        let turn = inner.readers.turn().await?;
        let answer = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            inner.readers.ask(question)
        });
        let answer = answer.await;
        Ok(Json(answer.map_err(|_| LedgerError::Busy("the reader has failed"))??))
    }
}

async fn post_receipt(
    State(service): State<Service>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Failure> {
    let body = note_bytes(body)?;
    Ok(stored(service.accept(move || Incoming::receipt(&body)).await?))
}

async fn post_note(
    State(service): State<Service>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Failure> {
    let body = note_bytes(body)?;
    Ok(stored(service.accept(move || Incoming::note(&body)).await?))
}

async fn post_settlement(
    State(service): State<Service>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Failure> {
    let body = note_bytes(body)?;
    Ok(stored(service.accept(move || Incoming::settlement(&body)).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    after: Option<u64>,
    limit: Option<u32>,
}

async fn receipts(
    State(service): State<Service>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<impl IntoResponse, Failure> {
    let Query(page) = page.map_err(|error| bad_question(error.body_text()))?;
    service.read(move |answers| answers.receipts(page.after, page.limit.unwrap_or(DEFAULT_PAGE))).await
}

async fn note(
    State(service): State<Service>,
    Path(leaf): Path<String>,
) -> Result<impl IntoResponse, Failure> {
    let leaf = digest(&leaf)?;
    service.read(move |answers| answers.note(&leaf)).await
}

async fn wallet(
    State(service): State<Service>,
    Path(payee): Path<String>,
) -> Result<impl IntoResponse, Failure> {
    let payee = digest(&payee)?;
    service.read(move |answers| answers.wallet(payee)).await
}

async fn account(
    State(service): State<Service>,
    Path(account): Path<String>,
) -> Result<impl IntoResponse, Failure> {
    let account = digest(&account)?;
    service.read(move |answers| answers.account(account)).await
}

async fn wallet_statement(
    service: State<Service>,
    path: Path<String>,
    query: Result<Query<StatementQuery>, QueryRejection>,
) -> Result<impl IntoResponse, Failure> {
    statement(service, path, query, Side::Payee).await
}

async fn account_statement(
    service: State<Service>,
    path: Path<String>,
    query: Result<Query<StatementQuery>, QueryRejection>,
) -> Result<impl IntoResponse, Failure> {
    statement(service, path, query, Side::Payer).await
}

async fn statement(
    State(service): State<Service>,
    Path(owner): Path<String>,
    query: Result<Query<StatementQuery>, QueryRejection>,
    side: Side,
) -> Result<Json<AccountStatement>, Failure> {
    let owner: Hash = digest(&owner)?;
    let Query(query) = query.map_err(|error| bad_question(error.body_text()))?;
    service.read(move |answers| answers.statement(side, owner.0, &query)).await
}

async fn price(State(service): State<Service>) -> Result<impl IntoResponse, Failure> {
    let now = (service.0.clock)();
    service.read(move |answers| answers.price(now)).await
}

async fn unsettled(State(service): State<Service>) -> Result<impl IntoResponse, Failure> {
    service.read(|answers| answers.unsettled()).await
}

async fn ready(State(service): State<Service>) -> Result<Response, Failure> {
    // A ledger that cannot write, or whose writer has ended, can answer questions, but is not ready.
    let mut free_bytes = Ok(None);
    if let Some(space) = service.0.space.clone() {
        let checked = tokio::task::spawn_blocking(move || space.check()).await;
        free_bytes = checked.unwrap_or(Ok(None)).map_err(Failure::from);
    }
    let taking = service.0.writer.ready().await.map_err(Failure::from);
    let free_bytes = match taking.and(free_bytes) {
        Ok(free_bytes) => free_bytes,
        Err(Failure(error)) => {
            let (_, body) = error.answer();
            warn!(code = body.code, why = body.message, "not ready");
            return Ok((StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response());
        }
    };
    let inner = service.0.clone();
    let ready = service
        .read(move |answers| {
            let (entries, root) = answers.head()?;
            Ok(Ready {
                ready: true,
                network: inner.network.to_string(),
                entries,
                root: root.to_string(),
                sqlite: sqlite_version().to_owned(),
                published: inner.log_folder.as_deref().and_then(|log| log_files::head(log, (inner.clock)())),
                free_bytes,
                min_free_bytes: inner.space.as_ref().map(SpaceMark::least),
            })
        })
        .await?;
    Ok(ready.into_response())
}

async fn no_such_path(request: Request) -> Response {
    let accepted = request.headers().get(header::ACCEPT).and_then(|accepted| accepted.to_str().ok());
    if accepted.is_some_and(|accepted| accepted.contains("text/html"))
        && !request.uri().path().starts_with("/v1/")
    {
        return explorer::no_such_page();
    }
    let message = "there is nothing at this path";
    Failure::from(Refusal::new(404, "no_such_path", message, "docs/ledger.md lists the paths"))
        .into_response()
}

async fn wrong_method() -> Failure {
    let message = "this path does not take this method";
    Refusal::new(405, "wrong_method", message, "docs/ledger.md lists paths and methods").into()
}

pub(crate) async fn limit_time(most: Duration, request: Request, next: Next) -> Response {
    match tokio::time::timeout(most, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message =
                format!("the request was not complete, or not done, within {} s", most.as_secs_f32());
            let advice = "send it again: a note that was stored meanwhile gives its first answer";
            Failure::from(Refusal::new(408, "timeout", message, advice)).into_response()
        }
    }
}

/// The answer for a stored note. The body is the same however often the note is sent; the header says which time it is.
fn stored(accepted: Accepted) -> Response {
    let time = if accepted.repeated { STORED_BEFORE } else { STORED_NOW };
    ([(STORED_HEADER, time)], Json(accepted)).into_response()
}

fn note_bytes(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Failure> {
    body.map_err(|error| {
        if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let message = format!("a note has at most {MAX_NOTE_BYTES} bytes");
            Refusal::new(413, "too_large", message, "send one note a request").into()
        } else {
            let advice = "send the note's bytes as the request's body";
            Refusal::new(400, "bad_body", error.body_text(), advice).into()
        }
    })
}

fn digest<T: std::str::FromStr>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(80).collect();
        bad_question(format!("`{shown}` is not a digest of 64 lower-case hexadecimal digits"))
    })
}

fn bad_question(message: String) -> Failure {
    Refusal::new(400, "bad_question", message, "docs/ledger.md lists paths and parameters").into()
}

/// An error on its way to the caller.
struct Failure(LedgerError);

impl<E: Into<LedgerError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, body) = self.0.answer();
        if status >= 500 {
            warn!(status, code = body.code, why = body.message, "cannot answer");
        } else {
            info!(status, code = body.code, why = body.message, "refused");
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(body)).into_response()
    }
}
