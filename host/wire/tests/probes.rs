//! Probe records: what is written is read back, what is changed is found out, what is hostile is refused.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use kvasir_merkle::{Hash, Tree, leaf_hash};
use kvasir_wire::codec::DecodeError;
use kvasir_wire::handshake::Class;
use kvasir_wire::id::{ModelDigest, PluginDigest, SessionId, WalletDigest, sha256};
use kvasir_wire::key::SecretKey;
use kvasir_wire::message::{Call, ExpertRows, Mode, RowFormat};
use kvasir_wire::money::MeteredBytes;
use kvasir_wire::probe::{
    MAX_PROBE_FILE_BYTES, MAX_PROBE_INDEX_BYTES, MAX_PROBE_RECORDS, PROBE_DOMAIN, ProbeError, ProbeFile,
    ProbeName, ProbeRecord, RecordFault,
};
use kvasir_wire::receipt::{Counters, Receipt, Terms};
use kvasir_wire::work::{WORK_ITEM_BYTES, WorkItem};
use proptest::prelude::*;

/// Where the first record's fields begin in a file.
const FIRST_RECORD: usize = PROBE_DOMAIN.len() + 32 + 8 + 32 + 8 + 32 + 4;

fn payload(call: u64, rows: u32) -> Vec<u8> {
    let data: Vec<u8> = (0..rows * 2).flat_map(|value| (value as f32 + call as f32).to_le_bytes()).collect();
    let expert = |expert| ExpertRows { expert, rows: (0..rows).collect(), weights: Vec::new() };
    let (mode, row_format) = (Mode::Each, RowFormat::Float32);
    let experts = vec![expert(1), expert(4)];
    Call { call, layer: 3, mode, row_format, rows, experts, data: &data }.encode().unwrap()
}

/// A session of `calls` calls and the file that keeps those at `kept`.
fn session(calls: u64, kept: &[u64]) -> (ProbeFile, Receipt) {
    let answered: Vec<(Vec<u8>, Vec<u8>, WorkItem)> = (1..=calls)
        .map(|call| {
            let count = 1 + (call % 3) as u32;
            let payload = payload(call, count);
            let rows: Vec<u8> =
                (0..2 * count * 2).flat_map(|value| (value as f32 * 0.5).to_le_bytes()).collect();
            let item =
                WorkItem { call, layer: 3, mode: 0, payload: sha256(&[&payload]), rows: sha256(&[&rows]) };
            (payload, rows, item)
        })
        .collect();
    let tree: Tree = answered.iter().map(|(_, _, item)| item.leaf()).collect();
    let records = kept
        .iter()
        .map(|&index| {
            let (payload, rows, item) = answered[index as usize].clone();
            let proof = tree.inclusion_proof(index).unwrap().hashes;
            ProbeRecord { index, item: item.encode(), proof, payload, rows }
        })
        .collect();
    let bytes = |number| MeteredBytes::new(number).unwrap();
    let counters = Counters { up: bytes(10), down: bytes(20), calls, rows: calls, work: tree.root() };
    let key = |seed| SecretKey::from_seed([seed; 32]).public();
    let terms = Terms {
        network: "atlas".parse().unwrap(),
        session: SessionId([0x11; 32]),
        grant: leaf_hash(b"grant"),
        hub: key(1).digest(),
        worker: key(2).digest(),
        backbone: key(3).digest(),
        payee: WalletDigest([4; 32]),
        model: ModelDigest([0x22; 32]),
        plugin: PluginDigest([0x33; 32]),
        class: Class::Exact,
        price: leaf_hash(b"price"),
        from: 100,
    };
    let receipt = Receipt::first(terms, counters, 200, false).unwrap();
    let file = ProbeFile {
        session: receipt.terms.session,
        seq: 1,
        receipt: receipt.id(),
        size: calls,
        root: tree.root(),
        records,
    };
    (file, receipt)
}

