//! N streams of M tokens each, written together; and what the scheduler did meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use kvasir_backbone::{Backbone, Experts, Feed, Finish, MAX_ROWS, SamplerOptions, TokenId, Wanted};
use kvasir_dispatch::Watcher;
use kvasir_operate::local::Local;
use kvasir_serve::scheduler::{End, Reader, Request, Scheduler, SchedulerOptions, WaveOptions};
use serde_json::{Value, json};

/// Tokens of each stream before those that are measured and after them, so that all streams write meanwhile if they are no
/// further apart than that. Counters of the time that all have in common say what the rate is if they are.
const EDGE: usize = 4;

/// How often each of this machine's experts is picked, on average, by the text that has them loaded.
const PICKS_EACH: usize = 16;

/// Has this machine's experts loaded, as workers have theirs before they are asked: the first picks of measured texts would
/// pay for it.
///
/// # Errors
/// Where the text cannot be read.
pub fn load_experts(local: &Local) -> Result<()> {
    let config = local.model.config();
    let picks = PICKS_EACH * config.experts as usize;
    let tokens = picks.div_ceil((config.experts_per_token as usize).max(1));
    let tokens = prompt(0, tokens.min(MAX_ROWS).min(local.backbone.context_limit()), config.vocabulary);
    let mut sequence = local.backbone.start();
    let mut feeds = [Feed { sequence: &mut sequence, tokens: &tokens, logits: Wanted::None }];
    local.backbone.forward(&mut feeds, &mut local.experts()).context("cannot load this machine's experts")?;
    Ok(())
}

/// How streams are measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Measured tokens of each stream.
    pub tokens: usize,
    /// Streams are written again and again until they took so long, in seconds; once at least.
    pub seconds: f64,
    /// Passes under way at most.
    pub waves: usize,
    /// Bytes for streams and passes.
    pub memory: u64,
}

impl Plan {
    /// Tokens that a stream holds.
    pub fn context(&self) -> usize {
        self.prompt + self.tokens + 2 * EDGE
    }

    /// So many streams through `experts`, after a short time that does not count: the scheduler learns how many waves it
    /// wants, and the swarm how long workers take.
    ///
    /// # Errors
    /// Where a stream is not taken, or does not come to its end.
    pub fn measure<E: Experts + 'static>(
        &self,
        backbone: &Arc<Backbone>,
        experts: E,
        streams: usize,
        watcher: Option<&Watcher>,
    ) -> Result<Round> {
        let waves = WaveOptions {
            // Prompts are not measured: the fewer passes they take, the closer streams are together.
            prefill_rows: (streams * self.prompt).clamp(WaveOptions::PREFILL_ROWS, WaveOptions::MOST_TEXTS),
            waves: self.waves,
            texts: streams,
            memory: self.memory,
        };
        let options = SchedulerOptions { waves, queue: streams };
        let scheduler = Scheduler::start(Arc::clone(backbone), experts, options)
            .context("the operating system gives no thread")?;
        let vocabulary = backbone.model().config().vocabulary;
        let first = Plan { tokens: (self.tokens / 4).max(1), ..*self };
        first.write(&scheduler, vocabulary, streams, watcher)?;
        let mut round = Round::default();
        loop {
            let written = self.write(&scheduler, vocabulary, streams, watcher)?;
            round.add(written.with_context(|| {
                format!(
                    "{streams} streams were never all written at the same time: measure more tokens of each"
                )
            })?);
            if round.seconds >= self.seconds {
                break;
            }
        }
        scheduler.finish();
        Ok(round)
    }

    /// All streams once. Nothing where there was no time at which all of them were within what is measured.
    fn write(
        &self,
        scheduler: &Scheduler,
        vocabulary: u32,
        streams: usize,
        watcher: Option<&Watcher>,
    ) -> Result<Option<Round>> {
        let (tell, told) = mpsc::channel();
        for number in 0..streams {
            let request = Request {
                prompt: prompt(number, self.prompt, vocabulary),
                max_tokens: self.tokens + 2 * EDGE,
                stop: Vec::new(),
                sampler: SamplerOptions::default(),
            };
            let stream =
                Stream { written: 0, begin: EDGE, end: EDGE + self.tokens, begun: None, tell: tell.clone() };
            scheduler.submit(request, Box::new(stream)).map_err(|refused| anyhow!("{refused}"))?;
        }
        drop(tell);

        let (mut begun, mut took) = (0, Vec::new());
        // Counters while all streams are within what is measured of them, and the waves that there are then.
        let (mut before, mut after, mut waves) = (None, None, 0);
        for news in told {
            match news {
                News::Begun => {
                    begun += 1;
                    if begun == streams && took.is_empty() {
                        before = Some(counters(scheduler, watcher));
                    }
                }
                News::Whole(time) => {
                    if after.is_none() && before.is_some() {
                        after = Some(counters(scheduler, watcher));
                        waves = scheduler.figures().waves;
                    }
                    took.push(time);
                }
                News::Failed(why) => bail!("a stream ended early: {why}"),
            }
        }
        if took.len() != streams {
            bail!("{} of {streams} streams came to their end", took.len());
        }
        let (Some(before), Some(after)) = (before, after) else { return Ok(None) };
        let mean = took.iter().sum::<Duration>().as_secs_f64() / streams as f64;
        Ok(Some(Round {
            tokens: streams * self.tokens,
            seconds: mean,
            waves,
            counters: after.into_iter().map(|(name, value)| (name, value - before[name])).collect(),
        }))
    }
}

