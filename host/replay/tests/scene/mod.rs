//! A worker's session on the bundled model, as it leaves traces: calls of a real backbone, rows of a real runner, a receipt that
//! three parties signed, its leaves in a log, and the records that a backbone publishes of it.
#![allow(dead_code)] // Each test uses a part.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ed25519_dalek::SigningKey;
use kvasir_backbone::{Backbone, CallId, Experts, ExpertsError, Feed, Progress, TokenId, Wanted, greedy};
use kvasir_experts::{
    ExpertIndex, ExpertRunner, ExpertSource, LayerIndex, LocalExperts, RowFormat, RunnerOptions, group,
};
use kvasir_ledger::log::{Checkpoint, bundles_of, cosign, encode_bundle, encode_tile, tiles_of};
use kvasir_merkle::{Accumulator, Hash, Tree, leaf_hash};
use kvasir_model::Model;
use kvasir_plugin::{
    PackageContents, PublisherKey, TrustStore, UnixSeconds, Validity, VerifiedPlugin, pack, verify,
};
use kvasir_replay::*;
use kvasir_wire::account::{Delegation, Grant, KeyBelief, KeyRole, KeyState, Price, Statement};
use kvasir_wire::handshake::Class;
use kvasir_wire::id::{ModelDigest, PluginDigest, SessionId, sha256};
use kvasir_wire::key::SecretKey;
use kvasir_wire::message::{Call, CallResult, ExpertRows, Mode, RowFormat as WireRows};
use kvasir_wire::money::{MeteredBytes, PricePerByte};
use kvasir_wire::note::{KeyName, NetworkName, Verifier};
use kvasir_wire::probe::{ProbeFile, ProbeName, ProbeRecord};
use kvasir_wire::receipt::{Receipt, ReceiptKeys, ReceiptSignatures, SignedReceipt, Terms};
use kvasir_wire::work::{WorkBook, WorkItem};

const PROMPT: &str = "The capital of France is";
const DECODED: usize = 3;

/// The model, the plugin, and what a backbone asked of workers.
pub struct Scene {
    pub model: Arc<Model>,
    pub plugin: VerifiedPlugin,
    pub runner: Arc<ExpertRunner>,
    /// Payloads of calls and the right rows, in both modes in turn.
    pub calls: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A session's traces.
pub struct Session {
    pub leaves: Vec<Vec<u8>>,
    pub receipt: SignedReceipt,
    pub file: ProbeFile,
}

/// Files of probe records, in memory.
#[derive(Default)]
pub struct Published(pub BTreeMap<ProbeName, Vec<u8>>);

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn open_model() -> Model {
    Model::open(&root().join("models/atlas/atlas-q4_k_m.gguf")).unwrap()
}

/// The released kernel, signed by a key that is trusted.
pub fn plugin() -> VerifiedPlugin {
    const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
    let key = publisher();
    let trust = TrustStore::from_keys([PublisherKey { key: key.verifying_key(), name: None }]).unwrap();
    verify(&package(NOW), &trust, NOW).unwrap()
}

/// Whoever signs packages here.
pub fn publisher() -> SigningKey {
    SigningKey::from_bytes(&[42; 32])
}

/// The released kernel as a package that is valid for an hour around `now`.
pub fn package(now: UnixSeconds) -> Vec<u8> {
    let folder = root().join("plugins/swiglu");
    let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
    let files = |folder: PathBuf| -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
            .collect()
    };
    let contents = PackageContents {
        manifest: read("plugin.toml"),
        component: read("release/swiglu-0.2.0.wasm"),
        shaders: files(folder.join("shaders")),
        vectors: files(folder.join("vectors")),
        sbom: Vec::new(),
    };
    let validity = Validity { not_before: UnixSeconds(now.0 - 1800), expires: UnixSeconds(now.0 + 1800) };
    pack(&contents, validity, &publisher()).unwrap()
}

pub fn model_digest(model: &Model) -> ModelDigest {
    ModelDigest(model.digests().unwrap().model.0)
}

