//! Errors as OpenAI's clients expect them: a status, and `{"error": {message, type, param, code}}`.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kvasir_model::TokenizerError;
use serde_json::{Value, json};

use super::engine::Refused;
use super::language::RenderError;

/// Characters of a client's value that an error repeats.
const SHOWN_CHARACTERS: usize = 80;

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    status: u16,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    retry_after: Option<Duration>,
    /// Whether the connection ends with the answer: what follows on it is not to be read, or better sent elsewhere.
    closes: bool,
}

impl ApiError {
    fn new(
        status: u16,
        kind: &'static str,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> ApiError {
        ApiError {
            status,
            kind,
            code,
            param: None,
            message: message.into(),
            retry_after: None,
            closes: false,
        }
    }

    /// 400: the request, for no parameter in particular.
    pub(super) fn bad_request(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(400, INVALID, Some(code), message)
    }

    /// 400: the value of a parameter.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::new(400, INVALID, Some("invalid_value"), message) }
    }

    /// 400: a parameter, or a value of one, that is known and that nothing here can do.
    pub(super) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { code: Some("unsupported_parameter"), ..ApiError::invalid(param, message) }
    }

    /// 400: a parameter that is not there.
    pub(super) fn missing(param: &'static str) -> ApiError {
        let message = format!("`{param}` is missing");
        ApiError { code: Some("missing_required_parameter"), ..ApiError::invalid(param, message) }
    }

    /// 400: a parameter that nobody knows.
    pub(super) fn unknown(param: &str) -> ApiError {
        let param = shortened(param);
        let message = format!("Unrecognized request argument supplied: {param}");
        ApiError { code: Some("unknown_parameter"), ..ApiError::invalid(param, message) }
    }

    /// 400: a prompt that leaves no room in the context. `tokens` is told where it was counted.
    pub(super) fn too_long(
        param: &'static str,
        tokens: Option<usize>,
        bytes: usize,
        limit: usize,
    ) -> ApiError {
        let found = match tokens {
            Some(tokens) => format!("your prompt has {tokens} tokens"),
            None => format!("your prompt of {bytes} bytes has more than twice as many"),
        };
        let message = format!(
            "This model's maximum context length is {limit} tokens, for prompt and answer together; {found}. Shorten it."
        );
        ApiError { code: Some("context_length_exceeded"), ..ApiError::invalid(param, message) }
    }

    /// 401.
    pub(super) fn no_key(message: &'static str) -> ApiError {
        ApiError::new(401, INVALID, Some("invalid_api_key"), message)
    }

    /// 404: another model.
    pub(super) fn no_such_model(asked: &str, served: &str) -> ApiError {
        let message = format!("The model `{}` does not exist here; `{served}` does", shortened(asked));
        ApiError {
            param: Some("model".into()),
            ..ApiError::new(404, INVALID, Some("model_not_found"), message)
        }
    }

    /// 404: another path.
    pub(super) fn no_such_path(method: &str, path: &str) -> ApiError {
        let message = format!("Unknown request URL: {method} {}", shortened(path));
        ApiError::new(404, INVALID, Some("unknown_url"), message)
    }

    /// 405.
    pub(super) fn wrong_method(method: &str) -> ApiError {
        let message =
            format!("This path does not take {}; the header Allow says what it takes", shortened(method));
        ApiError::new(405, INVALID, Some("method_not_allowed"), message)
    }

    /// 408: a body that does not come.
    pub(super) fn too_slow(most: Duration) -> ApiError {
        let message = format!("the request's body was not complete within {} s", most.as_secs_f32());
        ApiError { closes: true, ..ApiError::new(408, INVALID, Some("timeout"), message) }
    }

    /// 413.
    pub(super) fn too_large(bytes: Option<u64>, limit: usize) -> ApiError {
        let found = bytes.map_or("it has more".to_owned(), |bytes| format!("it has {bytes}"));
        let message = format!("a request's body may have {limit} bytes; {found}");
        ApiError { closes: true, ..ApiError::new(413, INVALID, Some("request_too_large"), message) }
    }

    /// 415.
    pub(super) fn wrong_type(message: impl Into<String>) -> ApiError {
        ApiError { closes: true, ..ApiError::new(415, INVALID, Some("unsupported_media_type"), message) }
    }

    /// 429.
    pub(super) fn queue_full(message: impl Into<String>, retry_after: Duration) -> ApiError {
        let error = ApiError::new(429, "rate_limit_error", Some("queue_full"), message);
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// 503: the service is being stopped.
    pub(super) fn draining() -> ApiError {
        let message = "the service is stopping and takes no new requests";
        let error = ApiError::new(503, SERVER, Some("draining"), message);
        ApiError { retry_after: Some(DRAIN_RETRY), closes: true, ..error }
    }

    /// 503: the service stopped before the answer was whole.
    pub(super) fn cut() -> ApiError {
        let message = "the service stopped before the answer was whole";
        let error = ApiError::new(503, SERVER, Some("cut_short"), message);
        ApiError { retry_after: Some(DRAIN_RETRY), closes: true, ..error }
    }

    /// 500: what computes failed.
    pub(super) fn engine(message: impl Into<String>) -> ApiError {
        ApiError::new(500, SERVER, Some("engine_failed"), message)
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The JSON of it.
    pub(super) fn body(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        }})
    }

    /// A word for the figures.
    pub(super) fn word(&self) -> &'static str {
        match (self.status, self.code) {
            (429, _) => "queue_full",
            (503, Some("draining")) => "draining",
            (503, _) => "cut_short",
            (500.., _) => "failed",
            _ => "refused",
        }
    }
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";
/// Whoever is turned away by a service that stops finds the next one up after so long, or another.
const DRAIN_RETRY: Duration = Duration::from_secs(5);

