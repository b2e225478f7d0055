//! The HTTP API: requests in OpenAI's form, answers whole or as they come, models, health, figures, the swarm, a page.
//!
//! It is for a private network or behind a proxy that ends TLS. Everything that comes from outside has a limit, and
//! everything that is refused is told so in the error object that clients know. A client that goes away takes its texts
//! with it: what is dropped is cancelled.

mod admission;
mod answer;
mod asked;
mod body;
mod connections;
mod cutter;
mod engine;
mod error;
mod events;
mod fields;
mod form;
mod keys;
mod language;
mod messages;
mod metrics;
mod origins;
mod page;
mod swarm;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

pub use asked::{MAX_CHOICES, MAX_STOP_BYTES, MAX_STOPS, MAX_TOOLS, MAX_TOP_LOGPROBS};
pub use engine::{
    Engine, Finish, Generation, Logprobs, Piece, Refused, Request as TextRequest, Step, Writer, generation,
};
pub use error::ApiError;
pub use keys::{ApiKeys, KeysError, MAX_KEY_CHARACTERS, MAX_KEYS, MAX_KEYS_FILE_BYTES, MIN_KEY_CHARACTERS};
pub use language::{Chat, Language, ModelLanguage, RenderError, plain};
pub use metrics::PREFIX as METRICS_PREFIX;
pub use origins::Origins;
pub use swarm::{Held, Load, Rates, SwarmReport, SwarmWorker};

use admission::Admission;
use answer::Answer;
use asked::{Asked, Endpoint};
use connections::Places;
use form::{Form, Whole};
use metrics::{Metrics, OpenRequest};

/// How long one request may take: its head, again its body.
pub const REQUEST_TIME: Duration = Duration::from_secs(10);
/// How long a reader of an answer may take nothing of it.
pub const WRITE_TIME: Duration = Duration::from_secs(30);
/// How long texts may go on being written after the service was told to stop.
pub const DRAIN_TIME: Duration = Duration::from_secs(30);
/// Connections held at one time.
pub const MAX_CONNECTIONS: usize = 1024;
/// Texts being written or waiting for it.
pub const MAX_TEXTS: usize = 512;
/// Bytes of a request's body.
pub const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// Limits of the service. All have the defaults named beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// [`REQUEST_TIME`]. A connection that is silent for as long, before or between requests, is closed.
    pub request_time: Duration,
    /// [`WRITE_TIME`].
    pub write_time: Duration,
    /// [`DRAIN_TIME`].
    pub drain_time: Duration,
    /// [`MAX_CONNECTIONS`].
    pub connections: usize,
    /// [`MAX_TEXTS`]; more are told to come back. At least [`MAX_CHOICES`], which one request may ask for.
    pub texts: usize,
    /// [`MAX_BODY_BYTES`].
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_time: REQUEST_TIME,
            write_time: WRITE_TIME,
            drain_time: DRAIN_TIME,
            connections: MAX_CONNECTIONS,
            texts: MAX_TEXTS,
            body_bytes: MAX_BODY_BYTES,
        }
    }
}

/// What the operator decides.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Names by which clients ask for the model; answers say the first.
    pub names: Vec<String>,
    /// Says which bits an answer has: the same words, the same seed, the same text. From the digests of model and plugin.
    pub fingerprint: Option<String>,
    /// Keys of clients; without them whoever reaches the service may use it.
    pub keys: Option<ApiKeys>,
    /// Pages of other origins.
    pub origins: Origins,
    /// Limits.
    pub limits: Limits,
}

/// All that is served.
pub struct Service {
    /// Computes texts.
    pub engine: Arc<dyn Engine>,
    /// Text to tokens and back.
    pub language: Arc<dyn Language>,
    /// What the operator decides.
    pub settings: Settings,
    /// Figures of the engine, beside which the API's own are registered.
    pub registry: Registry,
}

/// Serves on `listener` until `stop` completes. Then nothing new is taken; what is being written is written to its end, for
/// `drain_time` at most, and the rest is cut short and told so.
pub async fn serve(listener: TcpListener, service: Service, stop: impl Future<Output = ()> + Send + 'static) {
    let api = Api::new(service);
    let limits = api.0.settings.limits;
    let (routes, places) = (routes(&api), api.0.places.clone());
    let stopped = async move {
        stop.await;
        api.0.admission.drain();
        tracing::info!(texts = api.0.admission.taken(), "stopping: nothing new is taken");
        if tokio::time::timeout(limits.drain_time, api.0.admission.idle()).await.is_err() {
            tracing::warn!(texts = api.0.admission.taken(), "texts are cut short");
            api.0.admission.cut();
        }
    };
    connections::run(listener, routes, limits, places, stopped).await;
}

#[derive(Clone)]
struct Api(Arc<Inner>);

struct Inner {
    engine: Arc<dyn Engine>,
    language: Arc<dyn Language>,
    settings: Settings,
    admission: Admission,
    places: Arc<Places>,
    metrics: Metrics,
    /// One permit for each core that reads requests: more at a time would only take turns.
    turns: Arc<Semaphore>,
    /// Unix seconds of the start.
    started: u64,
}

fn routes(api: &Api) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/swarm", get(swarm))
        .route_layer(middleware::from_fn_with_state(api.clone(), keys::require))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(figures))
        .with_state(api.clone())
        .merge(page::routes())
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(api.0.settings.limits.body_bytes))
        .layer(middleware::from_fn_with_state(api.clone(), origins::tell))
}

impl Api {
    fn new(service: Service) -> Api {
        let Service { engine, language, settings, registry } = service;
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Api(Arc::new(Inner {
            engine,
            language,
            admission: Admission::new(settings.limits.texts.max(MAX_CHOICES)),
            places: Arc::new(Places::new(settings.limits.connections)),
            metrics: Metrics::new(registry),
            turns: Arc::new(Semaphore::new(cores)),
            started: unix_seconds(),
            settings,
        }))
    }

