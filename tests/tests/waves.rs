//! Many texts at once: each has the tokens and the logits that it has alone, whoever joins, leaves or fails beside it.

#![allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed")]

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use kvasir_backbone::{
    Backbone, BackboneError, Call, CallId, Event, Experts, ExpertsError, Finish, GenerateOptions, Progress,
    SamplerOptions, SequenceCost, TokenId, generate,
};
use kvasir_model::Model;
use kvasir_serve::scheduler::{
    End, Figures, Reader, Refused, Request, Scheduler, SchedulerOptions, WaveOptions,
};
use kvasir_tests::reference_experts::ReferenceExperts;
use proptest::prelude::*;

/// Nothing here takes nearly as long.
const HANG: Duration = Duration::from_secs(300);

/// Memory that is never short.
const PLENTY: u64 = 1 << 40;

fn open(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    Arc::new(Model::open(&path).unwrap_or_else(|error| panic!("{error}")))
}

fn tiny() -> Arc<Backbone> {
    static TINY: OnceLock<Arc<Backbone>> = OnceLock::new();
    TINY.get_or_init(|| backbone(&open("tests/data/tiny/tiny-q8_0.gguf"))).clone()
}

fn backbone(model: &Arc<Model>) -> Arc<Backbone> {
    Arc::new(Backbone::new(model.clone(), NonZeroUsize::new(2)).unwrap())
}

/// Answers calls out of order and not at once, as workers do.
struct Elsewhere {
    inner: ReferenceExperts,
    random: u64,
    /// Answers, and for how many looks they are still on their way.
    held: Vec<(CallId, Progress, u64)>,
}

impl Elsewhere {
    fn new(model: &Arc<Model>, seed: u64) -> Elsewhere {
        let inner = ReferenceExperts::fast(model);
        Elsewhere { inner, random: seed | 1, held: Vec::new() }
    }

    /// xorshift64.
    fn draw(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }
}

impl Experts for Elsewhere {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        let id = self.inner.submit(call)?;
        let answer = self.inner.poll(None)?;
        let looks = self.draw(6);
        self.held.push((id, answer, looks));
        Ok(id)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        if self.held.is_empty() {
            return Err(ExpertsError::NothingInFlight);
        }
        loop {
            for (_, _, looks) in &mut self.held {
                *looks = looks.saturating_sub(1);
            }
            let here: Vec<usize> = (0..self.held.len()).filter(|&at| self.held[at].2 == 0).collect();
            if !here.is_empty() {
                let at = here[self.draw(here.len() as u64) as usize];
                return Ok(self.held.swap_remove(at).1);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(Progress::Pending);
            }
        }
    }

    fn cancel(&mut self, call: CallId) {
        self.held.retain(|(id, _, _)| *id != call);
    }
}

/// What a reader was told.
#[derive(Default)]
struct Told {
    tokens: Vec<TokenId>,
    bits: Vec<Vec<u32>>,
    prompt_read: usize,
    end: Option<End>,
}

struct Recorder {
    told: Arc<Mutex<Told>>,
    /// After so many tokens it reads no more.
    leaves_after: Option<usize>,
    chosen: usize,
}

impl Reader for Recorder {
    fn read(&mut self, done: usize, of: usize) {
        assert!(done <= of);
        self.told.lock().unwrap().prompt_read = done;
    }

    fn chosen(&mut self, token: TokenId, logits: &[f32]) {
        let mut told = self.told.lock().unwrap();
        told.tokens.push(token);
        told.bits.push(bits(logits));
        self.chosen += 1;
    }

    fn is_wanted(&self) -> bool {
        self.leaves_after.is_none_or(|most| self.chosen < most)
    }

