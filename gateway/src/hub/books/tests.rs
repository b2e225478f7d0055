//! The books against ends that are honest and ends that are not.

use super::*;
use kvasir_wire::{
    account::{Grant, Statement as _},
    frame::Kind,
    handshake::{Class, Features},
    id::{ModelDigest, Nonce, PluginDigest, TicketDigest},
    limits::PROTOCOL_VERSION,
    pairing::TranscriptEnd,
    receipt::{Counters, Terms},
    ticket::EdgeKey,
    work::{WorkBook, WorkItem},
};

const PRICE: &str = "1111111111111111111111111111111111111111111111111111111111111111";

/// Hub, worker and backbone with their books; the ends' books are the wire's own.
struct Three {
    books: Books,
    worker: SecretKey,
    backbone: SecretKey,
    terms: Terms,
    work: WorkBook,
    last: Option<Receipt>,
    grant: String,
}

impl Three {
    fn new() -> Self {
        let mut three = Self::without_grant(1 << 30, 10_000);
        let note = three.grant.clone();
        three.books.granted(note.as_bytes(), 100).unwrap();
        three
    }

    /// The grant is made for so many bytes, until then, and not given to the hub.
    fn without_grant(bytes: u64, until: u64) -> Self {
        let (worker, backbone) = (SecretKey::from_seed([2; 32]), SecretKey::from_seed([3; 32]));
        let hub = SecretKey::from_seed([1; 32]);
        let end = |key: &SecretKey| TranscriptEnd {
            key: key.public(),
            nonce: Nonce([0; 32]),
            ticket: TicketDigest([0; 32]),
        };
        let transcript = Transcript {
            version: PROTOCOL_VERSION,
            network: "atlas".into(),
            session: SessionId([9; 32]),
            worker: end(&worker),
            backbone: end(&backbone),
            plugin: PluginDigest([5; 32]),
            model: ModelDigest([6; 32]),
            class: Class::Exact,
            features: Features::NONE,
        };
        let grant = Grant {
            network: "atlas".parse().unwrap(),
            session: Some(transcript.session),
            hub: hub.public().digest(),
            worker: None,
            backbone: backbone.public(),
            price: PRICE.parse().unwrap(),
            bytes: kvasir_wire::money::MeteredBytes::new(bytes).unwrap(),
            from: 0,
            until,
        }
        .sign(&backbone)
        .unwrap();
        let terms = Terms {
            network: "atlas".parse().unwrap(),
            session: transcript.session,
            grant: grant.leaf_hash(),
            hub: hub.public().digest(),
            worker: worker.public().digest(),
            backbone: backbone.public().digest(),
            payee: WalletDigest([7; 32]),
            model: transcript.model,
            plugin: transcript.plugin,
            class: transcript.class,
            price: PRICE.parse().unwrap(),
            from: 0,
        };
        let facts = SessionFacts { transcript, payee: terms.payee, price: PRICE.into() };
        let identity = HubIdentity { network: "atlas".into(), key: hub, edge: EdgeKey::from_bytes([4; 32]) };
        Three {
            books: Books::new(facts, &identity),
            worker,
            backbone,
            terms,
            work: WorkBook::new(),
            last: None,
            grant: grant.to_string(),
        }
    }

    /// One call and its result, each in two frames.
    fn call(&mut self, call: u64, up: u32, down: u32) {
        let stream = (call * 2) as u32;
        let mut answered = None;
        for (kind, length) in [(Kind::Call, up), (Kind::Result, down)] {
            for (more, length) in [(true, length - 1), (false, 1)] {
                let header = Header { kind, more, length, stream, sequence: u32::from(!more) };
                answered = self.books.observe(&header, 100).unwrap();
            }
        }
        self.books.relayed(answered.expect("the result's last frame")).unwrap();
        let item = WorkItem { call, layer: 0, mode: 0, payload: [0; 32], rows: [0; 32] };
        self.work.record(&item, up.into(), down.into(), 1).unwrap();
    }

    /// What an honest backbone answers to a cut.
    fn countersign(&mut self, cut: &[u8], excluded: &[u64], change: impl FnOnce(&mut Receipt)) -> Vec<u8> {
        let ReceiptMessage::Cut(cut) = ReceiptMessage::decode(cut).unwrap() else { panic!("a cut") };
        let counters: Counters = self.work.counters_at(cut.results, excluded).unwrap();
        let mut receipt = match &self.last {
            Some(last) => last.next(counters, cut.to, cut.is_final).unwrap(),
            None => {
                let terms = Terms { from: cut.from, ..self.terms.clone() };
                Receipt::first(terms, counters, cut.to, cut.is_final).unwrap()
            }
        };
        change(&mut receipt);
        let signature = receipt.sign(&self.backbone);
        self.last = Some(receipt.clone());
        self.work.commit(cut.results, excluded).unwrap();
        Countersign::Backbone { text: receipt.text(), excluded: excluded.to_vec(), signature }.encode()
    }

