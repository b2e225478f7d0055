//! A pass of several sequences: put aside while its call is out, and each member independent of the others.

#![allow(clippy::unwrap_used, reason = "a test that fails to unwrap has failed")]

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use kvasir_backbone::{
    Backbone, BackboneError, Call, CallId, Completed, Experts, ExpertsError, Feed, Member, Outcome, Pass,
    Place, Progress, Sequence, SequenceCost, Step, TokenId, Wanted,
};
use kvasir_model::{LayerIndex, Model};
use kvasir_tests::reference_experts::ReferenceExperts;

/// The layer at which experts misbehave.
const LAYER: LayerIndex = LayerIndex(1);

fn open(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    Arc::new(Model::open(&path).unwrap_or_else(|error| panic!("{error}")))
}

fn tiny() -> (Arc<Model>, Backbone) {
    let model = open("tests/data/tiny/tiny-q8_0.gguf");
    let backbone = Backbone::new(model.clone(), NonZeroUsize::new(2)).unwrap();
    (model, backbone)
}

fn tokens(first: u32, count: u32) -> Vec<TokenId> {
    (first..first + count).map(TokenId).collect()
}

fn member(sequence: Sequence, tokens: &[TokenId]) -> Member {
    Member { sequence, tokens: tokens.to_vec(), logits: Wanted::All }
}

/// The bits of the logits of all tokens, computed alone.
fn alone(backbone: &Backbone, model: &Arc<Model>, tokens: &[TokenId]) -> Vec<u32> {
    let mut sequence = backbone.start();
    let mut feeds = [Feed { sequence: &mut sequence, tokens, logits: Wanted::All }];
    let logits = backbone.forward(&mut feeds, &mut ReferenceExperts::plain(model)).unwrap();
    logits[0].values().iter().map(|logit| logit.to_bits()).collect()
}

fn bits(outcome: &Outcome) -> Vec<u32> {
    outcome.logits.as_ref().unwrap().values().iter().map(|logit| logit.to_bits()).collect()
}

/// Takes in the next thing that the experts have to say.
fn poll(backbone: &Backbone, passes: &mut [Option<Pass>], experts: &mut dyn Experts) {
    let (call, answer) = match experts.poll(None).unwrap() {
        Progress::Completed(Completed { call, sums, .. }) => (call, Ok(sums)),
        Progress::Failed { call, error } => (call, Err(error)),
        Progress::Pending => return,
    };
    let pass = passes.iter_mut().flatten().find(|pass| pass.calls().any(|asked| asked == call)).unwrap();
    backbone.receive(pass, call, answer, experts);
}

/// Takes all passes to their ends: every one as far as it goes, in turns.
fn run(backbone: &Backbone, passes: Vec<Pass>, experts: &mut dyn Experts) -> Vec<Vec<Outcome>> {
    let mut passes: Vec<Option<Pass>> = passes.into_iter().map(Some).collect();
    let mut outcomes: Vec<Vec<Outcome>> = passes.iter().map(|_| Vec::new()).collect();
    while passes.iter().any(Option::is_some) {
        for (slot, outcomes) in passes.iter_mut().zip(&mut outcomes) {
            let Some(pass) = slot else { continue };
            if pass.is_ready()
                && let Step::Finished(finished) = backbone.advance(pass, experts)
            {
                *outcomes = finished;
                *slot = None;
            }
        }
        if passes.iter().any(Option::is_some) {
            poll(backbone, &mut passes, experts);
        }
    }
    outcomes
}

#[test]
fn passes_take_turns_and_every_member_has_the_bits_that_it_has_alone() {
    let (model, backbone) = tiny();
    let texts = [tokens(3, 9), tokens(40, 1), tokens(7, 17), tokens(100, 4)];
    let expected: Vec<Vec<u32>> = texts.iter().map(|text| alone(&backbone, &model, text)).collect();
    let mut experts = ReferenceExperts::fast(&model);
    // Two passes of two at once, then the same texts cut: what the first pass left is where the second goes on.
    let first =
        backbone.begin(vec![member(backbone.start(), &texts[0]), member(backbone.start(), &texts[1])]);
    let second =
        backbone.begin(vec![member(backbone.start(), &texts[2][..5]), member(backbone.start(), &texts[3])]);
    let outcomes = run(&backbone, vec![first, second], &mut experts);
    assert_eq!(experts.answered, 2 * 4, "a call a layer for each pass");
    assert_eq!(bits(&outcomes[0][0]), expected[0]);
    assert_eq!(bits(&outcomes[0][1]), expected[1]);
    assert_eq!(bits(&outcomes[1][1]), expected[3]);
    let begun = bits(&outcomes[1][0]);
    let sequence = outcomes.into_iter().flatten().nth(2).unwrap().sequence;
    assert_eq!(sequence.len(), 5);
    let rest = backbone.begin(vec![member(sequence, &texts[2][5..])]);
    let outcomes = run(&backbone, vec![rest], &mut experts);
    assert_eq!([begun, bits(&outcomes[0][0])].concat(), expected[2]);
}

