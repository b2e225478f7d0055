//! Payload codecs: round trips, one spelling per value, and the rules of each message.

use kvasir_wire::codec::DecodeError;
use kvasir_wire::frame::{Kind, Lane};
use kvasir_wire::id::{ExpertDigest, SessionId};
use kvasir_wire::key::Signature;
use kvasir_wire::limits::*;
use kvasir_wire::message::*;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use proptest::prelude::*;

use crate::samples;

fn names(limit: usize) -> impl Strategy<Value = Vec<ExpertName>> {
    prop::collection::btree_set((any::<u16>(), any::<u16>()), 0..limit)
        .prop_map(|set| set.into_iter().map(|(layer, expert)| ExpertName { layer, expert }).collect())
}

fn rows_of_experts(rows: u32, sum: bool) -> impl Strategy<Value = Vec<ExpertRows>> {
    let one = prop::collection::btree_set(0..rows, 1..=rows as usize).prop_flat_map(move |set| {
        let rows: Vec<u32> = set.into_iter().collect();
        let count = if sum { rows.len() } else { 0 };
        (Just(rows), prop::collection::vec(-2.0f32..2.0, count))
    });
    prop::collection::btree_map(any::<u16>(), one, 1..6).prop_map(|map| {
        map.into_iter().map(|(expert, (rows, weights))| ExpertRows { expert, rows, weights }).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn calls_round_trip(
        (rows, sum, experts, format, blocks) in (1u32..6, any::<bool>(), 0u8..3, 1usize..3).prop_flat_map(
            |(rows, sum, format, blocks)| (Just(rows), Just(sum), rows_of_experts(rows, sum), Just(format), Just(blocks))
        ),
        call in 1..=MAX_CALL_ID, layer in any::<u16>(), fill in any::<u8>(),
    ) {
        let row_format = RowFormat::from_number(format).unwrap();
        let data = vec![fill; rows as usize * blocks * row_format.block().1];
        let mode = if sum { Mode::Sum } else { Mode::Each };
        let call = Call { call, layer, mode, row_format, rows, experts, data: &data };
        let payload = call.encode().unwrap();
        let read = Call::decode(&payload).unwrap();
        prop_assert_eq!(&read, &call);
        prop_assert_eq!(read.columns(), Some(blocks * row_format.block().0));
        let result_rows = if sum { rows as usize } else { call.experts.iter().map(|e| e.rows.len()).sum() };
        prop_assert_eq!(read.result_rows(), result_rows);
    }

    #[test]
    fn results_round_trip(call in 1..=MAX_CALL_ID, values in prop::collection::vec(-1e9f32..1e9, 1..50), root in any::<[u8; 32]>()) {
        let rows = CallResult::row_bytes(&values);
        let result = CallResult { call, outcome: Outcome::Rows(&rows), work_root: root };
        let payload = result.encode();
        prop_assert_eq!(&CallResult::decode(&payload).unwrap(), &result);
        prop_assert_eq!(CallResult::values(&rows, values.len(), 1).unwrap(), values);
    }

    #[test]
    fn expert_lists_round_trip(list in names(40), digest in any::<[u8; 32]>(), free in any::<u64>(), bytes in 1..MAX_BLOB_BYTES) {
        let digest = ExpertDigest(digest);
        let release = Release { experts: list.clone() };
        prop_assert_eq!(Release::decode(&release.encode()), Ok(release));
        let experts = list.iter().map(|name| Assigned { name: *name, digest, blob_bytes: bytes }).collect();
        let assign = Assign { experts };
        prop_assert_eq!(Assign::decode(&assign.encode()), Ok(assign));
        let held = list.iter().map(|name| Held { name: *name, digest }).collect();
        let not_held = list.iter().map(|name| NotHeld { name: *name, reason: NotHeldReason::NoMemory }).collect();
        let have = Have { free_bytes: free, held, not_held };
        prop_assert_eq!(Have::decode(&have.encode()), Ok(have));
    }

    #[test]
    fn chunks_round_trip_and_fill_a_bulk_frame(offset in 0..MAX_BLOB_BYTES / 2, with_proof in any::<bool>(), fill in any::<u8>()) {
        let proof = with_proof.then(samples::proof);
        let data = vec![fill; Chunk::room(proof.as_ref())];
        let chunk = Chunk { offset, proof, data: &data };
        let payload = chunk.encode();
        prop_assert_eq!(payload.len(), MAX_BULK_PAYLOAD_BYTES);
        prop_assert_eq!(Chunk::decode(&payload).unwrap(), chunk);
    }

    #[test]
    fn receipts_round_trip(excluded in prop::collection::btree_set(1..=MAX_CALL_ID, 0..30), text in "[ -~]{0,200}", seq in 2u64..) {
        let excluded: Vec<u64> = excluded.into_iter().collect();
        let signature = Signature([7; 64]);
        let proposal = ReceiptMessage::Proposal { text: text.clone(), excluded: excluded.clone(), hub: signature, backbone: signature };
        prop_assert_eq!(ReceiptMessage::decode(&proposal.encode()), Ok(proposal));
        let answer = Countersign::Backbone { text, excluded, signature };
        prop_assert_eq!(Countersign::decode(&answer.encode()), Ok(answer));
        let cut = CutRequest { seq, prev: [1; 32], results: 9, up: seq, down: 2, from: 3, to: 4, is_final: true };
        let cut = ReceiptMessage::Cut(cut);
        prop_assert_eq!(ReceiptMessage::decode(&cut.encode()), Ok(cut));
    }

    #[test]
    fn refusals_round_trip_whatever_their_text(sentence in "\\PC{0,1500}", remedy in any::<String>(), seconds in 1u32..) {
        let refusal = Refusal::new(RefusalCode::Internal, sentence, remedy).retry_after(seconds).about(SessionId([9; 32]));
        prop_assert!(refusal.sentence.len() <= MAX_SENTENCE_BYTES);
        prop_assert_eq!(Refusal::decode(&refusal.encode()), Ok(refusal));
    }

    /// A payload with bytes changed, cut or added is refused, or is another value that is written the same way: there
    /// is one spelling for each value, so a signature over bytes is a signature over a value.
    #[test]
    fn bent_payloads_are_refused_or_mean_exactly_their_bytes(
        pick in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), with in any::<u8>(), how in 0u8..4,
    ) {
        let all = samples::payloads();
        let (_, kind, _, mut payload) = all[pick.index(all.len())].clone();
        match how {
            0 => payload[at.index(all[pick.index(all.len())].3.len())] = with,
            1 => payload.truncate(at.index(payload.len())),
            2 => payload.push(with),
            _ => payload.insert(at.index(payload.len()), with),
        }
        if let Ok(again) = samples::recode(kind, &payload) {
            prop_assert_eq!(again, payload);
        }
    }

    #[test]
    fn random_payloads_never_panic(kind in 0..Kind::ALL.len(), payload in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(again) = samples::recode(Kind::ALL[kind], &payload) {
            prop_assert_eq!(again, payload);
        }
    }
}

fn broken(result: Result<Vec<u8>, DecodeError>) -> &'static str {
    match result {
        Err(DecodeError::Broken { field, .. } | DecodeError::AboveLimit { field, .. }) => field,
        other => panic!("expected a broken rule, got {other:?}"),
    }
}

