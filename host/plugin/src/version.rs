//! Versions of plugins and of this host: three numbers, compared in order.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version of this host, against which a package's `min_host` is checked.
pub const HOST_VERSION: Version = Version { major: 0, minor: 1, patch: 0 };

/// `major.minor.patch` in plain decimal: no signs, leading zeros, suffixes or missing parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Changes that break a user.
    pub major: u32,
    /// Additions.
    pub minor: u32,
    /// Repairs.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A text that is not a [`Version`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a version is three plain numbers such as 0.1.0")]
pub struct VersionTextError;

impl FromStr for Version {
    type Err = VersionTextError;

    fn from_str(text: &str) -> Result<Self, VersionTextError> {
        let mut parts = text.split('.').map(|part| {
            let plain =
                part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
            if plain { part.parse::<u32>().map_err(|_| VersionTextError) } else { Err(VersionTextError) }
        });
        let mut next = || parts.next().unwrap_or(Err(VersionTextError));
        let version = Version { major: next()?, minor: next()?, patch: next()? };
        if parts.next().is_some() { Err(VersionTextError) } else { Ok(version) }
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_version_is_the_crate_version() {
        assert_eq!(HOST_VERSION.to_string(), env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn only_plain_triples_are_versions() {
        assert_eq!("1.20.3".parse(), Ok(Version { major: 1, minor: 20, patch: 3 }));
        for text in
            ["", "1", "1.2", "1.2.3.4", "1.2.x", "01.2.3", "+1.2.3", "1.2.3-beta", "1..3", "4294967296.0.0"]
        {
            assert_eq!(text.parse::<Version>(), Err(VersionTextError), "{text}");
        }
    }
}