#[test]
fn members_that_cannot_take_part_are_over_at_once_and_the_others_are_not() {
    let (model, backbone) = tiny();
    let (_, stranger) = tiny();
    let unknown = [TokenId(model.config().vocabulary)];
    let text = tokens(3, 5);
    let mut pass = backbone.begin(vec![
        member(backbone.start(), &[]),
        member(backbone.start(), &unknown),
        member(backbone.start_within(4), &text),
        member(backbone.start(), &text),
        member(stranger.start(), &text),
    ]);
    assert_eq!(pass.rows(), 5);
    // Going on with a pass that waits does nothing.
    let mut experts = ReferenceExperts::plain(&model);
    assert!(matches!(backbone.advance(&mut pass, &mut experts), Step::Waiting));
    assert!(matches!(backbone.advance(&mut pass, &mut experts), Step::Waiting));
    assert_eq!(pass.calls().count(), 1);
    let outcomes = run(&backbone, vec![pass], &mut experts).remove(0);
    assert!(matches!(outcomes[0].logits, Err(BackboneError::PromptEmpty)));
    assert!(matches!(outcomes[1].logits, Err(BackboneError::UnknownToken { .. })));
    assert!(matches!(outcomes[2].logits, Err(BackboneError::ContextFull { held: 0, fed: 5, limit: 4 })));
    assert_eq!(bits(&outcomes[3]), alone(&backbone, &model, &text));
    assert!(matches!(outcomes[4].logits, Err(BackboneError::ForeignSequence)));
    // What was refused before it began is as it was.
    let refused = outcomes.into_iter().nth(2).unwrap().sequence;
    let again = backbone.begin(vec![member(refused, &text[..4])]);
    let outcomes = run(&backbone, vec![again], &mut experts);
    assert_eq!(bits(&outcomes[0][0]), alone(&backbone, &model, &text[..4]));
    // Nobody at all.
    let nobody = backbone.begin(Vec::new());
    assert!(run(&backbone, vec![nobody], &mut experts)[0].is_empty());
}

/// Passes calls on, but spoils what concerns the second row of the first call for [`LAYER`].
struct Spoiling {
    inner: ReferenceExperts,
    how: How,
    /// That row, from then on.
    target: Option<Vec<u8>>,
    spoiled: Option<CallId>,
    /// Layer and rows of every call.
    calls: Vec<(LayerIndex, usize)>,
    cancelled: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    /// Its sums are not finite.
    NotFinite,
    /// Every call with it fails when it is polled for.
    Fail,
    /// Every call with it is refused.
    Refuse,
    /// No call of that layer succeeds.
    FailAll,
    /// A sum is missing.
    Shorten,
}

impl Spoiling {
    fn new(model: &Arc<Model>, how: How) -> Spoiling {
        let inner = ReferenceExperts::fast(model);
        Spoiling { inner, how, target: None, spoiled: None, calls: Vec::new(), cancelled: 0 }
    }
}

