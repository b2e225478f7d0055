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
    let make = "make one with: kvasir-gateway edge-key --out FILE".to_owned();
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
    secret_file::write(path, key.to_text().as_bytes(), replace)
        .map_err(|source| MakeKeyError::Write { path: path.display().to_string(), source })?;
    Ok(key)
}

/// Why no key was made.
#[derive(Debug, thiserror::Error)]
pub enum MakeKeyError {
    /// The system gave no randomness.
    #[error("the system gave no random bytes: {0}")]
    Randomness(String),
    /// The file cannot be written.
    #[error("writing {path}: {source}; an existing key is only replaced with --replace")]
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

/// A length of time as people write it: a whole number and `s`, `m`, `h` or `d`; at most a ticket's longest life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(pub Duration);

impl FromStr for Lifetime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let days = MAX_TICKET_SECONDS / 86_400;
        let expected = format!("expected a whole number and s, m, h or d, up to {days}d: for example 30d");
        let unit = match text.as_bytes().last() {
            Some(b's') => 1,
            Some(b'm') => 60,
            Some(b'h') => 3_600,
            Some(b'd') => 86_400,
            _ => return Err(expected),
        };
        let seconds = text[..text.len() - 1].parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
        match seconds {
            Some(seconds) if seconds > 0 && seconds <= MAX_TICKET_SECONDS => {
                Ok(Lifetime(Duration::from_secs(seconds)))
            }
            _ => Err(expected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_read_and_bounded() {
        assert_eq!("30d".parse(), Ok(Lifetime(Duration::from_secs(30 * 86_400))));
        assert_eq!("90s".parse(), Ok(Lifetime(Duration::from_secs(90))));
        for text in ["", "d", "0d", "-1d", "1.5d", "367d", "30", "18446744073709551615d", "5\u{e9}"] {
            assert!(text.parse::<Lifetime>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_edge_key_file_reads_back_and_is_not_replaced_by_chance() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edge.key");
        let key = make_edge_key(&path, false).unwrap();
        assert_eq!(*read_edge_key(&path).unwrap().to_text(), *key.to_text());
        assert!(matches!(make_edge_key(&path, false), Err(MakeKeyError::Write { .. })));
        make_edge_key(&path, true).unwrap();
        assert_ne!(*read_edge_key(&path).unwrap().to_text(), *key.to_text());
        let error = read_secret_key(&path).unwrap_err().to_string();
        assert!(error.contains("does not hold a secret key"), "{error}");
        assert!(!error.contains(&key.to_text()[20..40]));
    }
}
