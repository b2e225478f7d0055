//! price, grant, fund, delegate, settle and correct notes: texts, signers, and what they refuse.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

use kvasir_merkle::leaf_hash;
use kvasir_wire::account::{
    AccountError, Audit, AuditVerdict, Correction, Delegation, Fund, Grant, MAX_SETTLED_SESSIONS, Price,
    SettledSession, Settlement, SettlementId, Statement,
};
use kvasir_wire::id::{KeyDigest, ModelDigest, PluginDigest, SessionId, WalletDigest, sha256};
use kvasir_wire::key::SecretKey;
use kvasir_wire::money::{MeteredBytes, NanoKvr, PricePerByte};
use kvasir_wire::note::{NetworkName, Note, Signer};

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed([number; 32])
}

fn network() -> NetworkName {
    "atlas".parse().unwrap()
}

fn price() -> Price {
    Price { network: network(), per_byte: PricePerByte::FOUNDING, from: 1_790_000_000 }
}

fn grant() -> Grant {
    Grant {
        network: network(),
        session: Some(SessionId([0x11; 32])),
        hub: key(1).public().digest(),
        worker: None,
        backbone: key(3).public(),
        price: leaf_hash(b"price"),
        bytes: MeteredBytes::new(1 << 30).unwrap(),
        from: 10,
        until: 20,
    }
}

fn fund() -> Fund {
    let account = key(3).public().digest();
    Fund { network: network(), account, amount: NanoKvr::new(5_000_000_000), nonce: [0xab; 32], at: 10 }
}

fn delegation() -> Delegation {
    Delegation { network: network(), wallet: key(4).public(), worker: key(2).public(), from: 10, until: 20 }
}

fn part(session: u8, from_seq: u64, to_seq: u64, bytes: u64) -> SettledSession {
    let bytes = MeteredBytes::new(bytes).unwrap();
    SettledSession { session: SessionId([session; 32]), from_seq, to_seq, bytes }
}

fn settlement() -> Settlement {
    let parties = (KeyDigest([3; 32]), WalletDigest([4; 32]));
    let sessions = vec![part(9, 3, 4, 277_952), part(1, 1, 2, 1_000_000)];
    let price = (leaf_hash(b"price"), PricePerByte::FOUNDING);
    Settlement::new(network(), parties, price, sessions, NanoKvr::new(100), 1_790_000_000).unwrap()
}

fn correction() -> Correction {
    let reason = "the plugin was quarantined: see dispute 7".to_owned();
    Correction { network: network(), settlement: SettlementId([5; 32]), reason, at: 10 }
}

fn audit() -> Audit {
    Audit {
        network: network(),
        auditor: key(6).public(),
        session: SessionId([0x11; 32]),
        seq: 3,
        index: 17,
        work: leaf_hash(b"work"),
        verdict: AuditVerdict::Convicted,
        expected: leaf_hash(b"right"),
        got: leaf_hash(b"wrong"),
        model: ModelDigest([0x22; 32]),
        plugin: PluginDigest([0x33; 32]),
        checkpoint: leaf_hash(b"checkpoint"),
        at: 10,
    }
}

