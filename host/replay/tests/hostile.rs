//! Probe records, logs and lists made to mislead or to exhaust an auditor: each is refused with an exact reason, convicts nobody,
//! and spoils none of the others.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

mod scene;

use std::time::{Duration, Instant};

use kvasir_merkle::Hash;
use kvasir_replay::*;
use kvasir_wire::handshake::Class;
use kvasir_wire::id::{ModelDigest, PluginDigest, sha256};
use kvasir_wire::message::{Call, ExpertRows, Mode, RowFormat};
use kvasir_wire::probe::{PROBE_DOMAIN, ProbeFile, ProbeName};
use kvasir_wire::work::WorkItem;
use scene::{Published, Session, checkpoint, logged, lot, model_digest, open_model, plugin, session};

const HIDDEN: usize = 8;

/// A call for `experts` experts that all get all of `rows` rows of f32.
fn call(number: u64, rows: u32, experts: u16, mode: Mode) -> Vec<u8> {
    let numbers: Vec<u32> = (0..rows).collect();
    let weights = if mode == Mode::Sum { vec![0.5; rows as usize] } else { Vec::new() };
    let data = vec![0; rows as usize * HIDDEN * 4];
    let asked = |expert| ExpertRows { expert, rows: numbers.clone(), weights: weights.clone() };
    Call {
        call: number,
        layer: 0,
        mode,
        row_format: RowFormat::Float32,
        rows,
        experts: (0..experts).map(asked).collect(),
        data: &data,
    }
    .encode()
    .unwrap()
}

/// Three calls that were answered with ones.
fn good() -> Session {
    let answers: Vec<_> =
        (1..=3).map(|number| (call(number, 2, 1, Mode::Sum), vec![1; 2 * HIDDEN * 4])).collect();
    session(1, ModelDigest([1; 32]), PluginDigest([2; 32]), Class::Exact, &answers)
}

/// The only fault found in a collection with this file, under the name of the good one.
fn fault(bytes: Vec<u8>) -> String {
    let good = good();
    let mut published = Published::default();
    published.0.insert(good.file.name(), bytes);
    let receipts = logged(&good.leaves, &[good.file.name()]);
    let found = survey(&published, &receipts, &lot(1), 100).unwrap();
    assert_eq!((found.records, found.drawn.len(), found.faulty, found.faults.len()), (0, 0, 1, 1));
    found.faults[0].reason.clone()
}

fn changed(change: impl Fn(&mut ProbeFile)) -> Vec<u8> {
    let mut file = good().file;
    change(&mut file);
    file.encode()
}

/// The item of a record, changed; its proof is left as it was.
fn with_item(file: &mut ProbeFile, at: usize, change: impl Fn(&mut WorkItem)) {
    let mut item = WorkItem::decode(&file.records[at].item).unwrap();
    change(&mut item);
    file.records[at].item = item.encode();
}

