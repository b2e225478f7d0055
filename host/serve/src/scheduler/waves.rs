//! The waves: passes under way, of which one computes while the others wait for their experts.
//!
//! Texts that are in no pass stand in line. A pass is made of those at the head of the line whenever fewer passes are
//! under way than the policy wants, takes one step with them and puts them back at the end: so texts join and leave at
//! every step, and waves need no rebuilding when their number changes. Prompts are read in chunks beside the other
//! texts' tokens, a bounded number of rows a pass.
//!
//! The pass that computed last goes on as long as it can, until it waits for somebody or is over; then it is the turn of
//! the one that has been ready for longest. So passes stay apart: where few layers are remote, one of them runs through
//! all the others while the first one waits. For the same reason the pass that begins where one is over goes on in its
//! place: if it stood behind all that are ready, their calls would go out together, and so would their answers come. It
//! does so only where that one has waited, or the others would wait for ever.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvasir_backbone::{
    Backbone, CallId, Completed, Experts, ExpertsError, MAX_ROWS, Outcome, Pass, Progress, Step,
};

use super::answers::{Alone, Answered, Answers};
use super::figures::{Figures, Waits};
use super::memory::Memory;
use super::options::WaveOptions;
use super::policy::{Measured, Policy};
use super::text::{Feed, Text};

/// What a turn was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Something was computed.
    Computed,
    /// There was nothing to do but to wait for experts.
    Waited,
    /// There is no text.
    Idle,
}

/// Texts in waves, over experts that compute somewhere.
pub(super) struct Waves<E: Experts> {
    backbone: Arc<Backbone>,
    experts: E,
    options: WaveOptions,
    memory: Memory,
    policy: Policy,
    answers: Answers,
    /// In no pass.
    line: VecDeque<Text>,
    flights: Vec<Flight>,
    /// Flights that can go on, by name, in the order in which they could.
    ready: VecDeque<u64>,
    /// The flight that computed last.
    latest: Option<u64>,
    /// That one is over, and the next to begin goes on in its place.
    goes_on: bool,
    next_name: u64,
    figures: Figures,
    layer_waits: Arc<LayerWaits>,
}

/// How long the calls of each layer were waited for: what the thread counts and others read.
pub(super) type LayerWaits = Mutex<Vec<Waits>>;

/// A pass under way.
struct Flight {
    name: u64,
    pass: Pass,
    /// Its members in order.
    riders: Vec<Rider>,
    rows: usize,
    /// When its latest call went out, until it is answered.
    asked: Option<Instant>,
    /// No other was out when it went.
    first: bool,
    /// It has waited while others might have gone on.
    gave_way: bool,
    compute: Duration,
    /// How long its calls would have waited without other passes.
    alone: Alone,
}

struct Rider {
    text: Text,
    feed: Feed,
    taken_out: bool,
}

impl<E: Experts> Waves<E> {
    pub(super) fn new(backbone: Arc<Backbone>, experts: E, options: WaveOptions) -> Waves<E> {
        let options = options.bounded();
        let memory = Memory::new(&backbone, options.memory, options.prefill_rows);
        let figures = Figures { memory_limit: memory.budget(), ..Figures::default() };
        let layers = backbone.model().config().layers as usize;
        Waves {
            backbone,
            experts,
            options,
            memory,
            policy: Policy::default(),
            answers: Answers::new(layers),
            line: VecDeque::new(),
            flights: Vec::new(),
            ready: VecDeque::new(),
            latest: None,
            goes_on: false,
            next_name: 0,
            figures,
            layer_waits: Arc::new(Mutex::new(vec![Waits::default(); layers])),
        }
    }

    /// Where the waits of each layer are counted.
    pub(super) fn layer_waits(&self) -> Arc<LayerWaits> {
        Arc::clone(&self.layer_waits)
    }

    /// Whether a text may join now.
    pub(super) fn has_room(&self, text: &Text) -> bool {
        self.texts() < self.options.texts && self.memory.fits(text.limit())
    }

    /// Takes in a text that there is room for; it has its first step with the next pass that begins.
    pub(super) fn join(&mut self, text: Text) {
        self.memory.take(text.limit());
        self.line.push_back(text);
    }

    /// Takes in that texts were given up before they joined.
    pub(super) fn count_cancelled(&mut self, texts: usize) {
        self.figures.cancelled += texts as u64;
    }

    /// Texts that are being written.
    pub(super) fn texts(&self) -> usize {
        self.line.len() + self.flights.iter().map(|flight| flight.riders.len()).sum::<usize>()
    }