/// The beginning of what a client said, fit to be repeated.
pub(super) fn shortened(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_CHARACTERS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Whole seconds of a `Retry-After`, at least one.
pub(super) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1)
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        let message = refused.to_string();
        match refused {
            Refused::QueueFull { retry_after, .. } => ApiError::queue_full(message, retry_after),
            Refused::Stopping => ApiError::draining(),
            Refused::NoMemory { .. } => ApiError::bad_request("insufficient_memory", message),
            Refused::Failed(_) => ApiError::engine(message),
        }
    }
}

impl ApiError {
    /// What the tokenizer said about the text of `param`, which was given room for `limit` tokens of which `context` fit.
    pub(super) fn of_tokenizer(error: &TokenizerError, param: &'static str, context: usize) -> ApiError {
        match error {
            TokenizerError::TooManyTokensInText { bytes, .. } => {
                ApiError::too_long(param, None, *bytes, context)
            }
            TokenizerError::TextTooLong { .. }
            | TokenizerError::WhiteSpaceTooLong { .. }
            | TokenizerError::WordTooLong { .. } => ApiError::invalid(param, error.to_string()),
            _ => ApiError::engine(format!("the text cannot be split into tokens: {error}")),
        }
    }

    /// What the chat template said.
    pub(super) fn of_template(error: &RenderError) -> ApiError {
        ApiError::invalid(error.param(), error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code, why) = (self.status, self.code.unwrap_or_default(), self.message.as_str());
        if status >= 500 {
            tracing::warn!(status, code, why, "cannot answer");
        } else {
            tracing::debug!(status, code, why, "refused");
        }
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(after) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(whole_seconds(after)));
        }
        if self.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.closes {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_four_fields_and_says_when_to_come_back() {
        let error = ApiError::from(Refused::QueueFull {
            waiting: 8,
            limit: 8,
            retry_after: Duration::from_millis(1_200),
        });
        let fields = &error.body()["error"];
        assert_eq!(fields["code"], "queue_full");
        assert!(fields["param"].is_null() && fields["message"].as_str().unwrap().contains('8'));
        let response = error.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
    }

    #[test]
    fn what_a_client_said_is_repeated_in_part_alone() {
        let error = ApiError::no_such_model(&"ü".repeat(5_000), "atlas");
        assert!(error.to_string().len() < 300, "{error}");
        assert_eq!(error.status(), 404);
    }
}