#[test]
fn every_hostile_file_is_refused_with_its_reason() {
    let bytes = good().file.encode();
    // Where the first record begins: its index, after the head.
    let head = PROBE_DOMAIN.len() + 32 + 8 + 32 + 8 + 32 + 4;
    let put = |at: usize, new: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    let other_rows = "record of work item 0: the rows are not those that the work item is about";
    let other_payload = "record of work item 0: the payload is not the one that the work item is about";
    let leads = "the proof leads to root";
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing", vec![], "the file does not begin as probe records of version 1 do"),
        ("another kind", vec![b'x'; 200], "the file does not begin as probe records of version 1 do"),
        ("another version", put(23, b"2"), "the file does not begin as probe records of version 1 do"),
        ("cut in its head", bytes[..60].to_vec(), "seq: the payload ends 5 bytes too early"),
        ("cut in a record", bytes[..bytes.len() - 1].to_vec(), "rows: the payload ends 1 bytes too early"),
        ("more after its end", [&bytes[..], &[0]].concat(), "1 bytes follow the last field"),
        (
            "larger than any",
            vec![0; kvasir_wire::probe::MAX_PROBE_FILE_BYTES + 1],
            "the file has 201326593 bytes, the most are 201326592",
        ),
        (
            "as many records as can be counted",
            put(head - 4, &[0xff; 4]),
            "records: 4294967295 is above the limit of 65536",
        ),
        (
            "records without bytes for them",
            put(head - 4, &60_000u32.to_le_bytes()),
            "records: the payload ends 6898991 bytes too early",
        ),
        (
            "another session",
            changed(|file| file.session.0[0] ^= 1),
            "the file's session is not the receipt's",
        ),
        ("another receipt's number", changed(|file| file.seq = 2), "the file's seq is not the receipt's"),
        ("number 0", changed(|file| file.seq = 0), "seq: counts from 1"),
        (
            "another receipt",
            changed(|file| file.receipt.0[0] ^= 1),
            "the file's receipt id is not the receipt's",
        ),
        ("another root", changed(|file| file.root.0[0] ^= 1), "the file's work root is not the receipt's"),
        (
            "fewer items than calls",
            changed(|file| file.size = 2),
            "the proof has 2 hashes where 1 are needed",
        ),
        (
            "more items than there are",
            changed(|file| file.size = 4),
            "the proof has 1 hashes where 2 are needed",
        ),
        (
            "as many items as can be counted",
            changed(|file| file.size = u64::MAX),
            "the proof has 64 hashes where 63 are needed",
        ),
        ("no items", changed(|file| file.size = 0), "record of work item 0: a tree of size 0 proves nothing"),
        (
            "an index outside",
            changed(|file| file.records[2].index = 3),
            "index 3 is outside a tree of 3 leaves",
        ),
        ("an index twice", changed(|file| file.records[1].index = 0), "index: ascends strictly"),
        ("falling indices", changed(|file| file.records.swap(0, 1)), "index: ascends strictly"),
        (
            "a proof for another index",
            changed(|file| {
                file.records.remove(1);
                file.records[0].index = 1;
            }),
            leads,
        ),
        (
            "a proof cut short",
            changed(|file| file.records[0].proof.truncate(1)),
            "the proof has 1 hashes where 2 are needed",
        ),
        (
            "a proof with one more",
            changed(|file| file.records[0].proof.push(Hash([0; 32]))),
            "the proof has 3 hashes where 2 are needed",
        ),
        ("a changed proof", changed(|file| file.records[0].proof[0].0[31] ^= 1), leads),
        ("no work item", changed(|file| file.records[0].item[0] ^= 1), "these bytes are no work item"),
        ("a changed payload", changed(|file| file.records[0].payload[30] ^= 1), other_payload),
        ("a changed row", changed(|file| file.records[0].rows[0] ^= 1), other_rows),
        ("rows left out", changed(|file| file.records[0].rows.clear()), other_rows),
        ("another call's rows", changed(|file| file.records[0].rows = vec![2; 64]), other_rows),
        (
            "a payload that is no call",
            changed(|file| {
                file.records[0].payload = vec![0; 9];
                with_item(file, 0, |item| item.payload = sha256(&[&[0; 9]]));
            }),
            "record of work item 0: the payload is no call: layer: the payload ends 1 bytes too early",
        ),
        (
            "an item of another call",
            changed(|file| with_item(file, 0, |item| item.call = 2)),
            "record of work item 0: the work item's call number is not the call's",
        ),
        (
            "an item of another layer",
            changed(|file| with_item(file, 0, |item| item.layer = 1)),
            "record of work item 0: the work item's layer is not the call's",
        ),
        (
            "an item of the other mode",
            changed(|file| with_item(file, 0, |item| item.mode = 0)),
            "record of work item 0: the work item's mode is not the call's",
        ),
        (
            "rows that the worker never signed",
            changed(|file| {
                file.records[0].rows = vec![0; 64];
                with_item(file, 0, |item| item.rows = sha256(&[&[0; 64]]));
            }),
            leads,
        ),
        (
            "rows of another length",
            changed(|file| {
                file.records[0].rows = vec![0; 60];
                with_item(file, 0, |item| item.rows = sha256(&[&[0; 60]]));
            }),
            "record of work item 0: 60 bytes of rows, the call asks for 64",
        ),
        (
            "no records, of fewer items than calls",
            changed(|file| {
                file.records.clear();
                file.size = 2;
            }),
            "the file says 2 work items, the receipt counts 3 calls",
        ),
        ("another session's file", foreign().file.encode(), "the file's session is not the receipt's"),
    ];
    let mut wrong = Vec::new();
    for (name, bytes, expected) in cases {
        let reason = fault(bytes);
        println!("hostile: {name:40} {reason}");
        if !reason.contains(expected) {
            wrong.push(format!("{name}: {reason:?} does not say {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A session of the same worker under another number.
fn foreign() -> Session {
    let answers = [(call(1, 1, 1, Mode::Sum), vec![0; HIDDEN * 4])];
    session(9, ModelDigest([1; 32]), PluginDigest([2; 32]), Class::Exact, &answers)
}

#[test]
fn a_bad_file_spoils_no_other() {
    let (good, foreign) = (good(), foreign());
    let mut published = Published::default();
    published.0.insert(good.file.name(), good.file.encode());
    published.0.insert(foreign.file.name(), vec![0; 10]);
    let unknown = ProbeName { session: kvasir_wire::id::SessionId([77; 32]), seq: 1 };
    published.0.insert(unknown, good.file.encode());
    let names: Vec<_> = published.0.keys().copied().collect();
    let leaves = [good.leaves.clone(), foreign.leaves.clone()].concat();
    let found = survey(&published, &logged(&leaves, &names), &lot(1), 100).unwrap();
    assert_eq!((found.files, found.records, found.drawn.len(), found.faulty), (3, 3, 3, 2));
    assert_eq!(
        found.faults[1].reason,
        "no receipt with this session and number is in the log up to the checkpoint"
    );
}

#[test]
fn a_receipt_counts_only_with_its_three_signatures_and_in_the_log() {
    let good = good();
    let name = good.file.name();
    let reason = |leaves: &[Vec<u8>]| logged(leaves, &[name]).get(&name).unwrap_err();
    for (missing, word) in [(3, "hub"), (4, "backbone"), (5, "worker")] {
        let mut leaves = good.leaves.clone();
        leaves.remove(missing);
        let reason = reason(&leaves);
        assert!(reason.starts_with("the log has no ") && reason.contains(word), "{reason}");
    }
    // One signature is another's: base64 of the last line, changed in its middle.
    let mut leaves = good.leaves.clone();
    let at = leaves[6].len() - 20;
    leaves[6][at] = if leaves[6][at] == b'A' { b'B' } else { b'A' };
    assert!(reason(&leaves).contains("signature"), "{}", reason(&leaves));

    let (size, root) = checkpoint(&good.leaves);
    let read = |leaves: &[Vec<u8>]| {
        let mut reader = LogReader::new([name]);
        leaves.iter().for_each(|leaf| reader.take(leaf));
        reader.finish(size, &root)
    };
    assert_eq!(read(&good.leaves).unwrap().len(), 1);
    assert!(matches!(read(&good.leaves[..6]), Err(ReplayError::Size { found: 6, expected: 7 })));
    let mut leaves = good.leaves.clone();
    leaves[0][0] ^= 1;
    assert!(matches!(read(&leaves), Err(ReplayError::Root { leaves: 7, .. })));
    leaves[0][0] ^= 1;
    leaves.swap(0, 1);
    assert!(matches!(read(&leaves), Err(ReplayError::Root { .. })));
}

#[test]
fn calls_that_would_exhaust_an_auditor_are_refused_before_anything_is_allocated() {
    let (model, plugin) = (open_model(), plugin());
    let digest = PluginDigest(plugin.digest().0);
    let engines =
        Engines::new(&plugin, Limits { max_multiplications: 1 << 20, ..Limits::default() }).unwrap();
    let hidden = model.config().hidden;
    assert_eq!(hidden, 256);
    let wide = |rows: u32, experts: u16, columns: usize| {
        let numbers: Vec<u32> = (0..rows).collect();
        let data = vec![0; RowFormat::Q8K.block().1 * columns / 256 * rows as usize];
        let weights = vec![1.0; rows as usize];
        let asked = |expert| ExpertRows { expert, rows: numbers.clone(), weights: weights.clone() };
        let experts = (0..experts).map(asked).collect();
        let (mode, row_format) = (Mode::Sum, RowFormat::Q8K);
        Call { call: 1, layer: 0, mode, row_format, rows, experts, data: &data }.encode().unwrap()
    };
    let told = |payload: &[u8]| {
        let call = Call::decode(payload).unwrap();
        let started = Instant::now();
        let answers = engines.answers(&model, &call).map(|(_, answer)| answer);
        assert!(started.elapsed() < Duration::from_secs(60), "a refusal that takes so long is none");
        assert!(answers[1..].iter().all(|answer| *answer == answers[0]), "{answers:?}");
        answers[0].clone()
    };
    // In the mode `sum` the answer is small and what leads to it is not: 64 GiB here.
    let wrong_width = told(&wide(64, 4096, 65536));
    assert_eq!(wrong_width, Answer::Refused("rows have 65536 values, the model's have 256".to_owned()));
    let Answer::GaveUp(each) = told(&wide(256, 2048, 256)) else {
        panic!("a call that is too wide is replayed")
    };
    assert!(each.contains("multiplications") || each.contains("bytes"), "{each}");
    let Answer::GaveUp(work) = told(&wide(64, 16, 256)) else {
        panic!("a call that is too large is replayed")
    };
    assert_eq!(
        work,
        "the call needs 201326592 multiplications, the limit is 1048576; raise it with --max-work"
    );
    let only = [ExpertRows { expert: 16, rows: vec![0], weights: vec![1.0] }].to_vec();
    let data = vec![0; 260];
    let (mode, row_format) = (Mode::Sum, RowFormat::Q8K);
    let absent = Call { call: 1, layer: 0, mode, row_format, rows: 1, experts: only, data: &data };
    let Answer::Refused(missing) = told(&absent.encode().unwrap()) else { panic!("there is no expert 16") };
    assert!(missing.contains("expert 16"), "{missing}");

    // What cannot be replayed convicts nobody.
    let answers = [(wide(64, 16, 256), vec![0; 64 * 256 * 4])];
    let session = session(5, model_digest(&model), digest, Class::Exact, &answers);
    let find = move |_| Ok(plugin.clone());
    let limits = Limits { max_multiplications: 1 << 20, ..Limits::default() };
    let mut replayer = Replayer::new(vec![open_model()], &find, limits).unwrap();
    let receipts = logged(&session.leaves, &[session.file.name()]);
    let receipt = receipts.get(&session.file.name()).unwrap();
    let report = replayer.replay(receipt, 1, &session.file.records[0]).unwrap();
    assert!(matches!(report.verdict, Verdict::Unknown { .. }), "{:?}", report.verdict);
}

#[test]
fn without_the_receipts_model_and_plugin_nothing_is_known() {
    let model = open_model();
    let own = model_digest(&model);
    let released = plugin();
    let digest = PluginDigest(released.digest().0);
    let answers = [(call(1, 1, 1, Mode::Sum), vec![0; HIDDEN * 4])];
    let verdict = |of: ModelDigest, with: PluginDigest, find: FindPlugin<'_>| {
        let session = session(6, of, with, Class::Exact, &answers);
        let receipts = logged(&session.leaves, &[session.file.name()]);
        let mut replayer = Replayer::new(vec![open_model()], find, Limits::default()).unwrap();
        let receipt = receipts.get(&session.file.name()).unwrap();
        match replayer.replay(receipt, 1, &session.file.records[0]).unwrap().verdict {
            Verdict::Unknown { reason } => reason,
            other => format!("{other:?}"),
        }
    };
    let given = {
        let released = released.clone();
        move |_| Ok(released.clone())
    };
    let missing = |_| Err("there is none in the store".to_owned());
    assert!(verdict(ModelDigest([1; 32]), digest, &given).contains("give its file with --model"));
    assert_eq!(verdict(own, digest, &missing), "there is none in the store");
    assert!(verdict(own, PluginDigest([2; 32]), &given).starts_with("the plugin found is "));
    // Rows of 8 values for a model of 256: no honest worker answers that, so the rows that are claimed convict.
    assert!(verdict(own, digest, &given).contains("rows have 8 values, the model's have 256"));
}

#[test]
fn lists_are_read_strictly_and_folders_by_their_names_alone() {
    let line = |text: &str| {
        let text = text.to_owned();
        ServedProbes::new(
            move |path: &str, _: usize| Ok((path == "index").then(|| text.clone().into_bytes())),
        )
        .list()
    };
    let good = good().file.name();
    assert_eq!(line(&good.line()).unwrap(), [good]);
    assert!(line("").unwrap().is_empty());
    for hostile in
        ["../../etc/passwd 1\n", "x 1\n", &good.line().replace(" 1", " 01"), good.line().trim_end()]
    {
        assert!(matches!(line(hostile), Err(ReplayError::Probes(_))), "{hostile:?}");
    }
    let nothing = ServedProbes::new(|_: &str, _: usize| Ok(None));
    assert!(nothing.list().unwrap_err().to_string().contains("is this the address of probe records?"));

    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join(good.session.to_string());
    std::fs::create_dir(&session).unwrap();
    std::fs::write(session.join("1.probes"), good_bytes()).unwrap();
    std::fs::write(session.join("01.probes"), b"").unwrap();
    std::fs::write(session.join("1.probes.tmp"), b"").unwrap();
    std::fs::write(folder.path().join("index"), b"whatever").unwrap();
    let probes = FolderProbes::new(folder.path());
    assert_eq!(probes.list().unwrap(), [good]);
    assert!(probes.file(&good).unwrap().is_ok());
    let gone = ProbeName { seq: 2, ..good };
    assert_eq!(probes.file(&gone).unwrap().unwrap_err(), "the file is listed and not there");
    std::fs::create_dir(session.join("2.probes")).unwrap();
    assert!(probes.read(&gone).unwrap_err().to_string().contains("not a plain file"));
}

fn good_bytes() -> Vec<u8> {
    good().file.encode()
}