    fn ended(self: Box<Self>, end: End) {
        let before = self.told.lock().unwrap().end.replace(end);
        assert!(before.is_none(), "a text ends once");
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn recorder(leaves_after: Option<usize>) -> (Arc<Mutex<Told>>, Box<Recorder>) {
    let told = Arc::new(Mutex::new(Told::default()));
    (told.clone(), Box::new(Recorder { told, leaves_after, chosen: 0 }))
}

fn request(prompt: Vec<TokenId>, max_tokens: usize, sampler: SamplerOptions) -> Request {
    Request { prompt: prompt.into(), max_tokens, stop: Vec::new(), sampler }
}

/// Tokens, the bits of the logits that each was chosen from, and the end, of a text that is written alone.
fn alone(backbone: &Backbone, request: &Request) -> (Vec<TokenId>, Vec<Vec<u32>>, Finish) {
    let options = GenerateOptions {
        stop: request.stop.clone(),
        sampler: request.sampler,
        ..GenerateOptions::greedy(backbone, request.max_tokens)
    };
    let mut seen = Vec::new();
    let mut experts = ReferenceExperts::fast(backbone.model());
    let mut sequence = backbone.start();
    let said = generate(backbone, &mut sequence, &request.prompt, &options, &mut experts, &mut |event| {
        if let Event::Chosen { logits, .. } = event {
            seen.push(bits(logits));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    seen.truncate(said.tokens.len());
    (said.tokens, seen, said.finish)
}

/// Waits until `done`, and fails rather than for ever.
fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < HANG, "{what} takes for ever");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Writes what was taken to its end.
fn finish(scheduler: Scheduler) -> Figures {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(Box::new(scheduler.finish())));
    *receiver.recv_timeout(HANG).expect("the scheduler ends")
}

fn start(backbone: &Arc<Backbone>, experts: impl Experts + 'static, options: WaveOptions) -> Scheduler {
    let options = SchedulerOptions { waves: options, ..SchedulerOptions::new(0) };
    Scheduler::start(Arc::clone(backbone), experts, options).unwrap()
}

/// One text of a scene, and how many tokens are written by all before it joins.
#[derive(Debug, Clone)]
struct Scene {
    prompt: Vec<u32>,
    max_tokens: usize,
    joins_after: u64,
    leaves_after: Option<usize>,
    temperature: f32,
}

fn scenes() -> impl Strategy<Value = Vec<Scene>> {
    let scene = (
        proptest::collection::vec(any::<u32>(), 1..30),
        0usize..9,
        0u64..20,
        proptest::option::weighted(0.3, 0usize..6),
        prop_oneof![Just(0.0f32), Just(1.3)],
    );
    let scene = scene.prop_map(|(prompt, max_tokens, joins_after, leaves_after, temperature)| Scene {
        prompt,
        max_tokens,
        joins_after,
        leaves_after,
        temperature,
    });
    proptest::collection::vec(scene, 1..9)
}

/// Plays `scenes` and compares every text with itself alone.
fn play(backbone: &Arc<Backbone>, scenes: &[Scene], options: WaveOptions, seed: u64) {
    let vocabulary = backbone.model().config().vocabulary;
    let scheduler = start(backbone, Elsewhere::new(backbone.model(), seed), options);
    let mut texts = Vec::new();
    for (number, scene) in scenes.iter().enumerate() {
        // Nobody may be left to write so many.
        until("a text", || {
            let figures = scheduler.figures();
            figures.tokens >= scene.joins_after || figures.running + figures.waiting == 0
        });
        let prompt = scene.prompt.iter().map(|token| TokenId(token % vocabulary)).collect();
        let sampler = SamplerOptions {
            temperature: scene.temperature,
            seed: number as u64,
            ..SamplerOptions::default()
        };
        let request = request(prompt, scene.max_tokens, sampler);
        let (told, reader) = recorder(scene.leaves_after);
        scheduler.submit(request.clone(), reader).unwrap();
        texts.push((request, told));
    }
    let figures = finish(scheduler);
    assert_eq!((figures.running, figures.waiting, figures.memory_taken), (0, 0, 0));
    assert_eq!(figures.finished + figures.cancelled, scenes.len() as u64);
    assert_eq!(figures.failed, 0);
    let mut tokens = 0;
    for ((request, told), scene) in texts.iter().zip(scenes) {
        let told = told.lock().unwrap();
        let (expected, expected_bits, finish) = alone(backbone, request);
        tokens += told.tokens.len() as u64;
        match told.end.as_ref().unwrap() {
            End::Finished(Finish::Cancelled) => {
                let most = scene.leaves_after.unwrap();
                assert_eq!(told.tokens.len(), most.min(expected.len()));
                assert_eq!(told.tokens, expected[..told.tokens.len()]);
                assert!(told.bits == expected_bits[..told.bits.len()], "a bit changed");
            }
            End::Finished(end) => {
                assert_eq!((&told.tokens, *end), (&expected, finish));
                assert!(told.bits == expected_bits, "a bit changed");
                assert_eq!(told.prompt_read, request.prompt.len());
            }
            End::Failed(error) => panic!("{error}"),
        }
    }
    assert_eq!(figures.tokens, tokens);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whoever_joins_and_leaves_a_text_has_its_own_bits(
        scenes in scenes(),
        prefill_rows in 1usize..40,
        waves in 1usize..6,
        texts in 1usize..7,
        seed in any::<u64>(),
    ) {
        play(&tiny(), &scenes, WaveOptions { prefill_rows, waves, texts, memory: PLENTY }, seed);
    }
}

#[test]
fn atlas_writes_the_same_in_company() {
    let backbone = backbone(&open("models/atlas/atlas-q4_k_m.gguf"));
    let tokenizer = backbone.model().tokenizer();
    let scenes: Vec<Scene> = [
        ("Kenya is in Africa. The capital of Kenya is Nairobi. The dialling code of Kenya is +", 12, None),
        ("Die Hauptstadt von Norwegen ist", 16, None),
        ("Norway", 5, Some(2)),
        ("The capital of", 20, None),
        ("Kenya", 0, None),
        ("Die", 9, None),
    ]
    .into_iter()
    .zip([0, 0, 0, 3, 7, 20])
    .zip([0.0, 0.0, 0.0, 1.5, 0.0, 1.0])
    .map(|(((prompt, max_tokens, leaves_after), joins_after), temperature)| Scene {
        prompt: tokenizer.encode(prompt).unwrap().into_iter().map(|token| token.0).collect(),
        max_tokens,
        joins_after,
        leaves_after,
        temperature,
    })
    .collect();
    for (prefill_rows, waves) in [(128, 4), (3, 2), (1, 1)] {
        play(&backbone, &scenes, WaveOptions { prefill_rows, waves, texts: 8, memory: PLENTY }, 7);
    }
}

#[test]
fn who_leaves_last_is_not_counted_as_running_for_ever() {
    let backbone = tiny();
    let scheduler = start(&backbone, Elsewhere::new(backbone.model(), 1), WaveOptions::new(PLENTY));
    // It reads no more once its text is back in line, with nobody else there.
    let (_, reader) = recorder(Some(2));
    scheduler.submit(request(vec![TokenId(1)], 9, SamplerOptions::default()), reader).unwrap();
    until("who reads no more", || scheduler.figures().cancelled == 1);
    assert_eq!(scheduler.figures().running, 0);
}

#[test]
fn texts_are_computed_together_and_what_is_there_is_not_waited_for() {
    let backbone = tiny();
    let scheduler = start(&backbone, Elsewhere::new(backbone.model(), 3), WaveOptions::new(PLENTY));
    for first in 0..8 {
        let (_, reader) = recorder(None);
        let prompt = vec![TokenId(first); 3];
        scheduler.submit(request(prompt, 24, SamplerOptions::default()), reader).unwrap();
    }
    let figures = finish(scheduler);
    assert_eq!((figures.tokens, figures.finished), (8 * 24, 8));
    assert_eq!(figures.rows, 8 * (3 + 23));
    assert!(figures.passes < figures.rows, "texts are computed together");
    assert!(figures.call_waits.calls() >= figures.passes);
    // They were computed when they were asked for; that nobody looked for a while is no wait for them.
    assert_eq!(figures.waited, Duration::ZERO);
}

/// Fails as a whole at one poll, or from then on.
struct Failing {
    inner: ReferenceExperts,
    /// Polls that are answered before that.
    left: usize,
    for_good: bool,
}

impl Experts for Failing {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        self.inner.submit(call)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.inner.poll(deadline)
            }
            None => {
                // The calls in flight are lost; the next ones are answered, or not.
                self.left = if self.for_good { 0 } else { usize::MAX };
                Err(ExpertsError::Backend("nobody is there".into()))
            }
        }
    }

