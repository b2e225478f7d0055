//! What is pushed is what is pulled, byte for byte, whatever kind of place it was pushed to.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

mod registry;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Barrier;
use std::time::Duration;

use kvasir_plugin::layout::Layout;
use kvasir_plugin::{UnixSeconds, pack_unsigned};
use kvasir_registry::{Credentials, Options, Place, RegistryError, Version, pull, push};
use registry::{Demand, NOW, Registry, Settings, contents, package, patient, signed, verifies};

fn folder(path: &Path, tag: Option<&str>) -> Place {
    Place::Folder { path: path.to_owned(), tag: tag.map(str::to_owned) }
}

#[test]
fn a_folder_gives_back_what_it_was_given() {
    let scratch = tempfile::tempdir().unwrap();
    let place = folder(&scratch.path().join("layout"), None);
    let package = package();
    let image = push(&package, &place, &Options::default()).unwrap();
    assert_eq!(image, Layout::from_package(&package).unwrap().manifests().unwrap().image);
    assert_eq!(pull(&place, &Options::default()).unwrap(), package);
    // Again changes nothing.
    push(&package, &place, &Options::default()).unwrap();
    assert_eq!(pull(&place, &Options::default()).unwrap(), package);
    // The layout of a package alone is the layout in the package.
    let index = std::fs::read(scratch.path().join("layout/index.json")).unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(listed["manifests"].as_array().unwrap().len(), 3);
}

#[test]
fn a_package_unpacked_by_tar_is_a_folder_to_pull_from() {
    let scratch = tempfile::tempdir().unwrap();
    let package = package();
    let layout = Layout::from_package(&package).unwrap();
    std::fs::create_dir_all(scratch.path().join("blobs/sha256")).unwrap();
    std::fs::write(scratch.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    std::fs::write(scratch.path().join("index.json"), &layout.index).unwrap();
    for (digest, bytes) in &layout.blobs {
        std::fs::write(scratch.path().join("blobs/sha256").join(digest.hex()), bytes).unwrap();
    }
    assert_eq!(pull(&folder(scratch.path(), None), &Options::default()).unwrap(), package);
}

#[test]
fn a_folder_holds_several_by_tag() {
    let scratch = tempfile::tempdir().unwrap();
    let (first, second) = (signed(&contents("first"), NOW), signed(&contents("second"), NOW));
    let at = |tag| folder(scratch.path(), Some(tag));
    push(&first, &at("1.0"), &Options::default()).unwrap();
    push(&second, &at("2.0"), &Options::default()).unwrap();
    assert_eq!(pull(&at("1.0"), &Options::default()).unwrap(), first);
    assert_eq!(pull(&at("2.0"), &Options::default()).unwrap(), second);
    // A tag moves.
    push(&second, &at("1.0"), &Options::default()).unwrap();
    assert_eq!(pull(&at("1.0"), &Options::default()).unwrap(), second);
    let error = pull(&at("3.0"), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("nothing in it has the tag"), "{error}");
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("letter.txt"), "dear").unwrap();
    let error = push(&package(), &folder(scratch.path(), None), &Options::default()).unwrap_err();
    assert!(matches!(error, RegistryError::Layout { .. }), "{error}");
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
    let error = pull(&folder(scratch.path(), None), &Options::default()).unwrap_err();
    assert!(matches!(error, RegistryError::File { action: "read", .. }), "{error}");
}

#[test]
fn pushes_into_one_folder_at_once_lose_no_tag() {
    const PUSHES: usize = 8;
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("layout");
    let packages: Vec<Vec<u8>> =
        (0..PUSHES).map(|number| signed(&contents(&format!("number {number}")), NOW)).collect();
    let at = |number: usize| folder(&path, Some(&format!("{number}.0")));
    let start = Barrier::new(PUSHES);
    std::thread::scope(|scope| {
        for (number, package) in packages.iter().enumerate() {
            let (start, place) = (&start, at(number));
            scope.spawn(move || {
                start.wait();
                push(package, &place, &patient()).unwrap();
            });
        }
    });
    for (number, package) in packages.iter().enumerate() {
        assert!(pull(&at(number), &patient()).unwrap() == *package, "{number}");
    }
}

#[test]
fn a_push_that_was_killed_leaves_the_folder_to_the_next() {
    let scratch = tempfile::tempdir().unwrap();
    let place = folder(scratch.path(), Some("1.0"));
    push(&package(), &place, &Options::default()).unwrap();
    // As far as it comes before the index, and with what it was about to write.
    std::fs::remove_file(scratch.path().join("index.json")).unwrap();
    let drafts =
        [".kvasir-push-a1B2c3", "blobs/sha256/.kvasir-push-d4E5f6"].map(|draft| scratch.path().join(draft));
    for draft in &drafts {
        std::fs::write(draft, "half").unwrap();
    }
    push(&package(), &place, &Options::default()).unwrap();
    assert_eq!(pull(&place, &Options::default()).unwrap(), package());
    assert!(drafts.iter().all(|draft| !draft.exists()));
    // Killed before anything else.
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join(".kvasir-push-a1B2c3"), "half").unwrap();
    push(&package(), &folder(scratch.path(), None), &Options::default()).unwrap();
}

