//! What the API counts, for Prometheus. The engine's own figures stand in the same registry.
//!
//! Labels hold words of this program alone, so the number of series is fixed by the source. A request is counted by a
//! guard whose drop is its end: whatever ends it, it is counted once, and one that nobody said anything about is one
//! whose client went away.

use std::time::Instant;

use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

use super::asked::Endpoint;

/// What every name of the API begins with.
pub const PREFIX: &str = "kvasir_serve";
/// Type of the answer to whoever asks for the figures.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// What becomes of a request about which nothing was said.
const CLIENT_GONE: &str = "client_gone";

type Labels = [(&'static str, &'static str); 2];

/// The API's figures.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    open: Gauge,
    texts: Gauge,
    connections: Gauge,
    read: Counter,
    written: Counter,
    first_token: Histogram,
    whole: Histogram,
}

impl Metrics {
    /// Registers them beside what `registry` holds.
    pub(super) fn new(mut registry: Registry) -> Metrics {
        let api = registry.sub_registry_with_prefix(PREFIX);
        // From a millisecond to nine minutes.
        let seconds = || Histogram::new(exponential_buckets(0.001, 2.0, 20));
        let requests = add(
            api,
            "requests",
            "Requests for texts, by endpoint and by what became of them",
            Family::default(),
        );
        let open =
            add(api, "requests_open", "Requests for texts that are being answered now", Gauge::default());
        let texts = add(api, "texts_open", "Texts being written now, or waiting for it", Gauge::default());
        let connections = add(api, "connections_open", "Connections open now", Gauge::default());
        let read = add(api, "prompt_tokens", "Tokens of prompts that were taken", Counter::default());
        let written = add(api, "written_tokens", "Tokens written", Counter::default());
        let first_token = add(
            api,
            "first_token_seconds",
            "From the end of a request to the first token of its answer",
            seconds(),
        );
        let whole =
            add(api, "request_seconds", "From the end of a request to the end of its answer", seconds());
        Metrics { registry, requests, open, texts, connections, read, written, first_token, whole }
    }

    /// A request for texts begins; it ends when the guard is dropped.
    pub(super) fn request(&self, endpoint: Endpoint) -> OpenRequest {
        self.open.inc();
        OpenRequest {
            endpoint: endpoint.word(),
            result: CLIENT_GONE,
            since: Instant::now(),
            wrote: false,
            requests: self.requests.clone(),
            open: self.open.clone(),
            read: self.read.clone(),
            written: self.written.clone(),
            first_token: self.first_token.clone(),
            whole: self.whole.clone(),
        }
    }

    /// All of it as text; `texts` and `connections` as they are now.
    pub(super) fn text(&self, texts: usize, connections: usize) -> String {
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.texts.set(gauge(texts));
        self.connections.set(gauge(connections));
        let mut text = String::new();
        // A string takes everything; nothing else of it can fail.
        let _ = prometheus_text::encode(&mut text, &self.registry);
        text
    }
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &'static str, help: &'static str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// A request that is being answered. Dropping it ends it, once.
#[derive(Debug)]
pub(super) struct OpenRequest {
    endpoint: &'static str,
    result: &'static str,
    since: Instant,
    wrote: bool,
    requests: Family<Labels, Counter>,
    open: Gauge,
    read: Counter,
    written: Counter,
    first_token: Histogram,
    whole: Histogram,
}

impl OpenRequest {
    /// What will have become of it.
    pub(super) fn ends_for(&mut self, result: &'static str) {
        self.result = result;
    }

    /// Its prompts had so many tokens.
    pub(super) fn read(&self, tokens: usize) {
        self.read.inc_by(tokens as u64);
    }

    /// A token of its answer is there.
    pub(super) fn wrote(&mut self) {
        self.written.inc();
        if !self.wrote {
            self.wrote = true;
            self.first_token.observe(self.since.elapsed().as_secs_f64());
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.open.dec();
        self.whole.observe(self.since.elapsed().as_secs_f64());
        self.requests.get_or_create(&[("endpoint", self.endpoint), ("result", self.result)]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_once_whatever_ends_it() {
        let metrics = Metrics::new(Registry::default());
        let mut finished = metrics.request(Endpoint::Chat);
        let gone = metrics.request(Endpoint::Chat);
        assert!(metrics.text(2, 1).contains("kvasir_serve_requests_open 2\n"));
        finished.wrote();
        finished.wrote();
        finished.ends_for("finished");
        drop((finished, gone));
        let text = metrics.text(0, 1);
        for line in [
            "kvasir_serve_requests_open 0",
            "kvasir_serve_connections_open 1",
            "kvasir_serve_written_tokens_total 2",
            "kvasir_serve_first_token_seconds_count 1",
            "kvasir_serve_requests_total{endpoint=\"chat_completions\",result=\"finished\"} 1",
            "kvasir_serve_requests_total{endpoint=\"chat_completions\",result=\"client_gone\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
    }
}