    /// Answers a request for texts.
    async fn answer(&self, endpoint: Endpoint, request: Request) -> Response {
        let mut open = self.0.metrics.request(endpoint);
        match self.begin(endpoint, request).await {
            Ok((asked, generations, place)) => self.tell(endpoint, &asked, generations, place, open).await,
            Err(refusal) => {
                open.ends_for(refusal.word());
                refusal.into_response()
            }
        }
    }

    /// Reads a request and has its texts begun.
    async fn begin(
        &self,
        endpoint: Endpoint,
        request: Request,
    ) -> Result<(Asked, Vec<Generation>, admission::Admitted), ApiError> {
        let inner = &self.0;
        inner.admission.check()?;
        let body = body::read(request, &inner.settings.limits).await?;
        let asked = self.read(endpoint, body).await?;
        let place = inner.admission.enter(asked.texts())?;
        let context = inner.engine.context_limit();
        let mut generations = Vec::with_capacity(asked.texts());
        for prompt in &asked.prompts {
            for choice in 0..asked.choices {
                let mut sampler = asked.sampler;
                sampler.seed = sampler.seed.wrapping_add(choice as u64);
                // What was begun before one is refused is dropped with the list.
                generations.push(inner.engine.submit(TextRequest {
                    prompt: prompt.clone(),
                    max_tokens: asked.max_tokens.min(context.saturating_sub(prompt.len())),
                    sampler,
                    top_logprobs: asked.top_logprobs,
                })?);
            }
        }
        Ok((asked, generations, place))
    }

    /// Reads a body beside the tasks that answer: rendering and splitting a long text takes a while.
    async fn read(&self, endpoint: Endpoint, body: axum::body::Bytes) -> Result<Asked, ApiError> {
        let turn = self.0.turns.clone().acquire_owned().await;
        let inner = self.0.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let context = inner.engine.context_limit();
            Asked::read(endpoint, &body, &inner.settings.names, &*inner.language, context)
        });
        asked.await.unwrap_or_else(|_| Err(ApiError::engine("the request could not be read")))
    }

    async fn tell(
        &self,
        endpoint: Endpoint,
        asked: &Asked,
        generations: Vec<Generation>,
        place: admission::Admitted,
        open: OpenRequest,
    ) -> Response {
        let inner = &self.0;
        let form = Form {
            endpoint,
            id: answer_id(endpoint),
            created: unix_seconds(),
            model: self.name().to_owned(),
            fingerprint: inner.settings.fingerprint.clone(),
            logprobs: asked.top_logprobs.is_some(),
            include_usage: asked.include_usage,
        };
        let phases = inner.admission.phases();
        let mut answer = Answer::new(asked, generations, inner.language.clone(), phases, open, place);
        if asked.stream {
            return events::response(answer, form);
        }
        let mut texts: Vec<Whole> = Vec::new();
        texts.resize_with(answer.texts(), Whole::default);
        loop {
            match answer.next().await {
                Ok(Some(delta)) => texts[delta.choice].add(delta),
                Ok(None) => return Json(form.whole(&texts, answer.usage())).into_response(),
                Err(error) => return error.into_response(),
            }
        }
    }

    /// What answers call the model.
    fn name(&self) -> &str {
        self.0.settings.names.first().map_or("", String::as_str)
    }

    fn described(&self, name: &str) -> Value {
        json!({
            "id": name, "object": "model", "created": self.0.started, "owned_by": "kvasir",
            "context_length": self.0.engine.context_limit(),
        })
    }

    fn ready(&self) -> Result<(), String> {
        if self.0.admission.is_draining() {
            return Err("the service is stopping".to_owned());
        }
        self.0.engine.ready()
    }
}

async fn completions(State(api): State<Api>, request: Request) -> Response {
    api.answer(Endpoint::Text, request).await
}

async fn chat_completions(State(api): State<Api>, request: Request) -> Response {
    api.answer(Endpoint::Chat, request).await
}

async fn models(State(api): State<Api>) -> Json<Value> {
    let models: Vec<Value> = api.0.settings.names.iter().map(|name| api.described(name)).collect();
    Json(json!({"object": "list", "data": models}))
}

async fn model(State(api): State<Api>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    if api.0.settings.names.contains(&name) {
        return Ok(Json(api.described(&name)));
    }
    Err(ApiError::no_such_model(&name, api.name()))
}

async fn swarm(State(api): State<Api>) -> Json<SwarmReport> {
    Json(api.0.engine.swarm())
}

async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

async fn ready(State(api): State<Api>) -> Response {
    match api.ready() {
        Ok(()) => Json(json!({"ready": true})).into_response(),
        Err(why) => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            (status, [(header::RETRY_AFTER, "5")], Json(json!({"ready": false, "why": why}))).into_response()
        }
    }
}

async fn figures(State(api): State<Api>) -> Response {
    let text = api.0.metrics.text(api.0.admission.taken(), api.0.places.taken());
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

async fn no_such_path(method: Method, uri: Uri) -> ApiError {
    ApiError::no_such_path(method.as_str(), uri.path())
}

async fn wrong_method(method: Method) -> ApiError {
    ApiError::wrong_method(method.as_str())
}

/// A name for an answer that no other has.
fn answer_id(endpoint: Endpoint) -> String {
    let prefix = match endpoint {
        Endpoint::Text => "cmpl",
        Endpoint::Chat => "chatcmpl",
    };
    let mut random = [0; 16];
    // Without randomness answers have one name, and are as good.
    let _ = getrandom::fill(&mut random);
    format!("{prefix}-{:032x}", u128::from_be_bytes(random))
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
