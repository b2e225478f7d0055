//! Registries that lie, stall or flood: each gets its own error, within a bound of time and of memory.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

mod registry;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvasir_plugin::BlobDigest;
use kvasir_registry::*;
use registry::server::{Reply, Request, serve};
use registry::{Before, INDEX, MANIFEST, Registry, Settings, hasty, package, patient};
use serde_json::json;

/// A registry that holds the fixture as `kernel:1.0`, and from then on answers as `before` says where that says anything.
fn hostile(before: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) -> Registry {
    let armed = Arc::new(Mutex::new(false));
    let inside = armed.clone();
    let before: Before =
        Box::new(move |request| if *inside.lock().unwrap() { before(request) } else { None });
    let registry = Registry::start(Settings { before, ..Settings::default() });
    push(&package(), &registry.place("kernel:1.0"), &Options::default()).unwrap();
    *armed.lock().unwrap() = true;
    registry
}

/// What a pull from it fails with.
fn refusal(registry: &Registry) -> RegistryError {
    pull(&registry.place("kernel:1.0"), &patient()).unwrap_err()
}

/// What a hasty pull from it fails with; it must not take ten times the deadline that it was given.
fn in_haste(registry: &Registry) -> RegistryError {
    let started = Instant::now();
    let error = pull(&registry.place("kernel:1.0"), &hasty()).unwrap_err();
    assert!(started.elapsed() < 10 * hasty().deadline, "{error} took {:?}", started.elapsed());
    error
}

fn is_blob(request: &Request) -> bool {
    request.method == "GET" && request.target.contains("/blobs/")
}

fn is_tag(request: &Request) -> bool {
    request.method == "GET" && request.target.ends_with("/manifests/1.0")
}

/// Head of an answer of no stated length, then the same bytes for ever.
fn endless(media_type: &'static str) -> Reply {
    Reply::Raw(Box::new(move |stream| {
        write!(stream, "HTTP/1.1 200 Word\r\ncontent-type: {media_type}\r\nconnection: close\r\n\r\n")?;
        loop {
            stream.write_all(&[b' '; 65_536])?;
        }
    }))
}

/// An image manifest of the given layers as the answer for the tag.
fn image_of(layers: serde_json::Value) -> Reply {
    let empty = json!({"mediaType": "application/vnd.wasm.config.v0+json", "size": 2,
        "digest": BlobDigest::of(b"{}").to_string()});
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": empty, "layers": layers});
    Reply::body(200, MANIFEST, manifest.to_string().as_bytes())
}

fn layer(bytes: u64) -> serde_json::Value {
    json!({"mediaType": "application/wasm", "size": bytes, "digest": BlobDigest::of(&bytes.to_le_bytes()).to_string()})
}

#[test]
fn altered_bytes_are_found_by_their_digest() {
    let registry = hostile(|request| {
        let of = |bytes: &[u8]| Reply::body(200, "application/octet-stream", bytes);
        // Each blob has the right length and another content.
        is_blob(request)
            .then(|| match request.target.len() {
                _ if request.target.ends_with(&BlobDigest::of(&[1; 3000]).to_string()) => of(&[3; 3000]),
                _ => Reply::status(599),
            })
            .filter(|reply| !matches!(reply, Reply::Plain(599, ..)))
    });
    let error = refusal(&registry);
    assert!(
        matches!(&error, RegistryError::Digest { what, .. } if what.starts_with("the blob sha256:")),
        "{error}"
    );

    let registry = hostile(|request| {
        let by_digest = request.method == "GET" && request.target.contains("/manifests/sha256:");
        by_digest.then(|| Reply::body(200, MANIFEST, b"{}"))
    });
    let error = refusal(&registry);
    assert!(
        matches!(&error, RegistryError::Digest { what, .. } if what.starts_with("the manifest sha256:")),
        "{error}"
    );
}