impl Experts for Spoiling {
    fn submit(&mut self, call: Call) -> Result<CallId, ExpertsError> {
        self.calls.push((call.layer, call.count()));
        let row_bytes = call.rows.len() / call.count();
        let mut rows = call.rows.chunks_exact(row_bytes);
        if call.layer == LAYER && self.target.is_none() {
            self.target = Some(rows.clone().nth(1).unwrap().to_vec());
        }
        let hit = call.layer == LAYER
            && (self.how == How::FailAll || rows.any(|row| Some(row) == self.target.as_deref()));
        if hit && self.how == How::Refuse {
            return Err(ExpertsError::Backend("this row is refused".into()));
        }
        let id = self.inner.submit(call)?;
        if hit {
            self.spoiled = Some(id);
        }
        Ok(id)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        let Progress::Completed(mut completed) = self.inner.poll(deadline)? else { unreachable!() };
        let Completed { call, sums, .. } = &mut completed;
        let failed = self.how == How::FailAll && self.calls.iter().any(|(layer, _)| *layer == LAYER);
        if failed || (self.spoiled == Some(*call) && self.how == How::Fail) {
            return Ok(Progress::Failed { call: *call, error: ExpertsError::Backend("lost".into()) });
        }
        if self.spoiled == Some(*call) {
            match self.how {
                // The second row of the call, or its only one.
                How::NotFinite if sums.len() > 64 => sums[64] = f32::NAN,
                How::NotFinite => sums[0] = f32::NAN,
                How::Shorten => sums.truncate(1),
                How::Fail | How::Refuse | How::FailAll => {}
            }
        }
        Ok(Progress::Completed(completed))
    }

    fn cancel(&mut self, call: CallId) {
        self.cancelled += 1;
        self.inner.cancel(call);
    }
}

#[test]
fn who_is_to_blame_ends_alone() {
    let (model, backbone) = tiny();
    assert_eq!(model.config().hidden, 64, "as `Spoiling` assumes");
    let texts = [tokens(3, 1), tokens(40, 1), tokens(7, 3)];
    let expected: Vec<Vec<u32>> = texts.iter().map(|text| alone(&backbone, &model, text)).collect();
    for how in [How::NotFinite, How::Fail, How::Refuse, How::Shorten] {
        let mut experts = Spoiling::new(&model, how);
        let pass = backbone.begin(texts.iter().map(|text| member(backbone.start(), text)).collect());
        let outcomes = run(&backbone, vec![pass], &mut experts).remove(0);
        assert_eq!(bits(&outcomes[0]), expected[0]);
        assert_eq!(bits(&outcomes[2]), expected[2]);
        match (&outcomes[1].logits, how) {
            (Err(BackboneError::NotFinite { place }), How::NotFinite) => {
                assert_eq!(*place, Place::Experts(LAYER));
            }
            (Err(BackboneError::Experts { layer, .. }), _) => assert_eq!(*layer, LAYER),
            (other, _) => panic!("{other:?}"),
        }
        // Its row goes no further, and the call that failed was asked again member by member.
        let rows = |layer: u16| {
            let calls = experts.calls.iter().filter(move |(of, _)| of.0 == layer);
            calls.map(|(_, rows)| *rows).collect::<Vec<usize>>()
        };
        assert_eq!((rows(0), rows(2), rows(3)), (vec![5], vec![4], vec![4]));
        let again = if how == How::NotFinite { vec![5] } else { vec![5, 1, 1, 3] };
        assert_eq!(rows(LAYER.0), again);
        // A sequence that failed half way is not gone on with.
        let spoiled = outcomes.into_iter().nth(1).unwrap().sequence;
        let pass = backbone.begin(vec![member(spoiled, &texts[1])]);
        let outcomes = run(&backbone, vec![pass], &mut experts);
        assert!(matches!(outcomes[0][0].logits, Err(BackboneError::SpoiledSequence)));
    }
}

#[test]
fn who_is_alone_is_asked_for_once_more_too() {
    let (model, backbone) = tiny();
    let text = tokens(3, 2);
    let mut experts = ReferenceExperts::fast(&model);
    let mut pass = backbone.begin(vec![member(backbone.start(), &text)]);
    assert!(matches!(backbone.advance(&mut pass, &mut experts), Step::Waiting));
    let call = pass.calls().next().unwrap();
    experts.cancel(call);
    let lost = Err(ExpertsError::Backend("lost".into()));
    assert!(!backbone.receive(&mut pass, call, lost, &mut experts), "its call is out again");
    let outcomes = run(&backbone, vec![pass], &mut experts).remove(0);
    assert_eq!(bits(&outcomes[0]), alone(&backbone, &model, &text));
}

