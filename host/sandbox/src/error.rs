//! What can go wrong between a verified plugin and a checked result, by whose fault it is.

use std::time::Duration;

use kvasir_plugin::ContractError;

use crate::shape::ExpertShape;

/// Why a kernel was refused, or why a call of it gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    // The kernel's bytes.
    /// The bytes are no valid component of the allowed kind.
    #[error(
        "kernel.wasm is not a valid component, at byte {offset}: {reason}; ask the publisher for a correct one"
    )]
    Invalid {
        /// Where.
        offset: usize,
        /// What the validator says.
        reason: String,
    },
    /// Machine code that an engine has made, in place of WebAssembly.
    #[error(
        "kernel.wasm is precompiled machine code; a package carries WebAssembly, which every host compiles itself"
    )]
    Precompiled,
    /// Something in the component is larger than its limit.
    #[error(
        "kernel.wasm has {what} of {value}, the limit is {limit} (at byte {offset}); make the kernel smaller"
    )]
    OverLimit {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        value: u64,
        /// How large it may be.
        limit: u64,
        /// Where.
        offset: usize,
    },
    /// The component wants something from outside. A kernel gets nothing.
    #[error(
        "kernel.wasm imports {name:?}; a kernel computes and may import nothing. WASI is granted by no policy of this version, not \
         even inert: build the kernel without it"
    )]
    Import {
        /// The name of the import.
        name: String,
    },
    /// An instruction whose result differs between CPUs.
    #[error(
        "kernel.wasm uses {operator} at byte {offset}, whose result differs between CPUs; of the relaxed instructions \
         only the two integer dot products are allowed"
    )]
    RelaxedOperator {
        /// The instruction.
        operator: String,
        /// Where.
        offset: usize,
    },
    /// A module that runs code before it is called.
    #[error(
        "kernel.wasm has a start function at byte {offset}; a kernel runs when it is called and not before"
    )]
    StartFunction {
        /// Where.
        offset: usize,
    },
    /// The component does not export the world it should.
    #[error("kernel.wasm does not export {world}: {reason}")]
    WrongWorld {
        /// The world required.
        world: String,
        /// What is missing.
        reason: String,
    },
    /// The plugin's contract is not one that this host speaks.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// The compiler failed or panicked on a valid component.
    #[error("kernel.wasm could not be compiled: {reason}; the plugin stays unused")]
    Compile {
        /// What the compiler says.
        reason: String,
    },

    // The kernel's behaviour. The instance is not used again after any of these but `Fault` and `NotFinite`.
    /// The call used up its fuel.
    #[error(
        "the kernel used up its {fuel} fuel in {call}; it runs away, or the limit is too low for this call"
    )]
    OutOfFuel {
        /// The call.
        call: &'static str,
        /// Fuel granted.
        fuel: u64,
    },
    /// The call did not end in time.
    #[error(
        "the kernel did not end {call} within {deadline:?}; it runs away, or this machine is too slow for it"
    )]
    Deadline {
        /// The call.
        call: &'static str,
        /// Time granted.
        deadline: Duration,
    },
    /// The kernel asked for more memory than it may have, and failed.
    #[error(
        "the kernel asked for {wanted} bytes of memory in {call}, the limit is {limit}; load fewer experts into it"
    )]
    Memory {
        /// The call.
        call: &'static str,
        /// Bytes asked for.
        wanted: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The kernel recursed too deeply.
    #[error("the kernel overflowed its stack of {limit} bytes in {call}")]
    StackOverflow {
        /// The call.
        call: &'static str,
        /// Bytes allowed.
        limit: usize,
    },
    /// Any other trap: unreachable code, an access out of bounds.
    #[error("the kernel trapped in {call}: {reason}")]
    Trap {
        /// The call.
        call: &'static str,
        /// The engine's account.
        reason: String,
    },
    /// The answer breaks the calling convention, or is larger than any right answer.
    #[error("the kernel broke the calling convention in {call}: {reason}")]
    BrokenContract {
        /// The call.
        call: &'static str,
        /// The engine's account.
        reason: String,
    },
    /// The answer has the wrong number of values.
    #[error("the kernel returned {found} values, {expected} were due; its publisher must repair it")]
    WrongLength {
        /// Values found.
        found: usize,
        /// rows x hidden.
        expected: usize,
    },
    /// The kernel said why it has no answer.
    #[error("the kernel refused {call}: {fault}")]
    Fault {
        /// The call.
        call: &'static str,
        /// What it said.
        fault: Fault,
    },
    /// The kernel returned a NaN or an infinity.
    #[error("the kernel returned a value that is not finite, at index {index}")]
    NotFinite {
        /// The first such value.
        index: usize,
    },

    // The caller.
    /// An instance that trapped earlier.
    #[error("this kernel instance failed before ({first}); make another one")]
    Poisoned {
        /// The first failure.
        first: String,
    },
    /// A handle of another instance.
    #[error("the expert handle belongs to another kernel instance")]
    ForeignHandle,
    /// Matrices that do not fit together.
    #[error("gate, up and down do not fit together: {shape:?}")]
    Shape {
        /// The shape.
        shape: ExpertShape,
    },

    // The host.
    /// The engine could not be set up on this machine.
    #[error("the sandbox cannot be set up on this machine: {reason}")]
    Engine {
        /// The engine's account.
        reason: String,
    },
}

/// A kernel's own account of why it has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It does not evaluate such experts; the text is the kernel's.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The weights are not what the shape says, or hold values that no quantiser writes.
    #[error("the weights are malformed")]
    MalformedWeights,
    /// The rows are not `count` rows of the right format.
    #[error("the rows are malformed")]
    MalformedRows,
    /// A NaN or an infinity arose.
    #[error("a value that is not finite arose")]
    NotFinite,
}
