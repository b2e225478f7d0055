//! The programs of this build, never those of an earlier one.
//!
//! `cargo test` builds the programs of a package for that package's tests alone. A test here that started what happens
//! to lie in the target folder could pass with the programs of last week, so the first that asks has cargo build them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::root;

/// Cargo's word for the profile whose folder is called `debug`.
const DEV: &str = "dev";

/// A program of this build, which lies beside the folder of the running test.
///
/// # Panics
/// Where the programs cannot be built, with what cargo says, or none has this name.
pub fn program(name: &str) -> PathBuf {
    let path = build_programs().join(name);
    assert!(path.exists(), "no package of the workspace builds a program {}", path.display());
    path
}

/// Builds the programs of the workspace, once in a process: in the target folder and by the profile of the running
/// test. Costs a look at the sources where nothing changed. Returns the folder that they lie in.
///
/// # Panics
/// Where they cannot be built, with what cargo says.
pub fn build_programs() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = folder_of_this_build();
        let profile = match folder.file_name().unwrap().to_str().unwrap() {
            "debug" => DEV,
            other => other,
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut build = Command::new(cargo);
        // What cargo says of this test's own package: build scripts that look at it (ring's) would run again, and whatever depends
        // on them would be built anew.
        for (name, _) in std::env::vars_os() {
            let known = name.to_string_lossy();
            if known.starts_with("CARGO_PKG_") || known.starts_with("CARGO_MANIFEST_") {
                build.env_remove(name);
            }
        }
        let output = build
            .current_dir(root())
            .args(["build", "--workspace", "--bins", "--locked", "--profile", profile, "--target-dir"])
            .arg(folder.parent().unwrap())
            .output()
            .unwrap_or_else(|error| {
                panic!("cargo builds the programs under test, and does not start: {error}")
            });
        assert!(
            output.status.success(),
            "cargo build --workspace --bins fails, so there is nothing to test:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        folder
    })
}

/// `<target>/<profile>`, from `<target>/<profile>/deps/<test>`.
fn folder_of_this_build() -> PathBuf {
    let mut folder = std::env::current_exe().unwrap();
    folder.pop();
    if folder.ends_with("deps") {
        folder.pop();
    }
    folder
}