/// Tokens that look like no text, others for each stream. The same numbers give the same tokens.
fn prompt(stream: usize, tokens: usize, vocabulary: u32) -> Arc<[TokenId]> {
    let token = |at: usize| (at as u32).wrapping_mul(2_654_435_761) % vocabulary;
    (0..tokens).map(|at| TokenId(token(stream * 8191 + at + 1))).collect()
}

/// What the scheduler's thread tells of a stream.
enum News {
    /// From here on its tokens count.
    Begun,
    /// The last token that counts, so long after the first.
    Whole(Duration),
    /// It ended otherwise.
    Failed(String),
}

/// Reads one stream.
struct Stream {
    written: usize,
    begin: usize,
    end: usize,
    begun: Option<Instant>,
    tell: Sender<News>,
}

impl Stream {
    /// Whoever listened may have given up.
    fn tell(&self, news: News) {
        drop(self.tell.send(news));
    }
}

impl Reader for Stream {
    fn chosen(&mut self, _token: TokenId, _logits: &[f32]) {
        self.written += 1;
        if self.written == self.begin {
            self.begun = Some(Instant::now());
            self.tell(News::Begun);
        } else if self.written == self.end
            && let Some(begun) = self.begun
        {
            self.tell(News::Whole(begun.elapsed()));
        }
    }

    fn ended(self: Box<Self>, end: End) {
        match end {
            End::Finished(Finish::Length) => {}
            other => self.tell(News::Failed(format!("{other:?}"))),
        }
    }
}

/// Figures by name.
type Counters = BTreeMap<&'static str, f64>;

fn counters(scheduler: &Scheduler, watcher: Option<&Watcher>) -> Counters {
    let figures = scheduler.figures();
    let mut counters = Counters::from([
        ("seconds", since_the_start()),
        ("computing_seconds", figures.computing.as_secs_f64()),
        ("blocked_seconds", figures.blocked.as_secs_f64()),
        ("waited_seconds", figures.waited.as_secs_f64()),
        ("passes", figures.passes as f64),
        ("rows", figures.rows as f64),
    ]);
    if let Some(watcher) = watcher {
        let statistics = watcher.statistics();
        let rows = statistics.workers.iter().map(|worker| worker.rows).sum::<u64>();
        counters.extend([
            ("round_trips", statistics.round_trips as f64),
            ("remote_rows", rows as f64),
            ("answers", statistics.accepted as f64),
            ("bytes", statistics.bytes() as f64),
            ("checked", statistics.answers_checked as f64),
            ("hedges", statistics.hedges as f64),
            ("failovers", statistics.failovers as f64),
        ]);
    }
    counters
}

fn since_the_start() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// What one round measured.
#[derive(Debug, Default)]
pub struct Round {
    tokens: usize,
    /// Time that a stream took for its measured tokens, summed over repetitions.
    seconds: f64,
    /// Wanted when the first stream was through, in the last repetition.
    waves: usize,
    counters: Counters,
}

impl Round {
    fn add(&mut self, other: Round) {
        self.tokens += other.tokens;
        self.seconds += other.seconds;
        self.waves = other.waves;
        for (name, value) in other.counters {
            *self.counters.entry(name).or_default() += value;
        }
    }

    fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

/// All rounds of one kind.
#[derive(Debug, Default)]
pub struct Rounds(Vec<Round>);

impl Rounds {
    /// Takes in one more.
    pub fn add(&mut self, round: Round) {
        self.0.push(round);
    }

    /// Tokens that were measured.
    pub fn tokens(&self) -> usize {
        self.0.iter().map(|round| round.tokens).sum()
    }

    /// The median rate, and shares over all rounds; nothing where there was no round.
    pub fn report(&self) -> Value {
        let runs: Vec<f64> = self.0.iter().map(Round::rate).collect();
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        let (Some(median), Some(last)) = (sorted.get(sorted.len() / 2), self.0.last()) else {
            return Value::Null;
        };
        let mut sums = Counters::new();
        for (name, value) in self.0.iter().flat_map(|round| &round.counters) {
            *sums.entry(*name).or_default() += value;
        }
        let of = |name: &str| sums.get(name).copied().unwrap_or_default();
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        json!({
            "tokens_per_second": median, "runs": runs, "waves": last.waves, "tokens": self.tokens(),
            "computing_share": ratio(of("computing_seconds"), of("seconds")),
            "waiting_share": ratio(of("blocked_seconds"), of("seconds")),
            "rows_per_pass": ratio(of("rows"), of("passes")),
            "rows_per_round_trip": ratio(of("remote_rows"), of("round_trips")),
            "wait_per_pass_ms": 1e3 * ratio(of("waited_seconds"), of("passes")),
            "compute_per_pass_ms": 1e3 * ratio(of("computing_seconds"), of("passes")),
            "counters": sums,
        })
    }
}
