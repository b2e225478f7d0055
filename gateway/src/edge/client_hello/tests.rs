//! Hellos as programs write them, hellos by hand with a rule broken each, and hellos by chance.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// Hellos that OpenSSL 3.0 wrote, by way of Python's `ssl`; the last one's message cut into records of 100 bytes.
const WRITTEN: [(&[u8], Option<&str>); 5] = [
    (include_bytes!("../../../tests/data/client-hello/openssl-tls13.bin"), Some("hub.example")),
    (include_bytes!("../../../tests/data/client-hello/openssl-both.bin"), Some("hub.example")),
    (
        include_bytes!("../../../tests/data/client-hello/openssl-tls12.bin"),
        Some("a.very.long-name.of.some.depth.example"),
    ),
    (include_bytes!("../../../tests/data/client-hello/openssl-no-name.bin"), None),
    (include_bytes!("../../../tests/data/client-hello/openssl-in-pieces.bin"), Some("hub.example")),
];

fn found(name: Option<&str>) -> Result<Option<ClientHello>, HelloError> {
    Ok(Some(ClientHello { server_name: name.map(str::to_owned) }))
}

/// A number of bytes, and they.
fn counted(width: usize, bytes: &[u8]) -> Vec<u8> {
    [&bytes.len().to_be_bytes()[8 - width..], bytes].concat()
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(|piece| [&[HANDSHAKE, 3, 1][..], &counted(2, piece)].concat()).collect()
}

fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &counted(2, data)].concat()
}

/// A `server_name` extension with one entry.
fn named(name: &[u8]) -> Vec<u8> {
    extension(0, &counted(2, &[&[0][..], &counted(2, name)].concat()))
}

/// A message with these parts.
fn message(session: &[u8], suites: &[u8], compressions: &[u8], behind: &[u8]) -> Vec<u8> {
    let fields =
        [&[3, 3][..], &[7; 32], &counted(1, session), &counted(2, suites), &counted(1, compressions), behind];
    [&[CLIENT_HELLO][..], &counted(3, &fields.concat())].concat()
}

/// A hello with these extensions, in one record.
fn hello(extensions: &[u8]) -> Vec<u8> {
    records(&message(&[], &[0x13, 1], &[0], &counted(2, extensions)), MAX_RECORD_BYTES)
}

/// A hello that rustls wrote.
fn from_rustls(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = rustls_pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

/// What rustls reads in a hello: a name or none; nothing where it takes it for no hello.
fn by_rustls(mut bytes: &[u8]) -> Option<Option<String>> {
    let mut acceptor = rustls::server::Acceptor::default();
    while !bytes.is_empty() {
        acceptor.read_tls(&mut bytes).ok()?;
    }
    let accepted = acceptor.accept().ok()??;
    Some(accepted.client_hello().server_name().map(str::to_ascii_lowercase))
}

#[test]
fn names_are_read_as_clients_write_them() {
    for (bytes, name) in WRITTEN {
        assert_eq!(read(bytes), found(name));
    }
    assert_eq!(read(&from_rustls("Hub.Example")), found(Some("hub.example")));
    assert_eq!(read(&from_rustls("10.0.0.1")), found(None), "an address is no name");
    let without_extensions = records(&message(&[], &[0, 0x2f], &[0], &[]), MAX_RECORD_BYTES);
    assert_eq!(read(&without_extensions), found(None));
    // Early data, or anything else, in records of its own.
    assert_eq!(read(&[hello(&named(b"a.b")), vec![23, 3, 3, 0, 1, 0]].concat()), found(Some("a.b")));
    let other = extension(0x4a4a, &[1, 2, 3]);
    assert_eq!(read(&hello(&[&other[..], &named(b"X_1.b-2"), &other].concat())), found(Some("x_1.b-2")));
}

#[test]
fn whatever_the_records_a_hello_is_waited_for_to_its_last_byte() {
    let whole = message(&[1; 32], &[0x13, 1], &[0], &counted(2, &named(b"hub.example")));
    let mut cases: Vec<Vec<u8>> = [1, 2, 3, 4, 5, 7, 64].map(|size| records(&whole, size)).into();
    cases.extend(WRITTEN.map(|(bytes, _)| bytes.to_vec()));
    for bytes in cases {
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), Ok(None), "{length} of {}", bytes.len());
        }
        assert!(matches!(read(&bytes), Ok(Some(_))));
    }
}

#[test]
fn what_is_no_hello_is_seen_at_its_first_bytes() {
    for bytes in [&b"G"[..], b"\x16\x02", b"\x15\x03\x01\0\x02", b"\x16\x03\x01\0\x01\x02", b"\x80\x2e\x01"] {
        assert_eq!(read(bytes), Err(HelloError::NotHello), "{bytes:?}");
    }
}