#[test]
fn wrong_lengths_are_named() {
    let other = |length: usize| {
        hostile(move |request| {
            is_blob(request).then(|| Reply::body(200, "application/octet-stream", &vec![0; length]))
        })
    };
    for length in [0, 100_000_000] {
        let error = refusal(&other(length));
        assert!(matches!(error, RegistryError::Size { found, .. } if found == length as u64), "{error}");
    }
    // No length stated, and the connection ends early.
    let registry = hostile(|request| {
        is_blob(request).then(|| {
            Reply::Raw(Box::new(|stream| {
                stream.write_all(b"HTTP/1.1 200 Word\r\nconnection: close\r\n\r\n{")
            }))
        })
    });
    assert!(matches!(refusal(&registry), RegistryError::Size { found: 1, .. }));
}

#[test]
fn floods_are_cut_off_early() {
    let error = refusal(&hostile(|request| is_blob(request).then(|| endless("application/octet-stream"))));
    assert!(
        matches!(&error, RegistryError::Size { found, expected, .. } if *found == expected + 1),
        "{error}"
    );
    let error = refusal(&hostile(|request| is_tag(request).then(|| endless(MANIFEST))));
    assert!(matches!(error, RegistryError::TooLarge { limit: MAX_DOCUMENT_BYTES, .. }), "{error}");
    let lists = |request: &Request| request.target.contains("/referrers/").then(|| endless(INDEX));
    let error = refusal(&hostile(lists));
    assert!(matches!(error, RegistryError::TooLarge { limit: MAX_DOCUMENT_BYTES, .. }), "{error}");
    // A head without end.
    let error = refusal(&hostile(|request| {
        is_tag(request).then(|| {
            Reply::Raw(Box::new(|stream| {
                stream.write_all(b"HTTP/1.1 200 Word\r\n")?;
                loop {
                    stream.write_all(b"x-more: and more of it\r\n")?;
                }
            }))
        })
    }));
    assert!(matches!(error, RegistryError::Protocol { .. }), "{error}");
    // A refusal without end.
    let error = refusal(&hostile(|request| {
        is_tag(request).then(|| {
            Reply::Raw(Box::new(|stream| {
                stream.write_all(b"HTTP/1.1 500 Word\r\n\r\n\x1b[31mred\x07 ")?;
                loop {
                    stream.write_all(&[b'x'; 4096])?;
                }
            }))
        })
    }));
    let RegistryError::Refused { status: 500, text, .. } = &error else { panic!("{error}") };
    assert!(text.starts_with("[31mred xxx") && text.len() <= MAX_REFUSAL_CHARACTERS, "{text}");
    // All of that together in a few megabytes: the largest answer that is read whole is a document.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(peak) = status.lines().find_map(|line| line.strip_prefix("VmHWM:")) {
        let kibibytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kibibytes < 512 << 10, "{kibibytes} kB were resident");
    }
}

#[test]
fn what_is_announced_too_large_is_not_fetched() {
    let announced = |layers: serde_json::Value| {
        let registry = hostile(move |request| is_tag(request).then(|| image_of(layers.clone())));
        let before = registry.requests().len();
        let error = refusal(&registry);
        let fetched = registry.requests()[before..].iter().filter(|asked| is_blob(asked)).count();
        (error, fetched)
    };
    let (error, fetched) = announced(json!([layer(MAX_BLOB_BYTES + 1)]));
    assert!(
        matches!(error, RegistryError::TooLarge { limit: MAX_BLOB_BYTES, .. }) && fetched == 0,
        "{error}"
    );
    let (error, fetched) = announced(json!([layer(u64::MAX)]));
    assert!(
        matches!(error, RegistryError::TooLarge { limit: MAX_BLOB_BYTES, .. }) && fetched == 0,
        "{error}"
    );
    let many: Vec<_> = (0..5).map(|less| layer(MAX_BLOB_BYTES - less)).collect();
    let (error, fetched) = announced(json!(many));
    assert!(
        matches!(&error, RegistryError::TooLarge { what, .. } if what == "a package") && fetched == 0,
        "{error}"
    );
    let many: Vec<_> = (0..=MAX_BLOBS as u64).map(layer).collect();
    let (error, fetched) = announced(json!(many));
    assert!(matches!(error, RegistryError::TooMany { limit: MAX_BLOBS, .. }) && fetched == 0, "{error}");
}

