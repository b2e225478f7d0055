//! What the engine counts, for Prometheus, in the registry that the API's own figures stand in too.
//!
//! Nothing is kept here: figures are read when somebody asks for them. Labels hold words of this program and numbers of
//! layers alone, so that the number of series is fixed by source and model.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kvasir_dispatch::{Statistics, Watcher};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::api::METRICS_PREFIX;
use crate::batched::Batched;
use crate::scheduler::{Figures, WAIT_BUCKETS, Waits};

/// A registry with the figures of `engine`, and of the swarm where there is one.
pub fn registry(engine: &Arc<Batched>, watcher: Option<Watcher>) -> Registry {
    let mut registry = Registry::default();
    let figures = EngineFigures { engine: Arc::clone(engine), watcher };
    registry.sub_registry_with_prefix(METRICS_PREFIX).register_collector(Box::new(figures));
    registry
}

struct EngineFigures {
    engine: Arc<Batched>,
    watcher: Option<Watcher>,
}

impl fmt::Debug for EngineFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EngineFigures")
    }
}

impl Collector for EngineFigures {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let scheduler = self.engine.scheduler();
        let mut told = Told(encoder);
        told.scheduler(&scheduler.figures())?;
        told.layers(&scheduler.layer_waits())?;
        match &self.watcher {
            Some(watcher) => told.swarm(&watcher.statistics()),
            None => Ok(()),
        }
    }
}

/// Writes figures down.
struct Told<'a>(DescriptorEncoder<'a>);

