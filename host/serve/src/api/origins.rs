//! Pages of other origins (CORS): none may use the service unless the operator lists it.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::Api;

/// Which pages of other origins a browser lets use the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origins {
    /// None: the service's own page alone.
    #[default]
    None,
    /// These, each as a browser writes it (`https://chat.example`).
    Listed(Vec<String>),
    /// All of them.
    Any,
}

impl Origins {
    fn allow(&self, origin: &HeaderValue) -> bool {
        match self {
            Origins::None => false,
            Origins::Listed(origins) => origins.iter().any(|listed| listed.as_bytes() == origin.as_bytes()),
            Origins::Any => true,
        }
    }
}

/// Tells a browser that a page may see the answer, where it may.
pub(super) async fn tell(State(api): State<Api>, request: Request, next: Next) -> Response {
    let origin =
        request.headers().get(header::ORIGIN).filter(|origin| api.0.settings.origins.allow(origin)).cloned();
    let Some(origin) = origin else { return next.run(request).await };
    let asks = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    if asks {
        permit(headers);
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    response
}

fn permit(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("authorization, content-type"),
    );
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
}