impl Scene {
    /// Answers a prompt and records every call, each in both modes.
    pub fn new() -> Self {
        let model = Arc::new(open_model());
        let plugin = plugin();
        let options = RunnerOptions { instances: NonZeroUsize::new(2).unwrap(), ..RunnerOptions::default() };
        let runner = Arc::new(ExpertRunner::new(&plugin, options).unwrap());
        let backbone = Backbone::new(model.clone(), None).unwrap();
        let asked = Arc::default();
        let inner = LocalExperts::new(model.clone(), runner.clone());
        let mut experts = Recorder { inner, asked: Arc::clone(&asked) };
        let mut tokens = model.tokenizer().encode(PROMPT).unwrap();
        let mut sequence = backbone.start();
        for _ in 0..=DECODED {
            let mut feed = [Feed { sequence: &mut sequence, tokens: &tokens, logits: Wanted::Last }];
            let logits = backbone.forward(&mut feed, &mut experts).unwrap();
            tokens = vec![greedy(logits[0].last().unwrap())];
        }
        let _: &[TokenId] = &tokens;
        let mut scene = Scene { model, plugin, runner, calls: Vec::new() };
        for asked in asked.lock().unwrap().iter() {
            for mode in [Mode::Sum, Mode::Each] {
                let payload = payload(scene.calls.len() as u64 + 1, mode, asked);
                let rows = scene.compute(&payload, &*scene.model);
                scene.calls.push((payload, rows));
            }
        }
        scene
    }

    /// The rows of a call, with weights from `source`.
    pub fn compute(&self, payload: &[u8], source: &dyn ExpertSource) -> Vec<u8> {
        self.compute_call(&Call::decode(payload).unwrap(), source)
    }

    /// As [`Scene::compute`].
    pub fn compute_call(&self, call: &Call<'_>, source: &dyn ExpertSource) -> Vec<u8> {
        // A runner remembers experts by their names, so another source needs another one.
        let options = RunnerOptions { instances: NonZeroUsize::MIN, ..RunnerOptions::default() };
        let engine = kvasir_sandbox::Engine::shared().unwrap();
        thread_local! {
            static KERNEL: std::cell::OnceCell<kvasir_sandbox::CompiledKernel> = const { std::cell::OnceCell::new() };
        }
        let runner = KERNEL.with(|kernel| {
            let kernel = kernel
                .get_or_init(|| kvasir_sandbox::CompiledKernel::compile(&engine, &self.plugin).unwrap());
            ExpertRunner::from_kernel(kernel.clone(), options)
        });
        let format = RowFormat::from_number(call.row_format as u8).unwrap();
        let requests: Vec<_> = call
            .experts
            .iter()
            .map(|asked| kvasir_experts::ExpertRows {
                expert: ExpertIndex(asked.expert),
                rows: asked.rows.clone(),
                weights: asked.weights.clone(),
            })
            .collect();
        let (layer, hidden) = (LayerIndex(call.layer), call.columns().unwrap());
        let values = match call.mode {
            Mode::Each => runner.each_from(source, layer, format, call.data, hidden, &requests),
            Mode::Sum => runner.sum_from(source, layer, format, call.data, hidden, &requests),
        };
        CallResult::row_bytes(&values.unwrap())
    }

    /// A session in which the calls were answered with these rows; its number makes it another one.
    pub fn session(&self, number: u8, class: Class, answers: &[(Vec<u8>, Vec<u8>)]) -> Session {
        let model = model_digest(&self.model);
        session(number, model, PluginDigest(self.plugin.digest().0), class, answers)
    }

    /// The right answers.
    pub fn honest(&self) -> Session {
        self.session(1, Class::Exact, &self.calls)
    }
}

