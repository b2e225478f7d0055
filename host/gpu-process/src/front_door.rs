//! The front door: the one way from a plugin's WGSL to a module that may be given to a GPU.
//!
//! The order is text limits, naga's parser, naga's validator, own rules, SPIR-V; each only on what passed the one before. Everything
//! after the text runs on a thread with a large stack, and a panic there is an error here. What cannot be caught, an overflow of that
//! stack or memory that runs out, ends the process, which is why this runs in a process of its own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

use crate::error::{Resource, ShaderError};
use crate::limits::{STACK_BYTES, ShaderLimits};
use crate::{budget, module_rules, text, uniform_flow};

/// What a kernel may use beyond the core of WGSL as naga counts it: binary16 read from and written to halves of a word, which
/// Vulkan always has. No binary16 arithmetic, no 64 bits, no subgroups, no immediates, no ray tracing.
const CAPABILITIES: Capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;

/// A shader that passed the front door.
#[derive(Debug)]
pub struct CheckedShader {
    /// The module, for wgpu.
    pub module: naga::Module,
    /// What naga's validator found out about it.
    pub info: ModuleInfo,
    /// Its entry points, in the order of the source.
    pub entry_points: Vec<EntryPointFacts>,
    /// Its buffers, in the order of the source.
    pub buffers: Vec<BufferFacts>,
}

/// What is known of an entry point without running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPointFacts {
    /// The function's name.
    pub name: String,
    /// Invocations of a workgroup in x, y and z.
    pub workgroup_size: [u32; 3],
    /// Workgroup memory that it and the functions it calls use.
    pub workgroup_bytes: u64,
    /// Private and local memory of one invocation, each call counted anew.
    pub private_bytes: u64,
    /// Expressions and statements, each call written out.
    pub inlined: u64,
    /// Words of SPIR-V.
    pub spirv_words: usize,
    /// Whether it has barriers.
    pub barriers: bool,
    /// The bindings that it uses, ascending.
    pub bindings: Vec<u32>,
}

/// A buffer that the host must bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferFacts {
    /// Binding of group 0.
    pub binding: u32,
    /// The variable's name.
    pub name: String,
    /// What it is for the shader.
    pub kind: BufferKind,
    /// Fewest bytes that must be bound, one element of an array without a length included.
    pub least_bytes: u64,
}

/// How a shader sees a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// `var<uniform>`
    Uniform,
    /// `var<storage, read>`
    Read,
    /// `var<storage, read_write>`
    ReadWrite,
}

/// Checks a WGSL source against `limits`.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn check(source: &str, limits: &ShaderLimits) -> Result<CheckedShader, ShaderError> {
    text::check(source, limits)?;
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("check shader".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || check_text_that_is_bounded(source, limits))
            .map_err(|error| ShaderError::NoThread { message: error.to_string() })?
            .join()
            .unwrap_or_else(|panic| Err(panicked("checking it", &*panic)))
    })
}

fn check_text_that_is_bounded(source: &str, limits: &ShaderLimits) -> Result<CheckedShader, ShaderError> {
    let module = guarded("parsing it", || naga::front::wgsl::parse_str(source))?.map_err(|error| {
        let line = error.location(source).map_or(0, |location| location.line_number);
        ShaderError::Syntax { line, message: error.message().to_owned() }
    })?;
    let info = guarded("validating it", || {
        let validated = Validator::new(ValidationFlags::all(), CAPABILITIES).validate(&module);
        validated.map_err(|error| ShaderError::Invalid {
            line: error.location(source).map_or(0, |location| location.line_number),
            message: sentence(error.as_inner()),
        })
    })??;
    let (buffers, mut entry_points) = guarded("measuring it", || {
        let buffers = module_rules::check(&module, source, limits)?;
        let mut entry_points = budget::check(&module, &info, limits)?;
        let barriers = uniform_flow::check(&module, source)?;
        for (facts, barriers) in entry_points.iter_mut().zip(barriers) {
            facts.barriers = barriers;
        }
        Ok((buffers, entry_points))
    })??;
    for facts in &mut entry_points {
        facts.spirv_words = compile(&module, &info, &facts.name, limits)?;
    }
    Ok(CheckedShader { module, info, entry_points, buffers })
}

/// Writes one entry point as SPIR-V, as a driver will be given it, and counts the words. The words are thrown away: wgpu makes them
/// again. What a writer makes panic shows here and not there.
fn compile(
    module: &naga::Module,
    info: &ModuleInfo,
    entry: &str,
    limits: &ShaderLimits,
) -> Result<usize, ShaderError> {
    let options = spv::Options {
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Restrict,
            buffer: BoundsCheckPolicy::Restrict,
            ..BoundsCheckPolicies::default()
        },
        ..spv::Options::default()
    };
    let pipeline =
        spv::PipelineOptions { shader_stage: naga::ShaderStage::Compute, entry_point: entry.to_owned() };
    let write = || spv::write_vec(module, info, &options, Some(&pipeline));
    let words = guarded("writing SPIR-V", write)?
        .map_err(|error| ShaderError::Uncompilable { entry: entry.to_owned(), message: sentence(&error) })?;
    if words.len() > limits.spirv_words {
        return Err(ShaderError::OverBudget {
            place: entry.to_owned(),
            resource: Resource::SpirvWords,
            value: words.len() as u64,
            limit: limits.spirv_words as u64,
        });
    }
    Ok(words.len())
}

/// Runs `step`; a panic in it is an error.
fn guarded<T>(stage: &'static str, step: impl FnOnce() -> T) -> Result<T, ShaderError> {
    // Nothing that `step` could leave half changed is looked at after a panic.
    catch_unwind(AssertUnwindSafe(step)).map_err(|panic| panicked(stage, &*panic))
}

fn panicked(stage: &'static str, panic: &(dyn Any + Send)) -> ShaderError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    ShaderError::Panicked { stage, message: text.unwrap_or_else(|| "it says nothing".to_owned()) }
}

/// An error and its sources in one line.
fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A defect of naga 30: a conversion of an infinite f16 that is known at compile time.
    const PANICS_IN_PARSER: &str = "enable f16; const x: f16 = f16(65520i); const y: i32 = i32(x);";

    /// Another: a pointer into an array, by an index that is not known, as an argument.
    const PANICS_IN_WRITER: &str = "fn inner(p: ptr<function, i32>) {}
        fn outer(p: ptr<function, array<array<array<i32, 4>, 4>, 4>>, i: u32, j: u32) { inner((&(*p)[i][0][j])); }
        @compute @workgroup_size(1) fn main() { var a: array<array<array<i32, 4>, 4>, 4>; outer(&a, 1, 2); }";

    #[test]
    fn panics_of_the_compiler_are_errors() {
        let limits = ShaderLimits::default();
        let error = check_text_that_is_bounded(PANICS_IN_PARSER, &limits).unwrap_err();
        assert!(matches!(&error, ShaderError::Panicked { stage: "parsing it", .. }), "{error}");

        let module = naga::front::wgsl::parse_str(PANICS_IN_WRITER).unwrap();
        let info = Validator::new(ValidationFlags::all(), CAPABILITIES).validate(&module).unwrap();
        let error = compile(&module, &info, "main", &limits).unwrap_err();
        assert!(matches!(&error, ShaderError::Panicked { stage: "writing SPIR-V", .. }), "{error}");
        assert_eq!(error.code(), "compiler-panicked");
    }
}
