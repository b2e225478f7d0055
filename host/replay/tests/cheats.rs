//! The cheat bench: what workers might send instead of the right rows. Whatever the cheat, an item that is drawn convicts; an
//! honest worker never is convicted; and the draw alone decides which cheats are seen.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

mod scene;

use std::collections::BTreeSet;

use kvasir_experts::{ExpertIndex, ExpertSource, LayerIndex, SourceError, Swiglu};
use kvasir_model::Model;
use kvasir_numerics::{Format, Matrix};
use kvasir_replay::*;
use kvasir_wire::handshake::Class;
use kvasir_wire::id::PluginDigest;
use kvasir_wire::message::{Call, Mode, RowFormat};
use scene::{Scene, audit, lot, model_digest, open_model, root, session, speeds};

/// A cheat: the rows that a worker sends for call `at` instead of the right ones; nothing where it has no such rows.
type Cheat = fn(&Scene, usize) -> Option<Vec<u8>>;

const CHEATS: [(&str, Cheat); 14] = [
    ("wrong expert", |scene, at| computed(scene, at, &Neighbour(&scene.model))),
    ("wrong layer", |scene, at| computed(scene, at, &OtherLayer(&scene.model))),
    ("lower-bit weights", |scene, at| computed(scene, at, &Coarse(&scene.model))),
    ("zeros", |scene, at| Some(vec![0; scene.calls[at].1.len()])),
    ("stale result", stale),
    ("one flipped bit, the lowest", |scene, at| changed(scene, at, |rows| rows[0] ^= 1)),
    ("one flipped bit, a sign", |scene, at| changed(scene, at, |rows| *rows.last_mut().unwrap() ^= 0x80)),
    ("lazy copy of the input", copy_of_input),
    ("late truncation: the last row from its middle on", |scene, at| {
        let half = scene.model.config().hidden as usize * 2;
        changed(scene, at, |rows| {
            let end = rows.len();
            rows[end - half..].fill(0);
        })
    }),
    ("one expert left out", without_one_expert),
    ("rounded to bfloat16", |scene, at| {
        changed(scene, at, |rows| rows.chunks_mut(4).for_each(|value| value[..2].fill(0)))
    }),
    ("scaled by one part in a million", |scene, at| map_values(scene, at, |value| value * 1.000_001)),
    ("rows exchanged", |scene, at| {
        let row = scene.model.config().hidden as usize * 4;
        (scene.calls[at].1.len() > row).then(|| changed(scene, at, |rows| rows.rotate_left(row)))?
    }),
    ("noise below a tolerance", |scene, at| map_values(scene, at, |value| value + 1e-6)),
];

fn computed(scene: &Scene, at: usize, source: &dyn ExpertSource) -> Option<Vec<u8>> {
    Some(scene.compute(&scene.calls[at].0, source))
}

fn changed(scene: &Scene, at: usize, change: impl Fn(&mut Vec<u8>)) -> Option<Vec<u8>> {
    let mut rows = scene.calls[at].1.clone();
    change(&mut rows);
    Some(rows)
}

fn map_values(scene: &Scene, at: usize, map: impl Fn(f32) -> f32) -> Option<Vec<u8>> {
    changed(scene, at, |rows| {
        for bytes in rows.as_chunks_mut::<4>().0 {
            *bytes = map(f32::from_le_bytes(*bytes)).to_le_bytes();
        }
    })
}

/// The answer of an earlier call of the same size.
fn stale(scene: &Scene, at: usize) -> Option<Vec<u8>> {
    let earlier = scene.calls[..at].iter().rev().map(|(_, rows)| rows);
    earlier.clone().find(|rows| rows.len() == scene.calls[at].1.len()).cloned()
}

/// Every row of the result is the row that came in, so that norms and statistics look right.
fn copy_of_input(scene: &Scene, at: usize) -> Option<Vec<u8>> {
    let call = Call::decode(&scene.calls[at].0).unwrap();
    let format = kvasir_experts::RowFormat::from_number(call.row_format as u8).unwrap();
    assert_ne!(call.row_format, RowFormat::Float32);
    let hidden = call.columns().unwrap();
    let row_bytes = call.data.len() / call.rows as usize;
    let row = |number: u32| {
        let mut values = vec![0.0; hidden];
        kvasir_numerics::read_row(
            format,
            &call.data[number as usize * row_bytes..][..row_bytes],
            &mut values,
        );
        values.into_iter().flat_map(f32::to_le_bytes)
    };
    Some(match call.mode {
        Mode::Sum => (0..call.rows).flat_map(row).collect(),
        Mode::Each => call.experts.iter().flat_map(|expert| expert.rows.clone()).flat_map(row).collect(),
    })
}