/// The traces of a session: keys, price, grant, delegation and receipt as leaves, and a record of every result.
pub fn session(
    number: u8,
    model: ModelDigest,
    plugin: PluginDigest,
    class: Class,
    answers: &[(Vec<u8>, Vec<u8>)],
) -> Session {
    let [hub, worker, backbone, wallet, treasury, ledger] =
        [11, 12, 13, 14, 15, 17].map(|seed| SecretKey::from_seed([seed; 32]));
    let network: NetworkName = "atlas".parse().unwrap();
    let session = SessionId([number; 32]);
    let per_byte = PricePerByte::FOUNDING;
    let price_note = Price { network: network.clone(), per_byte, from: 1 }.sign(&treasury).unwrap();
    let price = price_note.leaf_hash();
    let believed = |role, key: &SecretKey| {
        let (key, state, at) = (key.public(), KeyState::Believed, 1);
        KeyBelief { network: network.clone(), role, key, state, at }.sign(&ledger).unwrap()
    };
    let grant = Grant {
        network: network.clone(),
        session: None,
        hub: hub.public().digest(),
        worker: None,
        backbone: backbone.public(),
        price,
        bytes: MeteredBytes::new(1 << 40).unwrap(),
        from: 1,
        until: 1_000_000,
    };
    let delegation = Delegation {
        network: network.clone(),
        wallet: wallet.public(),
        worker: worker.public(),
        from: 1,
        until: 1_000_000,
    };
    let grant = grant.sign(&backbone).unwrap();
    let mut book = WorkBook::new();
    let mut tree = Tree::new();
    let mut items = Vec::new();
    for (payload, rows) in answers {
        let call = Call::decode(payload).unwrap();
        let item = WorkItem {
            call: call.call,
            layer: call.layer,
            mode: call.mode as u8,
            payload: sha256(&[payload]),
            rows: sha256(&[rows]),
        };
        let (up, down) = (payload.len() as u64, rows.len() as u64 + 44);
        book.record(&item, up, down, call.rows.into()).unwrap();
        tree.push(item.leaf());
        items.push(item);
    }
    let terms = Terms {
        network: network.clone(),
        session,
        grant: grant.leaf_hash(),
        hub: hub.public().digest(),
        worker: worker.public().digest(),
        backbone: backbone.public().digest(),
        payee: wallet.public().wallet_digest(),
        model,
        plugin,
        class,
        price,
        from: 100,
    };
    let counters = book.counters_at(items.len() as u64, &[]).unwrap();
    let receipt = Receipt::first(terms, counters, 200, true).unwrap();
    let keys = ReceiptKeys { hub: hub.public(), worker: worker.public(), backbone: backbone.public() };
    let signatures = ReceiptSignatures {
        hub: receipt.sign(&hub),
        worker: receipt.sign(&worker),
        backbone: receipt.sign(&backbone),
    };
    let signed = SignedReceipt::assemble(receipt.clone(), &keys, &signatures).unwrap();
    let records = items.iter().zip(answers).zip(0u64..).map(|((item, (payload, rows)), index)| ProbeRecord {
        index,
        item: item.encode(),
        proof: tree.inclusion_proof(index).unwrap().hashes,
        payload: payload.clone(),
        rows: rows.clone(),
    });
    let file = ProbeFile {
        session,
        seq: 1,
        receipt: receipt.id(),
        size: items.len() as u64,
        root: receipt.counters.work,
        records: records.collect(),
    };
    let leaves = [
        believed(KeyRole::Ledger, &ledger),
        believed(KeyRole::Treasury, &treasury),
        price_note,
        believed(KeyRole::Hub, &hub),
        grant,
        delegation.sign(&wallet).unwrap(),
        signed.note().clone(),
    ];
    let leaves = leaves.iter().map(|note| note.to_string().into_bytes()).collect();
    Session { leaves, receipt: signed, file }
}

/// Size and root of a log with these leaves.
pub fn checkpoint(leaves: &[Vec<u8>]) -> (u64, Hash) {
    let mut tree = Accumulator::new();
    leaves.iter().for_each(|leaf| tree.push(leaf_hash(leaf)));
    (leaves.len() as u64, tree.root())
}

/// The key that signs checkpoints here.
pub fn log_key() -> SecretKey {
    SecretKey::from_seed([16; 32])
}

/// The log's name.
pub fn origin() -> KeyName {
    "kvasir.example/atlas/00000000".parse().unwrap()
}

/// Writes a log of these leaves as static files: bundles and tiles as they are, whole and partial, and the signed head, cosigned by witnesses
/// of these numbers.
pub fn write_log(folder: &Path, leaves: &[Vec<u8>], witnesses: &[u8]) {
    let (size, root) = checkpoint(leaves);
    for bundle in bundles_of(0, size) {
        let first = bundle.first_entry() as usize;
        let entries = leaves[first..first + usize::from(bundle.width)].iter().map(Vec::as_slice);
        let path = folder.join(bundle.path());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, encode_bundle(entries).unwrap()).unwrap();
    }
    let hashes: Vec<Hash> = leaves.iter().map(|leaf| leaf_hash(leaf)).collect();
    for tile in tiles_of(0, size) {
        // Above the leaves: roots of whole subtrees of 256.
        let level: Vec<Hash> = match tile.level {
            0 => hashes.clone(),
            1 => hashes.chunks_exact(256).map(kvasir_merkle::root).collect(),
            other => panic!("no log here has level {other}"),
        };
        let first = tile.index as usize * 256;
        let path = folder.join(tile.path());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, encode_tile(&level[first..first + usize::from(tile.width)])).unwrap();
    }
    let head = Checkpoint { origin: origin(), size, root }.sign(&log_key()).unwrap();
    let lines = witnesses.iter().map(|number| {
        let (name, key) = witness(*number);
        cosign(head.note().text(), &name, &key, 1_000)
    });
    let head = head.with_lines(lines.collect::<Vec<_>>()).unwrap();
    std::fs::write(folder.join("checkpoint"), head.note().to_string()).unwrap();
}