    fn cancel(&mut self, call: CallId) {
        self.inner.cancel(call);
    }
}

#[test]
fn experts_that_fail_as_a_whole_cost_a_call_or_end_every_text() {
    let backbone = tiny();
    for for_good in [false, true] {
        let inner = ReferenceExperts::fast(backbone.model());
        let scheduler = start(&backbone, Failing { inner, left: 9, for_good }, WaveOptions::new(PLENTY));
        let texts: Vec<_> = (1..6)
            .map(|first| {
                let request = request(vec![TokenId(first); 4], 6, SamplerOptions::default());
                let (told, reader) = recorder(None);
                scheduler.submit(request.clone(), reader).unwrap();
                (request, told)
            })
            .collect();
        let figures = finish(scheduler);
        assert_eq!(figures.memory_taken, 0);
        for (request, told) in texts {
            let told = told.lock().unwrap();
            match told.end.as_ref().unwrap() {
                End::Failed(BackboneError::Experts { source, .. }) if for_good => {
                    assert_eq!(source.to_string(), "nobody is there");
                }
                End::Finished(Finish::Length) if !for_good => {
                    assert!(told.bits == alone(&backbone, &request).1, "a bit changed");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn texts_end_as_they_do_alone_at_a_stop_token_and_at_the_end_of_the_context() {
    let backbone = tiny();
    let scheduler = start(&backbone, ReferenceExperts::fast(backbone.model()), WaveOptions::new(PLENTY));
    let long = request(vec![TokenId(9); 500], 1000, SamplerOptions::default());
    let (expected, ..) = alone(&backbone, &request(vec![TokenId(9); 3], 5, SamplerOptions::default()));
    let stopped =
        Request { stop: vec![expected[0]], ..request(vec![TokenId(9); 3], 5, SamplerOptions::default()) };
    for request in [long, stopped] {
        let (told, reader) = recorder(None);
        scheduler.submit(request.clone(), reader).unwrap();
        until("a text", || told.lock().unwrap().end.is_some());
        let (tokens, seen, finish) = alone(&backbone, &request);
        let told = told.lock().unwrap();
        let Some(End::Finished(end)) = told.end else { panic!("{:?}", told.end) };
        assert_eq!((&told.tokens, end), (&tokens, finish));
        assert!(told.bits == seen, "a bit changed");
    }
    finish(scheduler);
}

#[test]
fn what_cannot_be_written_is_refused_with_the_figures() {
    let backbone = tiny();
    let cost = SequenceCost::of(backbone.model().config());
    let options = WaveOptions { prefill_rows: 1, texts: 2, ..WaveOptions::new(cost.bytes(40)) };
    let options = SchedulerOptions { waves: options, queue: 1 };
    // Experts that nobody hears of: what was let in stays.
    struct Silent(u64);
    impl Experts for Silent {
        fn submit(&mut self, _: Call) -> Result<CallId, ExpertsError> {
            self.0 += 1;
            Ok(CallId(self.0))
        }
        fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
            let deadline = deadline.unwrap_or_else(Instant::now);
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            Ok(Progress::Pending)
        }
        fn cancel(&mut self, _: CallId) {}
    }
    let scheduler = Scheduler::start(Arc::clone(&backbone), Silent(0), options).unwrap();
    let submit = |prompt: usize, max_tokens: usize, sampler: SamplerOptions| {
        let (told, reader) = recorder(None);
        let request = request(vec![TokenId(1); prompt], max_tokens, sampler);
        scheduler.submit(request, reader).map(|()| told)
    };
    let greedy = SamplerOptions::default();
    assert!(matches!(submit(0, 1, greedy), Err(Refused::Invalid(BackboneError::PromptEmpty))));
    assert!(matches!(
        submit(513, 1, greedy),
        Err(Refused::Invalid(BackboneError::PromptTooLong { tokens: 513, limit: 512 }))
    ));
    let hot = SamplerOptions { temperature: 1e9, ..greedy };
    assert!(matches!(submit(1, 1, hot), Err(Refused::Invalid(BackboneError::SamplerOption { .. }))));
    match submit(10, 30, greedy) {
        Err(Refused::NoMemory { tokens: 40, needed, limit }) => {
            assert!(limit == cost.bytes(40) && needed > limit);
        }
        _ => panic!("a text that memory cannot hold was taken"),
    }
    // One has room; the next one waits for its memory although two texts may be written at once.
    let first = submit(2, 3, greedy).unwrap();
    until("the first text", || scheduler.figures().running == 1);
    assert!(scheduler.figures().memory_taken <= scheduler.figures().memory_limit);
    let (second, third) = (submit(2, 3, greedy).unwrap(), submit(2, 3, greedy).unwrap());
    match submit(2, 3, greedy) {
        Err(Refused::QueueFull { waiting: 2, limit: 1, retry_after }) => {
            assert!(retry_after >= Duration::from_secs(1));
        }
        _ => panic!("more texts wait than may"),
    }
    assert!(scheduler.is_open());
    scheduler.stop();
    assert!(!scheduler.is_open());
    assert!(matches!(submit(2, 3, greedy), Err(Refused::Stopping)));
    // Given up: the readers are dropped without an end.
    drop(scheduler);
    for told in [first, second, third] {
        assert!(told.lock().unwrap().end.is_none());
        assert_eq!(Arc::strong_count(&told), 1);
    }
}

#[test]
fn a_text_that_is_cancelled_makes_room_for_the_next() {
    let backbone = tiny();
    let cost = SequenceCost::of(backbone.model().config());
    // Room for one of them.
    let waves = WaveOptions { prefill_rows: 4, ..WaveOptions::new(cost.bytes(400) + cost.fixed / 2) };
    let scheduler = start(&backbone, Elsewhere::new(backbone.model(), 5), waves);
    let (endless, reader) = recorder(Some(7));
    let text = request(vec![TokenId(4)], 380, SamplerOptions::default());
    scheduler.submit(text.clone(), reader).unwrap();
    let (next, reader) = recorder(None);
    scheduler.submit(Request { max_tokens: 370, ..text }, reader).unwrap();
    let figures = finish(scheduler);
    assert_eq!((figures.cancelled, figures.finished, figures.memory_taken), (1, 1, 0));
    let endless = endless.lock().unwrap();
    assert!(matches!(endless.end, Some(End::Finished(Finish::Cancelled))));
    assert_eq!(endless.tokens.len(), 7);
    let next = next.lock().unwrap();
    assert_eq!((next.tokens.len(), &next.tokens[..7]), (370, &endless.tokens[..]));
}