#[test]
fn a_call_that_breaks_a_rule_is_not_even_written() {
    let data = [0u8; 16];
    let good = samples::call_each(&data);
    assert!(good.encode().is_ok());
    let with = |change: fn(&mut Call<'_>)| {
        let mut call = good.clone();
        change(&mut call);
        broken(call.encode())
    };
    assert_eq!(with(|call| call.call = 0), "call");
    assert_eq!(with(|call| call.call = MAX_CALL_ID + 1), "call");
    assert_eq!(with(|call| call.rows = 0), "rows");
    assert_eq!(with(|call| call.rows = MAX_CALL_ROWS + 1), "rows");
    assert_eq!(with(|call| call.experts.clear()), "rows");
    assert_eq!(with(|call| call.experts.reverse()), "expert");
    assert_eq!(with(|call| call.experts[1].expert = 5), "expert");
    assert_eq!(with(|call| call.experts[0].rows = vec![]), "row count");
    assert_eq!(with(|call| call.experts[0].rows = vec![1, 0]), "row number");
    assert_eq!(with(|call| call.experts[0].rows = vec![1, 1]), "row number");
    assert_eq!(with(|call| call.experts[0].rows = vec![2]), "row number");
    assert_eq!(with(|call| call.experts[0].weights = vec![1.0]), "gate weight");
    assert_eq!(with(|call| call.mode = Mode::Sum), "gate weight");
    assert_eq!(with(|call| call.data = &call.data[..15]), "data");
    assert_eq!(with(|call| call.data = &[]), "data");
    assert_eq!(with(|call| call.row_format = RowFormat::Q8K), "data");
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    let data = [0u8; 36];
    for weight in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut call = samples::call_sum(&data);
        call.experts[0].weights = vec![weight];
        assert_eq!(broken(call.encode()), "gate weight");
        // And on the wire: the first weight of the good payload, overwritten.
        let mut payload = samples::call_sum(&data).encode().unwrap();
        payload[28..32].copy_from_slice(&weight.to_le_bytes());
        assert!(matches!(Call::decode(&payload), Err(DecodeError::Broken { field: "gate weight", .. })));
    }
}

