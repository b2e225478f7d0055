//! `active.json`: which plugin is used where none is named, which ones were before it, and a count of changes that only grows.

use kvasir_plugin::PluginDigest;
use serde::{Deserialize, Serialize};

use crate::disk::{self, Draft};
use crate::error::StoreError;
use crate::limits::{MAX_ACTIVE_BYTES, MAX_FORMER};
use crate::places::Places;

const FORMAT: &str = "kvasir/active/v1";
const REMEDY: &str =
    "move it away and choose a plugin anew with `kvasir plugin list` and `kvasir plugin activate DIGEST`";

/// Which plugin is active. Cheap to read: a small file, of which nothing is verified. Whoever loads the plugin does that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Active {
    /// Grows by one with every change; zero where nothing was ever active.
    pub change: u64,
    /// The active plugin.
    pub digest: Option<PluginDigest>,
    /// Those that were active before and were not gone back to since, the last one at the end.
    pub former: Vec<PluginDigest>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActiveFile {
    format: String,
    change: u64,
    active: Option<String>,
    former: Vec<String>,
}

impl Active {
    /// Reads `active.json`; what was never written is [`Active::default`].
    pub(crate) fn read(places: &Places) -> Result<Self, StoreError> {
        let path = places.active();
        let Some(bytes) = disk::read(&path, MAX_ACTIVE_BYTES)? else { return Ok(Active::default()) };
        Self::parse(&bytes).map_err(|reason| StoreError::Corrupt { path, reason, remedy: REMEDY })
    }

    /// Writes it beside its place; the caller holds the store's lock.
    pub(crate) fn draft(&self, places: &Places) -> Result<Draft, StoreError> {
        let file = ActiveFile {
            format: FORMAT.to_owned(),
            change: self.change,
            active: self.digest.map(|digest| digest.to_string()),
            former: self.former.iter().map(PluginDigest::to_string).collect(),
        };
        Draft::write(&places.active(), &crate::json(&file))
    }

    /// What follows when `digest` is made active.
    pub(crate) fn then(&self, digest: PluginDigest) -> Self {
        let mut next = Active { change: self.change.saturating_add(1), digest: Some(digest), ..self.clone() };
        next.former.extend(self.digest);
        next.former.retain(|former| *former != digest);
        let surplus = next.former.len().saturating_sub(MAX_FORMER);
        next.former.drain(..surplus);
        next
    }

    /// What follows when the last former plugin is made active again, or none where there is no former one.
    pub(crate) fn back(&self) -> Option<Self> {
        let mut former = self.former.clone();
        let digest = former.pop()?;
        Some(Active { change: self.change.saturating_add(1), digest: Some(digest), former })
    }

    /// What follows when `digest` is gone back to no more, or none where it would not have been.
    pub(crate) fn without(&self, digest: PluginDigest) -> Option<Self> {
        let mut next = Active { change: self.change.saturating_add(1), ..self.clone() };
        next.former.retain(|former| *former != digest);
        (next.former != self.former).then_some(next)
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file: ActiveFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if file.format != FORMAT {
            return Err(format!("its format is {:?}, this program reads {FORMAT:?}", file.format));
        }
        if file.former.len() > MAX_FORMER {
            return Err(format!("it names {} former plugins, the limit is {MAX_FORMER}", file.former.len()));
        }
        let digest =
            |text: &str| PluginDigest::from_hex(text).ok_or_else(|| format!("{text:?} is no plugin digest"));
        Ok(Active {
            change: file.change,
            digest: file.active.as_deref().map(digest).transpose()?,
            former: file.former.iter().map(|text| digest(text)).collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn digest(byte: u8) -> PluginDigest {
        PluginDigest([byte; 32])
    }

    #[test]
    fn going_back_undoes_the_last_choices_one_by_one() {
        let three = Active::default().then(digest(1)).then(digest(2)).then(digest(3));
        assert_eq!((three.change, three.former.as_slice()), (3, &[digest(1), digest(2)][..]));
        let two = three.back().unwrap();
        assert_eq!((two.change, two.digest), (4, Some(digest(2))));
        let one = two.back().unwrap();
        assert_eq!((one.digest, one.back()), (Some(digest(1)), None));
        let skipped = three.without(digest(1)).unwrap();
        assert_eq!((skipped.change, skipped.former.as_slice()), (4, &[digest(2)][..]));
        assert_eq!(three.without(digest(3)), None);
        let again = three.then(digest(1));
        assert_eq!(again.former, [digest(2), digest(3)]);
        let many = (0..=255).fold(Active::default(), |active, byte| active.then(digest(byte)));
        assert_eq!(many.former.len(), MAX_FORMER);
    }

    #[test]
    fn hostile_text_is_refused_with_its_reason() {
        let good = format!(r#"{{"format":"{FORMAT}","change":1,"active":null,"former":[]}}"#);
        assert_eq!(Active::parse(good.as_bytes()).unwrap().change, 1);
        let many = format!("[{}]", vec![format!("\"{}\"", digest(1)); MAX_FORMER + 1].join(","));
        for (bad, said) in [
            (String::new(), "EOF"),
            (good[..good.len() - 1].to_owned(), "EOF"),
            (good.replace("v1", "v2"), "format"),
            (good.replace("null", "\"../../x\""), "digest"),
            (good.replace(":1,", ":-1,"), "u64"),
            (good.replace("[]", &many), "limit"),
            (good.replace("[]", "[],\"run\":\"x\""), "unknown field"),
            ("[".repeat(9000), "invalid type"),
        ] {
            let reason = Active::parse(bad.as_bytes()).unwrap_err();
            assert!(reason.contains(said), "{reason}");
        }
    }
}