    fn worker_signature(&self, key: &SecretKey) -> Vec<u8> {
        let receipt = self.last.as_ref().unwrap();
        Countersign::Worker { seq: receipt.seq, signature: receipt.sign(key) }.encode()
    }
}

#[test]
fn receipts_follow_each_other_and_leave_out_what_was_not_accepted() {
    let mut three = Three::new();
    assert_eq!(three.books.cut(100, false), None, "nothing to say");
    three.call(1, 1000, 500);
    three.call(2, 70, 30);
    assert_eq!(three.books.uncut_bytes(), 1600);
    let cut = three.books.cut(110, false).unwrap();
    assert!(three.books.cut(110, false).is_none(), "one at a time");
    three.call(3, 5, 5);
    let signed = three.countersign(&cut, &[2], |_| {});
    three.books.backbone_signed(&signed).unwrap();
    let note = three.books.worker_signed(&three.worker_signature(&three.worker)).unwrap();
    assert_eq!(Receipt::parse(note.text()).unwrap().billed().get(), 1500);
    assert!(three.books.cut(120, false).is_none(), "not before the note was filed");
    three.books.filed(&note);
    assert_eq!(three.books.uncut_bytes(), 10, "what came after the cut waits for the next");

    // The clock was set back: the next receipt still does not end before the first.
    let cut = three.books.cut(50, true).unwrap();
    let ReceiptMessage::Cut(numbers) = ReceiptMessage::decode(&cut).unwrap() else { panic!("a cut") };
    assert_eq!((numbers.seq, numbers.results, numbers.up, numbers.down, numbers.to), (2, 3, 1075, 535, 110));
    let signed = three.countersign(&cut, &[], |_| {});
    three.books.backbone_signed(&signed).unwrap();
    let note = three.books.worker_signed(&three.worker_signature(&three.worker)).unwrap();
    three.books.filed(&note);
    assert_eq!(Receipt::parse(note.text()).unwrap().billed().get(), 1510);
    assert!(three.books.has_ended());
    assert!(three.books.cut(130, true).is_none(), "nothing after the final one");
    let totals = three.books.totals();
    assert_eq!((totals.results, totals.up, totals.down), (3, 1075, 535));
    assert_eq!((totals.receipted, totals.receipts), (1510, 2));
}

#[test]
fn what_the_hub_did_not_count_is_never_signed() {
    type Change = fn(&mut Receipt);
    let changes: [Change; 8] = [
        |receipt| receipt.counters.up = receipt.counters.up.checked_add(receipt.counters.up).unwrap(),
        |receipt| receipt.counters.down = kvasir_wire::money::MeteredBytes::ZERO,
        |receipt| receipt.counters.rows += 1,
        |receipt| receipt.terms.payee = WalletDigest([8; 32]),
        |receipt| receipt.terms.price = receipt.terms.grant,
        |receipt| receipt.terms.model = ModelDigest([0; 32]),
        |receipt| receipt.to += 1,
        |receipt| receipt.is_final = true,
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut three = Three::new();
        three.call(1, 1000, 500);
        let cut = three.books.cut(110, false).unwrap();
        let signed = three.countersign(&cut, &[], change);
        // Fewer bytes than the hub counted are the smaller number; rows are the ends' to count, the hub sees sizes only.
        let fine = matches!(index, 1 | 2);
        assert_eq!(three.books.backbone_signed(&signed).is_ok(), fine, "change {index}");
    }
}

#[test]
fn the_smallest_of_three_meters_is_signed() {
    let mut three = Three::new();
    three.call(1, 1000, 500);
    let cut = three.books.cut(110, false).unwrap();
    let fewer = |receipt: &mut Receipt| {
        receipt.counters.down = kvasir_wire::money::MeteredBytes::new(480).unwrap();
    };
    let signed = three.countersign(&cut, &[], fewer);
    three.books.backbone_signed(&signed).unwrap();
    let note = three.books.worker_signed(&three.worker_signature(&three.worker)).unwrap();
    three.books.filed(&note);
    assert_eq!(Receipt::parse(note.text()).unwrap().billed().get(), 1480);
    assert_eq!(three.books.totals().receipted, 1480);
    // A byte more than the hub counted is not.
    three.call(2, 10, 10);
    let cut = three.books.cut(120, false).unwrap();
    let signed = three.countersign(&cut, &[], |receipt| {
        receipt.counters.up = kvasir_wire::money::MeteredBytes::new(1011).unwrap();
    });
    let refusal = three.books.backbone_signed(&signed).unwrap_err();
    assert!(refusal.sentence.contains("`up 1011`, the hub counted 1010"), "{refusal}");
}

