//! Whom this host trusts: `root.json` and `revoked.json` in the configuration folder, checked against each other and against the
//! highest versions seen.
//!
//! The last root that was accepted is kept beside the packages. Another one is believed only if a chain of roots leads from that
//! one to it, each signed by the one before: `trust/root.<version>.json` holds the steps between. A home without any root trusts
//! the keys of `trust/*.pub`, as homes did before there were roots. The last revocations that were accepted are kept there too: nothing
//! is decided by this copy, it is there to be put back.

use kvasir_plugin::{
    MAX_TRUST_DOCUMENT_BYTES, Seen, TrustStore, UnixSeconds, VerifiedRevocations, VerifiedRoot,
};

use crate::disk::{self, Lock};
use crate::error::StoreError;
use crate::limits::MAX_ROOT_STEPS;
use crate::places::Places;
use crate::seen_files;

/// Roots and revocations are bounded alike.
const LIMIT: u64 = MAX_TRUST_DOCUMENT_BYTES as u64;
/// A time at which nothing has expired: the signatures are checked here, the validity when a package is verified.
const NEVER_EXPIRED: UnixSeconds = UnixSeconds(0);
/// What to do about a damaged root of which there is a copy.
const ROOT_REMEDY: &str =
    "plugins/root.json in the data folder is a copy of the last one that was accepted: copy it back";
/// The same of revocations.
const REVOCATIONS_REMEDY: &str =
    "plugins/revoked.json in the data folder is a copy of the last one that was accepted: copy it back";

/// Whom this host trusts at the moment.
#[derive(Clone, Debug)]
pub struct Trust {
    root: Option<VerifiedRoot>,
    revocations: Option<VerifiedRevocations>,
    publishers: TrustStore,
}

impl Trust {
    /// The root; none in a home that has `trust/*.pub` alone.
    pub fn root(&self) -> Option<&VerifiedRoot> {
        self.root.as_ref()
    }

    /// What is revoked; none where nothing ever was.
    pub fn revocations(&self) -> Option<&VerifiedRevocations> {
        self.revocations.as_ref()
    }

    /// The publishers who follow from both. It refuses every package once root or revocations have expired.
    pub fn publishers(&self) -> &TrustStore {
        &self.publishers
    }
}

/// What was found, and what must be written before it may be used.
pub struct Found {
    pub trust: Trust,
    pub seen: Seen,
    root_to_accept: Option<Vec<u8>>,
    revocations_to_keep: Option<Vec<u8>>,
    seen_raised: bool,
}

impl Found {
    /// Reads and checks everything; writes nothing.
    pub fn read(places: &Places) -> Result<Self, StoreError> {
        let mut seen = seen_files::read(places)?;
        let Some((root, new)) = read_root(places, &seen)? else {
            let publishers = TrustStore::load_folder(&places.trust()).map_err(StoreError::Trust)?;
            let trust = Trust { root: None, revocations: None, publishers };
            return Ok(Found {
                trust,
                seen,
                root_to_accept: None,
                revocations_to_keep: None,
                seen_raised: false,
            });
        };
        let (revocations, revocations_to_keep) = read_revocations(places, &root, &seen)?.unzip();
        let before = seen.clone();
        seen.check_and_raise_trust(&root, revocations.as_ref())
            .map_err(|source| StoreError::Document { folder: places.trust(), source })?;
        let publishers = TrustStore::from_root(&root, revocations.as_ref());
        let seen_raised = seen != before;
        let trust = Trust { root: Some(root), revocations, publishers };
        let revocations_to_keep = revocations_to_keep.flatten();
        Ok(Found { trust, seen, root_to_accept: new, revocations_to_keep, seen_raised })
    }

    /// Whether [`Found::keep`] has something to write before this may be used. A copy that is missing or another is made with the next
    /// change, so that a home on a disk that takes nothing can be used.
    pub fn is_new(&self) -> bool {
        self.seen_raised || self.root_to_accept.is_some()
    }

    /// Writes what is new. What was seen goes before the root: a crash after it refuses too much, never too little. The copy of the
    /// revocations goes before both, so that it is never older than what was seen.
    pub fn keep(&mut self, places: &Places, lock: &Lock) -> Result<(), StoreError> {
        if let Some(bytes) = self.revocations_to_keep.take() {
            disk::replace(&places.accepted_revocations(), &bytes)?;
        }
        if self.seen_raised {
            seen_files::write(places, &self.seen, lock)?;
            self.seen_raised = false;
        }
        if let Some(bytes) = self.root_to_accept.take() {
            disk::replace(&places.accepted_root(), &bytes)?;
        }
        Ok(())
    }
}

