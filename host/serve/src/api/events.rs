//! An answer as server-sent events: `data: {chunk}` and an empty line for each, `data: [DONE]` at the end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::unfold;
use serde_json::Value;

use super::answer::Answer;
use super::form::Form;

/// While nothing is written, a comment goes out this often, so that no proxy takes the connection for a dead one.
const STILL_HERE: Duration = Duration::from_secs(15);

/// The answer as it comes. Where the client goes away, the body is dropped, and the answer with it.
pub(super) fn response(answer: Answer, form: Form) -> Response {
    let ready = form.opening(answer.texts()).iter().map(event).collect();
    let state = State { answer, form, ready, ended: false };
    let body = Body::from_stream(unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    }));
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // nginx would otherwise gather events until a buffer is full.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct State {
    answer: Answer,
    form: Form,
    ready: VecDeque<Bytes>,
    ended: bool,
}

impl State {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.ended {
                return None;
            }
            match tokio::time::timeout(STILL_HERE, self.answer.next()).await {
                Err(_) => return Some(Bytes::from_static(b": still here\n\n")),
                Ok(Ok(Some(delta))) => self.ready.extend(self.form.chunks(&delta).iter().map(event)),
                Ok(Ok(None)) => {
                    self.ready.extend(self.form.closing(self.answer.usage()).iter().map(event));
                    self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
                    self.ended = true;
                }
                // The status has gone out; clients know an error in a stream by its field.
                Ok(Err(error)) => {
                    tracing::warn!(why = %error, "a stream is cut short");
                    self.ready.push_back(event(&error.body()));
                    self.ended = true;
                }
            }
        }
    }
}

fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}