#[test]
fn what_breaks_a_rule_is_refused() {
    let good = named(b"hub.example");
    let list = |list: &[u8]| extension(0, &counted(2, list));
    let entry = |name: &[u8]| [&[0][..], &counted(2, name)].concat();
    let whole = message(&[], &[0x13, 1], &[0], &counted(2, &good));
    let mut no_tls = whole.clone();
    no_tls[4] = 2;
    let one = |message: Vec<u8>| records(&message, MAX_RECORD_BYTES);
    let long_label = [&[b'a'; MAX_LABEL_BYTES + 1][..], b".example"].concat();
    let long_name = [&b"a.".repeat(MAX_NAME_BYTES / 2)[..], b"ab"].concat();
    let cases: Vec<Vec<u8>> = vec![
        // Records.
        b"\x16\x03\x01\0\0".to_vec(),
        b"\x16\x03\x01\x40\x01".to_vec(),
        one([&whole[..], &[0]].concat()),
        one([&whole[..], &whole].concat()),
        // Fields.
        one(no_tls),
        one(message(&[1; 33], &[0x13, 1], &[0], &[])),
        one(message(&[], &[], &[0], &[])),
        one(message(&[], &[0x13], &[0], &[])),
        one(message(&[], &[0x13, 1], &[], &[])),
        one(message(&[], &[0x13, 1], &[0], &[0])),
        one(message(&[], &[0x13, 1], &[0], &[0, 9, 0, 0])),
        one(message(&[], &[0x13, 1], &[0], &[&counted(2, &good)[..], &[0]].concat())),
        one(vec![CLIENT_HELLO, 0, 0, 0]),
        // Extensions.
        hello(&[0, 0]),
        hello(&[0, 0, 0, 1]),
        hello(&[&good[..], &good].concat()),
        // Names.
        hello(&extension(0, &[])),
        hello(&list(&[])),
        hello(&list(&[1, 0, 1, b'a'])),
        hello(&list(&[entry(b"a"), entry(b"b")].concat())),
        hello(&extension(0, &[counted(2, &entry(b"a")), vec![0]].concat())),
        hello(&named(b"")),
        hello(&named(b".")),
        hello(&named(b"hub.example.")),
        hello(&named(b"hub..example")),
        hello(&named(b"hub example")),
        hello(&named(b"hub.example\0.other")),
        hello(&named("h\u{fc}b.example".as_bytes())),
        hello(&named(b"[::1]")),
        hello(&named(&long_label)),
        hello(&named(&long_name)),
    ];
    for bytes in cases {
        assert!(matches!(read(&bytes), Err(HelloError::Malformed(_))), "{bytes:?}: {:?}", read(&bytes));
    }
    let longest = b"a.".repeat(MAX_NAME_BYTES / 2 + 1);
    let longest = std::str::from_utf8(&longest[..MAX_NAME_BYTES]).unwrap();
    assert_eq!(read(&hello(&named(longest.as_bytes()))), found(Some(longest)));
}

#[test]
fn nothing_longer_than_the_limit_is_waited_for() {
    // What it says, before it has come.
    let says = [&[HANDSHAKE, 3, 1, 0x10, 0, CLIENT_HELLO][..], &[0, 0x40, 1]].concat();
    assert_eq!(read(&says), Err(HelloError::TooLong));
    // What its records add.
    let padded = message(&[], &[0x13, 1], &[0], &counted(2, &extension(21, &[0; 4_000])));
    let bytes = records(&padded, 1);
    assert!(bytes.len() > MAX_CLIENT_HELLO_BYTES);
    assert_eq!(read(&bytes[..MAX_CLIENT_HELLO_BYTES - 1]), Ok(None));
    assert_eq!(read(&bytes[..MAX_CLIENT_HELLO_BYTES]), Err(HelloError::TooLong));
    assert_eq!(read(&records(&padded, 1_000)), found(None));
}

proptest! {
    #[test]
    fn every_name_reads_back(
        labels in prop::collection::vec("[a-z0-9_-]{1,20}", 1..8),
        before in prop::collection::vec((1..0xffff_u16, prop::collection::vec(any::<u8>(), 0..40)), 0..6),
        session in prop::collection::vec(any::<u8>(), 0..33),
        size in 1..600_usize,
    ) {
        let name = labels.join(".");
        let before: Vec<u8> = before.iter().flat_map(|(kind, data)| extension(*kind, data)).collect();
        let extensions = counted(2, &[before, named(name.as_bytes())].concat());
        let bytes = records(&message(&session, &[0x13, 1, 0x13, 2], &[0], &extensions), size);
        prop_assert_eq!(read(&bytes), found(Some(&name)));
    }

    #[test]
    fn a_hello_that_is_changed_is_refused_or_read_as_rustls_reads_it(
        which in 0..WRITTEN.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = WRITTEN[which].0.to_vec();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let (Ok(Some(hello)), Some(Some(name))) = (read(&bytes), by_rustls(&bytes)) {
            prop_assert_eq!(hello.server_name, Some(name));
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        begin in prop::sample::select(vec![Vec::new(), vec![HANDSHAKE, 3, 1, 1, 0, CLIENT_HELLO, 0, 0, 0xfc, 3, 3]]),
    ) {
        let bytes = [&begin[..], &bytes].concat();
        if let Ok(Some(ClientHello { server_name: Some(name) })) = read(&bytes) {
            prop_assert!(is_host_name(name.as_bytes()));
        }
    }
}
