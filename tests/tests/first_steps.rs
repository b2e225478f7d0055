//! "From nothing" in docs/gateway.md is what a first user types: every command and option in it is one that the programs have.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeSet;
use std::process::Command;

use kvasir_tests::{program, root};

const HEADING: &str = "\n## From nothing\n";
const PROGRAMS: [&str; 3] = ["kvasir", "kvasir-gateway", "kvasir-ledger"];

/// The lines of the section's code, without what a `#` says about them.
fn lines() -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/gateway.md")).unwrap();
    let (_, section) = page.split_once(HEADING).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut lines = Vec::new();
    let mut is_code = false;
    for line in section.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            let words = line.split(" #").next().unwrap();
            lines.push(words.trim_end().to_owned());
        }
    }
    lines
}

/// The words that choose a command.
fn command<'line>(program: &str, words: &[&'line str]) -> Vec<&'line str> {
    let depth = match (program, words) {
        ("kvasir", ["plugin", "trust", ..]) => 3,
        ("kvasir", ["plugin" | "key", ..]) => 2,
        _ => 1,
    };
    words[..depth].to_vec()
}

#[test]
fn every_command_and_option_of_the_first_steps_is_one_that_there_is() {
    let mut seen = BTreeSet::new();
    for line in lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, words) = words.split_first().unwrap();
        assert!(PROGRAMS.contains(name), "no program of ours: {line}");
        let command = command(name, words);
        let output = Command::new(program(name)).args(&command).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
        let usage = format!("Usage: {name} {}", command.join(" "));
        assert!(help.contains(&usage), "{line}\n{help}");
        let known: BTreeSet<&str> =
            help.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '-')).collect();
        for option in words.iter().filter(|word| word.starts_with("--")) {
            assert!(known.contains(option), "{option} of {line}\n{help}");
        }
        seen.insert(format!("{name} {}", command.join(" ")));
    }
    // What it takes at least, so that a section that was not found is no success.
    for needed in [
        "kvasir key new",
        "kvasir setup",
        "kvasir worker",
        "kvasir-gateway certificate",
        "kvasir-gateway edge",
        "kvasir-gateway edge-key",
        "kvasir-gateway hub",
        "kvasir-gateway ticket",
        "kvasir-ledger init",
    ] {
        assert!(seen.contains(needed), "{needed} is none of {seen:#?}");
    }
}
