//! C for wasm32, freestanding: clang with LLVM's linker, or Zig, which brings both.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{on_path, run, words_of};
use crate::error::AuthorError;
use crate::recipe::Recipe;

const ADVICE: &str = "install one: on Debian and its kin, `apt install clang lld`; anywhere, `pip install ziglang` or Zig itself";
const CLANGS: &[&str] = &[
    "clang", "clang-22", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang-15",
    "clang-14",
];
const LINKERS: &[&str] = &[
    "wasm-ld",
    "wasm-ld-22",
    "wasm-ld-21",
    "wasm-ld-20",
    "wasm-ld-19",
    "wasm-ld-18",
    "wasm-ld-17",
    "wasm-ld-16",
    "wasm-ld-15",
    "wasm-ld-14",
];
/// What makes bits: no fused multiply-add. What makes bytes: one language, one set of instructions, no library.
const FLAGS: &[&str] = &[
    "-std=c11",
    "-O3",
    "-msimd128",
    "-mbulk-memory",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-ffreestanding",
    "-fno-ident",
    "-g0",
    "-Wall",
    "-Wextra",
];
/// A stack that runs over traps at address 0 instead of writing over data.
const LINKER_FLAGS: &[&str] =
    &["--no-entry", "--strip-all", "--gc-sections", "--stack-first", "-z", "stack-size=65536"];

/// What compiles C.
#[derive(Clone, Debug)]
pub(crate) struct CToolchain {
    compiler: Program,
    linker: Program,
    /// What the compiler says of itself.
    pub version: String,
    /// What the linker says of itself.
    pub linker_version: Option<String>,
}

/// A program and the arguments that come before all others.
#[derive(Clone, Debug)]
struct Program(Vec<OsString>);

impl CToolchain {
    /// Finds one on this machine.
    pub fn find() -> Result<CToolchain, AuthorError> {
        clang().or_else(zig).ok_or(AuthorError::NoToolchain { language: "C", advice: ADVICE })
    }

    /// Compiles every `src/*.c` of `folder`; products go to `target`. Returns the module.
    pub fn compile(&self, folder: &Path, target: &Path, recipe: &Recipe) -> Result<PathBuf, AuthorError> {
        std::fs::create_dir_all(target).map_err(AuthorError::file("make", target))?;
        let sources = sources(folder)?;
        let mut objects = Vec::new();
        for source in &sources {
            let object = target.join(source).with_extension("o");
            let mut command = self.compiler.command();
            command.current_dir(folder).args(FLAGS).args(&recipe.flags);
            command.arg(format!("-ffile-prefix-map={}=/kernel", folder.display()));
            // By its path in the folder, so that no path of this machine reaches the compiler.
            run(command.arg("-c").arg(Path::new("src").join(source)).arg("-o").arg(&object))?;
            objects.push(object);
        }
        let module = target.join("module.wasm");
        run(self.linker.command().args(LINKER_FLAGS).args(&objects).arg("-o").arg(&module))?;
        Ok(module)
    }
}

impl Program {
    fn new<S: Into<OsString>>(words: impl IntoIterator<Item = S>) -> Program {
        Program(words.into_iter().map(Into::into).collect())
    }

    fn command(&self) -> Command {
        let mut words = self.0.iter();
        let mut command = Command::new(words.next().cloned().unwrap_or_default());
        command.args(words);
        command
    }
}

fn clang() -> Option<CToolchain> {
    let clang = CLANGS.iter().filter_map(|name| on_path(&[name])).find(|clang| {
        // Apple's has no wasm32.
        words_of(Command::new(clang).arg("--print-targets")).is_some_and(|targets| targets.contains("wasm32"))
    })?;
    let linker = match on_path(LINKERS) {
        Some(linker) => Program::new([linker]),
        None => Program::new([rust_lld()?.into_os_string(), "-flavor".into(), "wasm".into()]),
    };
    let version = first_line(words_of(Command::new(&clang).arg("--version"))?);
    let linker_version = words_of(linker.command().arg("--version"));
    let compiler = Program::new([clang.into_os_string(), "--target=wasm32".into()]);
    Some(CToolchain { compiler, linker, version, linker_version })
}

fn zig() -> Option<CToolchain> {
    let programs = [vec!["zig"], vec!["python3", "-m", "ziglang"]];
    let (zig, version) = programs.into_iter().find_map(|words| {
        let version = words_of(Program::new(words.clone()).command().arg("version"))?;
        Some((words, version))
    })?;
    let with = |more: &[&'static str]| Program::new(zig.iter().copied().chain(more.iter().copied()));
    // Zig puts checks of undefined behaviour into C unless told otherwise.
    let compiler = with(&["cc", "-target", "wasm32-freestanding", "-fno-sanitize=all"]);
    Some(CToolchain {
        compiler,
        linker: with(&["wasm-ld"]),
        version: format!("zig {version}"),
        linker_version: None,
    })
}

/// LLVM's linker as it comes with Rust.
fn rust_lld() -> Option<PathBuf> {
    let sysroot = words_of(Command::new("rustc").args(["--print", "sysroot"]))?;
    let about = words_of(Command::new("rustc").arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "))?.to_owned();
    let linker = Path::new(&sysroot).join("lib/rustlib").join(host).join("bin/rust-lld");
    linker.is_file().then_some(linker)
}

/// Names of the C files in `src`, in order, so that the linker sees them in the same one everywhere.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, AuthorError> {
    let src = folder.join("src");
    let entries = std::fs::read_dir(&src).map_err(AuthorError::file("read", &src))?;
    let mut sources: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()))
        .filter(|name| name.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    if sources.is_empty() {
        return Err(AuthorError::NoProject { folder: folder.to_owned(), file: "src/*.c" });
    }
    Ok(sources)
}

fn first_line(text: String) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}