#[test]
fn a_folder_that_another_push_holds_is_waited_for_no_longer_than_allowed() {
    let scratch = tempfile::tempdir().unwrap();
    let held = std::fs::File::open(scratch.path()).unwrap();
    held.lock().unwrap();
    let options = Options { deadline: Duration::from_millis(50), ..Options::default() };
    let error = push(&package(), &folder(scratch.path(), None), &options).unwrap_err();
    assert!(matches!(error, RegistryError::Busy { .. }), "{error}");
    drop(held);
    push(&package(), &folder(scratch.path(), None), &patient()).unwrap();
}

#[test]
fn what_is_pushed_into_a_folder_has_the_permissions_of_new_files() {
    let scratch = tempfile::tempdir().unwrap();
    let place = folder(&scratch.path().join("layout"), None);
    push(&package(), &place, &Options::default()).unwrap();
    let plain = scratch.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    let blobs = scratch.path().join("layout/blobs/sha256");
    let blobs = std::fs::read_dir(blobs).unwrap().map(|entry| entry.unwrap().path());
    let documents = ["index.json", "oci-layout"].map(|file| scratch.path().join("layout").join(file));
    for file in blobs.chain(documents) {
        assert_eq!(mode(&file), mode(&plain), "{}", file.display());
    }
}

#[test]
fn a_registry_gives_back_what_it_was_given_with_lists_of_referrers_and_without() {
    for referrers in [true, false] {
        let registry = Registry::start(Settings { referrers, ..Settings::default() });
        let place = registry.place("someone/kernel:1.0");
        let package = package();
        let image = push(&package, &place, &Options::default()).unwrap();
        let pulled = pull(&place, &Options::default()).unwrap();
        assert_eq!(pulled, package);
        assert!(verifies(&pulled));
        // By digest too.
        let by_digest = registry.place(&format!("someone/kernel@{image}"));
        assert_eq!(pull(&by_digest, &Options::default()).unwrap(), package);
        // What is there is not uploaded again.
        let uploads = || registry.requests().iter().filter(|asked| asked.method == "POST").count();
        let before = uploads();
        push(&package, &place, &Options::default()).unwrap();
        assert_eq!(uploads(), before);
        assert_eq!(pull(&place, &Options::default()).unwrap(), package);
        let tag = format!("sha256-{}", image.hex());
        assert_eq!(registry.state.lock().unwrap().manifests.contains_key(&tag), !referrers);
    }
}

