//! `cross-isa`: what must be the same bits on every processor, as SHA-256 digests, one a line. `scripts/cross-isa` runs it on
//! two architectures and compares.
//!
//! Golden vectors of the released plugin: the output for all rows at once, then for each row alone, by the scalar reference,
//! by the processor's vectors, by the released kernel in the sandbox. Then atlas: the logits of all tokens of two prompts and of
//! a few generated ones. Lines that start with `#` say how this machine computed and are not compared. Fails where two ways of
//! this machine differ, or where a vector's own output is not met.
#![allow(clippy::unwrap_used)] // A comparison that cannot be set up has failed.

#[path = "../../../tests/src/reference_experts.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod reference_experts;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ed25519_dalek::SigningKey;
use kvasir_backbone::{Backbone, Experts, Feed, TokenId, Wanted, greedy};
use kvasir_experts::*;
use kvasir_model::Model;
use kvasir_numerics::golden::{GoldenVector, Outcome};
use kvasir_numerics::{InstructionSet, check_rows, swiglu};
use kvasir_plugin::{PackageContents, PublisherKey, TrustStore, UnixSeconds, Validity, pack, verify};
use kvasir_sandbox::Fault;
use reference_experts::ReferenceExperts;
use sha2::{Digest, Sha256};

/// Read from the root of the checkout, in which the program runs.
const PLUGIN: &str = "plugins/swiglu";
const MODEL: &str = "models/atlas/atlas-q4_k_m.gguf";

const PROMPTS: [&str; 2] = ["The capital of Kenya is", "Die Hauptstadt von Norwegen ist"];
/// Tokens generated behind each prompt, one pass each.
const GENERATED: usize = 4;

fn main() {
    let sets: Vec<&str> = InstructionSet::available().map(InstructionSet::name).collect();
    println!("# processor: {}; instruction sets: {}", std::env::consts::ARCH, sets.join(", "));
    let plugin = released_plugin();
    let options = RunnerOptions { instances: NonZeroUsize::MIN, ..RunnerOptions::default() };
    let started = Instant::now();
    let runner = Arc::new(ExpertRunner::new(&plugin, options).unwrap());
    println!("# the kernel compiled and proved on its golden vectors in {:.1?}", started.elapsed());

    let started = Instant::now();
    for (index, (name, bytes)) in plugin.vectors().iter().enumerate() {
        vector(name, &GoldenVector::parse(bytes).unwrap(), &runner, ExpertIndex(index as u16));
    }
    println!("# golden vectors: {:.1?}", started.elapsed());

    // No expert of a vector is held any more, so the runner is free for a model.
    assert_eq!(runner.held_bytes(), 0);
    let model = Arc::new(Model::open(Path::new(MODEL)).unwrap());
    for prompt in PROMPTS {
        logits(&model, prompt, &runner);
    }
}

/// The released plugin in a package of the occasion.
fn released_plugin() -> VerifiedPlugin {
    let folder = Path::new(PLUGIN);
    let files = |name: &str| -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(folder.join(name)).into_iter().flatten().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
            .collect()
    };
    let contents = PackageContents {
        manifest: std::fs::read(folder.join("plugin.toml")).unwrap(),
        component: std::fs::read(folder.join("release/swiglu-0.2.0.wasm")).unwrap(),
        shaders: files("shaders"),
        vectors: files("vectors"),
        sbom: Vec::new(),
    };
    let key = SigningKey::from_bytes(&[7; 32]);
    let now = UnixSeconds(1_800_000_000);
    let validity = Validity { not_before: now, expires: UnixSeconds(now.0 + 1) };
    let trust = TrustStore::from_keys([PublisherKey { key: key.verifying_key(), name: None }]).unwrap();
    verify(&pack(&contents, validity, &key).unwrap(), &trust, now).unwrap()
}

/// A refusal, or the bytes of the output for all rows and then for each alone.
type Answer = Result<Vec<u8>, Fault>;

fn vector(file: &str, vector: &GoldenVector<'_>, runner: &ExpertRunner, number: ExpertIndex) {
    let name = file.trim_end_matches(".vector");
    let due: Answer = match vector.outcome {
        Outcome::Output(output) => Ok(output.repeat(2)),
        Outcome::MalformedWeights => Err(Fault::MalformedWeights),
        Outcome::MalformedRows => Err(Fault::MalformedRows),
        Outcome::NotFinite => Err(Fault::NotFinite),
    };
    let scalar = in_this_process(vector, InstructionSet::SCALAR);
    for set in InstructionSet::available() {
        assert!(in_this_process(vector, set) == due, "{file}: {set} gives other bits than the vector");
    }
    let vectors = in_this_process(vector, InstructionSet::detect());
    let kernel = in_the_sandbox(vector, runner, number);
    assert!(kernel == due, "{file}: the released kernel gives other bits than the vector");
    for (way, answer) in [("scalar", scalar), ("vectors", vectors), ("sandbox", kernel)] {
        println!("vector {name:28} {way:8} {}", answer.map_or_else(|fault| fault.to_string(), digest));
    }
}

