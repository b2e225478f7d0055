//! The experts that a worker holds: how many bytes, of which model, loaded into which runner.
//!
//! What is held outlives a session, so a worker that connects again is useful at once. A session for another model or
//! plugin empties the store first. Weights live in the kernels' memory alone; a blob is dropped once it is loaded.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvasir_experts::{ExpertIndex, ExpertRunner, GpuError, KernelError, LayerIndex, RunnerError, Swiglu};
use kvasir_model::ExpertBlob;
use kvasir_wire::id::{ExpertDigest, ModelDigest, PluginDigest};
use kvasir_wire::message::{Assigned, ExpertName, NotHeldReason};

/// What a worker holds, and the bound on it.
pub(crate) struct Store {
    most_bytes: u64,
    contents: Mutex<Contents>,
}

#[derive(Default)]
struct Contents {
    of: Option<(PluginDigest, ModelDigest)>,
    runner: Option<Arc<ExpertRunner>>,
    held: BTreeMap<ExpertName, Entry>,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    digest: ExpertDigest,
    bytes: u64,
    /// False while its blob is on its way.
    loaded: bool,
}

/// What the store says to an expert that is to be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// It is here.
    Held,
    /// There is room, and it is now reserved.
    Reserved,
    /// It is on its way already.
    Underway,
    /// There is none.
    None,
}

impl Store {
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self { most_bytes, contents: Mutex::default() }
    }

    /// Begins a session: what belongs to another model or plugin is dropped, what was on its way is forgotten.
    pub(crate) fn begin(&self, plugin: PluginDigest, model: ModelDigest, runner: &Arc<ExpertRunner>) {
        let mut contents = self.contents();
        if contents.of == Some((plugin, model)) {
            contents.held.retain(|_, entry| entry.loaded);
        } else {
            if let Some(old) = contents.runner.take() {
                contents.held.keys().for_each(|name| unload(&old, *name));
            }
            contents.held.clear();
        }
        contents.of = Some((plugin, model));
        contents.runner = Some(Arc::clone(runner));
        contents.bytes = contents.held.values().map(|entry| entry.bytes).sum();
    }

    /// Asks for room for an expert whose blob has `bytes` bytes. One that is held under another digest is dropped first.
    pub(crate) fn reserve(&self, name: ExpertName, digest: ExpertDigest, bytes: u64) -> Room {
        let mut contents = self.contents();
        match contents.held.get(&name) {
            Some(entry) if entry.digest == digest => {
                return if entry.loaded { Room::Held } else { Room::Underway };
            }
            Some(_) => contents.remove(name),
            None => {}
        }
        if contents.bytes.saturating_add(bytes) > self.most_bytes {
            return Room::None;
        }
        contents.bytes += bytes;
        contents.held.insert(name, Entry { digest, bytes, loaded: false });
        Room::Reserved
    }

    /// Drops an expert, or gives up its room.
    pub(crate) fn release(&self, name: ExpertName) {
        self.contents().remove(name);
    }

    /// Checks a blob against the digest under which its room was reserved, and loads it. On failure the room is free.
    pub(crate) fn load(&self, name: ExpertName, digest: ExpertDigest, blob: &[u8]) -> Result<(), LoadError> {
        let Some(runner) = self.contents().runner.clone() else {
            return Err(LoadError::new(NotHeldReason::Released, "the session is over"));
        };
        let loaded = load(&runner, name, digest, blob);
        let mut contents = self.contents();
        match (&loaded, contents.held.get_mut(&name)) {
            (Ok(()), Some(entry)) if entry.digest == digest => entry.loaded = true,
            // Released, or wanted under another digest, while it was being loaded.
            (Ok(()), _) => unload(&runner, name),
            (Err(_), Some(entry)) if entry.digest == digest && !entry.loaded => contents.remove(name),
            (Err(_), _) => {}
        }
        loaded
    }

    /// Whether an expert is loaded.
    pub(crate) fn holds(&self, name: ExpertName) -> bool {
        self.contents().held.get(&name).is_some_and(|entry| entry.loaded)
    }

    /// Bytes that could still be taken.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.most_bytes.saturating_sub(self.contents().bytes)
    }

    /// Experts loaded, and their bytes.
    pub(crate) fn loaded(&self) -> (usize, u64) {
        let contents = self.contents();
        let loaded = contents.held.values().filter(|entry| entry.loaded);
        loaded.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.bytes))
    }

    /// Experts that the runner has lost, because a kernel failed: they are dropped, and given as they were assigned.
    pub(crate) fn drop_lost(&self) -> Vec<Assigned> {
        let mut contents = self.contents();
        let Some(runner) = contents.runner.clone() else { return Vec::new() };
        let is_lost = |name: &ExpertName| !runner.holds(LayerIndex(name.layer), ExpertIndex(name.expert));
        let lost: Vec<Assigned> = contents
            .held
            .iter()
            .filter(|(name, entry)| entry.loaded && is_lost(name))
            .map(|(name, entry)| Assigned { name: *name, digest: entry.digest, blob_bytes: entry.bytes })
            .collect();
        lost.iter().for_each(|assigned| contents.remove(assigned.name));
        lost
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    fn remove(&mut self, name: ExpertName) {
        if let Some(entry) = self.held.remove(&name) {
            self.bytes -= entry.bytes;
            if let Some(runner) = self.runner.as_ref().filter(|_| entry.loaded) {
                unload(runner, name);
            }
        }
    }
}

