//! Permissions to use a version below the highest one seen, signed by the operator's root keys.
//!
//! A DSSE envelope over one small statement, bound to the package, its revision, the revision it goes below, and a time: it opens
//! the way for this package alone, and closes by itself when a still higher revision is seen, when its time is over, or when the
//! root's keys are changed.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey};
use kvasir_plugin::{
    KeyId, MAX_SIGNATURES, PluginDigest, Role, RoleName, UnixSeconds, VerifiedRoot, pre_authentication,
};
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::error::StoreError;
use crate::limits::{MAX_OVERRIDE_BYTES, OVERRIDE_DAYS};
use crate::places::Places;

/// The type that is signed together with the statement, so that no signature for something else counts here.
pub const OVERRIDE_PAYLOAD_TYPE: &str = "application/vnd.kvasir.plugin-downgrade+json";
/// A clock that was set back a little since must not undo what was signed.
const CLOCK_SLACK_SECONDS: u64 = 3600;

/// What a permission says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Override {
    /// The package that may be used.
    pub plugin: PluginDigest,
    /// Its revision.
    pub revision: u64,
    /// The highest revision seen, below which it goes.
    pub seen: u64,
    /// When it was signed.
    pub issued: UnixSeconds,
    /// The first second at which it no longer holds.
    pub expires: UnixSeconds,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    #[serde(rename = "payloadType")]
    payload_type: String,
    payload: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvelopeSignature {
    keyid: KeyId,
    sig: String,
}

impl Override {
    /// A permission from `now` on for [`OVERRIDE_DAYS`].
    pub(crate) fn new(plugin: PluginDigest, revision: u64, seen: u64, now: UnixSeconds) -> Self {
        let expires = UnixSeconds(now.0.saturating_add(OVERRIDE_DAYS * 86_400));
        Override { plugin, revision, seen, issued: now, expires }
    }

    /// Signs it with `keys`, checks that they are enough, and writes it.
    pub(crate) fn write(
        &self,
        places: &Places,
        root: &VerifiedRoot,
        keys: &[&SigningKey],
    ) -> Result<(), StoreError> {
        let path = places.override_of(self.plugin);
        let payload = crate::json(self);
        let message = pre_authentication(OVERRIDE_PAYLOAD_TYPE, &payload);
        let sign = |key: &&SigningKey| EnvelopeSignature {
            keyid: KeyId::of(&key.verifying_key()),
            sig: STANDARD.encode(key.sign(&message).to_bytes()),
        };
        let envelope = Envelope {
            payload_type: OVERRIDE_PAYLOAD_TYPE.to_owned(),
            payload: STANDARD.encode(&payload),
            signatures: keys.iter().map(sign).collect(),
        };
        let bytes = crate::json(&envelope);
        open(&bytes, root).map_err(|reason| StoreError::Override { path: path.clone(), reason })?;
        disk::make_folder(&places.overrides())?;
        disk::replace(&path, &bytes)
    }

    /// The permission for `plugin`, its signatures checked against `root`; none where there is no file.
    pub(crate) fn read(
        places: &Places,
        plugin: PluginDigest,
        root: &VerifiedRoot,
    ) -> Result<Option<Self>, StoreError> {
        let path = places.override_of(plugin);
        let Some(bytes) = disk::read(&path, MAX_OVERRIDE_BYTES)? else { return Ok(None) };
        let said =
            open(&bytes, root).map_err(|reason| StoreError::Override { path: path.clone(), reason })?;
        if said.plugin == plugin {
            Ok(Some(said))
        } else {
            Err(StoreError::Override { path, reason: format!("it is for plugin {}", said.plugin) })
        }
    }

    /// Whether it opens the way for a package of `revision` where `seen` is the highest; else why not.
    pub(crate) fn check(&self, revision: u64, seen: u64, now: UnixSeconds) -> Result<(), String> {
        if self.revision != revision {
            return Err(format!("it is for revision {}, the package has {revision}", self.revision));
        }
        if self.seen != seen {
            return Err(format!("it goes below revision {}, {seen} was seen since", self.seen));
        }
        if self.issued.0 > now.0.saturating_add(CLOCK_SLACK_SECONDS) {
            return Err(format!("it was signed at {}, it is now {now}", self.issued));
        }
        if now >= self.expires {
            return Err(format!("it expired at {}, it is now {now}", self.expires));
        }
        Ok(())
    }
}

