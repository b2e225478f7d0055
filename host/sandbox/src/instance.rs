//! A running kernel: every call bounded, every answer checked, and no second chance after a trap.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wasmtime::component::ResourceAny;
use wasmtime::{ResourceLimiter, Store, Trap};

use crate::contract::{Bound, Prepared};
use crate::engine::Engine;
use crate::error::{Fault, SandboxError};
use crate::limits::*;

/// The call that makes an instance.
const INSTANTIATE: &str = "instantiate";
use crate::shape::ExpertShape;

/// An instance of a kernel and the experts it holds. Calls take `&mut self`: an instance does one thing at a time.
pub struct KernelInstance {
    id: u64,
    store: Store<State>,
    kernel: Box<dyn Bound>,
    limits: KernelLimits,
    poisoned: Option<String>,
}

/// An expert held by one instance. Dropping it without [`KernelInstance::unload`] leaves the weights in the instance.
#[derive(Debug)]
pub struct ExpertHandle {
    instance: u64,
    resource: ResourceAny,
    hidden: u32,
}

impl KernelInstance {
    pub(crate) fn new(
        engine: &Engine,
        prepared: &dyn Prepared,
        limits: KernelLimits,
    ) -> Result<Self, SandboxError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut store = Store::new(engine.inner(), State::new(limits.memory_bytes));
        store.limiter(|state| state);
        store.set_max_component_handles(MAX_HANDLES);
        set_bounds(&mut store, &limits, 0)?;
        let kernel = prepared
            .instantiate(&mut store)
            .map_err(|error| failure(INSTANTIATE, &error, &store, &limits))?;
        Ok(KernelInstance { id: NEXT.fetch_add(1, Ordering::Relaxed), store, kernel, limits, poisoned: None })
    }

    /// Copies an expert's weights in: `gate`, `up` and `down` are the bytes of the matrices of `shape`.
    pub fn load(
        &mut self,
        shape: ExpertShape,
        gate: &[u8],
        up: &[u8],
        down: &[u8],
    ) -> Result<ExpertHandle, SandboxError> {
        const CALL: &str = "load";
        shape.check()?;
        self.prepare(0)?;
        let answer = self.kernel.load(&mut self.store, &shape, [gate, up, down]);
        let resource = self.take(CALL, answer)?;
        Ok(ExpertHandle { instance: self.id, resource, hidden: shape.hidden() })
    }

    /// Evaluates `expert` for `count` rows, back to back in the row format of its gate matrix. Returns count x hidden
    /// values, row by row, all finite.
    pub fn forward(
        &mut self,
        expert: &ExpertHandle,
        rows: &[u8],
        count: u32,
    ) -> Result<Vec<f32>, SandboxError> {
        const CALL: &str = "forward";
        if expert.instance != self.id {
            return Err(SandboxError::ForeignHandle);
        }
        let expected = (count as usize).saturating_mul(expert.hidden as usize);
        self.prepare(expected.saturating_mul(size_of::<f32>()))?;
        let answer = self.kernel.forward(&mut self.store, expert.resource, rows, count);
        let values = self.take(CALL, answer)?;
        if values.len() != expected {
            let error = SandboxError::WrongLength { found: values.len(), expected };
            self.poisoned = Some(error.to_string());
            return Err(error);
        }
        match first_not_finite(&values) {
            Some(index) => Err(SandboxError::NotFinite { index }),
            None => Ok(values),
        }
    }

    /// Frees an expert. A kernel that fails even at this is not used again.
    pub fn unload(&mut self, expert: ExpertHandle) -> Result<(), SandboxError> {
        if expert.instance != self.id {
            return Err(SandboxError::ForeignHandle);
        }
        self.prepare(0)?;
        let dropped = expert.resource.resource_drop(&mut self.store);
        self.take("unload", dropped.map(Ok))
    }

    /// Whether an earlier call failed in a way after which the instance is not used.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.is_some()
    }

    /// What was granted.
    pub fn limits(&self) -> KernelLimits {
        self.limits
    }

    /// Linear memory that the instance has by now, in bytes. It never shrinks: what a kernel frees, it may use again.
    pub fn memory_bytes(&self) -> u64 {
        self.store.data().memory_bytes
    }

    /// Fuel used by the latest call; about one per instruction.
    pub fn fuel_used(&self) -> u64 {
        self.store.get_fuel().map_or(0, |left| self.limits.fuel_per_call.saturating_sub(left))
    }

    /// Sets the bounds of the call that follows. Each call has its own; a bound set once would run out, or never apply
    /// to the second call.
    fn prepare(&mut self, answer_bytes: usize) -> Result<(), SandboxError> {
        if let Some(first) = &self.poisoned {
            return Err(SandboxError::Poisoned { first: first.clone() });
        }
        self.store.data_mut().denied = None;
        set_bounds(&mut self.store, &self.limits, answer_bytes)
    }

    /// Sorts out an answer: a trap or a broken convention poisons the instance, a fault does not.
    fn take<T>(
        &mut self,
        call: &'static str,
        answer: wasmtime::Result<Result<T, Fault>>,
    ) -> Result<T, SandboxError> {
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(fault)) => Err(SandboxError::Fault { call, fault }),
            Err(error) => {
                let error = failure(call, &error, &self.store, &self.limits);
                self.poisoned = Some(error.to_string());
                Err(error)
            }
        }
    }
}

