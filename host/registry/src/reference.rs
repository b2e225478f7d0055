//! Names of places: a folder with an OCI layout in it, or a repository of a registry.
//!
//! | text | place |
//! | --- | --- |
//! | `oci://ghcr.io/someone/kernel:1.4.0` | a registry, by tag (`latest` where none is named) |
//! | `oci://localhost:5000/kernel@sha256:<64 digits>` | a registry, by digest |
//! | `oci:/some/folder:1.4.0`, `oci:folder` | a folder, by tag or without |
//! | `some/folder` | a folder |

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use kvasir_plugin::BlobDigest;

use crate::error::RegistryError;
use crate::limits::MAX_REFERENCE_BYTES;

/// Where packages are pushed to and pulled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A folder with `oci-layout`, `index.json` and `blobs`.
    Folder {
        /// The folder.
        path: PathBuf,
        /// `org.opencontainers.image.ref.name` of the plugin in it, where the folder may hold several.
        tag: Option<String>,
    },
    /// A registry.
    Registry(Reference),
}

/// A repository of a registry, and which manifest in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Host and, after a colon, port: `ghcr.io`, `localhost:5000`, `[::1]:5000`.
    pub host: String,
    /// The repository's name: lower-case words with `/` between.
    pub name: String,
    /// Which manifest.
    pub version: Version,
}

/// Which manifest of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// Whatever the tag points to.
    Tag(String),
    /// This very one.
    Digest(BlobDigest),
}

impl FromStr for Place {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<Self, RegistryError> {
        let wrong = |reason| RegistryError::Reference {
            text: without_credentials(text).chars().take(100).collect(),
            reason,
        };
        if text.len() > MAX_REFERENCE_BYTES {
            return Err(wrong("it is longer than 512 bytes"));
        }
        if let Some(rest) = text.strip_prefix("oci://") {
            if without_credentials(text) != text {
                return Err(wrong(
                    "credentials do not belong in it, but in KVASIR_REGISTRY_USER and KVASIR_REGISTRY_PASSWORD",
                ));
            }
            return reference(rest).map(Place::Registry).map_err(wrong);
        }
        if text.contains("://") {
            return Err(wrong("a registry begins with `oci://`"));
        }
        let (path, tag) = match text.strip_prefix("oci:") {
            None => (text, None),
            Some(rest) => match rest.rsplit_once(':') {
                Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
                _ => (rest, None),
            },
        };
        if path.is_empty() {
            return Err(wrong("there is no path"));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong("a tag has letters, digits, `.`, `-` and `_`, 128 at most"));
        }
        Ok(Place::Folder { path: PathBuf::from(path), tag: tag.map(str::to_owned) })
    }
}

/// `text` with `***` for what stands before a host, `user:password@`: a refusal is shown, logged and reported.
fn without_credentials(text: &str) -> Cow<'_, str> {
    let Some((scheme, rest)) = text.split_once("://") else { return Cow::Borrowed(text) };
    // A password may hold any character, so it ends at the last `@` that no digest follows.
    let (named, digest) = match rest.rsplit_once('@') {
        Some((named, after)) if named.contains('/') && is_like_digest(after) => rest.split_at(named.len()),
        _ => (rest, ""),
    };
    match named.rsplit_once('@') {
        Some((_, host)) => Cow::Owned(format!("{scheme}://***@{host}{digest}")),
        None => Cow::Borrowed(text),
    }
}

