//! Every bound that a kernel meets: what its bytes may hold, and what an instance may use.

use std::time::Duration;

use kvasir_plugin::Limits;

/// Most functions in a component, all its core modules together.
pub const MAX_FUNCTIONS: usize = 20_000;
/// Most bytes in one function's body. Compile time and memory grow faster than linearly with it.
pub const MAX_FUNCTION_BYTES: usize = 512 << 10;
/// Most locals in one function, parameters left out.
pub const MAX_LOCALS: u32 = 2_048;
/// Deepest nesting of blocks, loops and conditions in one function.
pub const MAX_BLOCK_DEPTH: usize = 256;
/// Most core modules and nested components in a component.
pub const MAX_MODULES: usize = 32;
/// Deepest nesting of components and modules.
pub const MAX_MODULE_DEPTH: usize = 4;
/// Most data segments in a component.
pub const MAX_DATA_SEGMENTS: usize = 1_024;
/// Most bytes in all data segments together.
pub const MAX_DATA_BYTES: usize = 2 << 20;
/// Most memory that a module may demand at its start, in bytes: a kernel grows its memory as experts are loaded.
pub const MAX_INITIAL_MEMORY_BYTES: u64 = 32 << 20;
/// Most elements of one table.
pub const MAX_TABLE_ELEMENTS: u64 = 10_000;
/// Most tables of an instance.
pub const MAX_TABLES: usize = 8;
/// Linear memories of an instance.
pub const MAX_MEMORIES: usize = 1;
/// Most core instances of one component instance (the module and the small ones that bind it to the contract).
pub const MAX_CORE_INSTANCES: usize = 16;
/// Most resource handles of an instance: experts it holds, and one borrowed in a call.
pub const MAX_HANDLES: usize = 100_000;
/// Stack of a running kernel in bytes.
pub const MAX_STACK_BYTES: usize = 512 << 10;
/// Stack of the thread that compiles, in bytes: the compiler recurses.
pub const COMPILE_STACK_BYTES: usize = 64 << 20;
/// Longest text of a fault, in bytes, that is taken from a kernel.
pub const MAX_FAULT_TEXT_BYTES: usize = 4 << 10;
/// How often the deadline clock ticks; a deadline is kept to within one tick.
pub const DEADLINE_TICK: Duration = Duration::from_millis(10);
/// Most memory that 32-bit WebAssembly can address.
pub const MAX_ADDRESSABLE_BYTES: u64 = 4 << 30;

/// What one instance may use; set before every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelLimits {
    /// Most linear memory in bytes, loaded experts included.
    pub memory_bytes: u64,
    /// Fuel for one call, about one per instruction; `u64::MAX` leaves the deadline as the only bound.
    pub fuel_per_call: u64,
    /// Most rows that the kernel is given in one call: who calls cuts longer ones, which changes no result.
    pub rows_per_call: u32,
    /// Wall clock for one call.
    pub deadline: Duration,
}

impl Default for KernelLimits {
    /// A host's own policy where its operator says nothing: all addressable memory, any fuel, ten seconds a call.
    fn default() -> Self {
        KernelLimits {
            memory_bytes: MAX_ADDRESSABLE_BYTES,
            fuel_per_call: u64::MAX,
            rows_per_call: u32::MAX,
            deadline: Duration::from_secs(10),
        }
    }
}

impl KernelLimits {
    /// What a plugin that requests `request` gets under this policy: the lesser of both, each by each.
    pub fn grant(&self, request: &Limits) -> KernelLimits {
        KernelLimits {
            memory_bytes: self.memory_bytes.min(request.memory_bytes),
            fuel_per_call: self.fuel_per_call.min(request.fuel_per_call),
            rows_per_call: self.rows_per_call.min(request.rows_per_call),
            deadline: self.deadline,
        }
    }
}
