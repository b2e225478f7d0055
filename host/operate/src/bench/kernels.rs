//! `kvasir bench kernels`: how fast experts are evaluated, by format, shape, rows and implementation, beside the speed of memory.

use std::num::NonZeroUsize;
use std::time::Duration;

use anyhow::{Result, bail};
use kvasir_experts::Format;
use kvasir_experts::measure::{ExpertShape, MAX_EXPERTS, MAX_ROWS, MadeUpExperts, Timing, window};
use serde_json::{Value, json};

use super::contestant::{Contestant, Implementation, MeasureOptions, about};
use super::memory_read::{buffer_bytes, last_cache_bytes, read_rate};
use super::table::{Column, kernel_table};
use crate::memory::{MEBIBYTE, expert_bytes};
use crate::output;
use crate::progress::{LateLine, Spinner};
use crate::settings::Settings;

/// Formats measured where none is named: those of the usual files of these models.
pub const USUAL_FORMATS: [Format; 3] = [Format::Q4K, Format::Q6K, Format::Q8_0];
/// Rows an expert, where none are named.
pub const USUAL_ROWS: [usize; 5] = [1, 4, 16, 64, 512];
/// Weights of a measurement are at least so many times the last cache.
const TIMES_CACHE: u64 = 4;
/// Most weights of a measurement.
const WEIGHT_BYTES_MAX: u64 = 1024 * MEBIBYTE;
/// A figure is left out where one call would take so many times the time that it may have ...
const PATIENCE: f64 = 4.0;
/// ... and more than this.
const PATIENCE_AT_LEAST: Duration = Duration::from_millis(1500);

/// What `kvasir bench kernels` may be told.
pub struct KernelOptions {
    /// What both measurements of experts may be told.
    pub measure: MeasureOptions,
    /// Shapes of experts; nothing means those of [`Shape::KNOWN`].
    pub shapes: Vec<Shape>,
    /// Rows an expert is given at once; nothing means [`USUAL_ROWS`].
    pub rows: Vec<usize>,
}

/// The sides of an expert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// What it is called.
    pub name: String,
    /// Values of a row in and out.
    pub hidden: usize,
    /// Values between the matrices.
    pub width: usize,
    /// Experts of the whole model, where that is so small that its weights stay in the caches when it answers.
    pub experts: Option<usize>,
}

impl Shape {
    /// Models whose experts are known: name, hidden, width, experts of a small model.
    pub const KNOWN: [(&str, usize, usize, Option<usize>); 3] =
        [("122b", 3072, 1024, None), ("35b", 2048, 512, None), ("atlas", 256, 256, Some(64))];

    /// A known name, or `HIDDENxWIDTH`.
    ///
    /// # Errors
    /// Where it is neither.
    pub fn parse(text: &str) -> Result<Shape, String> {
        for (name, hidden, width, experts) in Shape::KNOWN {
            if name.eq_ignore_ascii_case(text) {
                return Ok(Shape { name: name.to_owned(), hidden, width, experts });
            }
        }
        let sides = text
            .split_once('x')
            .and_then(|(hidden, width)| Some((hidden.parse::<usize>().ok()?, width.parse::<usize>().ok()?)));
        let (hidden, width) = sides.ok_or_else(|| {
            format!("{text:?} is no shape: name 122b, 35b, atlas, or HIDDENxWIDTH such as 3072x1024")
        })?;
        Ok(Shape { name: text.to_owned(), hidden, width, experts: None })
    }
}

/// Reads the name of a format, as GGUF has it, in any case.
///
/// # Errors
/// Where there is no such format.
pub fn parse_format(text: &str) -> Result<Format, String> {
    Format::ALL.into_iter().find(|format| format.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
        let known: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
        format!("{text:?} is no format that is supported; these are: {}", known.join(", "))
    })
}