/// Checks the envelope's signatures, then reads what it says: the root's threshold of distinct root keys, none of which may fail.
fn open(bytes: &[u8], root: &VerifiedRoot) -> Result<Override, String> {
    let envelope: Envelope = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if envelope.payload_type != OVERRIDE_PAYLOAD_TYPE {
        return Err(format!("it signs a {:?}, not a {OVERRIDE_PAYLOAD_TYPE:?}", envelope.payload_type));
    }
    if envelope.signatures.len() > MAX_SIGNATURES {
        return Err(format!(
            "it has {} signatures, the limit is {MAX_SIGNATURES}",
            envelope.signatures.len()
        ));
    }
    let payload = STANDARD.decode(&envelope.payload).map_err(|_| "its payload is not base64".to_owned())?;
    let message = pre_authentication(OVERRIDE_PAYLOAD_TYPE, &payload);
    let Some(Role { keys, threshold }) = root.root().roles.get(&RoleName::Root) else {
        return Err("the root has no root keys".to_owned());
    };
    let mut valid = BTreeSet::new();
    for EnvelopeSignature { keyid, sig } in &envelope.signatures {
        let Some(key) = root.root().keys.get(keyid).filter(|_| keys.contains(keyid)) else { continue };
        let bytes = STANDARD.decode(sig).ok().and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
        let signature = Signature::from_bytes(&bytes.ok_or("a signature is not 64 bytes of base64")?);
        key.key
            .verify_strict(&message, &signature)
            .map_err(|_| format!("the signature by key {keyid} does not match it: it was altered"))?;
        valid.insert(*keyid);
    }
    if (valid.len() as u64) < u64::from(*threshold) {
        return Err(format!("it is signed by {} of the root's keys, which takes {threshold}", valid.len()));
    }
    serde_json::from_slice(&payload).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kvasir_plugin::{PublisherKey, Root};

    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_000_000);
    const PLUGIN: PluginDigest = PluginDigest([7; 32]);

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_bytes(&[seed; 32])
    }

    fn root(threshold: u32) -> VerifiedRoot {
        let public = |seed| PublisherKey { key: key(seed).verifying_key(), name: None };
        let mut root = Root::new(UnixSeconds(2_000_000), public(1));
        root.grant(RoleName::Root, public(2));
        root.roles.get_mut(&RoleName::Root).unwrap().threshold = threshold;
        VerifiedRoot::for_rotation(&root.sign(&[&key(1), &key(2)]).unwrap()).unwrap()
    }

    #[test]
    fn it_holds_for_its_package_revision_and_time_alone() {
        let place = tempfile::tempdir().unwrap();
        let places = Places::new(place.path(), place.path());
        assert_eq!(Override::read(&places, PLUGIN, &root(1)).unwrap(), None);
        let written = Override::new(PLUGIN, 3, 5, NOW);
        written.write(&places, &root(1), &[&key(1)]).unwrap();
        let read = Override::read(&places, PLUGIN, &root(1)).unwrap().unwrap();
        assert_eq!(read, written);
        assert_eq!(read.check(3, 5, NOW), Ok(()));
        for (revision, seen, now, said) in [
            (2, 5, NOW, "revision 3"),
            (3, 6, NOW, "6 was seen"),
            (3, 5, read.expires, "expired"),
            (3, 5, UnixSeconds(0), "was signed"),
        ] {
            let reason = read.check(revision, seen, now).unwrap_err();
            assert!(reason.contains(said), "{reason}");
        }
        let other = PluginDigest([8; 32]);
        fs::rename(places.override_of(PLUGIN), places.override_of(other)).unwrap();
        assert!(Override::read(&places, other, &root(1)).unwrap_err().to_string().contains("is for plugin"));
    }

    #[test]
    fn it_takes_the_roots_threshold_of_distinct_keys() {
        let place = tempfile::tempdir().unwrap();
        let places = Places::new(place.path(), place.path());
        let permission = Override::new(PLUGIN, 3, 5, NOW);
        for keys in [&[&key(1)][..], &[&key(1), &key(1)], &[&key(1), &key(9)], &[]] {
            let refused = permission.write(&places, &root(2), keys).unwrap_err();
            assert!(refused.to_string().contains("takes 2"), "{refused}");
        }
        permission.write(&places, &root(2), &[&key(1), &key(2)]).unwrap();
        assert!(Override::read(&places, PLUGIN, &root(2)).unwrap().is_some());
    }

    #[test]
    fn an_altered_or_foreign_envelope_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let places = Places::new(place.path(), place.path());
        Override::new(PLUGIN, 3, 5, NOW).write(&places, &root(1), &[&key(1)]).unwrap();
        let path = places.override_of(PLUGIN);
        let good = fs::read_to_string(&path).unwrap();
        let envelope: serde_json::Value = serde_json::from_str(&good).unwrap();
        let payload = envelope["payload"].as_str().unwrap();
        let forged =
            String::from_utf8(STANDARD.decode(payload).unwrap()).unwrap().replace("\"seen\":5", "\"seen\":9");
        for (bad, said) in [
            (good.replace(payload, &STANDARD.encode(forged)), "altered"),
            (good.replace(OVERRIDE_PAYLOAD_TYPE, "application/vnd.in-toto+json"), "it signs a"),
            (good[..good.len() / 2].to_owned(), "EOF"),
            (good.replace("signatures\":[", "more\":1,\"signatures\":["), "unknown field"),
        ] {
            fs::write(&path, bad).unwrap();
            let refused = Override::read(&places, PLUGIN, &root(1)).unwrap_err();
            assert!(refused.to_string().contains(said), "{refused}");
        }
        fs::write(&path, vec![b' '; MAX_OVERRIDE_BYTES as usize + 1]).unwrap();
        assert!(matches!(Override::read(&places, PLUGIN, &root(1)), Err(StoreError::TooLarge { .. })));
    }
}
