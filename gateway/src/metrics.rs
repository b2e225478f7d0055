//! Figures for Prometheus, all named `kvasir_gateway_*`.
//!
//! Labels hold words of this program and nothing else - no key, no address, no path - so the number of series is fixed by
//! the source. What has a beginning and an end is counted by a guard whose drop is the end: whatever ends a session, it is
//! counted once.

use std::fmt::Debug;

use prometheus_client::{
    encoding::prometheus_text,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Metric, Registry},
};

use crate::descriptors::{self, DescriptorLimit};

/// What every name begins with.
const PREFIX: &str = "kvasir_gateway";
/// Type of the answer to whoever asks for the figures.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One label and its word.
pub type Label = [(&'static str, &'static str); 1];

/// A counter for each word of one label.
#[derive(Clone, Debug)]
pub struct Words {
    label: &'static str,
    family: Family<Label, Counter>,
}

impl Words {
    /// Counts one more of a word.
    pub fn count(&self, word: &'static str) {
        self.family.get_or_create(&[(self.label, word)]).inc();
    }

    /// How often a word was counted.
    pub fn counted(&self, word: &'static str) -> u64 {
        self.family.get(&[(self.label, word)]).map_or(0, |counter| counter.get())
    }
}

/// Registers figures under the common prefix.
#[derive(Debug)]
pub struct Register(Registry);

impl Register {
    /// Nothing registered.
    pub fn new() -> Self {
        Register(Registry::with_prefix(PREFIX))
    }

    /// Registers a figure; a counter's name without its `_total`.
    pub fn add<M: Metric + Clone>(&mut self, name: &'static str, help: &'static str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        metric
    }

    /// Registers a counter for each word of a label.
    pub fn words(&mut self, name: &'static str, label: &'static str, help: &'static str) -> Words {
        Words { label, family: self.add(name, help, Family::default()) }
    }

    /// All of it as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // A string takes everything; nothing else of it can fail.
        let _ = prometheus_text::encode(&mut text, &self.0);
        text
    }
}

impl Default for Register {
    fn default() -> Self {
        Self::new()
    }
}

/// What edge and hub both count at their door.
#[derive(Clone, Debug)]
pub struct DoorMetrics {
    /// Connections accepted, those closed unread included.
    pub accepts: Counter,
    /// Connections refused, by reason.
    pub refused: Words,
    /// What became of connections that were let in.
    pub handshakes: Words,
    sessions: Gauge,
    closed: Words,
    connections: Gauge,
    unauthenticated: Gauge,
    open_descriptors: Gauge,
    max_descriptors: Gauge,
}

impl DoorMetrics {
    /// Registers them.
    pub fn new(register: &mut Register) -> Self {
        DoorMetrics {
            accepts: register.add(
                "accepts",
                "Connections accepted, those closed unread included",
                Counter::default(),
            ),
            refused: register.words("refused", "reason", "Connections and links refused"),
            handshakes: register.words("handshakes", "result", "What became of connections that were let in"),
            sessions: register.add("sessions_open", "Sessions open now", Gauge::default()),
            closed: register.words("sessions_closed", "reason", "Sessions that ended"),
            connections: register.add("connections_open", "Connections open now", Gauge::default()),
            unauthenticated: register.add(
                "connections_without_ticket",
                "Connections open now that have shown no ticket yet",
                Gauge::default(),
            ),
            open_descriptors: register.add(
                "open_descriptors",
                "Descriptors that this process has open",
                Gauge::default(),
            ),
            max_descriptors: register.add(
                "max_descriptors",
                "Descriptors that this process may have open; 0: no limit",
                Gauge::default(),
            ),
        }
    }

    /// A session begins; it ends when the guard is dropped.
    pub fn session(&self) -> OpenSession {
        self.sessions.inc();
        OpenSession { sessions: self.sessions.clone(), closed: self.closed.clone(), reason: "dropped" }
    }

    /// Sessions open now.
    pub fn sessions_open(&self) -> i64 {
        self.sessions.get()
    }

    /// Brings what is asked for only now up to date: connections, those without a ticket, and descriptors.
    pub fn look(&self, (connections, unauthenticated): (usize, usize), limit: DescriptorLimit) {
        self.connections.set(gauge(connections as u64));
        self.unauthenticated.set(gauge(unauthenticated as u64));
        self.open_descriptors.set(gauge(descriptors::open().unwrap_or(0)));
        self.max_descriptors.set(gauge(limit.get().unwrap_or(0)));
    }
}

/// A session that is open. Dropping it closes it, once.
#[derive(Debug)]
pub struct OpenSession {
    sessions: Gauge,
    closed: Words,
    reason: &'static str,
}

impl OpenSession {
    /// What it will have ended for; unless said, it was dropped.
    pub fn ends_for(&mut self, reason: &'static str) {
        self.reason = reason;
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.sessions.dec();
        self.closed.count(self.reason);
    }
}

/// A count as a gauge's value.
pub fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_closed_once_whatever_ends_it() {
        let mut register = Register::new();
        let door = DoorMetrics::new(&mut register);
        let mut finished = door.session();
        let dropped = door.session();
        assert_eq!(door.sessions_open(), 2);
        finished.ends_for("finished");
        drop(finished);
        drop(dropped);
        let panics = door.clone();
        let panicked = std::thread::spawn(move || {
            let _session = panics.session();
            panic!("a session's task");
        })
        .join();
        assert!(panicked.is_err());
        assert_eq!(door.sessions_open(), 0);
        assert_eq!((door.closed.counted("finished"), door.closed.counted("dropped")), (1, 2));
    }

    #[test]
    fn the_text_has_the_names_that_the_document_says() {
        let mut register = Register::new();
        let door = DoorMetrics::new(&mut register);
        door.accepts.inc();
        door.refused.count("descriptors");
        door.look((3, 1), DescriptorLimit::new(Some(1024)));
        let text = register.text();
        for line in [
            "# TYPE kvasir_gateway_accepts_total counter",
            "kvasir_gateway_accepts_total 1",
            "kvasir_gateway_refused_total{reason=\"descriptors\"} 1",
            "kvasir_gateway_connections_open 3",
            "kvasir_gateway_connections_without_ticket 1",
            "kvasir_gateway_max_descriptors 1024",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in:\n{text}");
        }
    }
}
