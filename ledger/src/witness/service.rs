//! The witness over HTTP: `POST /add-checkpoint`, `GET /<SHA-256 of an origin>/checkpoint`, `GET /ready`.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kvasir_merkle::Hash;
use tokio::net::TcpListener;
use tracing::{info, warn};

use super::{MAX_REQUEST_BYTES, SIZE_TYPE, Witness, WitnessError};
use crate::server::{Clock, ServeLimits, connections, limit_time};

const TEXT: &str = "text/plain; charset=utf-8";

/// Serves `witness` on `listener` until `stop` completes.
pub async fn serve(
    listener: TcpListener,
    witness: Witness,
    clock: Clock,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    serve_within(ServeLimits::default(), listener, witness, clock, stop).await;
}

/// [`serve`] with limits of one's own.
pub async fn serve_within(
    limits: ServeLimits,
    listener: TcpListener,
    witness: Witness,
    clock: Clock,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let routes = Router::new()
        .route("/add-checkpoint", post(add_checkpoint))
        .route("/{origin}/checkpoint", get(checkpoint))
        .route("/ready", get(|| async { "ready\n" }))
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .layer(middleware::from_fn(move |request, next| limit_time(limits.request_time, request, next)))
        .with_state((Arc::new(witness), clock));
    connections::run(listener, routes, limits, stop).await;
}

type Shared = (Arc<Witness>, Clock);

async fn add_checkpoint(
    State((witness, clock)): State<Shared>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(error) => return (error.status(), format!("{error}\n")).into_response(),
    };
    let answer = tokio::task::spawn_blocking(move || witness.add_checkpoint(&body, clock())).await;
    match answer {
        Ok(Ok(line)) => ([(header::CONTENT_TYPE, TEXT)], line).into_response(),
        Ok(Err(error)) => refusal(&error),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn checkpoint(State((witness, clock)): State<Shared>, Path(origin): Path<String>) -> Response {
    let Ok(origin) = origin.parse::<Hash>() else { return StatusCode::NOT_FOUND.into_response() };
    let answer = tokio::task::spawn_blocking(move || witness.cosigned(&origin, clock())).await;
    match answer {
        Ok(Ok(Some(text))) => {
            ([(header::CONTENT_TYPE, TEXT), (header::CACHE_CONTROL, "no-store")], text).into_response()
        }
        Ok(Ok(None)) => StatusCode::NOT_FOUND.into_response(),
        Ok(Err(error)) => refusal(&error),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn refusal(error: &WitnessError) -> Response {
    let status = match error {
        WitnessError::Request(_) | WitnessError::Shrinks { .. } => StatusCode::BAD_REQUEST,
        WitnessError::UnknownLog(_) => StatusCode::NOT_FOUND,
        WitnessError::NotSigned(_) => StatusCode::FORBIDDEN,
        WitnessError::OtherSize(size) => {
            info!(size, "a head extends another one than the last");
            return (StatusCode::CONFLICT, [(header::CONTENT_TYPE, SIZE_TYPE)], format!("{size}\n"))
                .into_response();
        }
        WitnessError::Inconsistent(_) => StatusCode::UNPROCESSABLE_ENTITY,
        WitnessError::State { .. } | WitnessError::InUse { .. } => StatusCode::INTERNAL_SERVER_ERROR,
    };
    warn!(%status, %error, "not cosigned");
    (status, [(header::CONTENT_TYPE, TEXT)], format!("{error}\n")).into_response()
}