/// A root, and its bytes where it is not the one accepted last.
type RootFound = (VerifiedRoot, Option<Vec<u8>>);

/// The root, and its bytes where it is not the one accepted last; none where there never was one.
fn read_root(places: &Places, seen: &Seen) -> Result<Option<RootFound>, StoreError> {
    let refused = |source| StoreError::Document { folder: places.trust(), source };
    let accepted = disk::read(&places.accepted_root(), LIMIT)?;
    let current = disk::read(&places.root(), LIMIT).map_err(|error| match accepted {
        Some(_) => too_large(error, ROOT_REMEDY),
        None => error,
    })?;
    let Some(current) = current else {
        return match (accepted, seen.root()) {
            (None, 0) if places.trust().is_dir() => Ok(None),
            (None, 0) => Err(StoreError::NoTrust { path: places.trust() }),
            _ => Err(StoreError::RootMissing { path: places.root(), copy: places.accepted_root() }),
        };
    };
    let root = VerifiedRoot::for_rotation(&current).map_err(|error| match accepted {
        Some(_) => StoreError::corrupt(places.root(), error, ROOT_REMEDY),
        None => refused(error),
    })?;
    let Some(accepted) = accepted else { return Ok(Some((root, Some(current)))) };
    if accepted == current {
        return Ok(Some((root, None)));
    }
    let mut step = VerifiedRoot::for_rotation(&accepted).map_err(|error| {
        let remedy = "put trust/root.json and this copy of it back from a backup";
        StoreError::corrupt(places.accepted_root(), error, remedy)
    })?;
    if root.version() == step.version() {
        // The same root with another choice of signatures is the same root.
        if root == step {
            return Ok(Some((root, Some(current))));
        }
        return Err(StoreError::RootReplaced { path: places.root(), version: root.version() });
    }
    if root.version() > step.version().saturating_add(MAX_ROOT_STEPS) {
        return Err(StoreError::RootTooFar {
            path: places.root(),
            found: root.version(),
            accepted: step.version(),
        });
    }
    // An older root takes no step and is refused by what was seen.
    while step.version() < root.version() {
        let next = step.version().saturating_add(1);
        let bytes = if next == root.version() {
            current.clone()
        } else {
            let path = places.root_version(next);
            disk::read(&path, LIMIT)?.ok_or(StoreError::RootStepMissing { path, version: next })?
        };
        step = step.update(&bytes, NEVER_EXPIRED).map_err(refused)?;
    }
    let new = (root.version() >= seen.root()).then_some(current);
    Ok(Some((root, new)))
}

/// Revocations, and their bytes where the copy of them is another.
type RevocationsFound = (VerifiedRevocations, Option<Vec<u8>>);

/// The revocations, and their bytes where the copy of them is another; none where there never were any.
fn read_revocations(
    places: &Places,
    root: &VerifiedRoot,
    seen: &Seen,
) -> Result<Option<RevocationsFound>, StoreError> {
    let copy = disk::read(&places.accepted_revocations(), LIMIT)?;
    // Only a copy that holds is worth naming.
    let is_whole = |copy: &[u8]| VerifiedRevocations::for_renewal(copy, root).is_ok();
    let Some(current) = disk::read(&places.revoked(), LIMIT).map_err(|error| match &copy {
        Some(copy) if is_whole(copy) => too_large(error, REVOCATIONS_REMEDY),
        _ => error,
    })?
    else {
        return match &copy {
            Some(copy) if seen.revocations() > 0 && is_whole(copy) => Err(StoreError::RevocationsMissing {
                path: places.revoked(),
                copy: places.accepted_revocations(),
            }),
            // Where some were seen, this is refused by what was seen.
            _ => Ok(None),
        };
    };
    let verified = VerifiedRevocations::for_renewal(&current, root).map_err(|error| match &copy {
        Some(copy) if is_whole(copy) => StoreError::corrupt(places.revoked(), error, REVOCATIONS_REMEDY),
        _ => StoreError::Document { folder: places.trust(), source: error },
    })?;
    let new = (copy.as_ref() != Some(&current)).then_some(current);
    Ok(Some((verified, new)))
}

/// An error of reading a document, of which there is a copy, with the remedy that is better than moving it away.
fn too_large(error: StoreError, remedy: &'static str) -> StoreError {
    match error {
        StoreError::TooLarge { path, limit } => {
            StoreError::Corrupt { path, reason: format!("it has more than {limit} bytes"), remedy }
        }
        error => error,
    }
}