#[test]
fn the_image_is_one_that_others_carry() {
    let registry = Registry::start(Settings::default());
    push(&package(), &registry.place("kernel:1.0"), &Options::default()).unwrap();
    let state = registry.state.lock().unwrap();
    let (media_type, bytes) = &state.manifests["1.0"];
    let image: serde_json::Value = serde_json::from_slice(bytes).unwrap();
    assert_eq!(media_type, registry::MANIFEST);
    assert_eq!(image["config"]["mediaType"], "application/vnd.wasm.config.v0+json");
    let layers = image["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 1);
    assert_eq!(layers[0]["mediaType"], "application/wasm");
    assert_eq!(state.blobs[layers[0]["digest"].as_str().unwrap()], contents("").component);
}

#[test]
fn an_unsigned_package_travels_too_and_stays_unsigned() {
    let registry = Registry::start(Settings::default());
    let package = pack_unsigned(&contents("nobody signed")).unwrap();
    push(&package, &registry.place("kernel:1.0"), &Options::default()).unwrap();
    let pulled = pull(&registry.place("kernel:1.0"), &Options::default()).unwrap();
    assert_eq!(pulled, package);
    assert!(!verifies(&pulled));
}

#[test]
fn of_several_signatures_the_one_that_fits_and_begins_last_is_taken() {
    for referrers in [true, false] {
        let registry = Registry::start(Settings { referrers, ..Settings::default() });
        let contents = contents("signed thrice");
        let mut of_other_files = contents.clone();
        of_other_files.vectors.insert("one.vector".to_owned(), vec![9; 3000]);
        let other = signed(&of_other_files, UnixSeconds(NOW.0 + 50));
        let early = signed(&contents, UnixSeconds(NOW.0 - 100));
        let late = signed(&contents, NOW);
        let place = registry.place("kernel:1.0");
        for package in [&late, &early] {
            push(package, &place, &Options::default()).unwrap();
        }
        assert_eq!(pull(&place, &Options::default()).unwrap(), late);
        // The same image with other files beside it, signed later still.
        push(&other, &place, &Options::default()).unwrap();
        assert_eq!(pull(&place, &Options::default()).unwrap(), other);
    }
}

#[test]
fn a_referrer_of_others_does_no_harm() {
    let registry = Registry::start(Settings::default());
    let (place, package) = (registry.place("kernel:1.0"), package());
    let image = push(&package, &place, &Options::default()).unwrap();
    let mut state = registry.state.lock().unwrap();
    for (kind, layers) in [
        ("application/vnd.other+json", serde_json::json!([])),
        // An attestation of two envelopes, or none of ours: the type is not ours alone.
        ("application/vnd.dsse.envelope.v1+json", serde_json::json!([])),
    ] {
        let empty = serde_json::json!({"mediaType": "application/vnd.oci.empty.v1+json", "size": 2,
            "digest": kvasir_plugin::BlobDigest::of(b"{}").to_string()});
        let manifest = serde_json::json!({"schemaVersion": 2, "mediaType": registry::MANIFEST, "artifactType": kind,
            "config": empty, "layers": layers,
            "subject": {"mediaType": registry::MANIFEST, "digest": image.to_string(), "size": 1}});
        let bytes = manifest.to_string().into_bytes();
        let digest = kvasir_plugin::BlobDigest::of(&bytes).to_string();
        state.manifests.insert(digest, (registry::MANIFEST.to_owned(), bytes));
    }
    drop(state);
    assert_eq!(pull(&place, &Options::default()).unwrap(), package);
}

#[test]
fn credentials_are_shown_when_asked_for() {
    let someone = Credentials::new("someone", "secret");
    let basic = "Basic c29tZW9uZTpzZWNyZXQ=".to_owned();
    let with = Options { credentials: Some(someone), ..Options::default() };
    for demand in [Demand::Basic(basic.clone()), Demand::Bearer(Some(basic.clone()))] {
        let registry = Registry::start(Settings { demand, ..Settings::default() });
        let (place, package) = (registry.place("kernel:1.0"), package());
        push(&package, &place, &with).unwrap();
        assert_eq!(pull(&place, &with).unwrap(), package);
        let first = &registry.requests()[0];
        assert_eq!(first.authorization, None, "nothing is shown to who did not ask");
        let error = pull(&place, &Options::default()).unwrap_err();
        assert!(matches!(error, RegistryError::Denied { status: 401, .. }), "{error}");
    }
    // A bearer key for nobody in particular, as public registries give it.
    let registry = Registry::start(Settings { demand: Demand::Bearer(None), ..Settings::default() });
    let (place, package) = (registry.place("kernel:1.0"), package());
    push(&package, &place, &Options::default()).unwrap();
    assert_eq!(pull(&place, &Options::default()).unwrap(), package);
    let asked: Vec<String> = registry.requests().into_iter().map(|asked| asked.target).collect();
    assert!(
        asked.contains(&"/keys?scope=repository%3Akernel%3Apull%2Cpush&service=tests".to_owned()),
        "{asked:?}"
    );
    assert!(asked.contains(&"/keys?scope=repository%3Akernel%3Apull&service=tests".to_owned()), "{asked:?}");
}

#[test]
fn tls_is_checked() {
    let registry = Registry::start(Settings { tls: true, ..Settings::default() });
    let (place, package) = (registry.place("kernel:1.0"), package());
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("registry.pem");
    std::fs::write(&path, &registry.pem).unwrap();
    let trusting = Options { loopback_tls: true, certificates: Some(path.clone()), ..patient() };
    push(&package, &place, &trusting).unwrap();
    assert_eq!(pull(&place, &trusting).unwrap(), package);
    // The certificate is nobody's whom the usual roots vouch for.
    let error = pull(&place, &Options { loopback_tls: true, ..patient() }).unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { .. }), "{error}");
    // Plain HTTP to a server of TLS is no way in.
    let error = pull(&place, &patient()).unwrap_err();
    assert!(!matches!(error, RegistryError::NotFound { .. }), "{error}");
    std::fs::write(&path, "no certificate").unwrap();
    let error = pull(&place, &trusting).unwrap_err();
    assert!(matches!(error, RegistryError::Certificates { .. }), "{error}");
}

#[test]
fn a_digest_to_push_to_must_be_the_image_own() {
    let registry = Registry::start(Settings::default());
    let Place::Registry(mut reference) = registry.place("kernel:1.0") else { unreachable!() };
    reference.version = Version::Digest(kvasir_plugin::BlobDigest::of(b"another"));
    let error = push(&package(), &Place::Registry(reference), &Options::default()).unwrap_err();
    assert!(matches!(error, RegistryError::Layout { .. }), "{error}");
    assert!(registry.requests().is_empty());
}

#[test]
fn what_is_no_package_is_not_pushed() {
    let registry = Registry::start(Settings::default());
    let mut cut = package();
    cut.truncate(cut.len() / 2);
    for wrong in [&b""[..], b"no package", &cut] {
        let error = push(wrong, &registry.place("kernel:1.0"), &Options::default()).unwrap_err();
        assert!(matches!(error, RegistryError::Package(_)), "{error}");
    }
    assert!(registry.requests().is_empty());
}