#[test]
fn other_kinds_of_documents_are_refused() {
    for (found, body) in [("text/html", "<html>"), (INDEX, "{}"), ("", "{}")] {
        let registry =
            hostile(move |request| is_tag(request).then(|| Reply::body(200, found, body.as_bytes())));
        let error = refusal(&registry);
        assert!(matches!(&error, RegistryError::MediaType { found: told, .. } if told == found), "{error}");
    }
    for body in ["", "{", "[]", "{\"config\": 1}", &format!("{}1", "[".repeat(100_000))] {
        let body = body.to_owned();
        let registry =
            hostile(move |request| is_tag(request).then(|| Reply::body(200, MANIFEST, body.as_bytes())));
        let error = refusal(&registry);
        assert!(matches!(error, RegistryError::Protocol { .. }), "{error}");
    }
    // Nothing refers to the image: no package can be made.
    let registry = hostile(|request| {
        request.target.contains("/referrers/").then(|| Reply::body(200, INDEX, b"{\"manifests\": []}"))
    });
    assert!(matches!(refusal(&registry), RegistryError::Layout { .. }));
    // So many signatures that somebody wants time.
    let registry = hostile(|request| {
        let listed: Vec<_> = (0..=MAX_REFERRERS)
            .map(|n| {
                json!({"mediaType": MANIFEST, "size": 1, "digest": BlobDigest::of(&[n as u8]).to_string(),
                "artifactType": "application/vnd.dsse.envelope.v1+json"})
            })
            .collect();
        let list = json!({ "manifests": listed }).to_string();
        request.target.contains("/referrers/").then(|| Reply::body(200, INDEX, list.as_bytes()))
    });
    assert!(matches!(refusal(&registry), RegistryError::TooMany { limit: MAX_REFERRERS, .. }));
}

#[test]
fn silence_has_an_end() {
    let (silence, deadline) = (hasty().silence, hasty().deadline);
    let registry = hostile(|request| {
        is_tag(request).then(|| {
            Reply::Raw(Box::new(|_| {
                std::thread::sleep(Duration::from_secs(60));
                Ok(())
            }))
        })
    });
    let error = in_haste(&registry);
    assert!(matches!(error, RegistryError::Deadline { limit, .. } if limit == silence), "{error}");
    // A byte now and then is no silence, and has an end all the same.
    let registry = hostile(|request| {
        is_blob(request).then(|| {
            Reply::Raw(Box::new(|stream| {
                stream.write_all(b"HTTP/1.1 200 Word\r\nconnection: close\r\n\r\n")?;
                loop {
                    std::thread::sleep(Duration::from_millis(200));
                    stream.write_all(b"x")?;
                    stream.flush()?;
                }
            }))
        })
    });
    let error = in_haste(&registry);
    // Which of the two bounds ends it depends on how busy this machine is.
    let cut = matches!(error, RegistryError::Deadline { limit, .. } if limit == deadline || limit == silence);
    assert!(cut, "{error}");
}