    /// Its counters, and the state of the moment; texts that wait elsewhere are not among them.
    pub(super) fn figures(&self) -> Figures {
        Figures {
            running: self.texts(),
            waves: self.policy.waves(),
            passes_under_way: self.flights.len(),
            memory_taken: self.memory.taken(),
            ..self.figures
        }
    }

    /// Computes a layer of one pass; where none can go on, waits for experts, until `until` at the longest.
    pub(super) fn turn(&mut self, until: Instant) -> Turn {
        let backbone = Arc::clone(&self.backbone);
        // What experts compute on this thread is shared out too.
        backbone.within(|| {
            self.look();
            self.let_go();
            self.form();
            self.flights.iter_mut().for_each(|flight| flight.gave_way |= flight.asked.is_some());
            if let Some(at) = self.next_ready() {
                self.advance(at);
                Turn::Computed
            } else if self.flights.is_empty() {
                Turn::Idle
            } else {
                let began = Instant::now();
                let until = match self.flights.iter_mut().find(|flight| !flight.pass.is_ready()) {
                    Some(flight) => backbone.stand_by(&mut flight.pass, &self.experts, until),
                    None => until,
                };
                let found = self.experts.poll(Some(until));
                self.figures.blocked += began.elapsed();
                self.take_in(found, Duration::ZERO);
                Turn::Waited
            }
        })
    }

    /// Takes in what was answered meanwhile, without waiting for more.
    fn look(&mut self) {
        while self.flights.iter().any(|flight| !flight.pass.is_ready()) {
            let began = Instant::now();
            let found = self.experts.poll(Some(began));
            if matches!(found, Ok(Progress::Pending)) {
                return;
            }
            // A look waits for nothing, so what takes time is that experts computed here.
            self.take_in(found, began.elapsed());
        }
    }

    /// `computed`: how long experts computed on this thread for it.
    fn take_in(&mut self, found: Result<Progress, ExpertsError>, computed: Duration) {
        match found {
            Ok(Progress::Pending) => {}
            Ok(Progress::Completed(Completed { call, sums, at })) => {
                self.answer(call, Ok(sums), at, computed);
            }
            Ok(Progress::Failed { call, error }) => self.answer(call, Err(error), Instant::now(), computed),
            Err(error) => self.all_lost(&error),
        }
    }

    /// `at`: when the answer was there. Nobody may have looked for as long as a layer of another pass takes, which is no wait.
    fn answer(
        &mut self,
        call: CallId,
        sums: Result<Vec<f32>, ExpertsError>,
        at: Instant,
        computed: Duration,
    ) {
        self.figures.computing += computed;
        let asked = |flight: &Flight| flight.pass.calls().any(|asked| asked == call);
        // A call that was cancelled may have been answered before.
        let Some(flight) = self.flights.iter_mut().find(|flight| asked(flight)) else { return };
        flight.compute += computed;
        if self.backbone.receive(&mut flight.pass, call, sums, &mut self.experts) {
            if let Some(asked) = flight.asked.take() {
                let came = at.saturating_duration_since(asked);
                let wait = asked.elapsed().saturating_sub(computed).min(came);
                let (layer, first) = (flight.pass.layer(), flight.first);
                flight.alone += self.answers.take_in(Answered { layer, asked, wait, first });
                self.figures.waited += wait;
                self.figures.call_waits.count(wait);
                let mut layers = self.layer_waits.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(waits) = layers.get_mut(layer) {
                    waits.count(wait);
                }
            }
            self.ready.push_back(flight.name);
        }
    }

    /// The experts failed as a whole: no call is answered any more. Each text asks once more by itself, so that it ends
    /// with an error of its own if they do not recover.
    fn all_lost(&mut self, error: &ExpertsError) {
        let why = error.to_string();
        tracing::warn!(%why, "the experts failed");
        let calls: Vec<CallId> = self.flights.iter().flat_map(|flight| flight.pass.calls()).collect();
        for &call in &calls {
            self.experts.cancel(call);
        }
        for call in calls {
            let error = ExpertsError::Backend(why.clone().into());
            self.answer(call, Err(error), Instant::now(), Duration::ZERO);
        }
    }

