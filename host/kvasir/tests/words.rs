//! The command line as the program reads it, with its variables.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::process::Command;

#[test]
fn an_empty_variable_says_that_no_evidence_is_kept_and_is_a_mistake_for_other_folders() {
    let folder = tempfile::tempdir().unwrap();
    let run = |variable: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.arg("--home").arg(folder.path()).args(["run", "hello", "--model", "/nowhere/model.gguf"]);
        let output = command.env(variable, "").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // It goes on to what is really wrong, which is no matter of words.
    let (code, said) = run("KVASIR_EVIDENCE");
    assert_eq!(code, Some(1), "{said}");
    let (code, said) = run("KVASIR_KEEP_ROWS");
    assert_eq!(code, Some(2), "{said}");
}
