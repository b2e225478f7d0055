//! Root, revocations, what was seen, and policy: who may publish what, and what cannot be brought back.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::time::Duration;

use kvasir_plugin::*;

#[path = "../../../tests/data/hostile-package/by_hand.rs"]
#[allow(dead_code, unused_qualifications)] // Shared with the hostile corpus.
mod by_hand;
use by_hand::{NOW, VALIDITY, id, key, public, signed_root, trust_document};

const LATER: UnixSeconds = UnixSeconds(NOW.0 + 1_000);

fn publisher(namespace: &str) -> RoleName {
    RoleName::Publisher(namespace.to_owned())
}

/// Keys 10 and 11 hold the root, both are needed; 1 and 2 publish `kvasir`, `threshold` of them are needed; 3 publishes the rest.
fn root(threshold: u32) -> Root {
    let mut root = Root::new(LATER, public(10));
    root.grant(RoleName::Root, public(11));
    root.roles.get_mut(&RoleName::Root).unwrap().threshold = 2;
    root.grant(publisher("kvasir"), public(1));
    root.grant(publisher("kvasir"), public(2));
    root.roles.get_mut(&publisher("kvasir")).unwrap().threshold = threshold;
    root.grant(publisher("*"), public(3));
    root
}

fn verified(root: &Root) -> VerifiedRoot {
    VerifiedRoot::initial(&root.sign(&[&key(10), &key(11)]).unwrap(), NOW).unwrap()
}

fn package(name: &str, revision: u64, seeds: &[u8]) -> Vec<u8> {
    let manifest = by_hand::MANIFEST
        .replace("kvasir:fixture", name)
        .replace("kernel_revision = 4", &format!("kernel_revision = {revision}"));
    let contents = PackageContents {
        manifest: manifest.into_bytes(),
        component: by_hand::KERNEL.to_vec(),
        ..Default::default()
    };
    let first = pack(&contents, VALIDITY, &key(seeds[0])).unwrap();
    seeds[1..].iter().fold(first, |package, &seed| add_signature(&package, &key(seed)).unwrap())
}

fn plugin(revision: u64, seeds: &[u8]) -> VerifiedPlugin {
    verify(&package("kvasir:fixture", revision, seeds), &by_hand::trust(seeds), NOW).unwrap()
}

