//! Room, and what is loaded into it.

use kvasir_experts::RunnerOptions;

use super::*;

const DIGEST: ExpertDigest = ExpertDigest([1; 32]);

fn name(expert: u16) -> ExpertName {
    ExpertName { layer: 0, expert }
}

fn assigned(expert: u16) -> Assigned {
    Assigned { name: name(expert), digest: DIGEST, blob_bytes: 10 }
}

/// What `Store::begin` does to the count of sessions.
fn next_session(store: &Store) {
    store.contents().session += 1;
}

/// As if its blob had come.
fn has_come(store: &Store, expert: u16) {
    store.contents().held.get_mut(&name(expert)).unwrap().loaded = true;
}

/// A store of 30 bytes that holds the experts 0, 1 and 2 from earlier sessions, 1 from the latest of them.
fn store() -> Store {
    let store = Store::new(Arc::new(Budget::new(30)));
    for expert in 0..3 {
        assert_eq!(store.reserve(name(expert), DIGEST, 10), Room::Reserved);
        has_come(&store, expert);
    }
    next_session(&store);
    store.name(&[assigned(1)]);
    next_session(&store);
    store
}

/// The released kernel, in a package signed for the test.
fn runner() -> Arc<ExpertRunner> {
    use kvasir_plugin::{PackageContents, PublisherKey, TrustStore, UnixSeconds, Validity, pack, verify};
    let folder = repository().join("plugins/swiglu");
    let contents = PackageContents {
        manifest: std::fs::read(folder.join("plugin.toml")).unwrap(),
        component: std::fs::read(folder.join("release/swiglu-0.2.0.wasm")).unwrap(),
        shaders: [("swiglu.wgsl".to_owned(), std::fs::read(folder.join("shaders/swiglu.wgsl")).unwrap())]
            .into(),
        vectors: [("q8_0.vector".to_owned(), std::fs::read(folder.join("vectors/q8_0.vector")).unwrap())]
            .into(),
        ..PackageContents::default()
    };
    let key = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
    let validity = Validity { not_before: UnixSeconds(1), expires: UnixSeconds(3) };
    let package = pack(&contents, validity, &key).unwrap();
    let trusted = PublisherKey { key: key.verifying_key(), name: None };
    let trust = TrustStore::from_keys([trusted]).unwrap();
    let plugin = verify(&package, &trust, UnixSeconds(2)).unwrap();
    let instances = std::num::NonZeroUsize::MIN;
    Arc::new(ExpertRunner::new(&plugin, RunnerOptions { instances, ..RunnerOptions::default() }).unwrap())
}

fn repository() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

const MODEL: ModelDigest = ModelDigest([2; 32]);
const PLUGIN: PluginDigest = PluginDigest([1; 32]);

fn tiny() -> kvasir_model::Model {
    kvasir_model::Model::open(&repository().join("tests/data/tiny/tiny-q8_0.gguf")).unwrap()
}

/// The first layer's expert: its digest and its blob.
fn expert(model: &kvasir_model::Model, index: u16) -> (ExpertDigest, Vec<u8>) {
    let blob = model.expert(LayerIndex(0), ExpertIndex(index)).unwrap().blob();
    (ExpertDigest(ExpertBlob::digest(&blob).0), blob)
}

/// The loading may reach into the next session, where the same backbone may assign the same blob under a name for which it
/// has no proof there.
#[test]
fn what_was_proven_in_one_model_is_not_loaded_in_another() {
    let other = ModelDigest([3; 32]);
    let (digest, blob) = expert(&tiny(), 0);
    let runner = runner();
    let store = Store::new(Arc::new(Budget::new(1 << 20)));
    store.begin(PLUGIN, MODEL, &runner);
    assert_eq!(store.reserve(name(0), digest, blob.len() as u64), Room::Reserved);
    store.begin(PLUGIN, other, &runner);
    assert_eq!(store.reserve(name(0), digest, blob.len() as u64), Room::Reserved);
    assert_eq!(store.load(MODEL, name(0), digest, &blob).unwrap_err().reason, NotHeldReason::Released);
    assert!(!store.holds(name(0)), "its proof in this model is still to come");
    store.load(other, name(0), digest, &blob).unwrap();
    assert!(store.holds(name(0)));
}

/// Weights that the runner has under a name, from whoever was last, are not those that were proven.
#[test]
fn what_is_loaded_takes_the_place_of_what_the_runner_has_under_its_name() {
    let (model, runner) = (tiny(), runner());
    let by_hand = |under: u16, index: u16| {
        let tensors = model.expert(LayerIndex(0), ExpertIndex(index)).unwrap();
        let weights = Swiglu::new(tensors.gate.matrix(), tensors.up.matrix(), tensors.down.matrix()).unwrap();
        runner.load(LayerIndex(0), ExpertIndex(under), &weights).unwrap();
    };
    by_hand(0, 1);
    by_hand(5, 0);
    let store = Store::new(Arc::new(Budget::new(1 << 20)));
    store.begin(PLUGIN, MODEL, &runner);
    let (digest, blob) = expert(&model, 0);
    assert_eq!(store.reserve(name(0), digest, blob.len() as u64), Room::Reserved);
    store.load(MODEL, name(0), digest, &blob).unwrap();
    // Two blocks of 32 quants, each behind a scale of 1.
    let row: Vec<u8> = (0..2).flat_map(|_| 1f32.to_le_bytes().into_iter().chain(1..=32)).collect();
    let of = |index| {
        let wanted =
            kvasir_experts::ExpertRows { expert: ExpertIndex(index), rows: vec![0], weights: vec![1.0] };
        runner.each(LayerIndex(0), kvasir_experts::RowFormat::Q8, &row, 64, &[wanted]).unwrap()
    };
    assert_eq!(of(0), of(5));
}

#[test]
fn what_no_assignment_names_makes_room_the_oldest_first() {
    let store = store();
    assert_eq!(store.reserve(name(7), DIGEST, 10), Room::Reserved);
    assert_eq!([0, 1, 2].map(|expert| store.holds(name(expert))), [false, true, true]);
    assert_eq!(store.reserve(name(8), DIGEST, 10), Room::Reserved);
    assert_eq!([1, 2].map(|expert| store.holds(name(expert))), [true, false]);
    assert_eq!((store.bytes(), store.free_bytes()), (30, 0));
}

#[test]
fn what_is_assigned_again_is_here_and_stays() {
    let store = store();
    store.name(&[assigned(0), assigned(1)]);
    assert_eq!(store.reserve(name(7), DIGEST, 10), Room::Reserved);
    assert_eq!([0, 1, 2].map(|expert| store.holds(name(expert))), [true, true, false]);
    assert_eq!(store.reserve(name(0), DIGEST, 10), Room::Held);
    // Now everything is named, and what is on its way is not dropped either.
    assert_eq!(store.reserve(name(8), DIGEST, 10), Room::None);
    assert_eq!(store.reserve(name(7), DIGEST, 10), Room::Underway);
}

#[test]
fn nothing_is_dropped_for_what_has_no_room_whatever_is_dropped() {
    let store = store();
    assert_eq!(store.reserve(name(7), DIGEST, 31), Room::None);
    assert!((0..3).all(|expert| store.holds(name(expert))));
    assert_eq!(store.reserve(name(7), DIGEST, 30), Room::Reserved);
    assert!(!(0..3).any(|expert| store.holds(name(expert))));
}