/// The last expert is not computed: a sum lacks it, or its rows are zeros.
fn without_one_expert(scene: &Scene, at: usize) -> Option<Vec<u8>> {
    let (payload, right) = &scene.calls[at];
    let mut call = Call::decode(payload).unwrap();
    let left_out = call.experts.pop()?;
    if call.experts.is_empty() {
        return None;
    }
    let mut rows = scene.compute_call(&call, &*scene.model);
    if call.mode == Mode::Each {
        rows.extend(vec![0; left_out.rows.len() * call.columns().unwrap() * 4]);
    }
    assert_eq!(rows.len(), right.len());
    Some(rows)
}

/// Expert e + 1 in place of expert e.
struct Neighbour<'m>(&'m Model);

/// The layer before.
struct OtherLayer<'m>(&'m Model);

/// The same weights with the lowest bit of every quant cleared: what a worker without enough memory might do.
struct Coarse<'m>(&'m Model);

impl ExpertSource for Neighbour<'_> {
    fn expert(
        &self,
        layer: LayerIndex,
        expert: ExpertIndex,
        take: &mut dyn FnMut(&Swiglu<'_>),
    ) -> Result<(), SourceError> {
        let other = ExpertIndex((expert.0 + 1) % self.0.config().experts as u16);
        ExpertSource::expert(self.0, layer, other, take)
    }
}

impl ExpertSource for OtherLayer<'_> {
    fn expert(
        &self,
        layer: LayerIndex,
        expert: ExpertIndex,
        take: &mut dyn FnMut(&Swiglu<'_>),
    ) -> Result<(), SourceError> {
        let layers = self.0.config().layers as u16;
        ExpertSource::expert(self.0, LayerIndex((layer.0 + layers - 1) % layers), expert, take)
    }
}

impl ExpertSource for Coarse<'_> {
    fn expert(
        &self,
        layer: LayerIndex,
        expert: ExpertIndex,
        take: &mut dyn FnMut(&Swiglu<'_>),
    ) -> Result<(), SourceError> {
        let tensors = Model::expert(self.0, layer, expert)?;
        let coarse = |matrix: Matrix<'_>| {
            let mut bytes = matrix.bytes().to_vec();
            // Where the low bits of a block lie: after its scales in Q4_K, at its start in Q6_K.
            let low = match matrix.format() {
                Format::Q4K => 16..144,
                Format::Q6K => 0..128,
                other => panic!("the bundled model has no {other}"),
            };
            for block in bytes.chunks_mut(matrix.format().block_bytes()) {
                block[low.clone()].iter_mut().for_each(|byte| *byte &= 0xee);
            }
            bytes
        };
        let matrices = [tensors.gate.matrix(), tensors.up.matrix(), tensors.down.matrix()];
        let bytes = matrices.map(coarse);
        let of = |number: usize| {
            let matrix: Matrix<'_> = matrices[number];
            Matrix::new(matrix.format(), matrix.rows(), matrix.columns(), &bytes[number])
        };
        take(&Swiglu::new(of(0)?, of(1)?, of(2)?)?);
        Ok(())
    }
}

#[test]
fn every_cheat_is_found_whenever_it_is_drawn_and_an_honest_worker_never_is() {
    let scene = Scene::new();
    let plugin = scene.plugin.clone();
    let find = move |_| Ok(plugin.clone());
    let mut replayer = Replayer::new(vec![open_model()], &find, Limits::default()).unwrap();
    let calls = scene.calls.len();

    let (found, reports) = audit(&scene, &[&scene.honest()], &lot(1), usize::MAX, &mut replayer);
    assert_eq!((found.records, found.faulty, reports.len()), (calls, 0, calls));
    for report in &reports {
        assert_eq!(report.verdict, Verdict::Right, "item {}", report.place.index);
    }
    println!("honest: {calls} of {calls} items right");
    for (kind, speed) in speeds(&reports) {
        println!("speed: {:24} {speed:9.1} replays/s", kind.name());
    }

    for (name, cheat) in CHEATS {
        let mut answers = scene.calls.clone();
        let mut cheated = BTreeSet::new();
        for (at, (_, rows)) in answers.iter_mut().enumerate() {
            if let Some(sent) = cheat(&scene, at).filter(|sent| sent != rows) {
                *rows = sent;
                cheated.insert(at as u64);
            }
        }
        let session = scene.session(2, Class::Exact, &answers);
        let (_, reports) = audit(&scene, &[&session], &lot(1), usize::MAX, &mut replayer);
        let mut convicted = BTreeSet::new();
        for report in &reports {
            match &report.verdict {
                Verdict::Convicted(found) => {
                    let (payload, right) = &scene.calls[report.place.index as usize];
                    assert_eq!(found.expected, kvasir_wire::id::sha256(&[right]), "{name}");
                    assert_eq!(report.item.payload, kvasir_wire::id::sha256(&[payload]), "{name}");
                    convicted.insert(report.place.index);
                }
                Verdict::Right => {}
                other => panic!("{name}: {other:?}"),
            }
        }
        assert_eq!(convicted, cheated, "{name}");
        println!("cheat: {name:50} found in {} of {} items drawn", convicted.len(), cheated.len());
        assert!(cheated.len() * 3 > calls, "{name} is a cheat in {} of {calls} calls only", cheated.len());
    }
}

