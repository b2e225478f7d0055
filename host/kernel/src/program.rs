//! Finds a program that belongs to this one.

use std::path::PathBuf;

/// The file `name` as the environment's `variable` names it, else beside the running program or one folder above, where tests
/// find it.
///
/// # Errors
/// The folder of the running program, where the file is at none of these places.
pub fn find_program(name: &str, variable: &str) -> Result<PathBuf, PathBuf> {
    if let Some(program) = std::env::var_os(variable).filter(|program| !program.is_empty()) {
        return Ok(program.into());
    }
    let this = std::env::current_exe().unwrap_or_default();
    let beside = this.parent().unwrap_or(&this);
    let candidates = [Some(beside), beside.parent()];
    let found = candidates.into_iter().flatten().map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| beside.to_owned())
}
