//! Figures in the form that all benchmarks report.

use std::time::Instant;

use serde_json::{Value, json};

/// A list of {name, value, unit, aim, better, met, note}.
#[derive(Default)]
pub struct Figures(Vec<Value>);

impl Figures {
    /// A figure without an aim.
    pub fn plain(&mut self, name: &str, value: f64, unit: &str, note: String) {
        self.push(name, value, unit, None, note);
    }

    /// A figure that should reach its aim.
    pub fn at_least(&mut self, name: &str, value: f64, unit: &str, aim: f64, note: String) {
        self.push(name, value, unit, Some(("higher", aim, value >= aim)), note);
    }

    /// A figure that should stay below its aim.
    pub fn at_most(&mut self, name: &str, value: f64, unit: &str, aim: f64, note: String) {
        self.push(name, value, unit, Some(("lower", aim, value <= aim)), note);
    }

    /// All of them.
    pub fn into_list(self) -> Vec<Value> {
        self.0
    }

    fn push(&mut self, name: &str, value: f64, unit: &str, aim: Option<(&str, f64, bool)>, note: String) {
        let rounded = if value < 10.0 { (value * 1_000.0).round() / 1_000.0 } else { value.round() };
        let (better, aim, met) =
            aim.map_or((None, None, None), |(better, aim, met)| (Some(better), Some(aim), Some(met)));
        self.0.push(json!({
            "name": name, "value": rounded, "unit": unit, "aim": aim, "better": better, "met": met, "note": note
        }));
    }
}

/// Seconds that something took, and what came of it.
pub fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed().as_secs_f64(), result)
}