/// `kvasir bench kernels`.
///
/// # Errors
/// Where the options cannot be, or a measurement fails.
pub fn command(settings: &Settings, options: &KernelOptions, json: bool) -> Result<()> {
    let (budget, threads) = (options.measure.budget()?, options.measure.threads(settings)?);
    let rows = usual(&options.rows, &USUAL_ROWS);
    if let Some(wrong) = rows.iter().find(|rows| !(1..=MAX_ROWS).contains(*rows)) {
        bail!("--rows {wrong} is not between 1 and {MAX_ROWS}");
    }
    let formats = usual(&options.measure.formats, &USUAL_FORMATS);
    let known: Vec<Shape> = Shape::KNOWN.iter().filter_map(|(name, ..)| Shape::parse(name).ok()).collect();
    let shapes = usual(&options.shapes, &known);
    let implementations = usual(&options.measure.implementations, &Implementation::OF_EXPERTS);

    for shape in &shapes {
        for &format in &formats {
            ExpertShape { format, hidden: shape.hidden, width: shape.width }.check()?;
        }
    }

    let spinner = Spinner::new("reading memory");
    let late = (!json).then(|| LateLine::new("measuring experts; the usual selection takes about a minute"));
    let memory = MemoryRead::measure()?;
    spinner.say("checking and compiling the kernel");
    let contestants = Contestant::all(settings, &options.measure, &implementations, threads);
    let (mut measured, mut tables) = (Vec::new(), Vec::new());
    let cells = shapes.len() * formats.len();
    for (cell, (shape, format)) in
        shapes.iter().flat_map(|shape| formats.iter().map(move |format| (shape, *format))).enumerate()
    {
        let what = format!("{format} {} ({} of {cells})", output::name(&shape.name), cell + 1);
        let part = Part::new(shape, format, &rows)?;
        let mut columns = Vec::new();
        for contestant in &contestants {
            let figures = part.measure(contestant, threads, budget, |rows| {
                spinner.say(format!("{what}: {}, {rows} rows", contestant.name));
            })?;
            measured.extend(figures.iter().map(|figure| part.json(contestant, figure, &memory)));
            columns.push(Column { name: contestant.name.clone(), figures });
        }
        tables.push(kernel_table(&part, &rows, &columns));
    }
    drop((spinner, late));
    let adapter = contestants.iter().find_map(Contestant::adapter);
    if json {
        return output::object(&json!({
            "machine": super::machine(), "threads": threads, "memory_read": memory.json(),
            "gpu": adapter.as_ref().map(|adapter| json!({
                "name": adapter.name, "driver": adapter.driver, "kind": adapter.kind.to_string(),
            })),
            "measured": measured,
        }));
    }
    let head = format!(
        "{}; experts on {threads} thread{}. {}",
        super::machine(),
        if threads.get() == 1 { "" } else { "s" },
        memory.sentence()
    );
    let gpu = adapter.map_or(String::new(), |adapter| format!("{}\n", output::name(&about(&adapter))));
    output::line(format!("{head}\n{gpu}\n{}\n{}", tables.join("\n"), super::table::LEGEND))
}

/// How fast memory is read.
pub struct MemoryRead {
    /// Bytes per second on one thread.
    pub one: f64,
    /// Bytes per second on all threads of the machine.
    pub all: f64,
    /// How many those are.
    pub threads: usize,
    bytes: u64,
}

impl MemoryRead {
    /// Measures it in about a second and a half.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn measure() -> Result<MemoryRead> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (bytes, budget) = (buffer_bytes(), Duration::from_millis(500));
        let one = read_rate(1, bytes, budget)?;
        let all = if threads == 1 { one } else { read_rate(threads, bytes, budget)? };
        Ok(MemoryRead { one, all, threads, bytes })
    }

    /// For machines.
    pub fn json(&self) -> Value {
        json!({
            "one_thread": self.one / 1e9, "all_threads": self.all / 1e9, "threads": self.threads, "unit": "GB/s",
            "buffer_bytes": self.bytes, "note": "best pass over a buffer far larger than the last cache",
        })
    }

    /// For people.
    pub fn sentence(&self) -> String {
        format!(
            "Memory is read at {:.1} GB/s by one thread, {:.1} GB/s by {}.",
            self.one / 1e9,
            self.all / 1e9,
            self.threads
        )
    }
}

/// One shape and format.
pub struct Part {
    /// The shape's name and sides.
    pub shape: Shape,
    experts: MadeUpExperts,
    rows: Vec<usize>,
}

/// One figure of a contestant, or the reason why there is none.
pub struct Figure {
    /// Rows an expert.
    pub rows: usize,
    /// What was measured.
    pub outcome: std::result::Result<Rates, String>,
}

/// What was measured.
#[derive(Clone, Copy)]
pub struct Rates {
    /// Microseconds an expert-row, the median.
    pub microseconds: f64,
    /// The same, of the fastest call.
    pub best: f64,
    /// Multiply-adds per second by the median.
    pub multiply_adds: f64,
    /// Bytes of weights per second by the median.
    pub weight_bytes: f64,
}

/// Refuses to make more experts up than half of what is free.
///
/// # Errors
/// With both figures.
pub fn check_memory(expert: ExpertShape, count: usize) -> Result<()> {
    let (needed, room) = ((expert.expert_bytes() as u64).saturating_mul(count as u64), expert_bytes(None));
    if needed > room {
        bail!(
            "{count} experts of {} with {} x {} have {} MiB, half of the free memory is {} MiB: choose a smaller shape or fewer experts",
            expert.format,
            expert.hidden,
            expert.width,
            needed / MEBIBYTE,
            room / MEBIBYTE
        );
    }
    Ok(())
}

impl Part {
    fn new(shape: &Shape, format: Format, rows: &[usize]) -> Result<Part> {
        let expert = ExpertShape { format, hidden: shape.hidden, width: shape.width };
        let wanted = last_cache_bytes().saturating_mul(TIMES_CACHE).clamp(128 * MEBIBYTE, WEIGHT_BYTES_MAX);
        // Natively and in the sandbox: what is free must hold them twice.
        let wanted = wanted.min(expert_bytes(None) / 2);
        let count = match shape.experts {
            Some(experts) => experts,
            None => (wanted.div_ceil(expert.expert_bytes().max(1) as u64) as usize).clamp(1, MAX_EXPERTS),
        };
        check_memory(expert, count)?;
        let most = rows.iter().copied().max().unwrap_or(1);
        let experts = MadeUpExperts::new(expert, count, most)?;
        Ok(Part { shape: shape.clone(), experts, rows: rows.to_vec() })
    }

