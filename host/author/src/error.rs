//! Why a project could not be made or built, by whose fault it is.

use std::io;
use std::path::PathBuf;

use kvasir_plugin::PluginError;

/// Why a scaffold or a build did not come about.
#[derive(Debug, thiserror::Error)]
pub enum AuthorError {
    // The author's words.
    /// A name that no plugin can have.
    #[error(
        "{name:?} is no name for a kernel: lower-case letters, digits and -, beginning with a letter, {limit} bytes at most, with at \
         most one namespace before a colon, as in fast or acme:fast"
    )]
    Name {
        /// The name given.
        name: String,
        /// Most bytes of a name.
        limit: usize,
    },
    /// The folder to make is there already.
    #[error("{} is there already; choose another name, or remove it", .0.display())]
    Exists(PathBuf),

    // The project.
    /// The folder holds no kernel project.
    #[error(
        "{} has no {file}: it is no kernel's folder; `kvasir plugin new NAME` makes one", folder.display()
    )]
    NoProject {
        /// The folder.
        folder: PathBuf,
        /// The file that is missing.
        file: &'static str,
    },
    /// A file of the project cannot be understood.
    #[error("{}: {reason}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The manifest cannot be understood.
    #[error(transparent)]
    Manifest(#[from] PluginError),
    /// A source file or the number of them is over a limit.
    #[error("{what} is {value}, the limit is {limit}; make the kernel smaller")]
    OverLimit {
        /// What is too large.
        what: String,
        /// How large it is.
        value: u64,
        /// How large it may be.
        limit: u64,
    },
    /// The compiler or the linker refused the sources.
    #[error("{program} failed:\n{output}")]
    Compiler {
        /// What was run.
        program: String,
        /// The end of what it said.
        output: String,
    },
    /// What was built is no component of the contract.
    #[error("what was built does not fit the contract kvasir:expert@0.1.0: {reason}")]
    Contract {
        /// The encoder's account.
        reason: String,
    },

    // The machine.
    /// No compiler for this language.
    #[error("no {language} compiler for wasm32 was found; {advice}")]
    NoToolchain {
        /// The language.
        language: &'static str,
        /// What to install.
        advice: &'static str,
    },
    /// A program could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("cannot {deed} {}: {source}", path.display())]
    File {
        /// Read, write or make.
        deed: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl AuthorError {
    pub(crate) fn file(
        deed: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> AuthorError {
        let path = path.into();
        move |source| AuthorError::File { deed, path, source }
    }
}