/// The bundled model with the gate matrices of its first layer one expert further.
fn another_model(scene: &Scene, folder: &std::path::Path) -> Model {
    let mut bytes = std::fs::read(root().join("models/atlas/atlas-q4_k_m.gguf")).unwrap();
    let first = Model::expert(&scene.model, LayerIndex(0), ExpertIndex(0)).unwrap();
    let gate = first.gate.bytes();
    let at = bytes.windows(gate.len()).position(|window| window == gate).unwrap();
    let all = scene.model.config().experts as usize * gate.len();
    bytes[at..at + all].rotate_left(gate.len());
    let file = folder.join("other.gguf");
    std::fs::write(&file, bytes).unwrap();
    Model::open(&file).unwrap()
}

#[test]
fn calls_of_two_models_are_computed_with_the_weights_of_each() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    let other = another_model(&scene, folder.path());
    let digest = model_digest(&other);
    let of_other: Vec<_> =
        scene.calls.iter().map(|(payload, _)| (payload.clone(), scene.compute(payload, &other))).collect();
    let differ: BTreeSet<u64> = (0..)
        .zip(&of_other)
        .zip(&scene.calls)
        .filter(|((_, one), two)| one != two)
        .map(|((at, _), _)| at)
        .collect();
    assert!(!differ.is_empty() && differ.len() < scene.calls.len());
    let plugin = scene.plugin.clone();
    let find = move |_| Ok(plugin.clone());
    let mut replayer = Replayer::new(vec![open_model(), other], &find, Limits::default()).unwrap();

    let honest = session(5, digest, PluginDigest(scene.plugin.digest().0), Class::Exact, &of_other);
    let (_, reports) = audit(&scene, &[&scene.honest(), &honest], &lot(1), usize::MAX, &mut replayer);
    assert_eq!(reports.len(), 2 * scene.calls.len());
    for report in &reports {
        assert_eq!(report.verdict, Verdict::Right, "item {}", report.place.index);
    }
    let wrong = scene.session(6, Class::Exact, &of_other);
    let (_, reports) = audit(&scene, &[&wrong], &lot(1), usize::MAX, &mut replayer);
    let convicted = reports.iter().filter(|report| matches!(report.verdict, Verdict::Convicted(_)));
    assert_eq!(convicted.map(|report| report.place.index).collect::<BTreeSet<_>>(), differ);
}

#[test]
fn what_is_not_drawn_is_not_seen_and_what_is_drawn_is() {
    let scene = Scene::new();
    let plugin = scene.plugin.clone();
    let find = move |_| Ok(plugin.clone());
    let mut replayer = Replayer::new(vec![open_model()], &find, Limits::default()).unwrap();
    let mut answers = scene.calls.clone();
    let cheated: BTreeSet<u64> = (0..answers.len() as u64).filter(|at| at % 4 == 1).collect();
    for at in &cheated {
        answers[*at as usize].1.fill(0);
    }
    let session = scene.session(3, Class::Exact, &answers);
    let mut draws = BTreeSet::new();
    for number in 1..=4 {
        let (_, reports) = audit(&scene, &[&session, &scene.honest()], &lot(number), 6, &mut replayer);
        assert_eq!(reports.len(), 6);
        for report in &reports {
            let lies = report.place.name == session.file.name() && cheated.contains(&report.place.index);
            assert_eq!(matches!(report.verdict, Verdict::Convicted(_)), lies, "{report:?}");
        }
        draws
            .insert(reports.iter().map(|report| (report.place.name, report.place.index)).collect::<Vec<_>>());
        let (again, _) = audit(&scene, &[&session, &scene.honest()], &lot(number), 6, &mut replayer);
        assert_eq!(again.drawn, reports.iter().map(|report| report.place).collect::<Vec<_>>());
    }
    assert_eq!(draws.len(), 4, "four checkpoints draw four times the same");
}

#[test]
fn a_session_within_tolerance_is_measured_and_not_convicted() {
    let scene = Scene::new();
    let plugin = scene.plugin.clone();
    let find = move |_| Ok(plugin.clone());
    let mut replayer = Replayer::new(vec![open_model()], &find, Limits::default()).unwrap();
    let near =
        scene.calls.iter().enumerate().map(|(at, (payload, _))| {
            (payload.clone(), map_values(&scene, at, |value| value + 1e-6).unwrap())
        });
    let near: Vec<_> = near.collect();
    let session = scene.session(4, Class::Tolerance, &near[..4]);
    let (_, reports) = audit(&scene, &[&session], &lot(1), usize::MAX, &mut replayer);
    assert_eq!(reports.len(), 4);
    for report in reports {
        assert!(
            matches!(report.verdict, Verdict::Tolerance { deviation: Some(_), plausible: true }),
            "{:?}",
            report.verdict
        );
    }
}
