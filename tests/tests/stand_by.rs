//! Whoever waits for an answer of which it is known when it comes gets ready for it, and that changes no bit.
#![allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed")]

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use kvasir_backbone::{
    Backbone, Call, CallId, Experts, ExpertsError, Feed, Finish, Progress, SamplerOptions, TokenId, Wanted,
};
use kvasir_model::Model;
use kvasir_serve::scheduler::{End, Reader, Request, Scheduler, SchedulerOptions};
use kvasir_tests::reference_experts::ReferenceExperts;
use kvasir_tests::root;

/// Nothing here takes nearly as long.
const HANG: Duration = Duration::from_secs(300);
/// How long each answer takes.
const WAY: Duration = Duration::from_millis(3);
/// From so long before it on, and until so long after it, it is expected.
const ABOUT: Duration = Duration::from_millis(1);

/// The deadlines of all polls.
type Polls = Arc<Mutex<Vec<Option<Instant>>>>;

/// Answers a while later, and says when; one call at a time.
struct Punctual {
    inner: ReferenceExperts,
    out: Option<(Progress, Instant)>,
    polls: Polls,
}

impl Punctual {
    fn new(model: &Arc<Model>) -> (Punctual, Polls) {
        let polls = Polls::default();
        (Punctual { inner: ReferenceExperts::fast(model), out: None, polls: Arc::clone(&polls) }, polls)
    }
}

impl Experts for Punctual {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        let id = self.inner.submit(call)?;
        let answer = self.inner.poll(None)?;
        self.out = Some((answer, Instant::now() + WAY));
        Ok(id)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        self.polls.lock().unwrap().push(deadline);
        let Some((_, due)) = &self.out else { return Err(ExpertsError::NothingInFlight) };
        let until = deadline.map_or(*due, |deadline| deadline.min(*due));
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        match self.out.take_if(|(_, due)| *due <= Instant::now()) {
            Some((answer, _)) => Ok(answer),
            None => Ok(Progress::Pending),
        }
    }

    fn expected(&self) -> Option<Range<Instant>> {
        let (_, due) = self.out.as_ref()?;
        Some(*due - ABOUT..*due + ABOUT)
    }

    fn cancel(&mut self, _: CallId) {
        self.out = None;
    }
}

fn tiny() -> (Arc<Model>, Arc<Backbone>) {
    let model = Arc::new(Model::open(&root().join("tests/data/tiny/tiny-q8_0.gguf")).unwrap());
    let backbone = Arc::new(Backbone::new(Arc::clone(&model), NonZeroUsize::new(3)).unwrap());
    (model, backbone)
}

#[test]
fn a_pass_over_experts_that_say_when_they_answer_has_the_same_bits() {
    let (model, backbone) = tiny();
    let bits = |experts: &mut dyn Experts| -> Vec<u32> {
        let mut sequence = backbone.start();
        let tokens = [1, 2, 3].map(TokenId);
        let mut feeds = [Feed { sequence: &mut sequence, tokens: &tokens, logits: Wanted::All }];
        let logits = backbone.forward(&mut feeds, experts).unwrap();
        logits[0].values().iter().map(|logit| logit.to_bits()).collect()
    };
    let (mut punctual, polls) = Punctual::new(&model);
    assert_eq!(bits(&mut punctual), bits(&mut ReferenceExperts::fast(&model)));
    let polls = polls.lock().unwrap();
    // Whatever the time, there is something to get ready for.
    assert!(polls.len() >= model.config().layers as usize, "{polls:?}");
    assert!(polls.iter().all(Option::is_some), "{polls:?}");
}

struct Tells(mpsc::Sender<TokenId>);

impl Reader for Tells {
    fn chosen(&mut self, token: TokenId, _logits: &[f32]) {
        self.0.send(token).unwrap();
    }

    fn ended(self: Box<Self>, end: End) {
        assert!(matches!(end, End::Finished(Finish::Length)), "{end:?}");
    }
}

#[test]
fn a_text_over_experts_that_say_when_they_answer_has_the_same_tokens() {
    let (model, backbone) = tiny();
    let write = |scheduler: Scheduler| -> Vec<TokenId> {
        let (tell, told) = mpsc::channel();
        let request = Request {
            prompt: [TokenId(7)].into(),
            max_tokens: 5,
            stop: Vec::new(),
            sampler: SamplerOptions::default(),
        };
        scheduler.submit(request, Box::new(Tells(tell))).unwrap();
        let tokens = (0..5).map(|_| told.recv_timeout(HANG).unwrap()).collect();
        scheduler.finish();
        tokens
    };
    let options = SchedulerOptions::new(1 << 40);
    let here = ReferenceExperts::fast(&model);
    let alone = write(Scheduler::start(Arc::clone(&backbone), here, options).unwrap());
    let (punctual, _) = Punctual::new(&model);
    assert_eq!(write(Scheduler::start(backbone, punctual, options).unwrap()), alone);
}
