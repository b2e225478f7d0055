//! Many texts in waves over a swarm: the bits that each has alone on this machine, whoever computes and whoever leaves.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvasir_backbone::{
    Backbone, Event, Experts, ExpertsError, Finish, GenerateOptions, Member, Pass, Progress, SamplerOptions,
    Step, TokenId, Wanted, generate,
};
use kvasir_dispatch::{Placement, Swarm};
use kvasir_serve::scheduler::{End, Reader, Request, Scheduler, SchedulerOptions};
use kvasir_tests::swarm_scene::*;

const TOKENS: usize = 5;
const TEXTS: usize = 6;

/// Writes down what each text said.
struct Writer {
    text: usize,
    said: Arc<Mutex<Vec<Said>>>,
}

impl Reader for Writer {
    fn chosen(&mut self, token: TokenId, logits: &[f32]) {
        let mut said = self.said.lock().unwrap();
        said[self.text].tokens.push(token);
        said[self.text].logits.push(bits(logits));
    }

    fn ended(self: Box<Self>, end: End) {
        assert!(matches!(end, End::Finished(Finish::Length)), "{end:?}");
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn prompts() -> Vec<Vec<TokenId>> {
    (0..TEXTS as u32).map(|text| (0..=text).map(|at| TokenId(7 * text + 3 * at)).collect()).collect()
}

/// What the texts say alone, computed here.
fn alone(host: &Host) -> Vec<Said> {
    let mut options = GenerateOptions::greedy(&host.backbone, TOKENS);
    options.stop.clear();
    let say = |prompt: Vec<TokenId>| {
        let mut said = Said { tokens: Vec::new(), logits: Vec::new() };
        let (mut sequence, mut experts) = (host.backbone.start(), host.local());
        let generation =
            generate(&host.backbone, &mut sequence, &prompt, &options, experts.as_mut(), &mut |event| {
                if let Event::Chosen { logits, .. } = event {
                    said.logits.push(bits(logits));
                }
                ControlFlow::Continue(())
            });
        said.tokens = generation.unwrap().tokens;
        said
    };
    prompts().into_iter().map(say).collect()
}

/// What they say together, in waves over `experts`.
fn together(host: &Host, experts: impl Experts + 'static) -> Vec<Said> {
    let backbone = Backbone::new(Arc::clone(&host.model), NonZeroUsize::new(2)).unwrap();
    let scheduler = Scheduler::start(Arc::new(backbone), experts, SchedulerOptions::new(1 << 40)).unwrap();
    let nothing = Said { tokens: Vec::new(), logits: Vec::new() };
    let said = Arc::new(Mutex::new(vec![nothing; TEXTS]));
    for (text, prompt) in prompts().into_iter().enumerate() {
        let sampler = SamplerOptions::default();
        let request = Request { prompt: prompt.into(), max_tokens: TOKENS, stop: Vec::new(), sampler };
        scheduler.submit(request, Box::new(Writer { text, said: Arc::clone(&said) })).unwrap();
    }
    let figures = scheduler.finish();
    assert_eq!((figures.finished, figures.failed), (TEXTS as u64, 0));
    Arc::into_inner(said).unwrap().into_inner().unwrap()
}

#[test]
fn waves_over_workers_say_what_each_text_says_alone() {
    let host = Host::new(tiny());
    let expected = alone(&host);
    assert_eq!(together(&host, *host.local()), expected);
    let layers = all_layers(&host.model);
    // Whole layers, then experts over two workers, then a part of every layer here.
    for (placement, workers, experts) in [
        (Placement::WholeLayers, 1, None),
        (Placement::Experts, 2, None),
        (Placement::Experts, 1, Some(2..7)),
    ] {
        let scene = Scene::new();
        let _workers: Vec<_> = (0..workers).map(|seed| scene.worker(30 + seed as u8)).collect();
        let mut options = scene.swarm_options(workers, placement, &layers);
        options.remote_experts = experts;
        options.deadlines = NO_HURRY;
        let swarm = join(&host, options);
        assert_eq!(together(&host, swarm.experts(host.local())), expected, "{placement:?}");
        let statistics = swarm.finish();
        assert!(statistics.remote_calls > 0 && statistics.failovers == 0, "{statistics:#?}");
    }
}

#[test]
fn a_worker_that_leaves_between_waves_changes_nothing() {
    let host = Host::new(tiny());
    let expected = alone(&host);
    let scene = Scene::new();
    let (stays, leaves) = (scene.worker(30), scene.worker(31));
    let swarm = join(&host, scene.swarm_options(2, Placement::Experts, &all_layers(&host.model)));
    let experts = swarm.experts(host.local());
    std::thread::scope(|scope| {
        let said = scope.spawn(|| together(&host, experts));
        // At whatever moment that is.
        drop(leaves);
        assert_eq!(said.join().unwrap(), expected);
    });
    swarm.finish();
    drop(stays);
}

#[test]
fn an_answer_came_when_it_came_whenever_somebody_looks() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    let _worker = scene.worker(30);
    let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model)));
    let mut experts = swarm.experts(host.local());
    let member = Member { sequence: host.backbone.start(), tokens: vec![TokenId(3)], logits: Wanted::Last };
    let mut pass = host.backbone.begin(vec![member]);
    let asked = Instant::now();
    assert!(matches!(host.backbone.advance(&mut pass, &mut experts), Step::Waiting));
    eventually("the worker's answer", || swarm.statistics().accepted == 1);
    let came = Instant::now();
    std::thread::sleep(Duration::from_millis(2));
    match experts.poll(None).unwrap() {
        Progress::Completed(completed) => assert!(asked <= completed.at && completed.at <= came),
        other => panic!("{other:?}"),
    }
    drop(experts);
    swarm.finish();
}

#[test]
fn who_only_looks_gets_what_no_worker_computes() {
    let host = Host::new(tiny());
    let scene = Scene::new();
    // Nobody joins, so that every call is this machine's.
    let options = scene.swarm_options(1, Placement::WholeLayers, &all_layers(&host.model));
    let swarm = Swarm::join(Arc::clone(&host.model), options).unwrap();
    let mut experts = swarm.experts(host.local());
    let mut begin = |first: u32| -> Pass {
        let tokens = vec![TokenId(first)];
        let member = Member { sequence: host.backbone.start(), tokens, logits: Wanted::Last };
        let mut pass = host.backbone.begin(vec![member]);
        assert!(matches!(host.backbone.advance(&mut pass, &mut experts), Step::Waiting));
        pass
    };
    let calls: Vec<_> =
        [begin(3), begin(5)].iter().flat_map(|pass| pass.calls().collect::<Vec<_>>()).collect();
    assert_eq!(calls.len(), 2, "both are in flight");
    for call in calls {
        match experts.poll(Some(Instant::now())).unwrap() {
            Progress::Completed(completed) => assert_eq!(completed.call, call),
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(experts.poll(Some(Instant::now())), Err(ExpertsError::NothingInFlight)));
}