    /// The shape with its format.
    pub fn expert(&self) -> ExpertShape {
        self.experts.shape()
    }

    /// How many experts take turns.
    pub fn experts(&self) -> usize {
        self.experts.count()
    }

    fn measure(
        &self,
        contestant: &Contestant,
        threads: NonZeroUsize,
        budget: Duration,
        mut begin: impl FnMut(usize),
    ) -> Result<Vec<Figure>> {
        let skip = |reason: &str| {
            let figure = |&rows| Figure { rows, outcome: Err(reason.to_owned()) };
            self.rows.iter().map(figure).collect()
        };
        let (Some(work), None) = (contestant.work(self.expert()), contestant.skipped()) else {
            return Ok(skip(contestant.skipped().unwrap_or("it cannot run")));
        };
        begin(0);
        if let Err(reason) = contestant.load(&self.experts) {
            return Ok(skip(&reason));
        }
        let mut figures = Vec::new();
        let mut seconds_a_row: Option<f64> = None;
        for &rows in &self.rows {
            begin(rows);
            // Enough work in a call that its own costs do not count, an equal share for every thread.
            let at_once = threads.get() * (32 / rows).max(1);
            let expected = seconds_a_row.unwrap_or(0.0) * (rows * threads.get()) as f64;
            let patience = (budget.as_secs_f64() * PATIENCE).max(PATIENCE_AT_LEAST.as_secs_f64());
            if expected > patience {
                let reason = format!("one call would take {expected:.0} s; a longer --seconds measures it");
                figures.push(Figure { rows, outcome: Err(reason) });
                continue;
            }
            let timing = contestant
                .time(&self.experts, threads, budget, |turn| window(turn, at_once, self.experts(), rows));
            let timing = match timing {
                Ok(timing) => timing,
                // A GPU may fail by its deadline alone; the others are measured all the same.
                Err(error) if contestant.adapter().is_some() => {
                    figures.push(Figure { rows, outcome: Err(format!("{error:#}")) });
                    continue;
                }
                Err(error) => return Err(error),
            };
            seconds_a_row = Some(timing.best_seconds);
            figures.push(Figure { rows, outcome: Ok(rates(&timing, work)) });
        }
        contestant.unload(&self.experts);
        Ok(figures)
    }

    fn json(&self, contestant: &Contestant, figure: &Figure, memory: &MemoryRead) -> Value {
        let (shape, rows) = (self.expert(), figure.rows);
        let mut object = json!({
            "name": format!("{} {}x{} {rows} rows {}", shape.format, shape.hidden, shape.width, contestant.name),
            "value": null, "unit": "us an expert-row", "aim": null, "better": "lower", "met": null, "note": "",
            "format": shape.format.name(), "shape": self.shape.name, "hidden": shape.hidden, "width": shape.width,
            "rows": rows, "implementation": contestant.name, "experts": self.experts(),
        });
        match &figure.outcome {
            Ok(rates) => {
                object["value"] = json!(rates.microseconds);
                object["best"] = json!(rates.best);
                object["giga_multiply_adds_per_second"] = json!(rates.multiply_adds / 1e9);
                object["gigabytes_of_weights_per_second"] = json!(rates.weight_bytes / 1e9);
                object["share_of_one_thread_memory_read"] = json!(rates.weight_bytes / memory.one);
                object["note"] = json!("median of the calls");
            }
            Err(reason) => object["note"] = json!(format!("skipped: {reason}")),
        }
        object
    }
}

fn rates(timing: &Timing, (multiply_adds, weight_bytes): (u64, u64)) -> Rates {
    let seconds = timing.median_seconds;
    Rates {
        microseconds: seconds * 1e6,
        best: timing.best_seconds * 1e6,
        multiply_adds: multiply_adds as f64 / seconds,
        weight_bytes: weight_bytes as f64 / (seconds * timing.rows_per_expert()),
    }
}

fn usual<T: Clone>(named: &[T], usual: &[T]) -> Vec<T> {
    if named.is_empty() { usual.to_vec() } else { named.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_formats_are_known_by_name_or_told_what_there_is() {
        assert_eq!(Shape::parse("122B").unwrap().hidden, 3072);
        let own = Shape::parse("2048x768").unwrap();
        assert_eq!((own.hidden, own.width, own.experts), (2048, 768, None));
        for wrong in ["", "x", "12", "3072x", "-1x2", "3072x1024x4"] {
            assert!(Shape::parse(wrong).unwrap_err().contains("HIDDENxWIDTH"), "{wrong}");
        }
        assert_eq!(parse_format("q4_k"), Ok(Format::Q4K));
        assert!(parse_format("Q9_9").unwrap_err().contains("Q4_K"));
    }
}
