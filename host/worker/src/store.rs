//! The experts that a worker holds: how many bytes, of which model, loaded into which runner.
//!
//! What is held outlives a session, so a worker that connects again is useful at once, also where it is assigned something
//! else for a while: what no assignment of a session names makes room for what does, what was named longest ago first. A
//! session for another model or plugin empties the store first. Weights live in the kernels' memory alone; a blob is dropped once it is loaded.
//! While one version of a plugin takes over from another each has a store of its own, and both draw on one [`Budget`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kvasir_experts::{ExpertIndex, ExpertRunner, GpuError, KernelError, LayerIndex, RunnerError, Swiglu};
use kvasir_model::ExpertBlob;
use kvasir_wire::id::{ExpertDigest, ModelDigest, PluginDigest};
use kvasir_wire::message::{Assigned, ExpertName, NotHeldReason};

/// The memory for experts that all stores of a worker share.
pub(crate) struct Budget {
    most_bytes: u64,
    used: AtomicU64,
}

impl Budget {
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self { most_bytes, used: AtomicU64::new(0) }
    }

    /// Bytes that could still be taken.
    pub(crate) fn free(&self) -> u64 {
        self.most_bytes.saturating_sub(self.used.load(Ordering::Relaxed))
    }

    /// Takes so many bytes, or none.
    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.most_bytes);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What one version of a worker holds, within the worker's budget.
pub(crate) struct Store {
    budget: Arc<Budget>,
    contents: Mutex<Contents>,
    /// Held while an expert is loaded and its entry looked for: the bench and a candidate's thread may load at one time.
    loading: Mutex<()>,
}

#[derive(Default)]
struct Contents {
    of: Option<(PluginDigest, ModelDigest)>,
    runner: Option<Arc<ExpertRunner>>,
    held: BTreeMap<ExpertName, Entry>,
    bytes: u64,
    /// Sessions so far.
    session: u64,
}

#[derive(Clone, Copy)]
struct Entry {
    digest: ExpertDigest,
    bytes: u64,
    /// The latest session that named it.
    named: u64,
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
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self { budget, contents: Mutex::default(), loading: Mutex::default() }
    }

    /// Begins a session: what belongs to another model or plugin is dropped, what was on its way is forgotten.
    pub(crate) fn begin(&self, plugin: PluginDigest, model: ModelDigest, runner: &Arc<ExpertRunner>) {
        let mut contents = self.contents();
        if contents.of == Some((plugin, model)) {
            contents.held.retain(|_, entry| entry.loaded);
        } else {
            contents.unload_all();
        }
        contents.of = Some((plugin, model));
        contents.runner = Some(Arc::clone(runner));
        contents.session += 1;
        self.settle(&mut contents);
    }

    /// Drops everything.
    pub(crate) fn empty(&self) {
        let mut contents = self.contents();
        contents.unload_all();
        contents.of = None;
        self.settle(&mut contents);
    }

    /// Gives back what entries that are gone had taken.
    fn settle(&self, contents: &mut Contents) {
        let bytes = contents.held.values().map(|entry| entry.bytes).sum();
        self.budget.give(contents.bytes - bytes);
        contents.bytes = bytes;
    }

    /// This session names these: what of them is held does not make room for others.
    pub(crate) fn name(&self, assigned: &[Assigned]) {
        let mut contents = self.contents();
        let session = contents.session;
        for Assigned { name, digest, .. } in assigned {
            if let Some(entry) = contents.held.get_mut(name).filter(|entry| entry.digest == *digest) {
                entry.named = session;
            }
        }
    }

    /// Asks for room for an expert whose blob has `bytes` bytes. One that is held under another digest is dropped first, and
    /// where there is no room those that this session has not named.
    pub(crate) fn reserve(&self, name: ExpertName, digest: ExpertDigest, bytes: u64) -> Room {
        let mut contents = self.contents();
        let session = contents.session;
        match contents.held.get_mut(&name) {
            Some(entry) if entry.digest == digest => {
                entry.named = session;
                return if entry.loaded { Room::Held } else { Room::Underway };
            }
            Some(_) => self.budget.give(contents.remove(name)),
            None => {}
        }
        while !self.budget.take(bytes) {
            // What all of them would free is looked at first: nothing is dropped for what has no room then either.
            let Some(oldest) =
                contents.oldest().filter(|_| contents.unnamed_bytes() + self.budget.free() >= bytes)
            else {
                return Room::None;
            };
            self.budget.give(contents.remove(oldest));
        }
        contents.bytes += bytes;
        contents.held.insert(name, Entry { digest, bytes, named: session, loaded: false });
        Room::Reserved
    }

    /// Drops an expert, or gives up its room.
    pub(crate) fn release(&self, name: ExpertName) {
        let freed = self.contents().remove(name);
        self.budget.give(freed);
    }

    /// Checks a blob against the digest under which its room was reserved, and loads it. On failure the room is free. `model` is the one
    /// whose digest the expert's proof led to: what was proven in a session with one model counts in none with another, though the
    /// loading may reach into it.
    pub(crate) fn load(
        &self,
        model: ModelDigest,
        name: ExpertName,
        digest: ExpertDigest,
        blob: &[u8],
    ) -> Result<(), LoadError> {
        let over = || LoadError::new(NotHeldReason::Released, "the session is over");
        let _alone = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let runner = self.contents().runner_for(model).ok_or_else(over)?;
        let loaded = load(&runner, name, digest, blob);
        let mut contents = self.contents();
        // The session may be one of another plugin by now, too.
        let is_for_it = contents.runner_for(model).is_some_and(|now| Arc::ptr_eq(&now, &runner));
        match (&loaded, contents.held.get_mut(&name).filter(|_| is_for_it)) {
            (Ok(()), Some(entry)) if entry.digest == digest => entry.loaded = true,
            // Released, or wanted under another digest or in another model, while it was being loaded.
            (Ok(()), _) => unload(&runner, name),
            (Err(_), Some(entry)) if entry.digest == digest && !entry.loaded => {
                self.budget.give(contents.remove(name));
            }
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
        self.budget.free()
    }

    /// Bytes taken, by experts that are held and by those on their way.
    pub(crate) fn bytes(&self) -> u64 {
        self.contents().bytes
    }

    /// Whether an expert is on its way.
    pub(crate) fn awaits(&self) -> bool {
        self.contents().held.values().any(|entry| !entry.loaded)
    }

    /// Experts loaded, as they were assigned.
    pub(crate) fn list(&self) -> Vec<Assigned> {
        let contents = self.contents();
        let loaded = contents.held.iter().filter(|(_, entry)| entry.loaded);
        loaded
            .map(|(name, entry)| Assigned { name: *name, digest: entry.digest, blob_bytes: entry.bytes })
            .collect()
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
        let freed = lost.iter().map(|assigned| contents.remove(assigned.name)).sum();
        self.budget.give(freed);
        lost
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.empty();
    }
}

