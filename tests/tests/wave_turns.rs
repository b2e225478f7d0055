//! Whose turn it is among passes: a text that joins has its call out while another one waits, and a pass that is over goes on as
//! the one that begins in its place, so that its next call is out before the others compute.
#![allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed")]

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use kvasir_backbone::{
    Backbone, Call, CallId, Experts, ExpertsError, Finish, Progress, SamplerOptions, TokenId,
};
use kvasir_model::Model;
use kvasir_serve::scheduler::{End, Reader, Request, Scheduler, SchedulerOptions};
use kvasir_tests::reference_experts::ReferenceExperts;
use kvasir_tests::root;

/// Nothing here takes nearly as long.
const HANG: Duration = Duration::from_secs(300);

/// Tokens of each text.
const TOKENS: usize = 6;

/// So far away that a second wave pays: many times what a pass computes, also on a machine that has other work.
const WAY: Duration = Duration::from_millis(250);

/// The first layer's experts are elsewhere: they answer some time after there is nothing else to compute. The others are here.
struct Tide {
    inner: ReferenceExperts,
    away: VecDeque<(CallId, Progress)>,
    answers: VecDeque<(CallId, Progress)>,
    /// The layers of all calls, as they were submitted.
    calls: Arc<Mutex<Vec<u16>>>,
    /// The first call waits for it.
    gate: Option<mpsc::Receiver<()>>,
}

impl Experts for Tide {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        if let Some(gate) = self.gate.take() {
            gate.recv_timeout(HANG).unwrap();
        }
        let layer = call.layer.0;
        self.calls.lock().unwrap().push(layer);
        let id = self.inner.submit(call)?;
        let answer = self.inner.poll(None)?;
        let answers = if layer == 0 { &mut self.away } else { &mut self.answers };
        answers.push_back((id, answer));
        Ok(id)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        let is_look = deadline.is_some_and(|deadline| deadline <= Instant::now());
        if self.answers.is_empty() && !self.away.is_empty() && !is_look {
            std::thread::sleep(WAY);
            for (_, answer) in &mut self.away {
                if let Progress::Completed(completed) = answer {
                    completed.at = Instant::now();
                }
            }
            self.answers.append(&mut self.away);
        }
        match self.answers.pop_front() {
            Some((_, answer)) => Ok(answer),
            None if self.away.is_empty() => Err(ExpertsError::NothingInFlight),
            None => Ok(Progress::Pending),
        }
    }

    fn cancel(&mut self, call: CallId) {
        self.away.retain(|(id, _)| *id != call);
        self.answers.retain(|(id, _)| *id != call);
    }
}

/// Answers nothing until two calls are out at once, and from then on everything.
struct Together {
    inner: ReferenceExperts,
    held: VecDeque<(CallId, Progress)>,
    have_met: bool,
}

impl Experts for Together {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        let id = self.inner.submit(call)?;
        let answer = self.inner.poll(None)?;
        self.held.push_back((id, answer));
        self.have_met |= self.held.len() == 2;
        Ok(id)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        if self.held.is_empty() {
            return Err(ExpertsError::NothingInFlight);
        }
        if !self.have_met {
            let deadline = deadline.unwrap_or_else(Instant::now);
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            return Ok(Progress::Pending);
        }
        Ok(self.held.pop_front().map_or(Progress::Pending, |(_, answer)| answer))
    }

    fn cancel(&mut self, call: CallId) {
        self.held.retain(|(id, _)| *id != call);
    }
}

/// Says when its text is over.
struct Ends(mpsc::Sender<()>);

impl Reader for Ends {
    fn chosen(&mut self, _token: TokenId, _logits: &[f32]) {}

    fn ended(self: Box<Self>, end: End) {
        assert!(matches!(end, End::Finished(Finish::Length)), "{end:?}");
        self.0.send(()).unwrap();
    }
}

fn tiny() -> Arc<Model> {
    Arc::new(Model::open(&root().join("tests/data/tiny/tiny-q8_0.gguf")).unwrap())
}

fn start(model: &Arc<Model>, experts: impl Experts + 'static) -> Scheduler {
    let backbone = Arc::new(Backbone::new(Arc::clone(model), NonZeroUsize::new(1)).unwrap());
    Scheduler::start(backbone, experts, SchedulerOptions::new(1 << 40)).unwrap()
}

/// Has two texts written; says when one of them is over.
fn submit_two(scheduler: &Scheduler) -> mpsc::Receiver<()> {
    let (over, ended) = mpsc::channel();
    for token in [1, 2] {
        let request = Request {
            prompt: [TokenId(token)].into(),
            max_tokens: TOKENS,
            stop: Vec::new(),
            sampler: SamplerOptions::default(),
        };
        scheduler.submit(request, Box::new(Ends(over.clone()))).unwrap();
    }
    ended
}

#[test]
fn a_text_that_joins_has_its_call_out_while_another_one_waits() {
    let model = tiny();
    let inner = ReferenceExperts::fast(&model);
    let scheduler = start(&model, Together { inner, held: VecDeque::new(), have_met: false });
    let ended = submit_two(&scheduler);
    // With one call out at a time the first text would wait for ever.
    for _ in 0..2 {
        ended.recv_timeout(HANG).unwrap();
    }
}

#[test]
fn a_pass_that_is_over_goes_on_as_the_next_one() {
    let model = tiny();
    let last = model.config().layers as u16 - 1;
    let (open, gate) = mpsc::channel();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let tide = Tide {
        inner: ReferenceExperts::fast(&model),
        away: VecDeque::new(),
        answers: VecDeque::new(),
        calls: Arc::clone(&calls),
        gate: Some(gate),
    };
    let scheduler = start(&model, tide);
    let ended = submit_two(&scheduler);
    // Only now does the first pass have its first call, so that the second text is there for all of the others.
    open.send(()).unwrap();
    for _ in 0..2 {
        ended.recv_timeout(HANG).unwrap();
    }
    drop(scheduler);
    let calls = calls.lock().unwrap();
    let behind: Vec<u16> = calls.windows(2).filter(|pair| pair[0] == last).map(|pair| pair[1]).collect();
    // Two texts in two passes each step; behind the last of the text that is over first there is the other one's.
    let (other, goes_on) = behind.split_last().unwrap();
    assert_eq!((behind.len(), *other), (2 * TOKENS - 1, 1), "{calls:?}");
    assert!(goes_on.iter().all(|layer| *layer == 0), "{calls:?}");
}
