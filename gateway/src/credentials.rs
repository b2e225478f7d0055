//! The gateway's secrets and what is made with them: hub and settler keys, the edge key, tickets.
//!
//! Secrets come from files only, and a file that others may read is refused (`secret_file`).

use std::{path::Path, str::FromStr, time::Duration};

use kvasir_wire::{
    id::{KeyDigest, PluginDigest, WalletDigest},
    key::{PublicKey, SecretKey},
    limits::MAX_TICKET_SECONDS,
    ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketError, TicketLimits},
};

use crate::secret_file::{self, SecretFileError};

/// Reads a secret key file (`kvasir-secret-v1 ...`).
pub fn read_secret_key(path: &Path) -> Result<SecretKey, SecretFileError> {
    let text = secret_file::read(path)?;
    SecretKey::from_text(&text).map_err(|error| malformed(path, "a secret key", error.to_string()))
}

/// Reads an edge key file.
pub fn read_edge_key(path: &Path) -> Result<EdgeKey, SecretFileError> {
    let text = secret_file::read(path)?;
    let make = "make one with: kvasir-gateway edge-key FILE".to_owned();
    EdgeKey::from_text(&text).ok_or_else(|| malformed(path, "an edge key", make))
}

fn malformed(path: &Path, what: &'static str, detail: String) -> SecretFileError {
    SecretFileError::Malformed { path: path.into(), what, detail }
}

/// Draws an edge key and writes it to a file of its owner's.
pub fn make_edge_key(path: &Path, replace: bool) -> Result<EdgeKey, MakeKeyError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| MakeKeyError::Randomness(error.to_string()))?;
    let key = EdgeKey::from_bytes(bytes);
    secret_file::write(path, key.to_text().as_bytes(), replace).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => MakeKeyError::Exists { path: path.display().to_string() },
        _ => MakeKeyError::Write { path: path.display().to_string(), source },
    })?;
    Ok(key)
}

/// Why no key was made.
#[derive(Debug, thiserror::Error)]
pub enum MakeKeyError {
    /// The system gave no randomness.
    #[error("the system gave no random bytes: {0}")]
    Randomness(String),
    /// There is a key already.
    #[error("{path} exists already; an existing key is only replaced with --replace")]
    Exists {
        /// The file.
        path: String,
    },
    /// The file cannot be written.
    #[error("writing {path}: {source}; nothing was changed")]
    Write {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What a ticket shall say, as an operator puts it.
#[derive(Clone, Debug)]
pub struct TicketOrder {
    /// Network name.
    pub network: String,
    /// What the holder may be.
    pub role: Role,
    /// The holder's key.
    pub holder: PublicKey,
    /// The account to credit; a worker needs one.
    pub wallet: Option<WalletDigest>,
    /// Allowed plugins.
    pub plugins: Vec<PluginDigest>,
    /// Publishers whose plugins are allowed.
    pub publishers: Vec<KeyDigest>,
    /// Bounds on the holder.
    pub limits: TicketLimits,
    /// How long the ticket shall hold.
    pub lifetime: Lifetime,
}

/// Makes a ticket that holds from `now` (unix seconds) on.
pub fn issue(order: TicketOrder, hub: &SecretKey, edge: &EdgeKey, now: u64) -> Result<Ticket, TicketError> {
    let claims = TicketClaims {
        network: order.network,
        role: order.role,
        holder: order.holder,
        hub: hub.public(),
        wallet: order.wallet,
        plugins: order.plugins,
        publishers: order.publishers,
        limits: order.limits,
        issued: now,
        expires: now + order.lifetime.0.as_secs(),
    };
    Ticket::issue(&claims, hub, edge)
}

/// A publisher of plugins, by `ed25519:<64 hex digits>` or by the 64 digits of that key's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherName(pub KeyDigest);

impl FromStr for PublisherName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let key = text.parse::<PublicKey>().map(|key| key.digest());
        key.or_else(|_| text.parse::<KeyDigest>()).map(PublisherName).map_err(|_| {
            "expected a public key, ed25519:<64 hex digits>, or the 64 digits of its digest".into()
        })
    }
}

/// How long a ticket shall hold: as [`Span`], up to a ticket's longest life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(pub Duration);

impl FromStr for Lifetime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let days = MAX_TICKET_SECONDS / 86_400;
        match text.parse::<Span>() {
            Ok(Span(length)) if length.as_secs() > 0 && length.as_secs() <= MAX_TICKET_SECONDS => {
                Ok(Lifetime(length))
            }
            Ok(_) => Err(format!("a ticket holds for 1s to {days}d")),
            Err(error) => Err(error),
        }
    }
}

/// A length of time as people write it: a whole number and `ms`, `s`, `m`, `h` or `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected a whole number and ms, s, m, h or d: for example 30d or 200ms".to_owned();
        let digits = text.find(|character: char| !character.is_ascii_digit()).ok_or_else(expected)?;
        let (count, unit) = text.split_at(digits);
        let milliseconds = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(expected()),
        };
        let length = count.parse::<u64>().ok().and_then(|count| count.checked_mul(milliseconds));
        length.map(|length| Span(Duration::from_millis(length))).ok_or_else(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_read_and_bounded() {
        assert_eq!("30d".parse(), Ok(Lifetime(Duration::from_secs(30 * 86_400))));
        assert_eq!("90s".parse(), Ok(Lifetime(Duration::from_secs(90))));
        assert_eq!("200ms".parse(), Ok(Span(Duration::from_millis(200))));
        for text in ["", "d", "0d", "-1d", "1.5d", "367d", "30", "5ms", "18446744073709551615d", "5\u{e9}"] {
            assert!(text.parse::<Lifetime>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_edge_key_file_reads_back_and_is_not_replaced_by_chance() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edge.key");
        let key = make_edge_key(&path, false).unwrap();
        assert_eq!(*read_edge_key(&path).unwrap().to_text(), *key.to_text());
        assert!(matches!(make_edge_key(&path, false), Err(MakeKeyError::Exists { .. })));
        // Another cause is not said to be that one.
        let error = make_edge_key(&folder.path().join("none/edge.key"), false).unwrap_err().to_string();
        assert!(!error.contains("--replace"), "{error}");
        make_edge_key(&path, true).unwrap();
        assert_ne!(*read_edge_key(&path).unwrap().to_text(), *key.to_text());
        let error = read_secret_key(&path).unwrap_err().to_string();
        assert!(error.contains("does not hold a secret key"), "{error}");
        assert!(!error.contains(&key.to_text()[20..40]));
    }
}