#[test]
fn a_root_is_read_back_whoever_wrote_it() {
    let root = root(1);
    let verified = verified(&root);
    assert_eq!(*verified.root(), root);
    let role = format!(r#""publisher/kvasir":{{"keyids":["{}"],"threshold":1}},"#, id(1));
    let by_hand = trust_document(&signed_root(1, LATER.0, &[10], &[1], &role), &[10]);
    let read = VerifiedRoot::initial(&by_hand, NOW).unwrap();
    let mut same = Root::new(LATER, PublisherKey { name: None, ..public(10) });
    same.grant(publisher("kvasir"), PublisherKey { name: None, ..public(1) });
    assert_eq!(*read.root(), same);
    assert_eq!(same.sign(&[&key(10)]).unwrap(), by_hand);
}

#[test]
fn a_root_follows_the_one_before_it() {
    let first = verified(&root(1));
    let mut next = first.root().clone();
    next.version = 2;
    next.withdraw(&RoleName::Root, &id(11));
    next.grant(RoleName::Root, public(12));
    // Two of the old root and two of the new: 10 counts for both.
    let all = next.sign(&[&key(10), &key(11), &key(12)]).unwrap();
    assert_eq!(first.update(&all, NOW).unwrap().version(), 2);
    let by_parts = Root::add_signature(&next.sign(&[&key(12), &key(10)]).unwrap(), &key(11)).unwrap();
    assert_eq!(by_parts, all);
    for (keys, said) in
        [(&[10, 12][..], "the root before it"), (&[10, 11], "its own root"), (&[], "before it")]
    {
        let keys: Vec<_> = keys.iter().map(|&seed| key(seed)).collect();
        let document = next.sign(&keys.iter().collect::<Vec<_>>()).unwrap();
        let error = first.update(&document, NOW).unwrap_err();
        assert!(matches!(error, DocumentError::NotEnoughSignatures { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    for version in [1, 3] {
        let other = Root { version, ..next.clone() };
        let error = first.update(&other.sign(&[&key(10), &key(11), &key(12)]).unwrap(), NOW).unwrap_err();
        assert_eq!(error, DocumentError::WrongVersion { what: "root.json", found: version, expected: 2 });
    }
    // An expired root is good for its successor and for nothing else.
    let at = UnixSeconds(LATER.0 + 1);
    let old = root(1).sign(&[&key(10), &key(11)]).unwrap();
    assert!(matches!(VerifiedRoot::initial(&old, at), Err(DocumentError::Expired { .. })));
    let expired = VerifiedRoot::for_rotation(&old).unwrap();
    let store = TrustStore::from_root(&expired, None);
    let error = verify(&package("kvasir:fixture", 4, &[1]), &store, at).unwrap_err();
    assert_eq!(error, PluginError::TrustExpired { expires: LATER, now: at });
    assert!(matches!(expired.update(&all, at), Err(DocumentError::Expired { .. })));
    let renewed = Root { expires: UnixSeconds(at.0 + 1), ..next };
    let renewed = renewed.sign(&[&key(10), &key(11), &key(12)]).unwrap();
    assert_eq!(expired.update(&renewed, at).unwrap().version(), 2);
}

#[test]
fn a_root_must_make_sense() {
    type Change = fn(&mut Root);
    let changes: [Change; 7] = [
        |root| root.version = 0,
        |root| drop(root.roles.remove(&RoleName::Revocation)),
        |root| drop(root.keys.remove(&id(1))),
        |root| root.roles.get_mut(&RoleName::Root).unwrap().threshold = 0,
        |root| root.roles.get_mut(&RoleName::Root).unwrap().threshold = 3,
        |root| drop(root.keys.insert(id(1), public(2))),
        |root| {
            for index in 0..MAX_ROLES {
                root.grant(RoleName::Publisher(format!("n{index}")), public(1));
            }
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut changed = root(1);
        change(&mut changed);
        assert!(changed.sign(&[&key(10), &key(11)]).is_err(), "change {index}");
    }
    for text in ["", "publisher", "publisher/", "publisher/A", "publisher/a/b", "roots", "publisher/**"] {
        assert!(text.parse::<RoleName>().is_err(), "{text}");
    }
    for text in ["root", "revocation", "publisher/*", "publisher/a-1"] {
        assert_eq!(text.parse::<RoleName>().unwrap().to_string(), text);
    }
    let large = vec![b' '; MAX_TRUST_DOCUMENT_BYTES + 1];
    assert!(matches!(VerifiedRoot::for_rotation(&large), Err(DocumentError::TooLarge { .. })));
    let many = root(1);
    let keys: Vec<_> = (0..=MAX_DOCUMENT_SIGNATURES as u8).map(key).collect();
    assert!(matches!(many.sign(&keys.iter().collect::<Vec<_>>()), Err(DocumentError::TooMany { .. })));
}

#[test]
fn publishers_sign_their_own_namespace() {
    let store = TrustStore::from_root(&verified(&root(1)), None);
    let at = |name: &str, seeds: &[u8]| {
        verify(&package(name, 4, seeds), &store, NOW).map(|plugin| plugin.publishers().clone())
    };
    assert_eq!(at("kvasir:fixture", &[1]).unwrap(), [id(1)].into());
    // The signature of a key of another role is there and does not count.
    assert_eq!(at("kvasir:fixture", &[1, 3]).unwrap(), [id(1)].into());
    let too_few = |name: &str, role, threshold| PluginError::TooFewPublishers {
        name: name.to_owned(),
        role,
        valid: 0,
        threshold,
    };
    assert_eq!(at("kvasir:fixture", &[3]).unwrap_err(), too_few("kvasir:fixture", publisher("kvasir"), 1));
    assert_eq!(at("other:fixture", &[3]).unwrap(), [id(3)].into());
    assert_eq!(at("fixture", &[3]).unwrap(), [id(3)].into());
    assert_eq!(at("fixture", &[1]).unwrap_err(), too_few("fixture", publisher("*"), 1));
    assert!(matches!(at("kvasir:fixture", &[10]), Err(PluginError::UnknownPublisher { .. })));
    let mut narrow = root(1);
    narrow.withdraw(&publisher("*"), &id(3));
    assert!(!narrow.keys.contains_key(&id(3)));
    let store = TrustStore::from_root(&verified(&narrow), None);
    let error = verify(&package("other:fixture", 4, &[1]), &store, NOW).unwrap_err();
    let (name, namespace) = ("other:fixture".to_owned(), "other".to_owned());
    assert_eq!(error, PluginError::NoPublisher { name, namespace });
}

#[test]
fn a_threshold_takes_distinct_keys() {
    let store = TrustStore::from_root(&verified(&root(2)), None);
    let at = |seeds: &[u8]| verify(&package("kvasir:fixture", 4, seeds), &store, NOW);
    assert_eq!(at(&[1, 2]).unwrap().publishers().len(), 2);
    for seeds in [&[1][..], &[1, 3], &[2, 9]] {
        assert_eq!(
            at(seeds).unwrap_err(),
            PluginError::TooFewPublishers {
                name: "kvasir:fixture".to_owned(),
                role: publisher("kvasir"),
                valid: 1,
                threshold: 2
            }
        );
    }
}

#[test]
fn what_is_revoked_does_not_count() {
    let root = verified(&root(1));
    let mut list = Revocations::new(UnixSeconds(NOW.0 + 500));
    list.keys.insert(id(1));
    list.packages.insert(plugin(7, &[2]).digest());
    let document = list.sign(&[&key(10)]).unwrap();
    let revoked = VerifiedRevocations::verify(&document, &root, NOW).unwrap();
    let store = TrustStore::from_root(&root, Some(&revoked));
    let at = |revision, seeds: &[u8]| verify(&package("kvasir:fixture", revision, seeds), &store, NOW);
    assert_eq!(at(4, &[1]).unwrap_err(), PluginError::RevokedKey { key: id(1) });
    assert_eq!(*at(4, &[1, 2]).unwrap().publishers(), [id(2)].into());
    assert_eq!(at(7, &[2]).unwrap_err(), PluginError::RevokedPackage { plugin: plugin(7, &[2]).digest() });
    // Whatever expires first ends all trust.
    let late = UnixSeconds(NOW.0 + 500);
    let error = verify(&package("kvasir:fixture", 4, &[2]), &store, late).unwrap_err();
    assert_eq!(error, PluginError::TrustExpired { expires: late, now: late });
    assert!(matches!(
        VerifiedRevocations::verify(&document, &root, late),
        Err(DocumentError::Expired { .. })
    ));
    assert!(VerifiedRevocations::for_renewal(&document, &root).is_ok());
    // Only the role revokes.
    let forged = list.sign(&[&key(1)]).unwrap();
    assert!(matches!(
        VerifiedRevocations::verify(&forged, &root, NOW),
        Err(DocumentError::NotEnoughSignatures { .. })
    ));
    let mut many = Revocations::new(LATER);
    many.keys = (0..=MAX_REVOKED as u32)
        .map(|index| KeyId(std::array::from_fn(|at| index.to_le_bytes()[at % 4])))
        .collect();
    assert!(matches!(many.sign(&[&key(10)]), Err(DocumentError::TooMany { .. })));
}

#[test]
fn nothing_older_than_seen_comes_back() {
    let mut seen = Seen::default();
    seen.check_and_raise(&plugin(5, &[1])).unwrap();
    seen.check_and_raise(&plugin(5, &[1])).unwrap();
    let rollback =
        |revision, seen| PluginError::Rollback { name: "kvasir:fixture".to_owned(), revision, seen };
    assert_eq!(seen.check_and_raise(&plugin(4, &[1])), Err(rollback(4, 5)));
    // Both keys signed a newer one: neither alone brings an older one back, a stripped signature included.
    seen.check_and_raise(&plugin(8, &[1, 2])).unwrap();
    assert_eq!(seen.check_and_raise(&plugin(7, &[1])), Err(rollback(7, 8)));
    assert_eq!(seen.check_and_raise(&plugin(7, &[2])), Err(rollback(7, 8)));
    // A leaked key burns numbers for what it signs, and is out of what others sign once it is trusted no more.
    seen.check_and_raise(&plugin(u64::MAX, &[1])).unwrap();
    for seeds in [&[1][..], &[1, 2]] {
        assert_eq!(seen.check_and_raise(&plugin(9, seeds)), Err(rollback(9, u64::MAX)));
    }
    seen.check_and_raise(&plugin(9, &[2])).unwrap();
    let both = package("kvasir:fixture", 9, &[1, 2]);
    seen.check_and_raise(&verify(&both, &by_hand::trust(&[2]), NOW).unwrap()).unwrap();
    assert_eq!(seen.revision(&plugin(9, &[2])), Some(9));
    assert_eq!(Seen::parse(&seen.encode()).unwrap(), seen);
    assert!(Seen::parse(b"{}").is_err());
    assert!(matches!(Seen::parse(&vec![b' '; MAX_SEEN_BYTES + 1]), Err(DocumentError::TooLarge { .. })));
}

#[test]
fn a_key_that_is_trusted_later_brings_nothing_old_back() {
    let rollback =
        |revision, seen| PluginError::Rollback { name: "kvasir:fixture".to_owned(), revision, seen };
    // Both releases were signed by three keys from the beginning, of which one was trusted, then two.
    let under = |trusted: &[u8], revision, seeds: &[u8]| {
        verify(&package("kvasir:fixture", revision, seeds), &by_hand::trust(trusted), NOW).unwrap()
    };
    let mut seen = Seen::default();
    seen.check_and_raise(&under(&[1], 5, &[1, 2])).unwrap();
    assert_eq!(seen.check_and_raise(&under(&[1, 2], 3, &[1, 2])), Err(rollback(3, 5)));
    seen.check_and_raise(&under(&[1, 3], 6, &[1, 3])).unwrap();
    assert_eq!(seen.check_and_raise(&under(&[1, 2, 3], 5, &[1, 2])), Err(rollback(5, 6)));
    // What the later key signs without them is its own.
    seen.check_and_raise(&under(&[1, 2, 3], 2, &[2])).unwrap();
}

#[test]
fn as_many_signers_must_have_signed_a_newer_one_as_the_role_takes() {
    let rollback =
        |revision, seen| PluginError::Rollback { name: "kvasir:fixture".to_owned(), revision, seen };
    let store = |threshold| {
        let mut root = root(1);
        root.grant(publisher("kvasir"), public(3));
        root.roles.get_mut(&publisher("kvasir")).unwrap().threshold = threshold;
        TrustStore::from_root(&verified(&root), None)
    };
    let under = |threshold, revision, seeds: &[u8]| {
        verify(&package("kvasir:fixture", revision, seeds), &store(threshold), NOW).unwrap()
    };
    let mut seen = Seen::default();
    seen.check_and_raise(&under(1, u64::MAX, &[1])).unwrap();
    // One key that ran ahead has no say where two are needed.
    seen.check_and_raise(&under(2, 5, &[1, 2])).unwrap();
    assert_eq!(seen.check_and_raise(&under(2, 4, &[1, 2, 3])), Err(rollback(4, 5)));
    seen.check_and_raise(&under(2, 4, &[2, 3])).unwrap();
    assert_eq!(seen.check_and_raise(&under(1, 4, &[2, 3])), Err(rollback(4, 5)));
}

#[test]
fn trust_does_not_go_back() {
    let first = verified(&root(1));
    let second = verified(&Root { version: 2, ..root(1) });
    let list = |version| {
        let list = Revocations { version, ..Revocations::new(LATER) };
        VerifiedRevocations::verify(&list.sign(&[&key(10)]).unwrap(), &first, NOW).unwrap()
    };
    let mut seen = Seen::default();
    seen.check_and_raise_trust(&first, None).unwrap();
    seen.check_and_raise_trust(&second, Some(&list(3))).unwrap();
    assert_eq!((seen.root(), seen.revocations()), (2, 3));
    let rollback = |what, found, seen| Err(DocumentError::Rollback { what, found, seen });
    assert_eq!(seen.check_and_raise_trust(&first, Some(&list(3))), rollback("root.json", 1, 2));
    assert_eq!(seen.check_and_raise_trust(&second, Some(&list(2))), rollback("revoked.json", 2, 3));
    assert_eq!(seen.check_and_raise_trust(&second, None), rollback("revoked.json", 0, 3));
    assert_eq!((seen.root(), seen.revocations()), (2, 3));
}

#[test]
fn the_operator_grants_the_lesser() {
    let plugin = plugin(4, &[1, 2]);
    let grant = |text: &str| Policy::parse(text.as_bytes()).unwrap().grant(&plugin);
    let default = grant("").unwrap();
    assert_eq!(default.limits, plugin.manifest().limits);
    assert_eq!((default.deadline, default.gpu, default.wasi_inert), (Duration::from_secs(10), false, false));
    let text = format!(
        "[default]\nmemory_bytes = 70000\nrows_per_call = 10\ndeadline_ms = 50\n[namespace.kvasir]\nrows_per_call = 12\n\
         [publisher.{}]\nfuel_per_call = 900\n[publisher.{}]\nfuel_per_call = 800\n[namespace.other]\nrows_per_call = 1\n",
        id(1),
        id(2)
    );
    let narrowed = grant(&text).unwrap();
    assert_eq!(narrowed.limits, Limits { memory_bytes: 65_536, fuel_per_call: 800, rows_per_call: 12 });
    assert_eq!(narrowed.deadline, Duration::from_millis(50));
    assert_eq!(narrowed.reasons[0].source, RuleSource::Default);
    assert_eq!(narrowed.reasons[1].source, RuleSource::Publisher(id(2)));
    assert_eq!(narrowed.reasons[2].source, RuleSource::Namespace("kvasir".to_owned()));
    assert_eq!(
        grant("[default.maximum]\nrows_per_call = 15\n").unwrap_err(),
        PolicyRefusal::AsksTooMuch {
            name: "rows_per_call",
            asked: 16,
            maximum: 15,
            origin: RuleSource::Default
        }
    );
    assert!(
        grant("[default.maximum]\nrows_per_call = 15\n[namespace.kvasir.maximum]\nrows_per_call = 16\n")
            .is_ok()
    );
    // Publishers whom the package only names can narrow and not widen.
    let claimed = |text: &str, keys: &[u8]| {
        let keys: Vec<KeyId> = keys.iter().map(|key| id(*key)).collect();
        Policy::parse(text.as_bytes()).unwrap().grant_claimed(&plugin, &keys)
    };
    let narrow = format!("[publisher.{}]\nfuel_per_call = 700\n", id(3));
    assert_eq!(claimed(&narrow, &[3]).unwrap().limits.fuel_per_call, 700);
    assert_eq!(claimed(&narrow, &[]).unwrap(), default);
    let wide = format!(
        "[default]\nfuel_per_call = 500\n[default.maximum]\nrows_per_call = 15\n[publisher.{}]\nfuel_per_call = 700\n\
         [publisher.{}.maximum]\nrows_per_call = 16\n",
        id(3),
        id(3)
    );
    assert!(matches!(claimed(&wide, &[3]), Err(PolicyRefusal::AsksTooMuch { maximum: 15, .. })));
    let wide = wide.replace("rows_per_call = 15", "rows_per_call = 16");
    assert_eq!(claimed(&wide, &[3]).unwrap().limits.fuel_per_call, 500);
    for broken in ["memory = 1", "[default]\nmemory = 1", "[namespace.Up]", "[publisher.x]", "\u{0}"] {
        assert!(matches!(Policy::parse(broken.as_bytes()), Err(PolicyError::Malformed { .. })), "{broken}");
    }
    let large = vec![b'#'; MAX_POLICY_BYTES + 1];
    assert!(matches!(Policy::parse(&large), Err(PolicyError::TooLarge { .. })));
    let rules: String = (0..=MAX_POLICY_RULES).map(|index| format!("[namespace.n{index}]\n")).collect();
    assert!(matches!(Policy::parse(rules.as_bytes()), Err(PolicyError::Malformed { .. })));
}

#[test]
fn a_limit_of_nothing_or_beyond_all_reason_is_refused_with_its_range() {
    let id = id(1);
    for (name, range) in [
        ("memory_bytes", POLICY_MEMORY_BYTES),
        ("fuel_per_call", POLICY_FUEL_PER_CALL),
        ("rows_per_call", POLICY_ROWS_PER_CALL),
        ("deadline_ms", POLICY_DEADLINE_MS),
    ] {
        let tables = ["[default]", "[namespace.acme]", &format!("[publisher.{id}]")].map(str::to_owned);
        let maxima = ["[default.maximum]", "[namespace.acme.maximum]", &format!("[publisher.{id}.maximum]")];
        let maxima = maxima.map(str::to_owned);
        for table in tables.iter().chain(maxima.iter().filter(|_| name != "deadline_ms")) {
            let parse = |value: u64| Policy::parse(format!("{table}\n{name} = {value}\n").as_bytes());
            for value in [*range.start(), *range.end()] {
                parse(value).unwrap();
            }
            for value in [0, range.start() - 1, range.end() + 1, 9_000_000_000_000_000_000] {
                let said = parse(value).unwrap_err().to_string();
                for part in [
                    table.clone(),
                    format!("{name} = {value}"),
                    format!("{} to {}", range.start(), range.end()),
                ] {
                    assert!(said.contains(&part), "{said} lacks {part}");
                }
            }
        }
    }
}

#[test]
fn inert_wasi_is_asked_for_and_granted_on_purpose() {
    let manifest = by_hand::MANIFEST.replace("min_host", "wasi_inert = true\nmin_host");
    let contents = PackageContents {
        manifest: manifest.into_bytes(),
        component: by_hand::KERNEL.to_vec(),
        ..Default::default()
    };
    let package = pack(&contents, VALIDITY, &key(1)).unwrap();
    let plugin = verify(&package, &by_hand::trust(&[1]), NOW).unwrap();
    let refused = Policy::default().grant(&plugin).unwrap_err();
    assert_eq!(refused, PolicyRefusal::Wasi { origin: RuleSource::BuiltIn });
    let allowed = Policy::parse(b"[default]\nwasi_inert = true\n").unwrap();
    assert!(allowed.grant(&plugin).unwrap().wasi_inert);
}