impl Told<'_> {
    fn scheduler(&mut self, figures: &Figures) -> fmt::Result {
        self.gauge("texts_running", "Texts being written by the engine now", figures.running as u64)?;
        self.gauge("texts_queued", "Texts that wait for the engine now", figures.waiting as u64)?;
        self.gauge("waves", "Waves wanted now", figures.waves as u64)?;
        self.gauge("passes_open", "Passes under way now", figures.passes_under_way as u64)?;
        self.gauge("text_memory_bytes", "Memory that texts may take now", figures.memory_taken)?;
        self.gauge("text_memory_limit_bytes", "Memory that there is for texts", figures.memory_limit)?;
        self.counter("passes", "Finished passes: each asks the experts of every layer once", figures.passes)?;
        self.counter("rows", "Rows of finished passes; by passes, the rows of a call", figures.rows)?;
        self.counter("prompt_rows", "Rows of prompts among them", figures.prompt_rows)?;
        self.counter("engine_tokens", "Tokens that the engine wrote", figures.tokens)?;
        let texts =
            [("finished", figures.finished), ("cancelled", figures.cancelled), ("failed", figures.failed)];
        self.counters("texts", "Texts by how they ended in the engine", "result", &texts)?;
        let seconds = |time: Duration| time.as_secs_f64();
        self.counter("computing_seconds", "Time that the engine computed", seconds(figures.computing))?;
        let blocked = "Time that the engine waited for experts with nothing else to compute";
        self.counter("blocked_seconds", blocked, seconds(figures.blocked))?;
        let waited = "Time that passes waited for experts, summed over passes";
        self.counter("waited_seconds", waited, seconds(figures.waited))?;
        self.waits("call_wait_seconds", "How long calls to experts were waited for", &figures.call_waits)
    }

    fn layers(&mut self, layers: &[Waits]) -> fmt::Result {
        let help = "What half and 99 of 100 waits for a layer's experts did not exceed, to a factor of two";
        let mut metric = self.0.encode_descriptor("layer_wait_seconds", help, None, MetricType::Gauge)?;
        for (layer, waits) in layers.iter().enumerate() {
            let layer = layer.to_string();
            for (quantile, hundredths) in [("0.5", 50), ("0.99", 99)] {
                let labels = [("layer", layer.as_str()), ("quantile", quantile)];
                metric.encode_family(&labels)?.encode_gauge(&waits.at(hundredths).as_secs_f64())?;
            }
        }
        Ok(())
    }

    fn swarm(&mut self, statistics: &Statistics) -> fmt::Result {
        let connected = statistics.workers.iter().filter(|worker| worker.connected);
        self.gauge("workers", "Sessions with workers now", connected.count() as u64)?;
        self.counter("remote_calls", "Messages that asked a worker for something", statistics.remote_calls)?;
        self.counter("remote_answers", "Answers of workers that were accepted", statistics.accepted)?;
        let rows = statistics.workers.iter().map(|worker| worker.rows).sum::<u64>();
        self.counter("remote_rows", "Rows of those; by answers, the rows of a remote call", rows)?;
        self.counter("round_trips", "Calls that waited for at least one worker", statistics.round_trips)?;
        self.counter("local_calls", "Calls that asked no worker", statistics.local_calls)?;
        let failures = [
            ("deadline", statistics.deadlines_missed),
            ("link", statistics.links_lost),
            ("answer", statistics.answers_refused),
            ("wrong", statistics.answers_wrong),
        ];
        let help = "Workers that failed at a part of a call, by how";
        self.counters("worker_failures", help, "how", &failures)?;
        let help = "Parts of calls that were computed here after workers were asked";
        self.counter("failovers", help, statistics.failovers)?;
        let hedges =
            "Parts of calls that another worker was asked for, because one was late, lost or refused";
        self.counter("hedges", hedges, statistics.hedges)?;
        let checked = "Answers that were computed again here before they were used";
        self.counter("answers_checked", checked, statistics.answers_checked)?;
        let bytes = [("up", statistics.bytes_up), ("down", statistics.bytes_down)];
        self.counters("remote_bytes", "Payload bytes of calls and results", "direction", &bytes)?;
        let credit = statistics.workers.iter().map(|worker| worker.receipted_nano_kvr).sum::<u64>();
        self.counter("receipted_nanokvr", "Credit in receipts that workers countersigned", credit)
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// A counter for each word of one label.
    fn counters(&mut self, name: &str, help: &str, label: &str, words: &[(&str, u64)]) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for &(word, value) in words {
            let labels = [(label, word)];
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn waits(&mut self, name: &str, help: &str, waits: &Waits) -> fmt::Result {
        let upper = |bucket: usize| match bucket {
            last if last + 1 == WAIT_BUCKETS => f64::INFINITY,
            bucket => (1u64 << bucket) as f64 / 1e6,
        };
        let buckets: Vec<(f64, u64)> =
            waits.counts().iter().enumerate().map(|(bucket, count)| (upper(bucket), *count)).collect();
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(waits.total().as_secs_f64(), waits.calls(), &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use kvasir_dispatch::WorkerStatistics;
    use prometheus_client::encoding::prometheus_text;

    use super::*;

    /// Tells the same whenever it is asked.
    #[derive(Debug)]
    struct Fixed {
        figures: Figures,
        layers: Vec<Waits>,
        statistics: Statistics,
    }

    impl Collector for Fixed {
        fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
            let mut told = Told(encoder);
            told.scheduler(&self.figures)?;
            told.layers(&self.layers)?;
            told.swarm(&self.statistics)
        }
    }

    #[test]
    fn figures_are_told_by_name() {
        let figures = Figures {
            waves: 3,
            passes: 5,
            rows: 40,
            cancelled: 2,
            waited: Duration::from_millis(1500),
            ..Figures::default()
        };
        let worker = WorkerStatistics {
            connected: true,
            rows: 12,
            receipted_nano_kvr: 70,
            ..WorkerStatistics::default()
        };
        let statistics = Statistics {
            accepted: 4,
            deadlines_missed: 1,
            answers_wrong: 2,
            hedges: 6,
            failovers: 7,
            workers: vec![worker.clone(), WorkerStatistics { connected: false, ..worker }],
            ..Statistics::default()
        };
        let mut registry = Registry::default();
        let fixed = Fixed { figures, layers: vec![Waits::default(); 2], statistics };
        registry.sub_registry_with_prefix(METRICS_PREFIX).register_collector(Box::new(fixed));
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry).unwrap();
        for line in [
            "kvasir_serve_waves 3",
            "kvasir_serve_rows_total 40",
            "kvasir_serve_texts_total{result=\"cancelled\"} 2",
            "kvasir_serve_waited_seconds_total 1.5",
            "kvasir_serve_call_wait_seconds_count 0",
            "kvasir_serve_workers 1",
            "kvasir_serve_remote_answers_total 4",
            "kvasir_serve_remote_rows_total 24",
            "kvasir_serve_worker_failures_total{how=\"deadline\"} 1",
            "kvasir_serve_worker_failures_total{how=\"wrong\"} 2",
            "kvasir_serve_hedges_total 6",
            "kvasir_serve_failovers_total 7",
            "kvasir_serve_receipted_nanokvr_total 140",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
        let layer = "kvasir_serve_layer_wait_seconds{layer=\"1\",quantile=\"0.99\"} ";
        assert!(text.lines().any(|found| found.starts_with(layer)), "{text}");
    }
}