/// A witness's name and key.
pub fn witness(number: u8) -> (KeyName, SecretKey) {
    (format!("witness.example/{number}").parse().unwrap(), SecretKey::from_seed([200 + number; 32]))
}

/// The log's key as `log.vkey` holds it.
pub fn log_vkey() -> String {
    Verifier::new(origin(), log_key().public()).to_string()
}

/// Writes a session's probe records.
pub fn write_probes(folder: &Path, file: &ProbeFile) {
    let path = folder.join(file.name().to_string());
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, file.encode()).unwrap();
}

/// The receipts of the names, from a log with these leaves.
pub fn logged(leaves: &[Vec<u8>], names: &[ProbeName]) -> LoggedReceipts {
    let mut reader = LogReader::new(names.iter().copied());
    leaves.iter().for_each(|leaf| reader.take(leaf));
    let (size, root) = checkpoint(leaves);
    reader.finish(size, &root).unwrap()
}

/// A draw's lot; the number stands for a checkpoint.
pub fn lot(number: u8) -> Lot {
    Lot { origin: "kvasir.example/atlas/00000000".into(), size: 4, signatures: vec![vec![number; 76]] }
}

/// Replays `count` drawn items of what is published.
pub fn audit(
    scene: &Scene,
    sessions: &[&Session],
    lot: &Lot,
    count: usize,
    replayer: &mut Replayer<'_>,
) -> (Survey, Vec<Report>) {
    let mut published = Published::default();
    let mut leaves = Vec::new();
    for session in sessions {
        leaves.extend(session.leaves.clone());
        published.0.insert(session.file.name(), session.file.encode());
    }
    let names: Vec<ProbeName> = published.0.keys().copied().collect();
    let receipts = logged(&leaves, &names);
    let found = survey(&published, &receipts, lot, count).unwrap();
    let _ = scene;
    let reports = found
        .drawn
        .iter()
        .map(|place| replayer.replay_at(&published, &receipts, *place).unwrap().unwrap())
        .collect();
    (found, reports)
}

impl ProbeSource for Published {
    fn list(&self) -> Result<Vec<ProbeName>, ReplayError> {
        Ok(self.0.keys().copied().collect())
    }

    fn read(&self, name: &ProbeName) -> Result<Option<Vec<u8>>, ReplayError> {
        Ok(self.0.get(name).cloned())
    }
}

/// Replays per second of each engine, from what the reports took.
pub fn speeds(reports: &[Report]) -> Vec<(EngineKind, f64)> {
    let mut spent: HashMap<&str, f64> = HashMap::new();
    for (kind, time) in reports.iter().flat_map(|report| &report.times) {
        *spent.entry(kind.name()).or_default() += time.as_secs_f64();
    }
    EngineKind::ALL.map(|kind| (kind, reports.len() as f64 / spent[kind.name()])).to_vec()
}

fn payload(number: u64, mode: Mode, asked: &kvasir_backbone::Call) -> Vec<u8> {
    let experts = group(asked).into_iter().map(|rows| ExpertRows {
        expert: rows.expert.0,
        rows: rows.rows,
        weights: if mode == Mode::Sum { rows.weights } else { Vec::new() },
    });
    let call = Call {
        call: number,
        layer: asked.layer.0,
        mode,
        row_format: WireRows::from_number(asked.row_format.number()).unwrap(),
        rows: asked.count() as u32,
        experts: experts.collect(),
        data: &asked.rows,
    };
    call.encode().unwrap()
}

struct Recorder {
    inner: LocalExperts,
    asked: Arc<Mutex<Vec<kvasir_backbone::Call>>>,
}

impl Experts for Recorder {
    fn submit(&mut self, call: kvasir_backbone::Call) -> Result<CallId, ExpertsError> {
        self.asked.lock().unwrap().push(call.clone());
        self.inner.submit(call)
    }

    fn poll(&mut self, deadline: Option<Instant>) -> Result<Progress, ExpertsError> {
        self.inner.poll(deadline)
    }

    fn cancel(&mut self, call: CallId) {
        self.inner.cancel(call);
    }
}
