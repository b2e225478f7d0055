//! Released contracts do not change, and what claims to be compatible is.
//!
//! To release a version: put its folder into `wit/`, its digest into [`FROZEN`], and read what these tests say of it.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvasir_plugin::{CONTRACTS, Version, claims_compatibility};
use sha2::{Digest as _, Sha256};
use wit_component::semver_check;
use wit_parser::Resolve;

/// SHA-256 of every released contract. A line is added with a release and never changed: plugins that were built for it
/// are out of reach.
const FROZEN: &[(&str, &str)] =
    &[("0.1.0", "e694899a894b31cff7b8b1a3bf7234c2bbf12c3ea124e1771920662d744a5a18")];

/// The one file of a contract's folder.
const FILE: &str = "expert.wit";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The contracts in `folder` by version.
fn contracts(folder: &str) -> BTreeMap<Version, String> {
    let folder = root().join(folder);
    let versions = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap());
    versions
        .map(|entry| {
            let version = entry.file_name().into_string().unwrap().parse().unwrap();
            let files: Vec<_> = std::fs::read_dir(entry.path()).unwrap().collect();
            assert_eq!(files.len(), 1, "{version} is one file, so that its digest is the contract's");
            (version, std::fs::read_to_string(entry.path().join(FILE)).unwrap())
        })
        .collect()
}

fn version(text: &str) -> Version {
    text.parse().unwrap()
}

/// Whether a kernel built for `older` has all that a host asks for that speaks `newer`.
fn check(older: &str, newer: &str) -> Result<(), String> {
    let mut resolve = Resolve::new();
    let worlds = [older, newer].map(|text| {
        let package = resolve.push_str(FILE, text).unwrap();
        resolve.select_world(&[package], Some("expert-kernel")).unwrap()
    });
    semver_check(resolve, worlds[0], worlds[1]).map_err(|error| format!("{error:#}"))
}

/// The neighbours in `contracts` that claim compatibility and are not.
fn broken_promises(contracts: &BTreeMap<Version, String>) -> Vec<String> {
    let neighbours = contracts.iter().zip(contracts.iter().skip(1));
    neighbours
        .filter(|((older, _), (newer, _))| claims_compatibility(**older, **newer))
        .filter_map(|((older, old), (newer, new))| {
            check(old, new).err().map(|reason| format!("{newer} breaks {older}: {reason}"))
        })
        .collect()
}

#[test]
fn a_released_contract_is_frozen() {
    let released = contracts("wit");
    let found: Vec<(String, String)> = released
        .iter()
        .map(|(version, text)| (version.to_string(), hex::encode(Sha256::digest(text))))
        .collect();
    let frozen: Vec<(String, String)> =
        FROZEN.iter().map(|(version, digest)| ((*version).to_owned(), (*digest).to_owned())).collect();
    assert_eq!(
        found, frozen,
        "a released contract was changed, or one was added without its digest in this test"
    );
    for (version, text) in &released {
        assert!(
            text.contains(&format!("package kvasir:expert@{version};")),
            "{version} says another version"
        );
    }
}

#[test]
fn the_host_speaks_the_newest_released_contract_and_the_one_before() {
    let released: Vec<Version> = contracts("wit").into_keys().collect();
    assert_eq!(CONTRACTS, &released[released.len().saturating_sub(2)..]);
}

#[test]
fn released_contracts_that_claim_compatibility_have_it() {
    assert_eq!(broken_promises(&contracts("wit")), Vec::<String>::new());
}

#[test]
fn the_later_contracts_of_the_tests_keep_their_promises_too() {
    let mut all = contracts("wit");
    all.extend(contracts("tests/wit"));
    assert_eq!(broken_promises(&all), Vec::<String>::new());
    // 0.2.1 claims it and has it; 0.2.0 does not claim it, and has it not.
    assert_eq!(check(&all[&version("0.2.0")], &all[&version("0.2.1")]), Ok(()));
    assert!(!claims_compatibility(version("0.1.0"), version("0.2.0")));
    assert!(check(&all[&version("0.1.0")], &all[&version("0.2.0")]).is_err());
}

#[test]
fn every_kind_of_breaking_change_is_caught() {
    let released = &contracts("wit")[&version("0.1.0")];
    let repair = released.replace("@0.1.0", "@0.1.1");
    let promises = |changed: String| {
        broken_promises(&BTreeMap::from([(version("0.1.0"), released.clone()), (version("0.1.1"), changed)]))
    };
    let comment = repair.replace("One expert's weights", "An expert's weights");
    assert_ne!(comment, repair);
    assert_eq!(promises(comment), Vec::<String>::new());
    for (what, from, to) in [
        ("a parameter of another type", "count: u32", "count: u64"),
        ("parameters in another order", "rows: list<u8>, count: u32", "count: u32, rows: list<u8>"),
        ("a result of another type", "result<list<f32>, fault>", "result<list<f64>, fault>"),
        ("one more case of an enum", "mxfp4 }", "mxfp4, nvfp4 }"),
        ("one case fewer of a variant", ", not-finite }", " }"),
        ("one more field of a record", "columns: u32 }", "columns: u32, stride: u32 }"),
        (
            "one more function",
            "  /// One expert's weights",
            "  free-bytes: func() -> u64;\n  /// One expert's weights",
        ),
        ("a function of another name", "forward:", "evaluate:"),
        (
            "one more interface",
            "world expert-kernel { export kernel; }",
            "interface more { f: func(); }\nworld expert-kernel { export kernel; export more; }",
        ),
    ] {
        let changed = repair.replace(from, to);
        assert_ne!(changed, repair, "{what}");
        let broken = promises(changed);
        assert!(
            matches!(&broken[..], [one] if one.starts_with("0.1.1 breaks 0.1.0: ")),
            "{what} was not caught: {broken:?}"
        );
    }
}
