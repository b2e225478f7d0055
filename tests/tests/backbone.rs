//! What a backbone refuses, and what becomes of a sequence when its experts fail.

#![allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed")]

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kvasir_backbone::{
    Backbone, BackboneError, Call, CallId, Experts, ExpertsError, Feed, Finish, GenerateOptions, LayerIndex,
    MAX_ROWS, Observer, Progress, Sequence, Timing, TokenId, Wanted, generate,
};
use kvasir_model::Model;
use kvasir_tests::reference_experts::ReferenceExperts;

fn open(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    Arc::new(Model::open(&path).unwrap_or_else(|error| panic!("{error}")))
}

fn tiny() -> (Arc<Model>, Backbone) {
    let model = open("tests/data/tiny/tiny-f16.gguf");
    let backbone = backbone(&model, 1);
    (model, backbone)
}

fn backbone(model: &Arc<Model>, threads: usize) -> Backbone {
    Backbone::new(model.clone(), NonZeroUsize::new(threads)).unwrap_or_else(|error| panic!("{error}"))
}

/// Feeds tokens and returns the bits of the last one's logits.
fn feed(
    backbone: &Backbone,
    experts: &mut dyn Experts,
    sequence: &mut Sequence,
    tokens: &[TokenId],
) -> Result<Vec<u32>, BackboneError> {
    let logits = backbone.forward(&mut [Feed { sequence, tokens, logits: Wanted::Last }], experts)?;
    Ok(logits[0].values().iter().map(|logit| logit.to_bits()).collect())
}

#[test]
fn what_does_not_fit_is_refused_before_anything_changes() {
    let model = open("tests/data/tiny/tiny-f16.gguf");
    let backbone = backbone(&model, 1).with_context_limit(8);
    let mut experts = ReferenceExperts::plain(&model);
    let prompt: Vec<TokenId> = (1..10).map(TokenId).collect();
    let options = GenerateOptions::greedy(&backbone, 4);
    let mut sequence = backbone.start();
    let mut run = |sequence: &mut Sequence, prompt: &[TokenId]| {
        generate(&backbone, sequence, prompt, &options, &mut experts, &mut |_| ControlFlow::Continue(()))
    };
    assert!(matches!(run(&mut sequence, &[]), Err(BackboneError::PromptEmpty)));
    assert!(matches!(run(&mut sequence, &prompt), Err(BackboneError::PromptTooLong { tokens: 9, limit: 8 })));
    assert_eq!((sequence.len(), sequence.bytes()), (0, 0), "refused prompts take no memory");
    // A prompt that fills the context gives one token.
    let said = run(&mut sequence, &prompt[..8]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((said.tokens.len(), said.finish), (1, Finish::ContextFull));
    assert!(matches!(
        run(&mut sequence, &prompt[..1]),
        Err(BackboneError::PromptTooLong { tokens: 9, limit: 8 })
    ));
}

#[test]
fn feeds_that_make_no_sense_are_refused_and_leave_the_sequence_usable() {
    let (model, backbone) = tiny();
    let mut experts = ReferenceExperts::plain(&model);
    let mut sequence = backbone.start();
    let vocabulary = model.config().vocabulary;
    assert!(matches!(feed(&backbone, &mut experts, &mut sequence, &[]), Err(BackboneError::PromptEmpty)));
    assert!(matches!(
        feed(&backbone, &mut experts, &mut sequence, &[TokenId(vocabulary)]),
        Err(BackboneError::UnknownToken { token, .. }) if token == TokenId(vocabulary)
    ));
    let many = vec![TokenId(1); MAX_ROWS + 1];
    assert!(matches!(
        feed(&backbone, &mut experts, &mut sequence, &many),
        Err(BackboneError::TooManyRows { rows, limit: MAX_ROWS }) if rows == MAX_ROWS + 1
    ));
    let full = vec![TokenId(1); sequence.limit() + 1];
    assert!(matches!(
        feed(&backbone, &mut experts, &mut sequence, &full),
        Err(BackboneError::ContextFull { held: 0, fed: 513, limit: 512 })
    ));
    let mut foreign = self::backbone(&model, 1).start();
    assert!(matches!(
        feed(&backbone, &mut experts, &mut foreign, &[TokenId(1)]),
        Err(BackboneError::ForeignSequence)
    ));
    assert_eq!(experts.answered, 0, "nothing was computed");
    assert!(feed(&backbone, &mut experts, &mut sequence, &[TokenId(1)]).is_ok());
}

#[test]
fn a_sequence_runs_through_the_same_layers_always() {
    let (model, backbone) = tiny();
    let mut experts = ReferenceExperts::plain(&model);
    let width = model.config().hidden as usize;
    let mut run = |layers: std::ops::Range<usize>, sequence: &mut Sequence, values: usize| {
        let mut hidden = vec![0.5; values];
        backbone.forward_layers(layers, sequence, &mut hidden, &mut experts, &mut Observer::default())
    };
    let mut sequence = backbone.start();
    assert!(run(0..2, &mut sequence, 3 * width).is_ok());
    for (layers, values) in [(0..4, width), (2..4, width), (0..2, width + 1), (0..5, width), (0..2, 0)] {
        assert!(run(layers.clone(), &mut sequence, values).is_err(), "{layers:?} with {values} values");
    }
    assert!(run(0..2, &mut sequence, width).is_ok());
    assert_eq!(sequence.len(), 4);
    assert!(matches!(
        feed(&backbone, &mut ReferenceExperts::plain(&model), &mut sequence, &[TokenId(1)]),
        Err(BackboneError::WrongInput { .. })
    ));
}

/// Passes calls on, but spoils the answer for one layer.
struct Faulty {
    inner: ReferenceExperts,
    layer: u16,
    fault: Fault,
    /// The layers of the calls submitted.
    submitted: Vec<LayerIndex>,
}

#[derive(Clone, Copy)]
enum Fault {
    Refuse,
    Shorten,
    NotFinite,
    Misname,
}

impl Experts for Faulty {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        self.submitted.push(call.layer);
        self.inner.submit(call)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        let mut progress = self.inner.poll(deadline)?;
        if self.submitted.last() == Some(&LayerIndex(self.layer))
            && let Progress::Completed(completed) = &mut progress
        {
            match self.fault {
                Fault::Refuse => return Err(ExpertsError::Backend("the worker is gone".into())),
                Fault::Shorten => completed.sums.truncate(1),
                Fault::NotFinite => completed.sums[0] = f32::NAN,
                Fault::Misname => completed.call = CallId(u64::MAX),
            }
        }
        Ok(progress)
    }

    fn cancel(&mut self, call: CallId) {
        self.inner.cancel(call);
    }
}