#[test]
fn what_is_said_again_is_answered_with_the_first_note_byte_for_byte() {
    let mut three = Three::new();
    three.call(1, 1000, 500);
    let cut = three.books.cut(110, false).unwrap();
    let backbone = three.countersign(&cut, &[], |_| {});
    assert_eq!(three.books.repeated(&backbone), None, "it is new");
    three.books.backbone_signed(&backbone).unwrap();
    assert_eq!(
        three.books.repeated(&backbone),
        Some(Repeated::Resend(None)),
        "the worker has not signed yet"
    );
    let worker = three.worker_signature(&three.worker);
    let note = three.books.worker_signed(&worker).unwrap();
    assert_eq!(three.books.repeated(&worker), Some(Repeated::Resend(None)), "it is not filed yet");
    let complete = three.books.filed(&note);
    for said in [&backbone, &worker, &backbone] {
        assert_eq!(three.books.repeated(said), Some(Repeated::Resend(Some(complete.clone()))));
    }
    // So it stays while the next receipt is on its way.
    three.call(2, 10, 10);
    three.books.cut(120, false).unwrap();
    assert_eq!(three.books.repeated(&worker), Some(Repeated::Resend(Some(complete.clone()))));
    // What was verified once is not verified again: with another key in the books it would not pass.
    three.books.facts.transcript.worker.key = three.backbone.public();
    assert_eq!(three.books.repeated(&worker), Some(Repeated::Resend(Some(complete))));
}

#[test]
fn another_text_under_a_signed_number_is_a_conflict_whoever_is_asked_when() {
    let other = |three: &Three| {
        let mut receipt = three.last.clone().unwrap();
        receipt.counters.rows += 1;
        let signature = receipt.sign(&three.backbone);
        Countersign::Backbone { text: receipt.text(), excluded: Vec::new(), signature }.encode()
    };
    let mut three = Three::new();
    three.call(1, 1000, 500);
    let cut = three.books.cut(110, false).unwrap();
    let backbone = three.countersign(&cut, &[], |_| {});
    three.books.backbone_signed(&backbone).unwrap();
    assert_eq!(three.books.repeated(&other(&three)), Some(Repeated::Conflict), "while the worker is asked");
    let note = three.books.worker_signed(&three.worker_signature(&three.worker)).unwrap();
    three.books.filed(&note);
    assert_eq!(three.books.repeated(&other(&three)), Some(Repeated::Conflict), "once it is filed");
    // What its sender did not sign convicts nobody.
    three.backbone = SecretKey::from_seed([99; 32]);
    assert_eq!(three.books.repeated(&other(&three)), None);
}

#[test]
fn pings_chunks_and_everything_but_calls_and_results_weigh_nothing() {
    let mut three = Three::new();
    three.call(1, 1000, 500);
    let before = three.books.totals();
    for sequence in 0..10_000 {
        for (kind, stream, length) in [
            (Kind::Ping, 1, 8),
            (Kind::Pong, 1, 8),
            (Kind::Chunk, 3, 16_384),
            (Kind::Want, 1, 52),
            (Kind::Have, 1, 60_000),
            (Kind::Cancel, 1, 10),
            (Kind::Credit, 1, 8),
        ] {
            let header = Header { kind, more: false, length, stream, sequence };
            assert_eq!(three.books.observe(&header, 100).unwrap(), None);
        }
    }
    assert_eq!((three.books.totals(), three.books.uncut_bytes()), (before, 1500));
    // An answer that is sent a second time is not counted again: it breaks the protocol.
    let twice = Header { kind: Kind::Result, more: false, length: 500, stream: 2, sequence: 2 };
    assert!(three.books.observe(&twice, 100).is_err());
    assert_eq!(three.books.grant_is_spent(100), None);
}

#[test]
fn signatures_of_other_keys_and_steps_out_of_turn_are_refused() {
    let mut three = Three::new();
    three.call(1, 1000, 500);
    let cut = three.books.cut(110, false).unwrap();
    let early = Countersign::Worker { seq: 1, signature: Signature([0; 64]) }.encode();
    assert!(three.books.worker_signed(&early).is_err(), "nothing was proposed");

    let mut three = Three::new();
    three.call(1, 1000, 500);
    let own = three.books.cut(110, false).unwrap();
    assert_eq!(own, cut);
    three.backbone = SecretKey::from_seed([99; 32]);
    let forged = three.countersign(&own, &[], |_| {});
    assert!(three.books.backbone_signed(&forged).is_err());

    let mut three = Three::new();
    three.call(1, 1000, 500);
    let cut = three.books.cut(110, false).unwrap();
    let signed = three.countersign(&cut, &[], |_| {});
    three.books.backbone_signed(&signed).unwrap();
    assert!(three.books.backbone_signed(&signed).is_err(), "a second answer to one cut");
    let other = SecretKey::from_seed([98; 32]);
    assert!(three.books.worker_signed(&three.worker_signature(&other)).is_err());
}

