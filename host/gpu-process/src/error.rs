//! Why a shader is refused: what failed, where, the limit or the value, and what to do. All of it is the shader's fault.

use std::fmt;

/// Why the front door refused a WGSL source. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShaderError {
    /// Longer than [`crate::ShaderLimits::source_bytes`].
    #[error(
        "the shader has {bytes} bytes, the limit is {limit}; shorten it or split it over several plugins"
    )]
    TooLong {
        /// Bytes found.
        bytes: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A character that may not stand there.
    #[error(
        "line {line}: the character U+{:04X} is not allowed; outside comments only printable ASCII, space, tab and line ends \
         are, inside them no control or direction characters either", *.character as u32
    )]
    Character {
        /// Where.
        line: u32,
        /// Which.
        character: char,
    },
    /// A block comment without end.
    #[error("line {line}: the comment that begins here is never closed; close it with */")]
    OpenComment {
        /// Where it begins.
        line: u32,
    },
    /// A bracket without its partner.
    #[error("line {line}: {bracket:?} has no partner; balance the brackets")]
    Unbalanced {
        /// Where.
        line: u32,
        /// The bracket.
        bracket: char,
    },
    /// A word of WGSL that kernels have no need of.
    #[error("line {line}: `{word}` is not allowed: {reason}; remove it")]
    Word {
        /// Where.
        line: u32,
        /// The word.
        word: String,
        /// Why not.
        reason: &'static str,
    },
    /// More of something in the text than its limit.
    #[error("line {line}: the shader has more than {limit} {count}; {}", .count.advice())]
    TooMany {
        /// Where the limit is passed.
        line: u32,
        /// Of what.
        count: Count,
        /// How many are allowed.
        limit: usize,
    },
    /// naga's parser refuses it.
    #[error("{}this is not valid WGSL: {message}", at(*.line))]
    Syntax {
        /// Where; 0 if unknown.
        line: u32,
        /// What the parser says.
        message: String,
    },
    /// naga's validator refuses it.
    #[error("{}the shader is not valid: {message}", at(*.line))]
    Invalid {
        /// Where; 0 if unknown.
        line: u32,
        /// What the validator says.
        message: String,
    },
    /// naga panicked: a defect there, which the shader triggers.
    #[error(
        "the shader makes the compiler fail while {stage}: {message}; write it differently, a fault in the compiler is not \
         worked around here"
    )]
    Panicked {
        /// What was being done.
        stage: &'static str,
        /// The panic's message.
        message: String,
    },
    /// naga cannot write it as SPIR-V.
    #[error("entry point `{entry}` cannot be compiled: {message}")]
    Uncompilable {
        /// The entry point.
        entry: String,
        /// What the compiler says.
        message: String,
    },
    /// No entry point.
    #[error("the shader has no entry point; mark a function with @compute")]
    NoEntryPoint,
    /// An entry point that is no compute shader.
    #[error("entry point `{entry}` is not a compute shader; only @compute is run")]
    NotCompute {
        /// The entry point.
        entry: String,
    },
    /// Something that the contract has no place for.
    #[error("{}{what} is not allowed: {reason}", at(*.line))]
    NotAllowed {
        /// Where; 0 if unknown.
        line: u32,
        /// What.
        what: String,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// A resource that is over its limit.
    #[error("`{place}` has {value} {resource}, the limit is {limit}; {}", .resource.advice())]
    OverBudget {
        /// The entry point, function or declaration.
        place: String,
        /// Of what.
        resource: Resource,
        /// How much; `u64::MAX` where it cannot be counted.
        value: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// A barrier that not all invocations of a workgroup are known to reach together.
    #[error(
        "line {line}: in `{function}` a barrier stands where not all invocations of a workgroup are known to arrive together; \
         put it at the top level of the entry point, or under conditions made of constants, uniform buffers and workgroup_id \
         alone, and let no invocation return or leave the loop before it"
    )]
    Barrier {
        /// Where.
        line: u32,
        /// The function.
        function: String,
    },
    /// The process could not start the thread that the checks run on. Not the shader's fault.
    #[error("cannot start the thread that checks shaders: {message}; free some memory")]
    NoThread {
        /// The system's answer.
        message: String,
    },
}

/// The beginning of a message on a line, empty where the line is not known.
fn at(line: u32) -> String {
    if line == 0 { String::new() } else { format!("line {line}: ") }
}

