//! The small types that name a layer, an expert, a token, and the digests of an expert and a model.
//!
//! They carry no behaviour beyond display and parsing; the digests themselves are computed in `blob` and `digest`.

use std::fmt;
use std::str::FromStr;

/// A decoder layer of the trunk, counted from 0. The multi-token-prediction block has no index here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerIndex(pub u16);

/// A routed expert within its layer, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertIndex(pub u16);

/// A token's number in the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub u32);

impl fmt::Display for LayerIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ExpertIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// SHA-256 over `kvasir/expert/v1` and the expert's three matrices: two experts with equal digests are the same
/// function. Shown and read as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExpertDigest(pub [u8; 32]);

/// RFC 6962 root over a model's configuration, dense tensors and experts. Shown and read as 64 lower-case
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelDigest(pub [u8; 32]);

/// Text that is not 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 lower-case hexadecimal digits")]
pub struct DigestTextError;

macro_rules! digest_text {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = DigestTextError;

            fn from_str(text: &str) -> Result<Self, DigestTextError> {
                digest_bytes(text).map($name)
            }
        }
    };
}

digest_text!(ExpertDigest);
digest_text!(ModelDigest);

/// One text form per digest: upper case and other lengths are refused, so that texts compare like bytes.
fn digest_bytes(text: &str) -> Result<[u8; 32], DigestTextError> {
    if text.len() != 64 || text.bytes().any(|b| !matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(DigestTextError);
    }
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).map_err(|_| DigestTextError)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_text_round_trips_and_has_one_form() {
        let digest = ExpertDigest(std::array::from_fn(|i| i as u8 * 7));
        let text = digest.to_string();
        assert_eq!(text.parse::<ExpertDigest>(), Ok(digest));
        assert_eq!(text.to_uppercase().parse::<ExpertDigest>(), Err(DigestTextError));
        assert_eq!(text[..62].parse::<ModelDigest>(), Err(DigestTextError));
        assert_eq!(format!("{text}00").parse::<ModelDigest>(), Err(DigestTextError));
        assert_eq!("é".repeat(32).parse::<ModelDigest>(), Err(DigestTextError));
    }
}