#[test]
fn redirects_end_and_take_no_credentials_along() {
    let registry =
        hostile(|request| is_blob(request).then(|| Reply::status(307).with("location", &request.target)));
    let error = refusal(&registry);
    assert!(matches!(error, RegistryError::Redirect { .. }), "{error}");
    for target in ["", "nowhere", "//other/x", "ftp://other/x", "http://user:password@127.0.0.1/x"] {
        let registry =
            hostile(move |request| is_blob(request).then(|| Reply::status(302).with("location", target)));
        let error = refusal(&registry);
        assert!(matches!(error, RegistryError::Redirect { .. }), "{target}: {error}");
    }

    // To another server, as registries do with large blobs: it answers, and is shown nothing.
    let shown = Arc::new(Mutex::new(Vec::new()));
    let log = shown.clone();
    let store: Arc<Mutex<Option<Arc<Mutex<registry::State>>>>> = Arc::default();
    let inside = store.clone();
    let other = serve(
        Arc::new(move |request: &Request| {
            log.lock().unwrap().push(request.authorization.clone());
            let state = inside.lock().unwrap().clone().unwrap();
            let digest = request.target.trim_start_matches('/').to_owned();
            Reply::body(200, "application/octet-stream", &state.lock().unwrap().blobs[&digest])
        }),
        None,
    );
    let basic = "Basic c29tZW9uZTpzZWNyZXQ=".to_owned();
    let before: Before = Box::new(move |request| {
        let digest = request.target.split_once("/blobs/")?.1;
        is_blob(request).then(|| Reply::status(307).with("location", &format!("http://{other}/{digest}")))
    });
    let registry =
        Registry::start(Settings { before, demand: registry::Demand::Basic(basic), ..Settings::default() });
    *store.lock().unwrap() = Some(registry.state.clone());
    let options = Options { credentials: Some(Credentials::new("someone", "secret")), ..patient() };
    push(&package(), &registry.place("kernel:1.0"), &options).unwrap();
    assert_eq!(pull(&registry.place("kernel:1.0"), &options).unwrap(), package());
    let shown = shown.lock().unwrap();
    assert!(!shown.is_empty() && shown.iter().all(Option::is_none), "{shown:?}");
}

#[test]
fn a_server_of_tls_leads_nowhere_else() {
    let before: Before = Box::new(|request| {
        is_tag(request).then(|| Reply::status(307).with("location", "http://127.0.0.1:9/x"))
    });
    let registry = Registry::start(Settings { tls: true, before, ..Settings::default() });
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("registry.pem");
    std::fs::write(&path, &registry.pem).unwrap();
    let options = Options { loopback_tls: true, certificates: Some(path), ..patient() };
    let error = pull(&registry.place("kernel:1.0"), &options).unwrap_err();
    assert!(matches!(&error, RegistryError::Redirect { reason, .. } if reason.contains("TLS")), "{error}");
}

#[test]
fn a_registry_elsewhere_leads_to_no_service_here() {
    let proxies =
        ["http_proxy", "https_proxy", "all_proxy"].map(|name| [name.to_owned(), name.to_uppercase()]);
    if proxies.iter().flatten().any(|name| std::env::var_os(name).is_some()) {
        println!("skipped: a proxy stands between this test and its registry");
        return;
    }
    let reached = Arc::new(Mutex::new(0));
    let counted = reached.clone();
    let service = serve(
        Arc::new(move |_: &Request| {
            *counted.lock().unwrap() += 1;
            Reply::status(200)
        }),
        None,
    );
    let port = service.rsplit_once(':').unwrap().1;
    let refused = |before: Before| {
        let registry = Registry::start(Settings { before, ..Settings::default() });
        // A name of this machine that does not look like one, and so stands for a registry elsewhere.
        let place = format!("oci://127.1:{}/kernel:1.0", registry.host.rsplit_once(':').unwrap().1);
        let credentials = Some(Credentials::new("someone", "secret"));
        let options = Options { plain_http: true, credentials, ..patient() };
        pull(&place.parse().unwrap(), &options).unwrap_err()
    };
    for host in ["127.0.0.1", "0.0.0.0", "localhost", "127.1", "2130706433", "[::ffff:127.0.0.1]", "[::]"] {
        let address = format!("http://{host}:{port}/x");
        let target = address.clone();
        let error = refused(Box::new(move |_| Some(Reply::status(307).with("location", &target))));
        assert!(matches!(error, RegistryError::Redirect { .. }), "{address}: {error}");
        let challenge = format!("Bearer realm=\"{address}\"");
        let error = refused(Box::new(move |_| Some(Reply::status(401).with("www-authenticate", &challenge))));
        assert!(matches!(error, RegistryError::Protocol { .. }), "{address}: {error}");
    }
    assert_eq!(*reached.lock().unwrap(), 0);
}

