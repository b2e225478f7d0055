//! Every bound that the front door puts on a shader. Chosen several times above what a kernel of this contract needs and far
//! below what makes a parser, a validator or a driver's compiler slow; `tests/data/hostile-wgsl` holds what each one stops.

use crate::front_door::BufferKind;

/// Bounds on one WGSL source. [`ShaderLimits::default`] is what a host uses; a caller may lower them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShaderLimits {
    /// Bytes of source. What a source costs to parse grows with the square of its length.
    pub source_bytes: usize,
    /// Tokens outside comments.
    pub tokens: usize,
    /// Comments inside comments.
    pub comment_nesting: usize,
    /// Brackets of any kind that are open at one place.
    pub nesting: usize,
    /// Operators, members, indices and `else` branches that hang on each other, over all nested brackets of a statement: what a
    /// compiler recurses over.
    pub depth: usize,
    /// Declarations outside functions.
    pub declarations: usize,
    /// Words and numbers of constants, counted again wherever a function names the constant.
    pub constant_copies: usize,
    /// Functions, entry points included.
    pub functions: usize,
    /// Statements, counted by `;` and `{`.
    pub statements: usize,
    /// Entry points.
    pub entry_points: usize,
    /// Invocations of one workgroup.
    pub invocations: u32,
    /// Bytes of workgroup memory that one entry point uses.
    pub workgroup_bytes: u64,
    /// Bytes of private and function-local variables of one invocation of an entry point, each call counted anew.
    pub private_bytes: u64,
    /// Bytes of one value: a constant, an argument, a result, whatever an expression yields.
    pub value_bytes: u64,
    /// Bytes of all constants of the module together.
    pub constant_bytes: u64,
    /// Expressions and statements of one entry point with every call written out.
    pub inlined: u64,
    /// What the host binds in group 0, by binding number.
    pub bindings: &'static [BufferKind],
    /// Bytes of a uniform buffer's type.
    pub uniform_bytes: u64,
    /// SPIR-V words that one entry point becomes.
    pub spirv_words: usize,
}

impl Default for ShaderLimits {
    fn default() -> Self {
        ShaderLimits {
            source_bytes: 64 << 10,
            tokens: 32 << 10,
            comment_nesting: 8,
            nesting: 48,
            depth: 384,
            declarations: 512,
            constant_copies: 256 << 10,
            functions: 256,
            statements: 8192,
            entry_points: 96,
            invocations: 256,
            workgroup_bytes: 16 << 10,
            private_bytes: 4 << 10,
            value_bytes: 16 << 10,
            constant_bytes: 64 << 10,
            inlined: 32 << 10,
            bindings: &[BufferKind::Uniform, BufferKind::Read, BufferKind::Read, BufferKind::ReadWrite],
            uniform_bytes: 4096,
            spirv_words: 256 << 10,
        }
    }
}

/// Stack of the thread that naga runs on. naga recurses over what [`ShaderLimits::depth`], [`ShaderLimits::nesting`] and
/// [`ShaderLimits::declarations`] bound; a shader at all three bounds was measured to need less than a quarter of this.
pub const STACK_BYTES: usize = 64 << 20;
