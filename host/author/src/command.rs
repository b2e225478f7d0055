//! Other programs: found on the path, run to their end, their words kept short.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::error::AuthorError;

/// Most lines of a failed program's words that are shown: the last ones.
const MAX_LINES: usize = 60;

/// The first of these programs that is on the path.
pub(crate) fn on_path(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = |name: &&str| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file());
    names.iter().find_map(found)
}

/// What a program prints on standard output, trimmed; `None` where it fails or cannot be started.
pub(crate) fn words_of(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> Result<(), AuthorError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| AuthorError::Start { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let output = lines[lines.len().saturating_sub(MAX_LINES)..].join("\n");
    Err(AuthorError::Compiler { program, output })
}
