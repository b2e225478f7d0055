//! Probes and records: what is mixed in changes no bit of a text, workers cannot tell it, and what is written down checks
//! against the receipts of the ledger.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kvasir_backbone::{Event, Experts, GenerateOptions, TokenId, generate, generate_between};
use kvasir_dispatch::{KeepOptions, Placement, Statistics};
use kvasir_operate::probes::{ProbeRate, Prober};
use kvasir_tests::swarm_scene::hostile_worker::{self, Answers};
use kvasir_tests::swarm_scene::*;
use kvasir_wire::id::SessionId;
use kvasir_wire::probe::{ProbeFile, ProbeName, ProbeRecord};
use kvasir_wire::receipt::Receipt;

/// Tokens and bits of the logits of a text.
type Text = (Vec<TokenId>, Vec<Vec<u32>>);

fn options(host: &Host, tokens: usize) -> GenerateOptions {
    let prefill_chunk = std::num::NonZeroUsize::new(32).unwrap();
    GenerateOptions { stop: Vec::new(), prefill_chunk, ..GenerateOptions::greedy(&host.backbone, tokens) }
}

fn prompt(host: &Host) -> Vec<TokenId> {
    // Long enough that its receipts are several.
    (0..160u32).map(|number| TokenId((11 + 37 * number) % host.model.config().vocabulary)).collect()
}

/// A text, with or without probes between its passes.
fn write(host: &Host, experts: &mut dyn Experts, tokens: usize, prober: Option<&mut Prober<'_>>) -> Text {
    let mut logits = Vec::new();
    let mut on_event = |event: Event<'_>| {
        if let Event::Chosen { logits: values, .. } = event {
            logits.push(values.iter().map(|value| value.to_bits()).collect());
        }
        ControlFlow::Continue(())
    };
    let (backbone, sequence) = (&host.backbone, &mut host.backbone.start());
    let (prompt, options) = (prompt(host), options(host, tokens));
    let done = match prober {
        None => generate(backbone, sequence, &prompt, &options, experts, &mut on_event),
        Some(prober) => {
            let between = &mut |experts: &mut dyn Experts| prober.between(backbone, experts);
            generate_between(backbone, sequence, &prompt, &options, experts, &mut on_event, between)
        }
    };
    (done.unwrap().tokens, logits)
}

/// Probes at `rate`, with numbers in place of chance.
fn prober(host: &Host, rate: &str, switch: kvasir_dispatch::ProbeSwitch) -> Prober<'static> {
    let vocabulary = host.model.config().vocabulary;
    let encode =
        move |text: &str| Ok(text.bytes().map(|byte| TokenId(u32::from(byte) % vocabulary)).collect());
    let mut state = 7u64;
    let random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state
    };
    let prompts = vec!["a few words".to_owned(), "and others".to_owned()];
    Prober::new(rate.parse::<ProbeRate>().unwrap(), prompts, switch, encode, random)
}

fn keep(folder: &Path) -> KeepOptions {
    KeepOptions {
        probes: Some(folder.join("probes")),
        rows: Some(folder.join("rows")),
        ..KeepOptions::default()
    }
}

/// All files under a folder, each read by the name it lies under.
fn files(folder: &Path) -> Vec<(ProbeFile, PathBuf)> {
    let Ok(sessions) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = sessions.flat_map(|session| std::fs::read_dir(session.unwrap().path()).unwrap());
    paths
        .map(|entry| {
            let path = entry.unwrap().path();
            let file = ProbeFile::parse(&std::fs::read(&path).unwrap()).unwrap();
            let name: ProbeName = path.strip_prefix(folder).unwrap().to_str().unwrap().parse().unwrap();
            assert_eq!(name, file.name());
            (file, path)
        })
        .collect()
}