fn check<S: Statement + PartialEq + std::fmt::Debug>(statement: &S, expected: &str, signer: u8) {
    let text = statement.text();
    assert_eq!(text, expected);
    assert_eq!(S::parse(&text).as_ref(), Ok(statement));
    let note = statement.sign(&key(signer)).unwrap();
    let (read, by) = S::verify(&note, &[key(200).public(), key(signer).public()]).unwrap();
    assert_eq!((&read, by), (statement, key(signer).public()));
    assert_eq!(S::verify(&note, &[key(200).public()]), Err(AccountError::Signer(S::SIGNER)));

    // One signature by the right key is not enough if another line stands beside it.
    let mut two = note.clone();
    two.sign(Signer::Hub.key_name(statement.network()), &key(1)).unwrap();
    assert!(S::verify(&two, &[key(signer).public()]).is_err());
    // The right key in another role is the wrong key.
    let mut other_role = Note::unsigned(text.clone()).unwrap();
    other_role.sign(Signer::Hub.key_name(statement.network()), &key(signer)).unwrap();
    assert!(S::verify(&other_role, &[key(signer).public()]).is_err());

    let lines: Vec<&str> = text.lines().collect();
    for place in 0..lines.len() {
        let mut without = lines.clone();
        without.remove(place);
        assert!(S::parse(&(without.join("\n") + "\n")).is_err(), "without {:?}", lines[place]);
        let padded = text.replace(lines[place], &format!("{} ", lines[place]));
        // A reason is free text; everything else has one spelling.
        assert!(S::parse(&padded).is_err() || lines[place].starts_with("reason"), "{padded}");
    }
    assert!(S::parse(&format!("{text}more 1\n")).is_err());
}

#[test]
fn texts_and_signers() {
    let (hub, backbone) = (key(1).public().digest(), key(3).public());
    check(&price(), "kvasir.example/price@v1\nnetwork atlas\nnanokvr-per-byte 7\nfrom 1790000000\n", 1);
    let expected = format!(
        "kvasir.example/grant@v1\nnetwork atlas\nsession {}\nhub {hub}\nworker any\nbackbone {backbone}\n\
         price {}\nbytes 1073741824\nfrom 10\nuntil 20\n",
        "11".repeat(32),
        leaf_hash(b"price"),
    );
    check(&grant(), &expected, 3);
    let expected = format!(
        "kvasir.example/fund@v1\nnetwork atlas\naccount {}\nnanokvr 5000000000\nnonce {}\nat 10\n",
        backbone.digest(),
        "ab".repeat(32),
    );
    check(&fund(), &expected, 1);
    let expected = format!(
        "kvasir.example/delegate@v1\nnetwork atlas\nwallet {}\nworker {}\nfrom 10\nuntil 20\n",
        key(4).public(),
        key(2).public(),
    );
    check(&delegation(), &expected, 4);
    let expected = format!(
        "kvasir.example/correct@v1\nnetwork atlas\nsettlement {}\nreason the plugin was quarantined: see dispute 7\nat 10\n",
        "05".repeat(32),
    );
    check(&correction(), &expected, 1);
}

#[test]
fn a_settlement_is_sorted_summed_and_multiplied() {
    let mut preimage = b"kvasir.example/settle@v1\0".to_vec();
    for (session, to_seq) in [(1, 2u64), (9, 4)] {
        preimage.extend([session; 32]);
        preimage.extend(to_seq.to_le_bytes());
    }
    let expected = format!(
        "kvasir.example/settle@v1\nnetwork atlas\npayee {}\npayer {}\nprice {}\nsession {} 1 2 1000000\n\
         session {} 3 4 277952\nbytes 1277952\nnanokvr 8945664\nbefore 100\nafter 8945764\nat 1790000000\n\
         pending-until 1790086400\nid {}\n",
        "04".repeat(32),
        "03".repeat(32),
        leaf_hash(b"price"),
        "01".repeat(32),
        "09".repeat(32),
        SettlementId(sha256(&[&preimage])),
    );
    check(&settlement(), &expected, 5);
    // The id hangs on the receipts covered and on nothing else.
    let mut later = settlement();
    later.at += 60;
    later.before = NanoKvr::ZERO;
    assert_eq!(later.id(), settlement().id());
}