#[test]
fn failing_experts_are_reported_with_their_layer_and_spoil_the_sequence() {
    let (model, backbone) = tiny();
    for fault in [Fault::Refuse, Fault::Shorten, Fault::NotFinite, Fault::Misname] {
        let inner = ReferenceExperts::plain(&model);
        let mut experts = Faulty { inner, layer: 2, fault, submitted: Vec::new() };
        let mut sequence = backbone.start();
        let error = feed(&backbone, &mut experts, &mut sequence, &[TokenId(5)]).unwrap_err();
        assert!(error.to_string().contains("layer 2"), "{error}");
        let error = feed(&backbone, &mut experts.inner, &mut sequence, &[TokenId(5)]).unwrap_err();
        assert!(matches!(error, BackboneError::SpoiledSequence), "{error}");
    }
}

#[test]
fn memory_grows_with_the_text_and_never_beyond_the_limit() {
    let (model, backbone) = tiny();
    let backbone = backbone.with_context_limit(40);
    let mut experts = ReferenceExperts::plain(&model);
    let config = model.config();
    let mut sequence = backbone.start();
    assert_eq!(sequence.bytes(), 0);
    for _ in 0..40 {
        feed(&backbone, &mut experts, &mut sequence, &[TokenId(7)]).unwrap();
        let per_position = 2 * config.kv_heads * config.head_dimension * 4;
        let delta = config.delta;
        let state = delta.channels() * (delta.conv_kernel as usize - 1)
            + delta.value_width() * delta.head_dimension as usize;
        // Three delta-net layers, one of attention.
        assert!(sequence.bytes() <= 3 * 4 * state + 40 * per_position as usize);
    }
    let error = feed(&backbone, &mut experts, &mut sequence, &[TokenId(7)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the sequence holds 40 tokens and was fed 1 more, but the context holds 40"
    );
}

#[test]
fn one_call_per_layer_and_pass_reaches_the_experts() {
    let (model, backbone) = tiny();
    let inner = ReferenceExperts::plain(&model);
    let mut experts = Faulty { inner, layer: u16::MAX, fault: Fault::Refuse, submitted: Vec::new() };
    let mut timing = Timing::default();
    let (mut one, mut two) = (backbone.start(), backbone.start());
    let tokens = [TokenId(1), TokenId(2)];
    let mut feeds = [
        Feed { sequence: &mut one, tokens: &tokens, logits: Wanted::None },
        Feed { sequence: &mut two, tokens: &tokens[..1], logits: Wanted::Last },
    ];
    let mut observer = Observer { tap: None, timing: Some(&mut timing) };
    backbone.forward_observed(&mut feeds, &mut experts, &mut observer).unwrap();
    assert_eq!(experts.submitted, (0..4).map(LayerIndex).collect::<Vec<_>>());
    assert_eq!((timing.passes, timing.rows), (1, 3));
}

#[test]
fn a_callback_may_break_off() {
    let (model, backbone) = tiny();
    let mut experts = ReferenceExperts::plain(&model);
    let mut options = GenerateOptions::greedy(&backbone, 50);
    options.stop.clear();
    let mut seen = 0;
    let said =
        generate(&backbone, &mut backbone.start(), &[TokenId(3)], &options, &mut experts, &mut |event| {
            if let kvasir_backbone::Event::Chosen { .. } = event {
                seen += 1;
            }
            if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!((said.tokens.len(), said.finish), (3, Finish::Cancelled));
    // The next token of the same text, chosen to be the stop token, ends it and is not part of it.
    options.stop = vec![said.tokens[1]];
    let again =
        generate(&backbone, &mut backbone.start(), &[TokenId(3)], &options, &mut experts, &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
    let until = said.tokens.iter().position(|token| *token == said.tokens[1]).unwrap();
    assert_eq!((again.tokens, again.finish), (said.tokens[..until].to_vec(), Finish::Stop(said.tokens[1])));
}