#[test]
fn a_time_beyond_any_clock_is_the_longest_there_is() {
    let registry = hostile(|_| None);
    let options = Options { deadline: Duration::from_secs(u64::MAX), ..patient() };
    assert_eq!(pull(&registry.place("kernel:1.0"), &options).unwrap(), package());
}

#[test]
fn certificates_come_from_a_plain_file_of_bounded_size() {
    let scratch = tempfile::tempdir().unwrap();
    let (pipe, large) = (scratch.path().join("pipe.pem"), scratch.path().join("large.pem"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::File::create(&large).unwrap().set_len(MAX_CERTIFICATES_BYTES + 1).unwrap();
    let refused = |path: &std::path::Path| {
        let options = Options { certificates: Some(path.to_owned()), ..patient() };
        pull(&"oci://127.0.0.1:9/kernel:1.0".parse().unwrap(), &options).unwrap_err()
    };
    for path in [&pipe, std::path::Path::new("/dev/zero")] {
        let error = refused(path);
        assert!(matches!(error, RegistryError::File { action: "read", .. }), "{error}");
    }
    let error = refused(&large);
    assert!(
        matches!(&error, RegistryError::Certificates { reason, .. } if reason.contains("more than")),
        "{error}"
    );
}

#[test]
fn uploads_go_to_the_registry_alone() {
    let pushed = |before: Before| {
        let registry = Registry::start(Settings { before, ..Settings::default() });
        push(&package(), &registry.place("kernel:1.0"), &patient()).unwrap_err()
    };
    let post = |request: &Request| request.method == "POST";
    let error = pushed(Box::new(move |request| {
        post(request).then(|| Reply::status(202).with("location", "http://127.0.0.1:9/elsewhere"))
    }));
    assert!(
        matches!(&error, RegistryError::Protocol { reason, .. } if reason.contains("another server")),
        "{error}"
    );
    let error = pushed(Box::new(move |request| post(request).then(|| Reply::status(202))));
    assert!(matches!(error, RegistryError::Protocol { .. }), "{error}");
    let error = pushed(Box::new(move |request| {
        (request.method == "PUT").then(|| Reply::status(307).with("location", "/elsewhere"))
    }));
    assert!(matches!(error, RegistryError::Redirect { .. }), "{error}");
    let error = pushed(Box::new(move |request| {
        post(request).then(|| Reply::body(413, "application/json", b"{\"errors\": [\"too much\"]}"))
    }));
    assert!(
        matches!(&error, RegistryError::Refused { status: 413, text, .. } if text.contains("too much")),
        "{error}"
    );
}

#[test]
fn demands_for_credentials_end() {
    let asked = |reply: fn() -> Reply| {
        let before: Before = Box::new(move |_| Some(reply()));
        let registry = Registry::start(Settings { before, ..Settings::default() });
        let options = Options { credentials: Some(Credentials::new("someone", "secret")), ..patient() };
        let error = pull(&registry.place("kernel:1.0"), &options).unwrap_err();
        let requests = registry.requests().len();
        assert!(requests <= 3, "{requests} requests");
        error
    };
    let error = asked(|| Reply::status(401).with("www-authenticate", "Basic"));
    assert!(matches!(error, RegistryError::Denied { status: 401, .. }), "{error}");
    for challenge in ["", "Digest realm=\"x\"", "Bearer", "Bearer realm="] {
        let error = match challenge {
            "" => asked(|| Reply::status(401)),
            "Bearer" => asked(|| Reply::status(401).with("www-authenticate", "Bearer")),
            "Bearer realm=" => asked(|| Reply::status(401).with("www-authenticate", "Bearer realm=")),
            _ => asked(|| Reply::status(401).with("www-authenticate", "Digest realm=\"x\"")),
        };
        let typed = matches!(error, RegistryError::Denied { .. } | RegistryError::Protocol { .. });
        assert!(typed, "{challenge}: {error}");
    }
    let error = asked(|| Reply::status(403));
    assert!(matches!(error, RegistryError::Denied { status: 403, .. }), "{error}");

    // The server for keys floods.
    let before: Before = Box::new(|request| {
        if request.target.starts_with("/keys") {
            return Some(endless("application/json"));
        }
        None
    });
    let demand = registry::Demand::Bearer(None);
    let registry = Registry::start(Settings { before, demand, ..Settings::default() });
    let error = pull(&registry.place("kernel:1.0"), &patient()).unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { limit: MAX_BEARER_ANSWER_BYTES, .. }), "{error}");
}