/// Checks every file against the receipt that the ledger has; gives the number of records.
fn check(files: &[(ProbeFile, PathBuf)], scene: &Scene) -> usize {
    let receipts: Vec<Receipt> = {
        let notes = scene.ledger.receipts.lock().unwrap();
        notes.iter().map(|note| Receipt::parse(note.text()).unwrap()).collect()
    };
    for (file, path) in files {
        let receipt =
            receipts.iter().find(|receipt| receipt.id() == file.receipt).expect("the ledger has it");
        file.check(receipt).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    files.iter().map(|(file, _)| file.records.len()).sum()
}

/// What a worker can see of a call beside the numbers in its rows: layer, row format, and whether there are several rows.
/// (The mode follows from which experts the rows pick.)
type Shape = (u16, u8, bool);

/// What one session's worker saw.
#[derive(Default)]
struct Seen {
    of_probes: BTreeSet<Shape>,
    of_text: BTreeSet<Shape>,
    indices: BTreeSet<u64>,
}

fn shape(record: &ProbeRecord) -> Shape {
    let call = record.call().unwrap();
    (call.layer, call.row_format as u8, call.rows > 1)
}

#[test]
fn probes_change_no_bit_and_every_record_checks_against_a_receipt() {
    let host = Host::new(atlas());
    let layers = all_layers(&host.model);
    let tokens = 24;
    let local = write(&host, host.local().as_mut(), tokens, None);
    let folder = tempfile::tempdir().unwrap();
    let scene = Scene::new();
    let workers = [scene.worker(30), scene.worker(31)];
    let mut options = scene.swarm_options(2, Placement::Experts, &layers);
    options.keep = keep(folder.path());
    options.deadlines = NO_HURRY;
    let swarm = join(&host, options);
    let mut experts = swarm.experts(host.local());
    let mut prober = prober(&host, "0.8", experts.probe_switch());
    let with_probes = write(&host, &mut experts, tokens, Some(&mut prober));
    assert_eq!(with_probes, local, "the text does not depend on probes");
    let passes = prober.cost().0;
    assert!(passes > 10, "{passes} passes of probes");
    drop(experts);
    let statistics: Statistics = swarm.finish();
    assert_eq!((statistics.failovers, statistics.records.dropped), (0, 0), "{statistics:#?}");

    let rows = files(&folder.path().join("rows"));
    let probes = files(&folder.path().join("probes"));
    assert!(rows.len() > 2, "more than one receipt a session");
    assert_eq!(check(&rows, &scene) as u64, statistics.accepted);
    assert_eq!(check(&probes, &scene) as u64, statistics.records.probe_calls);
    assert_eq!(statistics.records.files, (rows.len() + probes.len()) as u64);

    // What a worker is sent of a probe has the form of what it is sent of a text, in the same session, by ascending numbers.
    let mut sessions: BTreeMap<SessionId, Seen> = BTreeMap::new();
    for (file, path) in &rows {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(path), mode(path.parent().unwrap())), (0o600, 0o700), "rows are private");
        let published = probes.iter().find(|(probe, _)| probe.name() == file.name());
        let published: BTreeSet<u64> =
            published.iter().flat_map(|(probe, _)| &probe.records).map(|record| record.index).collect();
        let seen = sessions.entry(file.session).or_default();
        for record in &file.records {
            let is_probe = published.contains(&record.index);
            let shapes = if is_probe { &mut seen.of_probes } else { &mut seen.of_text };
            shapes.insert(shape(record));
            seen.indices.insert(record.index);
        }
    }
    for Seen { of_probes, of_text, indices } in sessions.values() {
        assert!(of_probes.is_subset(of_text), "{of_probes:?} among {of_text:?}");
        assert!(of_probes.iter().any(|shape| shape.2) && of_probes.iter().any(|shape| !shape.2));
        assert_eq!(indices.last().unwrap() + 1, indices.len() as u64, "every call is there");
    }
    let several = |files: &[(ProbeFile, PathBuf)]| {
        let calls =
            files.iter().flat_map(|(file, _)| &file.records).map(|record| record.call().unwrap().rows);
        calls.filter(|rows| *rows > 1).count()
    };
    assert!(
        several(&probes) > 0 && several(&rows) > several(&probes),
        "both read prompts, several rows at once"
    );
    // The workers' own events name calls, layers, rows and bytes, and none of them a probe.
    let served: u64 = workers
        .iter()
        .map(|worker| {
            let events = worker.log.events();
            events.iter().filter(|event| matches!(event, kvasir_worker::Event::CallServed { .. })).count()
                as u64
        })
        .sum();
    assert_eq!(served, statistics.accepted);
}

#[test]
fn without_folders_nothing_is_kept_and_without_a_switch_nothing_is_a_probe() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let folder = tempfile::tempdir().unwrap();
    let scene = Scene::new();
    let _worker = scene.worker(30);
    let swarm = join(&host, scene.swarm_options(1, Placement::WholeLayers, &layers));
    let mut experts = swarm.experts(host.local());
    let mut mixed = prober(&host, "1", experts.probe_switch());
    write(&host, &mut experts, 4, Some(&mut mixed));
    drop(experts);
    let statistics = swarm.finish();
    assert!(statistics.records.probe_calls > 0);
    assert_eq!((statistics.records.files, statistics.records.written), (0, 0));

    let mut options = scene.swarm_options(1, Placement::WholeLayers, &layers);
    options.keep = KeepOptions { probes: Some(folder.path().to_owned()), ..KeepOptions::default() };
    let swarm = join(&host, options);
    write(&host, &mut swarm.experts(host.local()), 4, None);
    let statistics = swarm.finish();
    assert_eq!((statistics.records.probe_calls, statistics.records.files), (0, 0));
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "no call of a text is published");
}

#[test]
fn answers_that_do_not_count_leave_no_record() {
    let host = Host::new(tiny());
    let layers = all_layers(&host.model);
    let local = write(&host, host.local().as_mut(), 3, None);
    for answers in [Answers::Short, Answers::NotFinite, Answers::Refusals] {
        let folder = tempfile::tempdir().unwrap();
        let scene = Scene::new();
        let hostile = hostile_worker::start(&scene, answers);
        let mut options = scene.swarm_options(1, Placement::WholeLayers, &layers);
        options.keep = keep(folder.path());
        let swarm = join(&host, options);
        let mut experts = swarm.experts(host.local());
        let mut mixed = prober(&host, "1", experts.probe_switch());
        assert_eq!(write(&host, &mut experts, 3, Some(&mut mixed)), local, "{answers:?}");
        drop(experts);
        let statistics = swarm.finish();
        assert_eq!((statistics.accepted, statistics.records.files), (0, 0), "{answers:?}");
        assert!(statistics.workers[0].excluded > 0);
        assert!(files(&folder.path().join("rows")).is_empty());
        hostile.join().unwrap();
    }
}