impl ShaderError {
    /// A short name that stays the same when sentences change.
    pub fn code(&self) -> &'static str {
        match self {
            ShaderError::TooLong { .. } => "too-long",
            ShaderError::Character { .. } => "character",
            ShaderError::OpenComment { .. } => "open-comment",
            ShaderError::Unbalanced { .. } => "unbalanced",
            ShaderError::Word { .. } => "word",
            ShaderError::TooMany { count, .. } => count.code(),
            ShaderError::Syntax { .. } => "syntax",
            ShaderError::Invalid { .. } => "invalid",
            ShaderError::Panicked { .. } => "compiler-panicked",
            ShaderError::Uncompilable { .. } => "uncompilable",
            ShaderError::NoEntryPoint => "no-entry-point",
            ShaderError::NotCompute { .. } => "not-compute",
            ShaderError::NotAllowed { .. } => "not-allowed",
            ShaderError::OverBudget { resource, .. } => resource.code(),
            ShaderError::Barrier { .. } => "barrier",
            ShaderError::NoThread { .. } => "no-thread",
        }
    }
}

/// What is counted in the text, before any parser sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Tokens.
    Tokens,
    /// Comments inside comments.
    CommentNesting,
    /// Open brackets.
    Nesting,
    /// Operators that hang on each other.
    Depth,
    /// Declarations outside functions.
    Declarations,
    /// Functions.
    Functions,
    /// Elements of constants that are copied.
    ConstantCopies,
    /// Statements.
    Statements,
}

impl Count {
    fn code(self) -> &'static str {
        match self {
            Count::Tokens => "tokens",
            Count::CommentNesting => "comment-nesting",
            Count::Nesting => "nesting",
            Count::Depth => "depth",
            Count::Declarations => "declarations",
            Count::Functions => "functions",
            Count::ConstantCopies => "constant-copies",
            Count::Statements => "statements",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Count::Tokens | Count::Statements => "use loops and functions instead of repeated code",
            Count::CommentNesting => "use line comments",
            Count::Nesting => "name parts of the expression with `let`, or move inner blocks into functions",
            Count::Depth => "split the expression with `let`, or use `switch` instead of `else if`",
            Count::Declarations => "put values into structs, arrays or buffers",
            Count::ConstantCopies => {
                "name a table once, in a function that the others call, or put it into a buffer"
            }
            Count::Functions => "merge functions that differ in a constant alone",
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Count::Tokens => "tokens",
            Count::CommentNesting => "comments inside each other",
            Count::Nesting => "brackets inside each other",
            Count::Depth => "operators and branches that hang on each other",
            Count::Declarations => "declarations",
            Count::Functions => "functions",
            Count::ConstantCopies => "elements of constants, counted wherever a function names them",
            Count::Statements => "statements",
        })
    }
}

/// What a validated shader may use so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Entry points of the module.
    EntryPoints,
    /// Invocations in a workgroup.
    Invocations,
    /// Workgroup memory.
    WorkgroupBytes,
    /// Private and local memory.
    PrivateBytes,
    /// One value's size.
    ValueBytes,
    /// Constants together.
    ConstantBytes,
    /// A uniform buffer's size.
    UniformBytes,
    /// Size with all calls written out.
    Inlined,
    /// Compiled size.
    SpirvWords,
}

impl Resource {
    fn code(self) -> &'static str {
        match self {
            Resource::EntryPoints => "entry-points",
            Resource::Invocations => "invocations",
            Resource::WorkgroupBytes => "workgroup-bytes",
            Resource::PrivateBytes => "private-bytes",
            Resource::ValueBytes => "value-bytes",
            Resource::ConstantBytes => "constant-bytes",
            Resource::UniformBytes => "uniform-bytes",
            Resource::Inlined => "inlined",
            Resource::SpirvWords => "spirv-words",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Resource::EntryPoints => "split the shader over several plugins",
            Resource::Invocations => "use a smaller @workgroup_size",
            Resource::WorkgroupBytes => "keep less in workgroup variables",
            Resource::PrivateBytes => {
                "keep less in variables, or call the functions that have them less often"
            }
            Resource::ValueBytes => "work on parts of it",
            Resource::ConstantBytes => "pack the tables",
            Resource::UniformBytes => "put it into a storage buffer",
            Resource::Inlined => "call functions in loops instead of one after the other",
            Resource::SpirvWords => "make the entry point smaller",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::EntryPoints => "entry points",
            Resource::Invocations => "invocations in a workgroup",
            Resource::WorkgroupBytes => "bytes of workgroup memory",
            Resource::PrivateBytes => "bytes of private and local variables",
            Resource::ValueBytes => "bytes in one value",
            Resource::ConstantBytes => "bytes of constants",
            Resource::UniformBytes => "bytes in a uniform buffer",
            Resource::Inlined => "expressions and statements with all calls written out",
            Resource::SpirvWords => "words of SPIR-V",
        })
    }
}
