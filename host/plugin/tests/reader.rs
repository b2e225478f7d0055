//! The reader of packages under random bytes: it answers, whatever it is given, and what was packed comes back.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use std::collections::BTreeMap;

use kvasir_plugin::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

#[path = "../../../tests/data/hostile-package/by_hand.rs"]
#[allow(dead_code, unused_qualifications)] // Shared with the hostile corpus.
mod by_hand;
use by_hand::{MANIFEST, NOW, VALIDITY, key, tar, trust};

/// Everything that reads a package; it must answer, and `verify` refuse.
fn all_refuse(package: &[u8]) {
    assert!(verify(package, &trust(&[1]), NOW).is_err());
    let _ = Unverified::read(package);
    let _ = add_signature(package, &key(2));
    let _ = sign(package, VALIDITY, &key(2));
    if let Ok(layout) = layout::Layout::from_package(package) {
        assert_eq!(layout.to_package(), package, "a layout that was read is written as it was");
        let _ = layout.manifests();
    }
}

fn contents() -> impl Strategy<Value = PackageContents> {
    let vectors = btree_map("[a-z0-9_-]{1,20}", vec(any::<u8>(), 0..600), 0..5);
    (vec(any::<u8>(), 0..2000), vectors).prop_map(|(component, vectors): (Vec<u8>, BTreeMap<_, _>)| {
        PackageContents { manifest: MANIFEST.into(), component, vectors, ..Default::default() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..4096)) {
        all_refuse(&bytes);
    }

    #[test]
    fn archives_of_random_entries_are_refused(
        index in vec(any::<u8>(), 0..300),
        blobs in vec(vec(any::<u8>(), 0..300), 0..6),
    ) {
        let layout = layout::Layout {
            blobs: blobs.into_iter().map(|blob| (BlobDigest::of(&blob), blob)).collect(),
            index,
        };
        let package = layout.to_package();
        prop_assert_eq!(&layout::Layout::from_package(&package).unwrap(), &layout);
        all_refuse(&package);
    }

    /// Documents made of pieces of real ones, so that the readers behind the first field are met as well.
    #[test]
    fn documents_cut_and_joined_are_refused(
        from in 0usize..600, length in 0usize..600, into in 0usize..600, which in 0usize..4,
    ) {
        let mut stages = by_hand::fixture();
        let source = [&stages.image[..], &stages.list, &stages.index].concat();
        let piece: Vec<u8> = source.iter().skip(from).take(length).copied().collect();
        let change = |document: &mut Vec<u8>| {
            let at = into.min(document.len());
            drop(document.splice(at..at, piece.iter().copied()));
        };
        match which {
            0 => change(&mut stages.image),
            1 => change(&mut stages.list),
            2 => change(stages.signature.as_mut().unwrap()),
            _ => change(stages.envelope.as_mut().unwrap()),
        }
        if which < 3 {
            stages.index = by_hand::index(&stages.image, &stages.list, stages.signature.as_deref());
        } else {
            let envelope = stages.envelope.take().unwrap();
            stages = stages.with_envelope(&envelope);
        }
        prop_assume!(length > 0 && !piece.is_empty());
        all_refuse(&tar(&stages.entries()));
    }

    #[test]
    fn what_is_packed_comes_back(contents in contents()) {
        let package = pack(&contents, VALIDITY, &key(1)).unwrap();
        let plugin = verify(&package, &trust(&[1]), NOW).unwrap();
        prop_assert_eq!(plugin.component(), &contents.component[..]);
        prop_assert_eq!(plugin.vectors(), &contents.vectors);
        let found = Unverified::read(&package).unwrap();
        prop_assert_eq!(&found.contents.sbom[..], plugin.sbom());
        prop_assert!(found.claims.unwrap().misfit.is_none());
        // What was unpacked packs to the same bytes.
        prop_assert_eq!(pack(&found.contents, VALIDITY, &key(1)).unwrap(), package);
    }
}
