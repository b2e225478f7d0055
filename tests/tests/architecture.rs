//! The import table of ARCHITECTURE.md, read as it stands there: an arrow between our crates that it does not allow
//! fails here.
//!
//! Only normal and build dependencies count; tests may look anywhere, except that nobody may import `kvasir-tests`.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use cargo_metadata::{DependencyKind, MetadataCommand};
use kvasir_tests::root;

/// Heading of the table in ARCHITECTURE.md.
const HEADING: &str = "## Who may import whom";

/// Third-party packages that only the named crates of ours may import, because a boundary of the design is made of them.
const ONLY: &[(&str, &[&str])] = &[
    ("wasmtime", &["kvasir-sandbox"]),
    ("wgpu", &["kvasir-gpu-process"]),
    ("naga", &["kvasir-gpu-process"]),
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
    ("kvasir-replay", &["tokio", "ureq", "wasmtime", "rusqlite"]),
];

/// One crate of the workspace.
struct Crate {
    /// Its folder, from the root of the checkout.
    folder: String,
    /// What it depends on, itself or in its build script.
    imports: BTreeSet<String>,
}

fn crates() -> BTreeMap<String, Crate> {
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec().unwrap();
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
            let folder = package.manifest_path.parent().unwrap();
            let folder = folder.strip_prefix(&metadata.workspace_root).unwrap().to_string();
            (package.name.to_string(), Crate { folder, imports: names })
        })
        .collect()
}

fn document() -> String {
    std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap()
}

/// For each of `crates`: those among them that the table in `document` lets it import.
///
/// A row has three cells: the crate, what it may import, what it must never (for people). The second holds names with
/// commas between, remarks in brackets, or one of `nothing`, `all`, `all of host but kvasir`.
fn table(
    document: &str,
    crates: &BTreeMap<String, Crate>,
) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let (_, section) = document.split_once(HEADING).ok_or(format!("there is no heading {HEADING:?}"))?;
    let rows: Vec<&str> = section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .collect();
    let mut table = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, may, _] = cells[..] else { return Err(format!("a row has three cells: {row}")) };
        let from = package(name, crates)?;
        let to = allowed(may, crates).map_err(|fault| format!("{fault}, in the row of {name}"))?;
        if table.insert(from, to).is_some() {
            return Err(format!("{name} has two rows in the import table"));
        }
    }
    match crates.keys().find(|name| !table.contains_key(*name)) {
        Some(missing) => Err(format!("{missing} has no row in the import table")),
        None => Ok(table),
    }
}

fn allowed(may: &str, crates: &BTreeMap<String, Crate>) -> Result<BTreeSet<String>, String> {
    let named = |wanted: &dyn Fn(&str, &Crate) -> bool| {
        crates.iter().filter(|(name, of)| wanted(name, of)).map(|(name, _)| name.clone()).collect()
    };
    match may {
        "nothing" => Ok(BTreeSet::new()),
        "all" => Ok(named(&|_, _| true)),
        "all of host but kvasir" => Ok(named(&|name, of| of.folder.starts_with("host/") && name != "kvasir")),
        names => names.split(',').map(|name| package(name, crates)).collect(),
    }
}

/// The package that the document calls `name`: `wire`, `plugins/numerics`, `experts (the trait)`.
fn package(name: &str, crates: &BTreeMap<String, Crate>) -> Result<String, String> {
    let plain = name.split('(').next().unwrap_or(name).trim();
    let plain = plain.strip_prefix("plugins/").unwrap_or(plain);
    let package = if plain == "kvasir" { plain.to_owned() } else { format!("kvasir-{plain}") };
    if crates.contains_key(&package) {
        Ok(package)
    } else {
        Err(format!("{name:?} stands in the import table and is no crate of the workspace"))
    }
}

/// Arrows that the table does not allow.
fn wrong_arrows(table: &BTreeMap<String, BTreeSet<String>>, crates: &BTreeMap<String, Crate>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (from, of) in crates {
        for to in of.imports.iter().filter(|to| crates.contains_key(*to)) {
            if !table[from].contains(to) || to == "kvasir-tests" {
                wrong.push(format!("{from} imports {to}"));
            }
        }
    }
    wrong
}

#[test]
fn no_arrow_runs_the_wrong_way() {
    let crates = crates();
    let table = table(&document(), &crates).unwrap_or_else(|fault| panic!("ARCHITECTURE.md: {fault}"));
    let wrong = wrong_arrows(&table, &crates);
    assert!(wrong.is_empty(), "the import table of ARCHITECTURE.md forbids:\n  {}", wrong.join("\n  "));
}

#[test]
fn what_the_table_does_not_say_is_not_allowed() {
    let crates = crates();
    let good = document();
    let told = |document: &str| table(document, &crates).unwrap_err();

    let without_a_row: String =
        good.split_inclusive('\n').filter(|line| !line.starts_with("| sandbox | plugin |")).collect();
    assert_ne!(without_a_row, good, "the row that this test takes out is there");
    assert_eq!(told(&without_a_row), "kvasir-sandbox has no row in the import table");
    assert!(told(&good.replace("| sandbox | plugin |", "| sandbox | plugin, cellar |")).contains("cellar"));
    assert!(told(&good.replace("| sandbox | plugin |", "| cellar | plugin |")).contains("cellar"));
    assert!(told(&good.replace("| sandbox | plugin |", "| plugin | nothing |")).contains("two rows"));
    assert!(told(&good.replace("| sandbox | plugin |", "| sandbox |")).contains("three cells"));
    assert!(told(&good.replace(HEADING, "## Imports")).contains(HEADING));
    assert!(told(&format!("{HEADING}\n\nsome text\n")).contains("no row"));

    // A word taken out of a row forbids the arrow.
    let stricter = good.replace("| sandbox | plugin |", "| sandbox | nothing |");
    let wrong = wrong_arrows(&table(&stricter, &crates).unwrap(), &crates);
    assert_eq!(wrong, ["kvasir-sandbox imports kvasir-plugin"]);
}

#[test]
fn boundaries_made_of_a_package_have_one_owner() {
    let mut wrong = Vec::new();
    for (from, of) in crates() {
        if from == "kvasir-tests" {
            continue;
        }
        for (package, owners) in ONLY {
            if of.imports.contains(*package) && !owners.contains(&from.as_str()) {
                wrong.push(format!("{from} imports {package}, which belongs to {}", owners.join(", ")));
            }
        }
        for (crate_name, banned) in NEVER {
            if from == *crate_name {
                let found = banned.iter().filter(|banned| of.imports.contains(**banned));
                wrong.extend(found.map(|banned| format!("{from} imports {banned}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is compiled once for the programs must be what the tests need too: a feature that only tests ask for would build everything
/// above it a second time, a quarter of an hour on two cores.
#[test]
fn programs_and_tests_share_every_feature() {
    let features = |edges: &str| -> BTreeSet<String> {
        let tree = Command::new(env!("CARGO"))
            .current_dir(root())
            .args(["tree", "--workspace", "--locked", "--offline", "--prefix", "none", "--format", "{p} {f}"])
            .args(["--edges", edges])
            .output()
            .unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        String::from_utf8(tree.stdout)
            .unwrap()
            .lines()
            .map(|line| line.trim_end_matches(" (*)").replace(" (proc-macro)", ""))
            .collect()
    };
    let (programs, with_tests) = (features("normal,build"), features("normal,build,dev"));
    let alone: Vec<&String> = programs.difference(&with_tests).collect();
    assert!(
        alone.is_empty(),
        "tests bring other features, so these are built twice: {alone:#?}; name what brings them in tests/Cargo.toml"
    );
}