fn in_this_process(vector: &GoldenVector<'_>, set: InstructionSet) -> Answer {
    let expert = Swiglu::new(vector.gate, vector.up, vector.down).unwrap();
    if [vector.gate, vector.up, vector.down].iter().any(|matrix| matrix.check_weights().is_err()) {
        return Err(Fault::MalformedWeights);
    }
    if check_rows(vector.gate.row_format(), expert.hidden(), vector.rows, vector.count).is_err() {
        return Err(Fault::MalformedRows);
    }
    batch_and_rows(vector, |rows, count| {
        let mut scratch = vec![0.0; expert.scratch_len(count).unwrap()];
        let mut out = vec![0.0; expert.hidden() * count];
        swiglu(set, &expert, rows, count, &mut scratch, &mut out).map_err(|_| Fault::NotFinite)?;
        Ok(out)
    })
}

fn in_the_sandbox(vector: &GoldenVector<'_>, runner: &ExpertRunner, number: ExpertIndex) -> Answer {
    let fault = |error| match error {
        RunnerError::Kernel { source: SandboxError::Fault { fault, .. }, .. } => fault,
        other => panic!("{other}"),
    };
    let expert = Swiglu::new(vector.gate, vector.up, vector.down).unwrap();
    runner.load(LayerIndex(0), number, &expert).map_err(fault)?;
    let answer = batch_and_rows(vector, |rows, count| {
        let request =
            ExpertRows { expert: number, rows: (0..count as u32).collect(), weights: vec![1.0; count] };
        runner.each(LayerIndex(0), vector.gate.row_format(), rows, expert.hidden(), &[request]).map_err(fault)
    });
    runner.unload(LayerIndex(0), number);
    answer
}

fn batch_and_rows(
    vector: &GoldenVector<'_>,
    compute: impl Fn(&[u8], usize) -> Result<Vec<f32>, Fault>,
) -> Answer {
    let mut bytes = bytes_of(&compute(vector.rows, vector.count)?);
    for row in vector.rows.chunks_exact(vector.rows.len() / vector.count.max(1)) {
        bytes.extend(bytes_of(&compute(row, 1)?));
    }
    Ok(bytes)
}

/// Three ways: scalar throughout, row by row; vectors throughout; vectors for the backbone, experts in the sandbox.
fn logits(model: &Arc<Model>, prompt: &str, runner: &Arc<ExpertRunner>) {
    let tokens = model.tokenizer().encode(prompt).unwrap();
    let backbone = || Backbone::new(model.clone(), NonZeroUsize::new(1)).unwrap();
    let ways: [(&str, Backbone, Box<dyn Experts>); 3] = [
        (
            "scalar",
            backbone().with_instructions(InstructionSet::SCALAR),
            Box::new(ReferenceExperts::plain(model)),
        ),
        ("vectors", backbone(), Box::new(ReferenceExperts::fast(model))),
        ("sandbox", backbone(), Box::new(LocalExperts::new(model.clone(), runner.clone()))),
    ];
    let mut seen = Vec::new();
    for (way, backbone, mut experts) in ways {
        let started = Instant::now();
        let (generated, bytes) = text(&backbone, experts.as_mut(), &tokens);
        let digest = digest(bytes);
        println!("logits {prompt:?} + {generated:?} {way:8} {digest}");
        println!("# {} tokens: {:.1?}", tokens.len() + GENERATED, started.elapsed());
        seen.push((generated, digest));
    }
    assert!(seen.iter().all(|one| *one == seen[0]), "{prompt:?}: the three ways differ");
}

/// The tokens generated greedily, and the bytes of the logits of every position.
fn text(backbone: &Backbone, experts: &mut dyn Experts, prompt: &[TokenId]) -> (String, Vec<u8>) {
    let (mut sequence, mut bytes, mut generated) = (backbone.start(), Vec::new(), Vec::new());
    let mut next = prompt.to_vec();
    for _ in 0..=GENERATED {
        let mut feeds = [Feed { sequence: &mut sequence, tokens: &next, logits: Wanted::All }];
        let logits = backbone.forward(&mut feeds, experts).unwrap();
        bytes.extend(bytes_of(logits[0].values()));
        next = vec![greedy(logits[0].last().unwrap())];
        generated.extend(&next);
    }
    generated.truncate(GENERATED);
    (backbone.model().tokenizer().decode(&generated), bytes)
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn digest(bytes: Vec<u8>) -> String {
    Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