/// Whether a text is meant as a digest, of whatever length, and not as a host with a port.
fn is_like_digest(text: &str) -> bool {
    text.split_once(':').is_some_and(|(algorithm, digits)| {
        matches!(algorithm, "sha256" | "sha384" | "sha512" | "sha1" | "md5")
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn reference(text: &str) -> Result<Reference, &'static str> {
    let (host, rest) = text.split_once('/').ok_or("there is no repository after the host")?;
    if !is_host(host) {
        return Err("the host is not a plain name with an optional port");
    }
    let (name, version) = match rest.split_once('@') {
        Some((name, digest)) => {
            // A tag beside a digest says nothing that the digest does not.
            let name = name.split_once(':').map_or(name, |(name, _)| name);
            (
                name,
                Version::Digest(
                    BlobDigest::parse(digest).ok_or("the digest is not `sha256:` and 64 digits")?,
                ),
            )
        }
        None => match rest.split_once(':') {
            Some((name, tag)) if is_tag(tag) => (name, Version::Tag(tag.to_owned())),
            Some(_) => return Err("a tag has letters, digits, `.`, `-` and `_`, 128 at most"),
            None => (rest, Version::Tag("latest".to_owned())),
        },
    };
    if !is_repository(name) {
        return Err("a repository's name is lower-case words with `/` between");
    }
    Ok(Reference { host: host.to_owned(), name: name.to_owned(), version })
}

/// Letters, digits, dots and dashes, or an address in square brackets, and perhaps a port.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            if address.parse::<std::net::Ipv6Addr>().is_err() {
                return false;
            }
            ("bracketed", if rest.is_empty() { None } else { Some(rest.strip_prefix(':').unwrap_or("")) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    let port_fits = port.is_none_or(|port| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    !host.is_empty() && !host.starts_with(['.', '-']) && host.bytes().all(plain) && port_fits
}

fn is_repository(name: &str) -> bool {
    name.len() <= 255
        && name.split('/').all(|word| {
            let ends = |end: Option<char>| end.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
            ends(word.chars().next())
                && ends(word.chars().last())
                && word.bytes().all(|byte| {
                    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
                })
        })
}

/// Whether a text may be a tag.
pub(crate) fn is_tag(text: &str) -> bool {
    let first = text.chars().next();
    text.len() <= 128
        && first.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

impl Reference {
    /// Whether the host is this machine itself, by name or address.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }
}

/// Whether `host`, with or without a port, is this machine itself. A name is not looked up: others may be as well.
pub(crate) fn is_loopback(host: &str) -> bool {
    let name = without_port(host);
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_here)
}

/// Whether `host`, with or without a port, is an address in another form than four numbers, as `127.1` or `2130706433`: resolvers take
/// them, and people do not see where they lead.
pub(crate) fn is_odd_address(host: &str) -> bool {
    let name = without_port(host);
    if name.contains(':') {
        return false;
    }
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits(last) || last.to_ascii_lowercase().starts_with("0x");
    number && name.parse::<std::net::Ipv4Addr>().is_err()
}

/// Whether `host`, with or without a port, is written as an address that [`is_near`].
pub(crate) fn is_near_address(host: &str) -> bool {
    is_loopback(host) || without_port(host).parse().is_ok_and(is_near)
}

/// Whether an address is this machine itself: loopback or the unspecified one, IPv4's also as IPv6 maps them.
fn is_here(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

/// Whether an address is this machine itself or on its link alone, where clouds keep what is for a machine's own eyes.
pub(crate) fn is_near(address: IpAddr) -> bool {
    let on_link = match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    on_link || is_here(address)
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Tag(tag) => f.write_str(tag),
            Version::Digest(digest) => write!(f, "{digest}"),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if matches!(self.version, Version::Tag(_)) { ':' } else { '@' };
        write!(f, "oci://{}/{}{mark}{}", self.host, self.name, self.version)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Registry(reference) => write!(f, "{reference}"),
            Place::Folder { path, tag: None } => write!(f, "oci:{}", path.display()),
            Place::Folder { path, tag: Some(tag) } => write!(f, "oci:{}:{tag}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_written() {
        let digest = format!("sha256:{}", "a1".repeat(32));
        for text in [
            "oci://ghcr.io/someone/kernel:1.4.0",
            "oci://localhost:5000/kernel:latest",
            "oci://[::1]:5000/a/b_c.d-e:v1",
            &format!("oci://10.0.0.1/kernel@{digest}"),
            "oci:/some/folder:1.4.0",
            "oci:folder",
        ] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        let folder = |path: &str| Place::Folder { path: path.into(), tag: None };
        assert_eq!("some/folder".parse::<Place>().unwrap(), folder("some/folder"));
        assert_eq!("/some/fol:der".parse::<Place>().unwrap(), folder("/some/fol:der"));
        assert_eq!("oci:/a:b/folder".parse::<Place>().unwrap(), folder("/a:b/folder"));
        let latest = "oci://ghcr.io/kernel".parse::<Place>().unwrap();
        assert_eq!(latest.to_string(), "oci://ghcr.io/kernel:latest");
        let both = format!("oci://ghcr.io/kernel:1.0@{digest}").parse::<Place>().unwrap();
        assert_eq!(both.to_string(), format!("oci://ghcr.io/kernel@{digest}"));
    }

    #[test]
    fn what_names_no_place_is_refused() {
        let long = format!("oci://ghcr.io/{}", "a".repeat(MAX_REFERENCE_BYTES));
        for text in [
            "",
            "oci:",
            "oci://",
            "oci://ghcr.io",
            "oci://ghcr.io/",
            "oci:///kernel",
            "oci://user@ghcr.io/kernel",
            "oci://ghcr.io:0/kernel",
            "oci://ghcr.io:99999/kernel",
            "oci://ghcr.io:/kernel",
            "oci://[::1/kernel",
            "oci://[x]:1/kernel",
            "oci://ghcr.io/Kernel",
            "oci://ghcr.io/../kernel",
            "oci://ghcr.io/a//b",
            "oci://ghcr.io/kernel:",
            "oci://ghcr.io/kernel:a b",
            "oci://ghcr.io/kernel?x=1",
            "oci://ghcr.io/kernel@sha256:12",
            "oci://ghcr.io/kernel@md5:12",
            "https://ghcr.io/kernel",
            "oci:folder:a b",
            &long,
        ] {
            assert!(matches!(text.parse::<Place>(), Err(RegistryError::Reference { .. })), "{text}");
        }
    }

    #[test]
    fn a_refusal_shows_no_credentials() {
        for (text, shown) in [
            ("oci://user:secret@ghcr.io/kernel:1.0", "oci://***@ghcr.io/kernel:1.0"),
            ("oci://secret@ghcr.io/kernel@sha256:12", "oci://***@ghcr.io/kernel@sha256:12"),
            ("oci://user:sec/ret@ghcr.io/kernel", "oci://***@ghcr.io/kernel"),
            ("oci://user:sec@ret@ghcr.io", "oci://***@ghcr.io"),
            ("oci://user:sec/ret@ghcr.io", "oci://***@ghcr.io"),
            ("oci://user:sec/ret@localhost:5000", "oci://***@localhost:5000"),
            ("oci://user:sec/r@et@ghcr.io/kernel@sha256:12", "oci://***@ghcr.io/kernel@sha256:12"),
            ("https://user:secret@ghcr.io/kernel", "https://***@ghcr.io/kernel"),
            ("oci://user:secret@", "oci://***@"),
            ("oci://ghcr.io/kernel@md5:12", "oci://ghcr.io/kernel@md5:12"),
        ] {
            let said = text.parse::<Place>().unwrap_err().to_string();
            assert!(said.contains(shown) && !said.contains("sec"), "{said}");
        }
        let long = format!("oci://user:{}@ghcr.io/kernel", "secret".repeat(200));
        assert!(!long.parse::<Place>().unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn loopback_is_this_machine_alone() {
        for host in [
            "localhost",
            "LocalHost:5000",
            "127.0.0.1:80",
            "127.8.9.1",
            "[::1]:5000",
            "0.0.0.0:5000",
            "[::]:5000",
            "[::ffff:127.0.0.1]",
            "[::ffff:0.0.0.0]:1",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example.org", "10.0.0.1", "[::2]:80", "127.0.0.1.example.org", "169.254.1.1"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn a_registry_leads_neither_here_nor_to_the_link() {
        for near in ["127.0.0.1", "0.0.0.0", "::1", "::", "::ffff:127.9.9.9", "169.254.169.254", "fe80::1"] {
            assert!(is_near(near.parse().unwrap()), "{near}");
        }
        for far in ["10.0.0.1", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"] {
            assert!(!is_near(far.parse().unwrap()), "{far}");
        }
    }

    #[test]
    fn an_address_has_four_numbers() {
        for odd in ["127.1", "127.1:80", "2130706433", "0x7f.1", "0x7f000001:5000", "1.2.3", "127.0.0.01"] {
            assert!(is_odd_address(odd), "{odd}");
        }
        for usual in [
            "127.0.0.1:80",
            "ghcr.io",
            "10.example.org:5000",
            "[::ffff:192.0.2.1]:5000",
            "1e100.net",
            "localhost",
        ] {
            assert!(!is_odd_address(usual), "{usual}");
        }
    }
}
