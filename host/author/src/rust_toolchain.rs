//! Rust for wasm32-unknown-unknown: a compiler that has the target's standard library, or one that has its source.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{on_path, run, words_of};
use crate::error::AuthorError;
use crate::recipe::Recipe;

const TARGET: &str = "wasm32-unknown-unknown";
/// Where distributions put their compiler, which may have the target although the first one on the path has not.
const SYSTEM_RUSTC: &str = "/usr/bin/rustc";
const ADVICE: &str = "install one: with rustup, `rustup target add wasm32-unknown-unknown`; on Debian and its kin, `apt install \
                      rustc-web rust-web-src` beside a cargo";

/// What compiles a crate.
#[derive(Clone, Debug)]
pub(crate) struct RustToolchain {
    rustc: PathBuf,
    cargo: PathBuf,
    /// The standard library's source, where it has to be compiled first.
    library: Option<PathBuf>,
    linker: Option<PathBuf>,
    /// What `rustc --version` says.
    pub version: String,
    /// What the linker says of itself.
    pub linker_version: Option<String>,
}

impl RustToolchain {
    /// Finds one on this machine.
    pub fn find() -> Result<RustToolchain, AuthorError> {
        let none = || AuthorError::NoToolchain { language: "Rust", advice: ADVICE };
        let home = || std::env::home_dir().map(|home| home.join(".cargo/bin/cargo"));
        let cargo =
            on_path(&["cargo"]).or_else(|| home().filter(|cargo| cargo.is_file())).ok_or_else(none)?;
        let beside = cargo.with_file_name("rustc");
        let compilers = || [Some(beside.clone()), on_path(&["rustc"]), Some(SYSTEM_RUSTC.into())];
        // One that has the target built comes first: it is much quicker than compiling the standard library.
        for prebuilt in [true, false] {
            for rustc in compilers().into_iter().flatten().filter(|rustc| rustc.is_file()) {
                let library = match prebuilt {
                    true if has_target(&rustc) => None,
                    false => match library_source(&rustc) {
                        Some(library) => Some(library),
                        None => continue,
                    },
                    true => continue,
                };
                let Some(version) = words_of(Command::new(&rustc).arg("--version")) else { continue };
                let linker = [&rustc, &beside].into_iter().find_map(|rustc| linker_of(rustc));
                let linker = linker.or_else(|| on_path(&["rust-lld", "wasm-ld", "wasm-ld-19", "wasm-ld-14"]));
                let linker_version = linker.as_deref().and_then(version_of);
                return Ok(RustToolchain { rustc, cargo, library, linker, version, linker_version });
            }
        }
        Err(none())
    }

    /// Compiles the crate in `folder`; products go to `target`. Returns the module.
    pub fn compile(&self, folder: &Path, target: &Path, recipe: &Recipe) -> Result<PathBuf, AuthorError> {
        let module = module_name(folder)?;
        let mut command = Command::new(&self.cargo);
        command.current_dir(folder);
        // What a user's shell or settings say must not reach the bytes.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            let changes_bytes =
                ["RUSTFLAGS", "RUSTC", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_INCREMENTAL"]
                    .contains(&name.as_str())
                    || [
                        "CARGO_PROFILE_",
                        "CARGO_BUILD_",
                        "CARGO_TARGET_",
                        "CARGO_ENCODED_",
                        "CARGO_UNSTABLE_",
                    ]
                    .iter()
                    .any(|start| name.starts_with(start));
            if changes_bytes {
                command.env_remove(&name);
            }
        }
        command.env("RUSTC", &self.rustc).env("CARGO_ENCODED_RUSTFLAGS", self.flags(folder, recipe));
        if let Some(linker) = &self.linker {
            command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
        }
        command.args(["build", "--release", "--locked", "--target", TARGET, "--target-dir"]).arg(target);
        if self.library.is_some() {
            command.env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=std,panic_abort");
        }
        run(&mut command)?;
        Ok(target.join(TARGET).join("release").join(module))
    }

    /// Paths would make the bytes depend on where the project, cargo and the compiler lie.
    fn flags(&self, folder: &Path, recipe: &Recipe) -> String {
        let mut flags = vec!["-Ctarget-feature=+simd128".to_owned()];
        let mut remap =
            |from: &Path, to: &str| flags.push(format!("--remap-path-prefix={}={to}", from.display()));
        remap(folder, "/kernel");
        if let Some(home) = cargo_home() {
            remap(&home, "/cargo");
        }
        if let Some(library) = &self.library {
            remap(library, "/rust/library");
            if let Ok(real) = library.canonicalize() {
                remap(&real, "/rust/library");
            }
        }
        flags.extend(recipe.flags.iter().cloned());
        flags.join("\u{1f}")
    }
}

fn has_target(rustc: &Path) -> bool {
    let folder = words_of(Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]));
    let Some(entries) = folder.and_then(|folder| std::fs::read_dir(folder).ok()) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
}

fn sysroot(rustc: &Path) -> Option<PathBuf> {
    words_of(Command::new(rustc).args(["--print", "sysroot"])).map(PathBuf::from)
}

fn library_source(rustc: &Path) -> Option<PathBuf> {
    let library = sysroot(rustc)?.join("lib/rustlib/src/rust/library");
    library.join("std/Cargo.toml").is_file().then_some(library)
}

/// The linker that comes with a compiler.
fn linker_of(rustc: &Path) -> Option<PathBuf> {
    let about = words_of(Command::new(rustc).arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "))?;
    let linker = sysroot(rustc)?.join("lib/rustlib").join(host).join("bin/rust-lld");
    linker.is_file().then_some(linker)
}

fn version_of(linker: &Path) -> Option<String> {
    words_of(Command::new(linker).args(["-flavor", "wasm", "--version"]))
        .or_else(|| words_of(Command::new(linker).arg("--version")))
}

fn cargo_home() -> Option<PathBuf> {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    named.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
}

/// The file that cargo will write: the library's name, or the package's with `_` for `-`.
fn module_name(folder: &Path) -> Result<String, AuthorError> {
    let path = folder.join("Cargo.toml");
    if !path.is_file() {
        return Err(AuthorError::NoProject { folder: folder.to_owned(), file: "Cargo.toml" });
    }
    let text = std::fs::read_to_string(&path).map_err(AuthorError::file("read", &path))?;
    let malformed = |reason: String| AuthorError::Malformed { file: path.clone(), reason };
    let table: toml::Table = toml::from_str(&text).map_err(|error| malformed(error.to_string()))?;
    let name = |section: &str| table.get(section)?.get("name")?.as_str().map(|name| name.replace('-', "_"));
    let name = name("lib").or_else(|| name("package"));
    name.map(|name| format!("{name}.wasm")).ok_or_else(|| malformed("it names no package".to_owned()))
}
