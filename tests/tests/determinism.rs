//! The same bits, however a text is computed: threads, chunks of the prompt, company in the batch, kind of experts.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use kvasir_backbone::{
    Backbone, Event, Experts, Feed, Finish, GenerateOptions, SamplerOptions, Sequence, TokenId, Wanted,
    generate,
};
use kvasir_model::Model;
use kvasir_numerics::InstructionSet;
use kvasir_tests::reference_experts::ReferenceExperts;
use kvasir_tests::released_plugin::sandboxed;
use kvasir_tests::skipped;

const PROMPT: &str = "Kenya is in Africa. The capital of Kenya is Nairobi. The dialling code of Kenya is +";
const OTHER: &str = "Die Hauptstadt von Norwegen ist";

fn atlas() -> Arc<Model> {
    open("models/atlas/atlas-q4_k_m.gguf")
}

fn open(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    Arc::new(Model::open(&path).unwrap_or_else(|error| panic!("{error}")))
}

fn backbone(model: &Arc<Model>, threads: usize) -> Backbone {
    Backbone::new(model.clone(), NonZeroUsize::new(threads)).unwrap_or_else(|error| panic!("{error}"))
}

fn tokens(model: &Model, text: &str) -> Vec<TokenId> {
    model.tokenizer().encode(text).unwrap_or_else(|error| panic!("{error}"))
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Tokens of a generation, and the bits of the logits that each was chosen from.
fn text(
    backbone: &Backbone,
    experts: &mut dyn Experts,
    chunk: usize,
    sampler: SamplerOptions,
) -> (Vec<TokenId>, Vec<Vec<u32>>) {
    let mut options = GenerateOptions::greedy(backbone, 24);
    options.prefill_chunk = NonZeroUsize::new(chunk).unwrap_or(NonZeroUsize::MIN);
    options.sampler = sampler;
    options.stop.clear();
    let mut seen = Vec::new();
    let prompt = tokens(backbone.model(), PROMPT);
    let said = generate(backbone, &mut backbone.start(), &prompt, &options, experts, &mut |event| {
        if let Event::Chosen { logits, .. } = event {
            seen.push(bits(logits));
        }
        ControlFlow::Continue(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(said.finish, Finish::Length);
    (said.tokens, seen)
}

#[test]
fn threads_and_chunks_change_no_bit() {
    for model in [atlas(), open("tests/data/tiny/tiny-q4_0.gguf"), open("tests/data/tiny-hf")] {
        let reference = text(
            &backbone(&model, 1),
            &mut ReferenceExperts::plain(&model),
            usize::MAX,
            SamplerOptions::default(),
        );
        let in_sandbox = sandboxed(&model);
        for threads in [1, 2] {
            let backbone = backbone(&model, threads);
            for chunk in [1, 7, usize::MAX] {
                let ways: [(&str, Box<dyn Experts>); 2] = [
                    ("exact arithmetic", Box::new(ReferenceExperts::fast(&model))),
                    ("released plugin", in_sandbox()),
                ];
                for (way, mut experts) in ways {
                    let again = text(&backbone, experts.as_mut(), chunk, SamplerOptions::default());
                    assert!(
                        again == reference,
                        "{}, {way}: {threads} threads and chunks of {chunk} change a bit",
                        model.name()
                    );
                }
            }
        }
    }
}

#[test]
fn instruction_sets_change_no_bit() {
    let sampler = SamplerOptions::default();
    for model in [atlas(), open("tests/data/tiny/tiny-q8_0.gguf"), open("tests/data/tiny/tiny-bf16.gguf")] {
        let texts: Vec<_> = InstructionSet::available()
            .map(|instructions| {
                let backbone = backbone(&model, 1).with_instructions(instructions);
                text(&backbone, &mut ReferenceExperts::plain(&model), usize::MAX, sampler)
            })
            .collect();
        if texts.len() == 1 {
            skipped("no vector instructions", "the scalar reference is compared with nothing");
        }
        assert!(texts.iter().all(|text| *text == texts[0]), "{}", model.name());
    }
}

#[test]
fn a_seed_gives_the_same_text_whatever_the_threads() {
    let model = atlas();
    let sampler = SamplerOptions { temperature: 1.5, top_k: 40, top_p: 0.95, seed: 11 };
    let one = text(&backbone(&model, 1), &mut ReferenceExperts::fast(&model), 5, sampler);
    let two = text(&backbone(&model, 2), &mut ReferenceExperts::fast(&model), usize::MAX, sampler);
    assert_eq!(one, two);
    let other = SamplerOptions { seed: 12, ..sampler };
    assert_ne!(one.0, text(&backbone(&model, 2), &mut ReferenceExperts::fast(&model), 5, other).0);
}

/// Feeds `tokens` one after the other and returns the bits of all logits.
fn alone(backbone: &Backbone, experts: &mut dyn Experts, tokens: &[TokenId]) -> Vec<Vec<u32>> {
    let mut sequence = backbone.start();
    tokens.iter().map(|token| step(backbone, experts, &mut sequence, *token)).collect()
}

fn step(backbone: &Backbone, experts: &mut dyn Experts, sequence: &mut Sequence, token: TokenId) -> Vec<u32> {
    let mut feeds = [Feed { sequence, tokens: &[token], logits: Wanted::Last }];
    let logits = backbone.forward(&mut feeds, experts).unwrap_or_else(|error| panic!("{error}"));
    bits(logits[0].values())
}

#[test]
fn company_changes_no_bit() {
    let model = atlas();
    let in_sandbox = sandboxed(&model);
    let mut texts = Vec::new();
    for threads in [1, 2] {
        let backbone = backbone(&model, threads);
        texts.push(in_company(&backbone, &mut ReferenceExperts::fast(&model)));
        texts.push(in_company(&backbone, in_sandbox().as_mut()));
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "threads or kind of experts change a bit");
}

/// Two texts alone, then in turns, then both in one pass, cut differently: the same bits, which are returned.
fn in_company(backbone: &Backbone, experts: &mut dyn Experts) -> [Vec<Vec<u32>>; 2] {
    let (first, second) = (tokens(backbone.model(), PROMPT), tokens(backbone.model(), OTHER));
    let first_alone = alone(backbone, experts, &first);
    let second_alone = alone(backbone, experts, &second);

    // Passes of two sequences that alternate.
    let (mut one, mut two) = (backbone.start(), backbone.start());
    for at in 0..first.len() {
        assert_eq!(step(backbone, experts, &mut one, first[at]), first_alone[at], "token {at}");
        if let Some(token) = second.get(at) {
            assert_eq!(step(backbone, experts, &mut two, *token), second_alone[at], "token {at}");
        }
    }

    // Both in each pass, cut differently.
    let (mut one, mut two) = (backbone.start(), backbone.start());
    let cut = [first.len() / 3, 1];
    let mut feeds = [
        Feed { sequence: &mut one, tokens: &first[..cut[0]], logits: Wanted::All },
        Feed { sequence: &mut two, tokens: &second[..cut[1]], logits: Wanted::Last },
    ];
    let logits = backbone.forward(&mut feeds, experts).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(logits[0].rows().map(bits).collect::<Vec<_>>(), first_alone[..cut[0]]);
    assert_eq!(bits(logits[1].values()), second_alone[cut[1] - 1]);
    let mut feeds = [
        Feed { sequence: &mut two, tokens: &second[cut[1]..], logits: Wanted::All },
        Feed { sequence: &mut one, tokens: &first[cut[0]..], logits: Wanted::None },
    ];
    let logits = backbone.forward(&mut feeds, experts).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(logits[0].rows().map(bits).collect::<Vec<_>>(), second_alone[cut[1]..]);
    assert!(logits[1].values().is_empty());
    [first_alone, second_alone]
}

#[test]
fn a_snapshot_continues_like_its_original() {
    let model = open("tests/data/tiny/tiny-f16.gguf");
    let backbone = backbone(&model, 1);
    let mut experts = ReferenceExperts::plain(&model);
    let prompt = tokens(&model, OTHER);
    let mut sequence = backbone.start();
    for token in &prompt[..3] {
        step(&backbone, &mut experts, &mut sequence, *token);
    }
    let mut snapshot = sequence.clone();
    let wanted: Vec<_> =
        prompt[3..].iter().map(|token| step(&backbone, &mut experts, &mut sequence, *token)).collect();
    let again: Vec<_> =
        prompt[3..].iter().map(|token| step(&backbone, &mut experts, &mut snapshot, *token)).collect();
    assert_eq!(wanted, again);
}