/// What the engine asks before it gives an instance anything.
pub(crate) struct State {
    memory_limit: u64,
    /// Bytes of all linear memories together.
    memory_bytes: u64,
    /// The largest memory that was asked for and refused in this call.
    denied: Option<u64>,
}

impl State {
    fn new(memory_limit: u64) -> Self {
        State { memory_limit, memory_bytes: 0, denied: None }
    }
}

impl ResourceLimiter for State {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // All memories count together, whichever grows. A growth that the system then fails stays counted: that errs on the safe
        // side, and the instance is at its end anyway.
        let total = self.memory_bytes.saturating_sub(current as u64).saturating_add(desired as u64);
        let granted = total <= self.memory_limit && maximum.is_none_or(|maximum| desired <= maximum);
        if granted {
            self.memory_bytes = total;
        } else {
            self.denied = self.denied.max(Some(total));
        }
        Ok(granted)
    }

    fn table_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired as u64 <= MAX_TABLE_ELEMENTS && maximum.is_none_or(|maximum| desired <= maximum))
    }

    fn instances(&self) -> usize {
        MAX_CORE_INSTANCES
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }

    fn memories(&self) -> usize {
        MAX_MEMORIES
    }
}

fn set_bounds(
    store: &mut Store<State>,
    limits: &KernelLimits,
    answer_bytes: usize,
) -> Result<(), SandboxError> {
    store
        .set_fuel(limits.fuel_per_call)
        .map_err(|error| SandboxError::Engine { reason: format!("{error:#}") })?;
    store.set_epoch_deadline(ticks(limits.deadline));
    store.set_hostcall_fuel(answer_bytes.saturating_add(MAX_FAULT_TEXT_BYTES));
    Ok(())
}

/// Ticks that surely last `deadline`: the first one may end at once.
fn ticks(deadline: Duration) -> u64 {
    let ticks = deadline.as_nanos().div_ceil(DEADLINE_TICK.as_nanos());
    u64::try_from(ticks).unwrap_or(u64::MAX).saturating_add(1).min(u64::MAX / 2)
}

fn failure(
    call: &'static str,
    error: &wasmtime::Error,
    store: &Store<State>,
    limits: &KernelLimits,
) -> SandboxError {
    let memory = |wanted| SandboxError::Memory { call, wanted, limit: limits.memory_bytes };
    match (error.downcast_ref::<Trap>(), store.data().denied) {
        (Some(Trap::OutOfFuel), _) => SandboxError::OutOfFuel { call, fuel: limits.fuel_per_call },
        (Some(Trap::Interrupt), _) => SandboxError::Deadline { call, deadline: limits.deadline },
        (Some(Trap::StackOverflow), _) => SandboxError::StackOverflow { call, limit: MAX_STACK_BYTES },
        // A refused growth is followed by whatever the kernel does without memory: mostly `unreachable`.
        (_, Some(wanted)) => memory(wanted),
        (Some(trap), None) => SandboxError::Trap { call, reason: trap.to_string() },
        // A kernel imports nothing and has no start function, so nothing of it ran: the engine found no room for the instance.
        (None, None) if call == INSTANTIATE => SandboxError::Engine { reason: format!("{error:#}") },
        (None, None) => SandboxError::BrokenContract { call, reason: format!("{error:#}") },
    }
}

/// The first value that is NaN or infinite. Whole blocks are tested without a branch per value.
fn first_not_finite(values: &[f32]) -> Option<usize> {
    const EXPONENT: u32 = 0x7f80_0000;
    let bad = |value: &f32| value.to_bits() & EXPONENT == EXPONENT;
    let mut start = 0;
    for block in values.chunks(256) {
        if block.iter().fold(false, |any, value| any | bad(value)) {
            return block.iter().position(bad).map(|index| start + index);
        }
        start += block.len();
    }
    None
}