impl Contents {
    /// The runner of the latest session, if that is one with this model.
    fn runner_for(&self, model: ModelDigest) -> Option<Arc<ExpertRunner>> {
        let (_, of) = self.of?;
        self.runner.clone().filter(|_| of == model)
    }

    /// Those that the session has not named.
    fn unnamed(&self) -> impl Iterator<Item = (&ExpertName, &Entry)> {
        let session = self.session;
        self.held.iter().filter(move |(_, entry)| entry.loaded && entry.named < session)
    }

    fn unnamed_bytes(&self) -> u64 {
        self.unnamed().map(|(_, entry)| entry.bytes).sum()
    }

    /// Of those the one that was named longest ago.
    fn oldest(&self) -> Option<ExpertName> {
        self.unnamed().min_by_key(|(_, entry)| entry.named).map(|(name, _)| *name)
    }

    /// Drops an entry; gives its bytes, which are the budget's again.
    #[must_use]
    fn remove(&mut self, name: ExpertName) -> u64 {
        let Some(entry) = self.held.remove(&name) else { return 0 };
        self.bytes -= entry.bytes;
        if let Some(runner) = self.runner.as_ref().filter(|_| entry.loaded) {
            unload(runner, name);
        }
        entry.bytes
    }

    fn unload_all(&mut self) {
        if let Some(runner) = self.runner.take() {
            self.held.keys().for_each(|name| unload(&runner, *name));
        }
        self.held.clear();
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
    let (layer, expert) = (LayerIndex(name.layer), ExpertIndex(name.expert));
    let mut placed = runner.load(layer, expert, &weights);
    if matches!(placed, Err(RunnerError::AlreadyHeld { .. })) {
        // Whose weights those are is not known here; these are the ones that were proven.
        runner.unload(layer, expert);
        placed = runner.load(layer, expert, &weights);
    }
    match placed {
        Ok(()) => Ok(()),
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

#[cfg(test)]
mod tests;