fn fault(record: &ProbeRecord, file: &ProbeFile) -> RecordFault {
    match record.check(file.size, &file.root) {
        Err(ProbeError::Record { index, fault }) if index == record.index => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_check_against_their_receipt_and_only_there() {
    let (file, receipt) = session(7, &[0, 3, 6]);
    assert_eq!(ProbeFile::parse(&file.encode()).unwrap(), file);
    file.check(&receipt).unwrap();
    assert_eq!(file.name().to_string(), format!("{}/1.probes", "11".repeat(32)));
    let item = file.records[1].check(file.size, &file.root).unwrap();
    assert_eq!((item.call, file.records[1].call().unwrap().layer), (4, 3));

    let refused = |change: &dyn Fn(&mut ProbeFile)| {
        let mut other = file.clone();
        change(&mut other);
        other.check(&receipt).unwrap_err()
    };
    assert_eq!(refused(&|file| file.session.0[0] ^= 1), ProbeError::OtherReceipt("session"));
    assert_eq!(refused(&|file| file.seq = 2), ProbeError::OtherReceipt("seq"));
    assert_eq!(refused(&|file| file.receipt.0[0] ^= 1), ProbeError::OtherReceipt("receipt id"));
    assert_eq!(refused(&|file| file.root.0[0] ^= 1), ProbeError::OtherReceipt("work root"));
    let found = refused(&|file| file.size = 8);
    assert!(matches!(found, ProbeError::Record { index: 6, fault: RecordFault::Proof(_) }), "{found}");
}

#[test]
fn what_a_record_claims_is_compared_with_what_it_holds() {
    let (file, _) = session(5, &[2]);
    let changed = |change: &dyn Fn(&mut ProbeRecord)| {
        let mut record = file.records[0].clone();
        change(&mut record);
        fault(&record, &file)
    };
    assert_eq!(changed(&|record| record.rows[0] ^= 1), RecordFault::OtherRows);
    assert_eq!(changed(&|record| record.payload[20] ^= 1), RecordFault::OtherPayload);
    assert_eq!(changed(&|record| record.item[0] ^= 1), RecordFault::Item);
    assert!(matches!(changed(&|record| record.index = 3), RecordFault::Proof(_)));
    assert!(matches!(changed(&|record| record.proof[0] = Hash([0; 32])), RecordFault::Proof(_)));
    assert!(matches!(changed(&|record| record.proof.push(Hash([0; 32]))), RecordFault::Proof(_)));
    // An item that is true of its bytes, but whose bytes are no call, or another call, or an answer of another length.
    let forged = |change: &dyn Fn(&mut WorkItem, &mut ProbeRecord)| {
        changed(&|record| {
            let mut item = WorkItem::decode(&record.item).unwrap();
            change(&mut item, record);
            item.payload = sha256(&[&record.payload]);
            item.rows = sha256(&[&record.rows]);
            record.item = item.encode();
        })
    };
    assert!(matches!(forged(&|_, record| record.payload.truncate(9)), RecordFault::Call(_)));
    assert_eq!(forged(&|item, _| item.call += 1), RecordFault::Differs("call number"));
    assert_eq!(forged(&|item, _| item.layer += 1), RecordFault::Differs("layer"));
    assert_eq!(forged(&|item, _| item.mode = 1), RecordFault::Differs("mode"));
    let longer = forged(&|_, record| record.rows.extend([0; 4]));
    assert!(matches!(longer, RecordFault::RowBytes { .. }), "{longer}");
    // A forged item that is consistent in itself is still not in the tree.
    let rows = forged(&|_, record| record.rows[0] ^= 1);
    assert!(matches!(rows, RecordFault::Proof(_)), "{rows}");
}

#[test]
fn hostile_files_are_refused_by_the_rule_they_break() {
    let (file, _) = session(5, &[1, 2]);
    let good = file.encode();
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        ProbeFile::parse(&file).unwrap_err()
    };
    assert_eq!(ProbeFile::parse(&[]), Err(ProbeError::OtherKind));
    assert_eq!(with(0, b"K"), ProbeError::OtherKind);
    assert_eq!(
        ProbeFile::parse(&vec![0; MAX_PROBE_FILE_BYTES + 1]),
        Err(ProbeError::TooLong(MAX_PROBE_FILE_BYTES + 1))
    );
    let seq = PROBE_DOMAIN.len() + 32;
    assert_eq!(with(seq, &[0; 8]), DecodeError::Broken { field: "seq", rule: "counts from 1" }.into());
    // No tree has no leaves, and no record lies outside it.
    assert!(matches!(with(seq + 40, &[0; 8]), ProbeError::Record { fault: RecordFault::Proof(_), .. }));
    assert!(matches!(
        with(FIRST_RECORD, &[0xff; 8]),
        ProbeError::Record { fault: RecordFault::Proof(_), .. }
    ));
    let count = FIRST_RECORD - 4;
    let many = (MAX_PROBE_RECORDS as u32 + 1).to_le_bytes();
    assert!(matches!(with(count, &many), ProbeError::Decode(DecodeError::AboveLimit { .. })));
    // A count that the bytes at hand do not justify drives no allocation.
    let claimed = (MAX_PROBE_RECORDS as u32).to_le_bytes();
    assert!(matches!(with(count, &claimed), ProbeError::Decode(DecodeError::Truncated { .. })));
    assert!(matches!(
        with(FIRST_RECORD + 8, b"x"),
        ProbeError::Record { index: 1, fault: RecordFault::Item }
    ));
    let proof = FIRST_RECORD + 8 + WORK_ITEM_BYTES;
    assert!(matches!(with(proof, &[64]), ProbeError::Decode(DecodeError::AboveLimit { .. })));
    assert!(matches!(with(proof, &[2]), ProbeError::Record { fault: RecordFault::Proof(_), .. }));
    let length = proof + 1 + 32 * file.records[0].proof.len();
    assert!(matches!(with(length, &[0xff; 4]), ProbeError::Decode(DecodeError::AboveLimit { .. })));
    let trailing = ProbeFile::parse(&[&good[..], &[0]].concat()).unwrap_err();
    assert_eq!(trailing, DecodeError::TrailingBytes { count: 1 }.into());

    let mut twice = file.clone();
    twice.records[1] = twice.records[0].clone();
    let found = ProbeFile::parse(&twice.encode()).unwrap_err();
    assert_eq!(found, DecodeError::Broken { field: "index", rule: "ascends strictly" }.into());
}

#[test]
fn every_cut_of_a_file_is_refused() {
    let good = session(3, &[0, 2]).0.encode();
    for length in 0..good.len() {
        assert!(ProbeFile::parse(&good[..length]).is_err(), "{length} of {} bytes", good.len());
    }
}

#[test]
fn names_have_one_spelling_and_leave_no_folder() {
    let hex = "ab".repeat(32);
    let name: ProbeName = format!("{hex}/12.probes").parse().unwrap();
    assert_eq!(name, ProbeName { session: SessionId([0xab; 32]), seq: 12 });
    assert_eq!(ProbeName::parse_list(&(name.line() + &name.line())).unwrap(), [name, name]);
    assert_eq!(ProbeName::parse_list("").unwrap(), []);
    for wrong in [
        format!("{hex}/0.probes"),
        format!("{hex}/012.probes"),
        format!("{hex}/+1.probes"),
        format!("{hex}/.probes"),
        format!("{hex}/1.probes/"),
        format!("{hex}/1.probes.tmp"),
        format!("{hex}/99999999999999999999.probes"),
        format!("{}/1.probes", hex.to_uppercase()),
        format!("{hex}/../{hex}/1.probes"),
        "../1.probes".to_owned(),
        "/etc/passwd".to_owned(),
        String::new(),
    ] {
        assert!(wrong.parse::<ProbeName>().is_err(), "{wrong}");
    }
    for wrong in [format!("{hex} 1"), format!("{hex}  1\n"), format!("{hex} 1\r\n"), "\n".to_owned()] {
        assert!(ProbeName::parse_list(&wrong).is_err(), "{wrong:?}");
    }
    let long = "x".repeat(MAX_PROBE_INDEX_BYTES + 1);
    assert!(matches!(ProbeName::parse_list(&long), Err(ProbeError::Decode(DecodeError::AboveLimit { .. }))));
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(calls in 1u64..40, chosen in any::<u64>()) {
        let kept: Vec<u64> = (0..calls).filter(|index| chosen >> index & 1 == 1).collect();
        let (file, receipt) = session(calls, &kept);
        let read = ProbeFile::parse(&file.encode()).unwrap();
        read.check(&receipt).unwrap();
        prop_assert_eq!(read, file);
    }

    #[test]
    fn no_changed_byte_passes(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (file, receipt) = session(9, &[2, 3, 8]);
        let mut bytes = file.encode();
        let place = at.index(bytes.len());
        bytes[place] ^= 1 << bit;
        let passes = ProbeFile::parse(&bytes).and_then(|file| file.check(&receipt).map(|()| file));
        // The number of items is bound by the proofs alone: where the changed one has the same path, the same items are proven.
        if let Ok(other) = passes {
            prop_assert_eq!(ProbeFile { size: file.size, ..other }, file);
        }
    }

    #[test]
    fn any_bytes_are_a_file_or_an_error(tail in prop::collection::vec(any::<u8>(), 0..400)) {
        let bytes = [PROBE_DOMAIN, &tail].concat();
        if let Ok(file) = ProbeFile::parse(&bytes) {
            prop_assert_eq!(file.encode(), bytes);
        }
    }
}
