//! The conformance suite passes the bundled kernel, and names the promise that a wrong one breaks (`tests/data/wrong-kernels`).
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::collections::BTreeMap;

use kvasir_author::suite::{CHECKS, Check, Verdict, passed, suite};
use kvasir_plugin::{PackageContents, VerifiedPlugin};

fn bundled() -> PackageContents {
    let folder = plugin::root().join("plugins/swiglu");
    let manifest = std::fs::read_to_string(folder.join("plugin.toml")).unwrap();
    PackageContents {
        // Without the table of the shader: shaders are proven elsewhere.
        manifest: manifest.split("[shader]").next().unwrap().as_bytes().to_vec(),
        component: std::fs::read(folder.join("release/swiglu-0.2.0.wasm")).unwrap(),
        vectors: plugin::folder_files(&folder.join("vectors")),
        ..PackageContents::default()
    }
}

/// The bundled kernel under a manifest that names these formats alone, and these vectors.
fn with(formats: &str, vectors: &[&str]) -> PackageContents {
    let mut contents = bundled();
    let text = String::from_utf8(contents.manifest).unwrap();
    let (head, rest) = text.split_once("formats = [").unwrap();
    let (_, tail) = rest.split_once(']').unwrap();
    contents.manifest = format!("{head}formats = [{formats}]{tail}").into_bytes();
    contents.vectors.retain(|name, _| vectors.contains(&name.as_str()));
    contents
}

/// The kernel `tests/data/wrong-kernels/NAME.wat`, which says that it has F32.
fn wrong(name: &str) -> VerifiedPlugin {
    let data = plugin::root().join("tests/data");
    let read = |file: &str| std::fs::read_to_string(data.join(file)).unwrap();
    let text = format!(
        "(module {} {})",
        read("hostile-plugin/prelude.wat"),
        read(&format!("wrong-kernels/{name}.wat"))
    );
    plugin::plugin(kvasir_author::componentize(&wat::parse_str(text).unwrap()).unwrap())
}

fn made(plugin: &VerifiedPlugin, names: &[&str]) -> Vec<Check> {
    suite(plugin, |name| names.is_empty() || names.contains(&name), |_| {})
}

fn failed(checks: &[Check]) -> BTreeMap<&'static str, String> {
    let told = |check: &Check| match &check.verdict {
        Verdict::Failed(text) => Some((check.name, text.clone())),
        _ => None,
    };
    checks.iter().filter_map(told).collect()
}

#[track_caller]
fn fails(plugin: &VerifiedPlugin, name: &'static str, words: &str) {
    let checks = made(plugin, &[name]);
    let failed = failed(&checks);
    let told = failed.get(name).unwrap_or_else(|| panic!("{name} passed: {checks:?}"));
    assert!(told.contains(words), "{name}: {told}");
    assert!(!passed(&checks));
}

#[test]
fn the_bundled_kernel_passes_every_check() {
    let checks = made(&plugin::verified(&bundled()), &[]);
    assert_eq!(checks.len(), CHECKS.len());
    assert_eq!(failed(&checks), BTreeMap::new());
    assert!(checks.iter().all(|check| matches!(check.verdict, Verdict::Passed(_))), "{checks:?}");
}

#[test]
fn a_kernel_that_computes_nothing_and_refuses_nothing_fails_by_name() {
    let plugin = plugin::plugin(plugin::kernel("honest"));
    let failed: Vec<&str> = failed(&made(&plugin, &[])).into_keys().collect();
    for name in [
        "vectors-cover-formats",
        "golden-vectors",
        "exact-arithmetic",
        "odd-shapes",
        "refuses-weights",
        "refuses-rows",
        "refuses-unsupported",
        "overflow",
    ] {
        assert!(failed.contains(&name), "{name} is not among {failed:?}");
    }
    for name in ["scan", "compile", "batch-invariance", "two-engines"] {
        assert!(!failed.contains(&name), "{name} failed");
    }
}

#[test]
fn answers_that_depend_on_neighbours_or_on_earlier_calls_are_named() {
    fails(&wrong("answers-by-count"), "batch-invariance", "differs alone and as number");
    fails(&wrong("counts-calls"), "repeated-calls", "call 0");
}

#[test]
fn memory_that_is_not_freed_is_named() {
    fails(&wrong("leaks"), "flat-memory", "something is not freed");
}

#[test]
fn what_processors_answer_differently_is_named_where_this_one_does() {
    // Elsewhere the compiled kernel and the interpreted one agree by chance.
    if cfg!(target_arch = "x86_64") {
        fails(&wrong("dot-beyond-seven-bits"), "two-engines", "interpreted");
    }
}

#[test]
fn a_golden_vector_that_was_changed_by_a_bit_is_named_with_its_place() {
    let mut contents = with("\"Q8_0\"", &["q8_0.vector"]);
    let vector = contents.vectors.get_mut("q8_0.vector").unwrap();
    let last = vector.len() - 4;
    vector[last] ^= 1;
    fails(&plugin::verified(&contents), "golden-vectors", "vectors/q8_0.vector: value 95 of row 4");
}

#[test]
fn a_format_that_no_vector_shows_is_named() {
    let contents = with("\"Q8_0\", \"Q4_K\"", &["q8_0.vector"]);
    fails(&plugin::verified(&contents), "vectors-cover-formats", "promises Q4_K");
    let contents = with("\"Q8_0\", \"Q9_9\"", &["q8_0.vector"]);
    fails(&plugin::verified(&contents), "vectors-cover-formats", "Q9_9");
}

#[test]
fn a_format_that_is_taken_but_not_promised_is_named() {
    let contents = with("\"Q8_0\"", &["q8_0.vector"]);
    fails(&plugin::verified(&contents), "refuses-unsupported", "a format that the manifest does not name");
}

#[test]
fn a_request_that_is_too_small_for_a_call_is_named() {
    let mut contents = with("\"Q8_0\"", &["q8_0.vector"]);
    let text = String::from_utf8(contents.manifest).unwrap();
    contents.manifest =
        text.replace("fuel_per_call = 100_000_000_000", "fuel_per_call = 1_000_000").into_bytes();
    fails(&plugin::verified(&contents), "requested-limits", "fuel");
}

#[test]
fn a_component_that_no_host_runs_fails_the_scan_and_nothing_else_is_tried() {
    for (name, words) in [("relaxed-multiply-add", "relaxed_madd"), ("import", "imports")] {
        let plugin = plugin::plugin(plugin::refused(name));
        fails(&plugin, "scan", words);
        let checks = made(&plugin, &[]);
        let skipped = checks.iter().filter(|check| matches!(check.verdict, Verdict::Skipped(_))).count();
        assert_eq!(skipped, CHECKS.len() - 2, "{checks:?}");
    }
    fails(&plugin::plugin(plugin::refused("no-exports")), "compile", "does not export");
}
