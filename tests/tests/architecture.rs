//! The import table of ARCHITECTURE.md, as a test: an arrow between our crates that the table does not allow fails here.
//!
//! Only normal and build dependencies count; tests may look anywhere, except that nobody may import `kvasir-tests`.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// For each of our crates: those of ours it may import.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("kvasir-numerics", &[]),
    ("kvasir-swiglu", &["kvasir-numerics"]),
    ("kvasir-merkle", &[]),
    ("kvasir-wire", &["kvasir-merkle"]),
    ("kvasir-link", &["kvasir-wire"]),
    ("kvasir-model", &["kvasir-numerics", "kvasir-merkle"]),
    ("kvasir-backbone", &["kvasir-model", "kvasir-numerics"]),
    ("kvasir-plugin", &[]),
    ("kvasir-sandbox", &["kvasir-plugin"]),
    ("kvasir-experts", &["kvasir-numerics", "kvasir-model", "kvasir-plugin", "kvasir-sandbox", "kvasir-backbone"]),
    ("kvasir-dispatch", &["kvasir-wire", "kvasir-link", "kvasir-model", "kvasir-backbone", "kvasir-experts"]),
    (
        "kvasir-worker",
        &["kvasir-wire", "kvasir-link", "kvasir-merkle", "kvasir-model", "kvasir-plugin", "kvasir-experts"],
    ),
    ("kvasir-gateway", &["kvasir-wire", "kvasir-link", "kvasir-ledger"]),
    ("kvasir-ledger", &["kvasir-wire", "kvasir-merkle"]),
    (
        "kvasir-operate",
        &[
            "kvasir-wire",
            "kvasir-model",
            "kvasir-backbone",
            "kvasir-plugin",
            "kvasir-sandbox",
            "kvasir-experts",
            "kvasir-dispatch",
            "kvasir-worker",
        ],
    ),
    ("kvasir", &["kvasir-operate", "kvasir-backbone", "kvasir-model"]),
];

/// Third-party packages that only the named crates of ours may import, because a boundary of the design is made of them.
const ONLY: &[(&str, &[&str])] = &[
    ("wasmtime", &["kvasir-sandbox"]),
    ("rusqlite", &["kvasir-ledger"]),
    ("rcgen", &["kvasir-gateway"]),
    ("tokio-tungstenite", &["kvasir-link", "kvasir-gateway"]),
];

/// Packages that may not appear in the crate's own dependencies: I/O and clocks stay out of what only computes.
const NEVER: &[(&str, &[&str])] = &[
    ("kvasir-numerics", &["rayon", "tokio"]),
    ("kvasir-merkle", &["tokio", "ureq", "memmap2"]),
    ("kvasir-wire", &["tokio", "ureq", "tokio-tungstenite", "tokio-rustls", "rustls"]),
    ("kvasir-model", &["tokio", "ureq"]),
    ("kvasir-backbone", &["tokio", "ureq", "wasmtime"]),
    ("kvasir-plugin", &["tokio", "ureq", "wasmtime"]),
    ("kvasir-sandbox", &["tokio", "ureq"]),
    ("kvasir-experts", &["tokio", "ureq"]),
];

fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
        .no_deps()
        .exec()
        .unwrap();
    metadata
        .packages
        .iter()
        .map(|package| {
            let names = package
                .dependencies
                .iter()
                .filter(|dependency| dependency.kind != DependencyKind::Development)
                .map(|dependency| dependency.name.to_string())
                .collect();
            (package.name.to_string(), names)
        })
        .collect()
}

#[test]
fn no_arrow_runs_the_wrong_way() {
    let mut wrong = Vec::new();
    let table: BTreeMap<_, BTreeSet<_>> =
        MAY_IMPORT.iter().map(|(from, to)| (*from, to.iter().copied().collect())).collect();
    let all = imports();
    for (from, names) in &all {
        if from == "kvasir-tests" {
            continue;
        }
        let Some(allowed) = table.get(from.as_str()) else {
            wrong.push(format!("{from} has no row in the import table"));
            continue;
        };
        for to in names.iter().filter(|to| all.contains_key(*to)) {
            if !allowed.contains(to.as_str()) {
                wrong.push(format!("{from} imports {to}"));
            }
        }
    }
    assert!(wrong.is_empty(), "the import table of ARCHITECTURE.md forbids:\n  {}", wrong.join("\n  "));
}

#[test]
fn boundaries_made_of_a_package_have_one_owner() {
    let mut wrong = Vec::new();
    for (from, names) in imports() {
        if from == "kvasir-tests" {
            continue;
        }
        for (package, owners) in ONLY {
            if names.contains(*package) && !owners.contains(&from.as_str()) {
                wrong.push(format!("{from} imports {package}, which belongs to {}", owners.join(", ")));
            }
        }
        for (crate_name, banned) in NEVER {
            if from == *crate_name {
                wrong.extend(banned.iter().filter(|b| names.contains(**b)).map(|b| format!("{from} imports {b}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_names_no_crate_that_does_not_exist() {
    let all = imports();
    for (from, to) in MAY_IMPORT {
        for name in std::iter::once(from).chain(*to) {
            assert!(all.contains_key(*name), "{name} stands in the import table and is no crate of the workspace");
        }
    }
}
