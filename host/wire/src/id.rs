//! Names of 32 bytes: digests of keys, tickets, plugins, models and experts, session numbers and nonces.
//!
//! Each is a type of its own, so that one cannot stand for another. Text is 64 lower-case hexadecimal digits and
//! nothing else: one name, one spelling.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// Text that is not a 32-byte name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected 64 lower-case hexadecimal digits, got {length} characters{}", if *.bad_digit { " with other digits among them" } else { "" })]
pub struct IdError {
    /// Characters that were given.
    pub length: usize,
    /// True where the length was right or wrong but a character was not `0-9a-f`.
    pub bad_digit: bool,
}

macro_rules! name_of_32_bytes {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; 32]);

        impl $name {
            /// The 32 bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                kvasir_merkle::Hash(self.0).fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_hex_32(text).map($name)
            }
        }

        impl From<[u8; 32]> for $name {
            fn from(bytes: [u8; 32]) -> Self {
                $name(bytes)
            }
        }
    };
}

name_of_32_bytes! {
    /// SHA-256 of a party's full ed25519 public key.
    KeyDigest
}
name_of_32_bytes! {
    /// SHA-256 of a wallet's ed25519 public key: the account that is credited (`payee`).
    WalletDigest
}
name_of_32_bytes! {
    /// SHA-256 of a ticket's payload and the hub's signature.
    TicketDigest
}
name_of_32_bytes! {
    /// SHA-256 of the payload of a plugin's signed statement.
    PluginDigest
}
name_of_32_bytes! {
    /// RFC 6962 root over a model's configuration, dense tensors and experts.
    ModelDigest
}
name_of_32_bytes! {
    /// Digest of one expert's three matrices.
    ExpertDigest
}
name_of_32_bytes! {
    /// One session of a worker with a backbone; drawn by the hub.
    SessionId
}
name_of_32_bytes! {
    /// A number used once, drawn by the party that wants a fresh answer.
    Nonce
}

impl SessionId {
    /// The first eight hexadecimal digits, for logs.
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

/// SHA-256 of `parts` one after the other.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// Parses 64 lower-case hexadecimal digits.
pub fn parse_hex_32(text: &str) -> Result<[u8; 32], IdError> {
    text.parse::<kvasir_merkle::Hash>().map(|hash| hash.0).map_err(|_| IdError {
        length: text.chars().count(),
        bad_digit: !text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_spelling_is_read() {
        let id = SessionId([0xab; 32]);
        assert_eq!(id.to_string().parse::<SessionId>(), Ok(id));
        assert!(id.to_string().to_uppercase().parse::<SessionId>().is_err());
        assert!("ab".parse::<SessionId>().is_err());
        assert!(format!("{id}00").parse::<SessionId>().is_err());
        assert!(format!(" {}", &id.to_string()[1..]).parse::<SessionId>().is_err());
    }
}