#[test]
fn the_sizes_of_a_call_are_limited_one_by_one() {
    let data = vec![0u8; 4 * MAX_CALL_ROWS as usize];
    let all_rows: Vec<u32> = (0..MAX_CALL_ROWS).collect();
    let experts = |count: u16, rows: &[u32]| -> Vec<ExpertRows> {
        (0..count).map(|expert| ExpertRows { expert, rows: rows.to_vec(), weights: vec![] }).collect()
    };
    let call = |rows, experts, data| Call { rows, experts, ..samples::call_each(data) };
    assert!(call(MAX_CALL_ROWS, experts(32, &all_rows), &data[..]).encode().is_ok());
    assert_eq!(broken(call(MAX_CALL_ROWS, experts(33, &all_rows), &data[..]).encode()), "row requests");
    assert_eq!(broken(call(1, experts(MAX_CALL_EXPERTS + 1, &[0]), &data[..4]).encode()), "experts");
    let wide = vec![0u8; 4 * (MAX_COLUMNS + 1)];
    assert_eq!(broken(call(1, experts(1, &[0]), &wide).encode()), "columns");
    // 300 experts x 1 row x 65,536 columns x 4 bytes: no answer could carry it.
    assert_eq!(broken(call(1, experts(300, &[0]), &wide[4..]).encode()), "result bytes");
}

#[test]
fn counts_are_checked_against_the_bytes_before_anything_is_reserved() {
    let mut assign = 16_384u32.to_le_bytes().to_vec();
    assign.extend([0; 10]);
    assert!(matches!(Assign::decode(&assign), Err(DecodeError::Truncated { field: "experts", .. })));
    let above = (MAX_EXPERTS_PER_MESSAGE as u32 + 1).to_le_bytes();
    assert!(matches!(Assign::decode(&above), Err(DecodeError::AboveLimit { field: "experts", .. })));
    let text = u32::MAX.to_le_bytes();
    let complete = [&[3], &text[..]].concat();
    assert!(matches!(ReceiptMessage::decode(&complete), Err(DecodeError::AboveLimit { field: "note", .. })));
    let cancel = (MAX_CANCELS as u16 + 1).to_le_bytes();
    assert!(matches!(Cancel::decode(&cancel), Err(DecodeError::AboveLimit { field: "streams", .. })));
}

#[test]
fn blobs_have_a_largest_size() {
    let (name, digest) = (ExpertName { layer: 0, expert: 0 }, ExpertDigest([0; 32]));
    let want = |offset, length| Want { stream: 3, name, digest, offset, length }.encode();
    assert!(Want::decode(&want(0, MAX_BLOB_BYTES)).is_ok());
    assert!(Want::decode(&want(1, MAX_BLOB_BYTES)).is_err());
    assert!(Want::decode(&want(u64::MAX, u64::MAX)).is_err());
    assert!(Want::decode(&want(0, 0)).is_err());
    for stream in [0, 1, 2] {
        let want = Want { stream, name, digest, offset: 0, length: 1 };
        assert!(Want::decode(&want.encode()).is_err(), "stream {stream} is no blob's");
    }
    let assigned = Assigned { name, digest, blob_bytes: MAX_BLOB_BYTES + 1 };
    assert!(Assign::decode(&Assign { experts: vec![assigned] }.encode()).is_err());
}

#[test]
fn control_needs_no_credit_and_takes_no_cancel() {
    let mut credit = Credit { lane: Lane::Dispatch, bytes: 1 }.encode();
    assert!(Credit::decode(&credit).is_ok());
    credit[0] = 0;
    assert!(Credit::decode(&credit).is_err());
    assert!(Credit::decode(&Credit { lane: Lane::Bulk, bytes: 0 }.encode()).is_err());
    for stream in [0, 1] {
        assert!(Cancel::decode(&Cancel { streams: vec![stream] }.encode()).is_err());
    }
}

#[test]
fn values_of_a_result_are_counted_and_finite() {
    let rows = CallResult::row_bytes(&[1.0, 2.0]);
    assert!(CallResult::values(&rows, 1, 2).is_ok());
    assert!(CallResult::values(&rows, 2, 2).is_err());
    let rows = CallResult::row_bytes(&[1.0, f32::NAN]);
    assert!(CallResult::values(&rows, 1, 2).is_err());
}