#[test]
fn settlements_that_do_not_add_up_are_refused() {
    let text = settlement().text();
    for (from, to) in [
        ("bytes 1277952\n", "bytes 1277953\n"),
        ("after 8945764\n", "after 8945765\n"),
        ("before 100\n", "before -100\n"),
        ("pending-until 1790086400\n", "pending-until 1790000000\n"),
        (" 1 2 1000000\n", " 0 2 1000000\n"),
        (" 1 2 1000000\n", " 3 2 1000000\n"),
        (" 1 2 1000000\n", " 1 2 1000000 \n"),
        (" 1 2 1000000\n", " 1 3 1000000\n"), // the id no longer fits
    ] {
        assert!(text.contains(from), "{from}");
        assert!(Settlement::parse(&text.replace(from, to)).is_err(), "{to:?} accepted");
    }
    let made = |sessions| {
        let parties = (KeyDigest([3; 32]), WalletDigest([4; 32]));
        Settlement::new(
            network(),
            parties,
            (leaf_hash(b""), PricePerByte::FOUNDING),
            sessions,
            NanoKvr::ZERO,
            1,
        )
    };
    assert!(made(vec![]).is_err());
    assert!(made(vec![part(1, 1, 1, 5), part(1, 2, 2, 5)]).is_err());
    let many = |count| (0..count).map(|number| part(number as u8, 1, 1, 1)).collect();
    assert!(made(many(MAX_SETTLED_SESSIONS)).is_ok());
    assert!(made(many(MAX_SETTLED_SESSIONS + 1)).is_err());
    // The largest settlement is still a note that can be read.
    let note = made(many(MAX_SETTLED_SESSIONS)).unwrap().sign(&key(5)).unwrap();
    assert!(Note::parse(note.to_string().as_bytes()).is_ok());
    assert!(made(vec![part(1, 1, 1, i64::MAX as u64)]).is_err());
}

#[test]
fn impossible_values_are_refused() {
    let weak = format!("ed25519:{}", "00".repeat(32));
    let grant = grant().text();
    assert!(Grant::parse(&grant.replace(&key(3).public().to_string(), &weak)).is_err());
    assert!(Grant::parse(&grant.replace("until 20", "until 9")).is_err());
    assert!(Grant::parse(&grant.replace("worker any", "worker none")).is_err());
    assert!(Fund::parse(&fund().text().replace("nanokvr 5000000000", "nanokvr 0")).is_err());
    assert!(
        Fund::parse(&fund().text().replace("nanokvr 5000000000", "nanokvr 9223372036854775808")).is_err()
    );
    assert!(Price::parse(&price().text().replace("byte 7", "byte 0")).is_err());
    let mut wordy = correction();
    for reason in [String::new(), " ".to_owned(), "x".repeat(513), "two\nlines".to_owned()] {
        wordy.reason = reason;
        assert!(wordy.sign(&key(1)).is_err());
    }
}

#[test]
fn an_audit_names_its_signer_and_two_digests_that_differ() {
    let expected = format!(
        "kvasir.example/audit@v1\nnetwork atlas\nauditor {}\nsession {}\nseq 3\nindex 17\nwork {}\nverdict convicted\n\
         expected {}\ngot {}\nmodel {}\nplugin {}\ncheckpoint {}\nat 10\n",
        key(6).public(),
        "11".repeat(32),
        leaf_hash(b"work"),
        leaf_hash(b"right"),
        leaf_hash(b"wrong"),
        "22".repeat(32),
        "33".repeat(32),
        leaf_hash(b"checkpoint"),
    );
    check(&audit(), &expected, 6);
    let note = audit().sign(&key(6)).unwrap();
    assert_eq!(Audit::verify_own(&note), Ok(audit()));
    let by_another = audit().sign(&key(7)).unwrap();
    assert_eq!(Audit::verify_own(&by_another), Err(AccountError::Signer(Signer::Auditor)));
    let impossible = |audit: Audit| Audit::parse(&audit.text()).unwrap_err();
    let alike = Audit { got: audit().expected, ..audit() };
    assert!(matches!(impossible(alike), AccountError::Impossible(_)));
    assert!(matches!(impossible(Audit { seq: 0, ..audit() }), AccountError::Impossible(_)));
    assert!(Audit::parse(&audit().text().replace("convicted", "acquitted")).is_err());
}