#[test]
fn a_call_that_was_not_relayed_cannot_be_left_out() {
    let mut three = Three::new();
    three.call(1, 1000, 500);
    let cut = three.books.cut(110, false).unwrap();
    let signed = three.countersign(&cut, &[], |_| {});
    let Countersign::Backbone { text, signature, .. } = Countersign::decode(&signed).unwrap() else {
        panic!()
    };
    let wrong = Countersign::Backbone { text, excluded: vec![7], signature }.encode();
    assert!(three.books.backbone_signed(&wrong).is_err());
}

#[test]
fn nothing_is_cut_without_a_grant_and_a_grant_has_to_hold_now() {
    let mut three = Three::without_grant(1 << 30, 1_000);
    three.call(1, 1000, 500);
    assert!(!three.books.has_grant() && three.books.cut(110, true).is_none());
    let grant = three.grant.clone();
    for (now, word) in [(1_001, "holds from 0 to 1000"), (100, "")] {
        match three.books.granted(grant.as_bytes(), now) {
            Err(refusal) => assert!(!word.is_empty() && refusal.sentence.contains(word), "{refusal}"),
            Ok(_) => assert!(word.is_empty()),
        }
    }
    assert!(three.books.granted(grant.as_bytes(), 100).is_err(), "granted twice");
    let cut = three.books.cut(110, false).unwrap();
    // A receipt under another grant is not signed.
    let signed = three.countersign(&cut, &[], |receipt| receipt.terms.grant = PRICE.parse().unwrap());
    assert!(three.books.backbone_signed(&signed).unwrap_err().sentence.contains("`grant`"));
}

#[test]
fn a_session_is_finished_before_its_grants_bytes_or_time_are_over() {
    let mut three = Three::without_grant(1_600, 1_000);
    let grant = three.grant.clone();
    three.books.granted(grant.as_bytes(), 100).unwrap();
    assert_eq!(three.books.grant_is_spent(100), None);
    assert!(three.books.grant_is_spent(990).unwrap().contains("time"));
    three.call(1, 1_000, 300);
    assert_eq!(three.books.grant_is_spent(100), None);
    // A call that is not answered yet counts: its result will be on the way.
    let header = Header { kind: Kind::Call, more: false, length: 100, stream: 4, sequence: 0 };
    three.books.observe(&header, 100).unwrap();
    assert!(three.books.grant_is_spent(100).unwrap().contains("bytes"));
}

#[test]
fn a_receipt_never_goes_beyond_its_grant() {
    let mut three = Three::without_grant(2_000, 1_000);
    let grant = three.grant.clone();
    three.books.granted(grant.as_bytes(), 100).unwrap();
    for call in 1..=3 {
        three.call(call, 600, 300);
    }
    for is_final in [false, true] {
        let cut = three.books.cut(110, is_final).unwrap();
        let ReceiptMessage::Cut(numbers) = ReceiptMessage::decode(&cut).unwrap() else { panic!("a cut") };
        assert_eq!((numbers.results, numbers.up, numbers.down), (2, 1_200, 600), "2,700 bytes were relayed");
        let signed = three.countersign(&cut, &[], |_| {});
        three.books.backbone_signed(&signed).unwrap();
        let note = three.books.worker_signed(&three.worker_signature(&three.worker)).unwrap();
        three.books.filed(&note);
        assert_eq!(three.books.cut(110, false), None);
    }
    assert!(three.books.has_ended());
    assert_eq!(three.books.totals().receipted, 1_800);
}

#[test]
fn what_is_left_out_of_a_receipt_leaves_room_under_the_grant() {
    let mut three = Three::without_grant(2_000, 1_000);
    let grant = three.grant.clone();
    three.books.granted(grant.as_bytes(), 100).unwrap();
    three.call(1, 600, 300);
    three.call(2, 600, 300);
    let cut = three.books.cut(110, false).unwrap();
    let signed = three.countersign(&cut, &[1], |_| {});
    three.books.backbone_signed(&signed).unwrap();
    let note = three.books.worker_signed(&three.worker_signature(&three.worker)).unwrap();
    three.books.filed(&note);
    three.call(3, 600, 300);
    let cut = three.books.cut(120, false).unwrap();
    let ReceiptMessage::Cut(numbers) = ReceiptMessage::decode(&cut).unwrap() else { panic!("a cut") };
    assert_eq!((numbers.results, numbers.up, numbers.down), (3, 1_800, 900));
}