#[test]
fn experts_that_answer_nobody_end_everybody() {
    let (model, backbone) = tiny();
    let mut experts = Spoiling::new(&model, How::FailAll);
    let texts = [tokens(3, 1), tokens(40, 1)];
    let pass = backbone.begin(texts.iter().map(|text| member(backbone.start(), text)).collect());
    let outcomes = run(&backbone, vec![pass], &mut experts).remove(0);
    assert_eq!(outcomes.len(), 2);
    assert!(outcomes.iter().all(|outcome| matches!(
        outcome.logits, Err(BackboneError::Experts { layer, .. }) if layer == LAYER
    )));
    assert_eq!(experts.calls, [(LayerIndex(0), 2), (LAYER, 2), (LAYER, 1), (LAYER, 1)]);
}

#[test]
fn a_member_that_is_taken_out_frees_its_rows_at_the_next_layer() {
    let (model, backbone) = tiny();
    let mut experts = Spoiling::new(&model, How::NotFinite);
    let texts = [tokens(3, 2), tokens(40, 7), tokens(7, 3)];
    let mut pass = backbone.begin(texts.iter().map(|text| member(backbone.start(), text)).collect());
    assert!(matches!(backbone.advance(&mut pass, &mut experts), Step::Waiting));
    assert!(!pass.take_out(1, &mut experts), "the call of the others is still out");
    assert!(!pass.take_out(9, &mut experts), "there is no such member");
    // Nothing is spoiled: what would be is looked for at the next layer, in the second row.
    experts.how = How::Fail;
    experts.target = Some(Vec::new());
    let outcomes = run(&backbone, vec![pass], &mut experts).remove(0);
    assert_eq!(experts.calls.iter().map(|(_, rows)| *rows).collect::<Vec<_>>(), [12, 5, 5, 5]);
    assert_eq!(experts.cancelled, 0);
    assert_eq!(bits(&outcomes[0]), alone(&backbone, &model, &texts[0]));
    assert!(matches!(outcomes[1].logits, Err(BackboneError::TakenOut)));
    assert_eq!(bits(&outcomes[2]), alone(&backbone, &model, &texts[2]));
}

#[test]
fn with_the_last_member_the_call_is_cancelled() {
    let (model, backbone) = tiny();
    let mut experts = Spoiling::new(&model, How::NotFinite);
    let pass = |from: u32| backbone.begin(vec![member(backbone.start(), &tokens(from, 2))]);
    let (mut leaving, mut staying) = (pass(3), pass(9));
    assert!(matches!(backbone.advance(&mut leaving, &mut experts), Step::Waiting));
    assert!(matches!(backbone.advance(&mut staying, &mut experts), Step::Waiting));
    assert!(leaving.take_out(0, &mut experts), "nobody is left to wait");
    assert_eq!((experts.cancelled, leaving.calls().count()), (1, 0));
    let Step::Finished(outcomes) = backbone.advance(&mut leaving, &mut experts) else { panic!() };
    assert!(matches!(outcomes[..], [Outcome { logits: Err(BackboneError::TakenOut), .. }]));
    experts.how = How::Fail;
    experts.target = Some(Vec::new());
    let outcomes = run(&backbone, vec![staying], &mut experts);
    assert_eq!(bits(&outcomes[0][0]), alone(&backbone, &model, &tokens(9, 2)));
}

#[test]
fn a_sequence_takes_what_its_cost_says() {
    for model in [open("tests/data/tiny/tiny-f16.gguf"), open("models/atlas/atlas-q4_k_m.gguf")] {
        let backbone = Backbone::new(model.clone(), NonZeroUsize::new(1)).unwrap();
        let cost = SequenceCost::of(model.config());
        let mut experts = ReferenceExperts::fast(&model);
        let mut sequence = backbone.start_within(23);
        for token in tokens(5, 23) {
            let mut feeds = [Feed { sequence: &mut sequence, tokens: &[token], logits: Wanted::None }];
            backbone.forward(&mut feeds, &mut experts).unwrap();
            assert!(sequence.bytes() as u64 <= cost.bytes(23));
        }
        assert_eq!(sequence.bytes() as u64, cost.bytes(23));
        let mut feeds = [Feed { sequence: &mut sequence, tokens: &[TokenId(5)], logits: Wanted::None }];
        let error = backbone.forward(&mut feeds, &mut experts).unwrap_err();
        assert!(matches!(error, BackboneError::ContextFull { held: 23, fed: 1, limit: 23 }));
    }
}