    /// Ends texts that nobody wants any more: at once where they stand in line, at the next layer where they are in a pass.
    fn let_go(&mut self) {
        while let Some(at) = self.line.iter().position(|text| !text.is_wanted())
            && let Some(text) = self.line.remove(at)
        {
            self.memory.give_back(text.limit());
            self.figures.cancelled += 1;
            text.cancel();
        }
        for flight in &mut self.flights {
            let was_ready = flight.pass.is_ready();
            for (member, rider) in flight.riders.iter_mut().enumerate() {
                if !rider.taken_out && !rider.text.is_wanted() {
                    rider.taken_out = true;
                    flight.pass.take_out(member, &mut self.experts);
                }
            }
            if flight.pass.is_ready() && !was_ready {
                flight.asked = None;
                self.ready.push_back(flight.name);
            }
        }
    }

    /// Makes passes of the texts in line, as many as there shall be.
    fn form(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let texts = self.texts();
        let waves = self.policy.decide(texts, self.options.waves.min(self.memory.most_waves()));
        while self.flights.len() < waves && !self.line.is_empty() {
            self.begin(texts.div_ceil(waves));
        }
    }

    /// Begins a pass of the first `most` texts in line that fit into it; at least one does.
    fn begin(&mut self, most: usize) {
        let (mut riders, mut waiting) = (Vec::new(), Vec::new());
        let (mut members, mut rows, mut prompt_rows) = (Vec::new(), 0, 0);
        while riders.len() < most
            && let Some(mut text) = self.line.pop_front()
        {
            let feed = text.next(self.options.prefill_rows - prompt_rows);
            if feed.rows == 0 || rows + feed.rows > MAX_ROWS {
                waiting.push(text);
                continue;
            }
            rows += feed.rows;
            if feed.prompt {
                prompt_rows += feed.rows;
            }
            members.push(text.member(&self.backbone, feed));
            riders.push(Rider { text, feed, taken_out: false });
        }
        // Those that found no room keep their place.
        waiting.into_iter().rev().for_each(|text| self.line.push_front(text));
        let began = Instant::now();
        let pass = self.backbone.begin(members);
        let compute = began.elapsed();
        self.figures.computing += compute;
        let name = self.next_name;
        self.next_name += 1;
        if std::mem::take(&mut self.goes_on) {
            self.latest = Some(name);
        }
        let (asked, first, gave_way, alone) = (None, false, false, Alone::default());
        self.flights.push(Flight { name, pass, riders, rows, asked, first, gave_way, compute, alone });
        self.ready.push_back(name);
    }

    /// The flight whose turn it is.
    fn next_ready(&mut self) -> Option<usize> {
        let latest = self.ready.iter().position(|name| Some(*name) == self.latest);
        let name = self.ready.remove(latest.unwrap_or(0))?;
        self.flights.iter().position(|flight| flight.name == name)
    }

    fn advance(&mut self, at: usize) {
        let flight = &mut self.flights[at];
        (self.latest, self.goes_on) = (Some(flight.name), false);
        let began = Instant::now();
        let step = self.backbone.advance(&mut flight.pass, &mut self.experts);
        let computed = began.elapsed();
        flight.compute += computed;
        self.figures.computing += computed;
        match step {
            Step::Waiting => {
                let first = self.flights.iter().all(|flight| flight.asked.is_none());
                let flight = &mut self.flights[at];
                (flight.asked, flight.first) = (Some(Instant::now()), first);
            }
            Step::Finished(outcomes) => {
                let flight = self.flights.swap_remove(at);
                self.land(flight, outcomes);
            }
        }
    }

    /// A pass is over: its texts take their step and stand in line again, or are over too.
    fn land(&mut self, flight: Flight, outcomes: Vec<Outcome>) {
        (self.latest, self.goes_on) = (None, flight.gave_way);
        self.policy.measure(Measured { rows: flight.rows, compute: flight.compute, alone: flight.alone });
        self.figures.passes += 1;
        self.figures.rows += flight.rows as u64;
        for (Rider { text, feed, .. }, Outcome { sequence, logits }) in
            flight.riders.into_iter().zip(outcomes)
        {
            if feed.prompt {
                self.figures.prompt_rows += feed.rows as u64;
            }
            let limit = text.limit();
            let (text, counts) = text.after(sequence, feed, logits);
            self.figures.tokens += counts.tokens;
            self.figures.finished += counts.finished;
            self.figures.cancelled += counts.cancelled;
            self.figures.failed += counts.failed;
            match text {
                Some(text) => self.line.push_back(text),
                None => self.memory.give_back(limit),
            }
        }
    }
}

impl<E: Experts> Drop for Waves<E> {
    fn drop(&mut self) {
        for call in self.flights.iter().flat_map(|flight| flight.pass.calls()) {
            self.experts.cancel(call);
        }
    }
}