#[test]
fn what_is_not_there_is_said_so() {
    let registry = hostile(|_| None);
    let error = pull(&registry.place("kernel:2.0"), &patient()).unwrap_err();
    assert!(matches!(error, RegistryError::NotFound { .. }), "{error}");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = format!("oci://{nobody}/kernel:1.0").parse().unwrap();
    let error = pull(&place, &patient()).unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { .. }), "{error}");
}

/// A folder with the fixture in it, after `change` had its way with it.
fn changed(change: impl FnOnce(&std::path::Path)) -> RegistryError {
    let scratch = tempfile::tempdir().unwrap();
    let place = Place::Folder { path: scratch.path().to_owned(), tag: None };
    push(&package(), &place, &Options::default()).unwrap();
    change(scratch.path());
    pull(&place, &Options::default()).unwrap_err()
}

#[test]
fn folders_are_believed_no_more_than_registries() {
    let blob = |folder: &std::path::Path, content: &[u8]| {
        folder.join("blobs/sha256").join(BlobDigest::of(content).hex())
    };
    let vector = vec![1; 3000];
    let error = changed(|folder| std::fs::write(blob(folder, &vector), vec![3; 3000]).unwrap());
    assert!(matches!(error, RegistryError::Digest { .. }), "{error}");
    let error = changed(|folder| std::fs::write(blob(folder, &vector), vec![1; 3001]).unwrap());
    assert!(matches!(error, RegistryError::Size { found: 3001, expected: 3000, .. }), "{error}");
    let error = changed(|folder| std::fs::remove_file(blob(folder, &vector)).unwrap());
    assert!(matches!(error, RegistryError::File { action: "read", .. }), "{error}");
    // What would be waited for, or read without end.
    for device in ["/dev/zero", "/dev/tty"] {
        let error = changed(|folder| {
            std::fs::remove_file(blob(folder, &vector)).unwrap();
            std::os::unix::fs::symlink(device, blob(folder, &vector)).unwrap();
        });
        assert!(matches!(error, RegistryError::File { action: "read", .. }), "{error}");
    }
    let index =
        |text: String| changed(move |folder| std::fs::write(folder.join("index.json"), text).unwrap());
    assert!(matches!(index(String::new()), RegistryError::Protocol { .. }));
    assert!(matches!(index("{}".to_owned()), RegistryError::Layout { .. }));
    let long = " ".repeat(MAX_DOCUMENT_BYTES as usize + 1);
    assert!(matches!(index(long), RegistryError::TooLarge { limit: MAX_DOCUMENT_BYTES, .. }));
    let error = changed(|folder| {
        let path = folder.join("index.json");
        let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let listed = index["manifests"].as_array_mut().unwrap();
        let other = json!({"mediaType": MANIFEST, "size": 1, "digest": BlobDigest::of(b"1").to_string(), "artifactType": "x"});
        listed.resize(MAX_LISTED + 1, other);
        std::fs::write(path, index.to_string()).unwrap();
    });
    assert!(matches!(error, RegistryError::TooMany { limit: MAX_LISTED, .. }), "{error}");
}