/// Why an expert could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadError {
    pub(crate) reason: NotHeldReason,
    pub(crate) sentence: String,
    /// After which another try may succeed: the kernel is at fault and comes back, not the expert.
    pub(crate) again_after: Option<Duration>,
}

impl LoadError {
    pub(crate) fn new(reason: NotHeldReason, sentence: impl Into<String>) -> Self {
        Self { reason, sentence: sentence.into(), again_after: None }
    }
}

fn load(runner: &ExpertRunner, name: ExpertName, digest: ExpertDigest, blob: &[u8]) -> Result<(), LoadError> {
    let found = ExpertBlob::digest(blob);
    if found.0 != digest.0 {
        let sentence = format!("the blob hashes to {found}, it was assigned as {digest}");
        return Err(LoadError::new(NotHeldReason::DigestMismatch, sentence));
    }
    let malformed = |sentence: String| LoadError::new(NotHeldReason::MalformedWeights, sentence);
    let layout = ExpertBlob::parse(blob).map_err(|error| malformed(error.to_string()))?;
    let matrices = [&layout.gate, &layout.up, &layout.down].map(|matrix| matrix.matrix(blob));
    let [Ok(gate), Ok(up), Ok(down)] = matrices else {
        return Err(malformed("a matrix does not fit its blob".to_owned()));
    };
    let weights = Swiglu::new(gate, up, down).map_err(|error| malformed(error.to_string()))?;
    match runner.load(LayerIndex(name.layer), ExpertIndex(name.expert), &weights) {
        Ok(()) | Err(RunnerError::AlreadyHeld { .. }) => Ok(()),
        Err(RunnerError::Gpu(error)) => Err(of_gpu(&error)),
        Err(RunnerError::Process(error)) => Err(of_process(&error)),
        Err(error @ RunnerError::NoRoom { .. }) => {
            Err(LoadError::new(NotHeldReason::NoMemory, error.to_string()))
        }
        Err(error) => Err(LoadError::new(NotHeldReason::Unsupported, error.to_string())),
    }
}

/// What the failure of a GPU means for the expert that was to be loaded into it.
fn of_gpu(error: &GpuError) -> LoadError {
    let (reason, again_after) = match error {
        GpuError::NoRoom { .. } => (NotHeldReason::NoMemory, None),
        GpuError::BackingOff { wait } => (NotHeldReason::NotReceived, Some(*wait)),
        GpuError::Killed { .. } | GpuError::Crashed { .. } | GpuError::BrokenProtocol { .. } => {
            (NotHeldReason::NotReceived, Some(Duration::ZERO))
        }
        _ => (NotHeldReason::Unsupported, None),
    };
    LoadError { reason, sentence: error.to_string(), again_after }
}

/// What the failure of a kernel's process means for the expert that was to be loaded into it.
fn of_process(error: &KernelError) -> LoadError {
    let (reason, again_after) = match error {
        KernelError::BackingOff { wait } => (NotHeldReason::NotReceived, Some(*wait)),
        KernelError::Killed { .. } | KernelError::Crashed { .. } | KernelError::BrokenProtocol { .. } => {
            (NotHeldReason::NotReceived, Some(Duration::ZERO))
        }
        _ => (NotHeldReason::Unsupported, None),
    };
    LoadError { reason, sentence: error.to_string(), again_after }
}

fn unload(runner: &ExpertRunner, name: ExpertName) {
    runner.unload(LayerIndex(name.layer), ExpertIndex(name.expert));
}
