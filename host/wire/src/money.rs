//! Bytes that are paid for, and the credit they earn; integers only.
//!
//! 1 KVR = 1,000,000,000 nanoKVR; 1 unit = 1,000,000 metered bytes; at 0.007 KVR a unit one byte is exactly 7 nanoKVR,
//! so paying is one multiplication and never a division. Values are stored in 63 bits (what a note's decimals and an
//! SQLite integer hold); products are formed in 128 bits and checked. Rounding exists in `Display` of [`Kvr`] only.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// nanoKVR in one KVR.
pub const NANOKVR_PER_KVR: i64 = 1_000_000_000;
/// Metered bytes in one unit.
pub const BYTES_PER_UNIT: u64 = 1_000_000;
/// Largest value of any number in a note, in bytes or nanoKVR: 2^63 - 1.
pub const MAX_NUMBER: u64 = i64::MAX as u64;
/// Highest price that is read, in nanoKVR a byte (1 KVR a byte): a mistyped price note is refused.
pub const MAX_NANOKVR_PER_BYTE: u64 = NANOKVR_PER_KVR as u64;

/// Arithmetic that left its range, or text that is no amount.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MoneyError {
    /// A sum, difference or product is outside 63 bits.
    #[error("the amount does not fit into 63 bits")]
    Overflow,
    /// Counters of bytes never run backwards.
    #[error("metered bytes fell from {before} to {after}")]
    BytesFell {
        /// Bytes counted before.
        before: u64,
        /// Bytes counted now.
        after: u64,
    },
    /// A price of zero or above [`MAX_NANOKVR_PER_BYTE`].
    #[error("a price is 1 to {MAX_NANOKVR_PER_BYTE} nanoKVR a byte, not {0}")]
    Price(u64),
    /// Text that is no decimal amount of KVR.
    #[error("`{0}` is no amount in KVR: digits, optionally a point and at most nine digits")]
    Text(String),
}

/// Metered payload bytes, at most [`MAX_NUMBER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MeteredBytes(u64);

impl MeteredBytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// The most that can be stated: 2^63 - 1.
    pub const MAX: Self = Self(MAX_NUMBER);

    /// `bytes`, where they fit.
    pub const fn new(bytes: u64) -> Result<Self, MoneyError> {
        if bytes > MAX_NUMBER { Err(MoneyError::Overflow) } else { Ok(Self(bytes)) }
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of bytes as SQLite and postings hold it.
    pub const fn signed(self) -> i64 {
        self.0 as i64 // at most i64::MAX by construction
    }

    /// Sum, where it fits.
    pub fn checked_add(self, other: Self) -> Result<Self, MoneyError> {
        self.0.checked_add(other.0).ok_or(MoneyError::Overflow).and_then(Self::new)
    }

    /// Bytes counted since `before`.
    pub fn since(self, before: Self) -> Result<Self, MoneyError> {
        let fell = MoneyError::BytesFell { before: before.0, after: self.0 };
        self.0.checked_sub(before.0).map(Self).ok_or(fell)
    }

    /// The same number in units.
    pub const fn units(self) -> Units {
        Units(self)
    }
}

impl fmt::Display for MeteredBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Metered bytes shown in units of 1,000,000 with all six decimals: `1.277952`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Units(MeteredBytes);

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0.0 / BYTES_PER_UNIT, self.0.0 % BYTES_PER_UNIT)
    }
}

/// An amount of credit in nanoKVR; negative in differences and in the account that funds others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NanoKvr(i64);

impl NanoKvr {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// `amount` nanoKVR.
    pub const fn new(amount: i64) -> Self {
        Self(amount)
    }

    /// The number of nanoKVR.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Sum, where it fits.
    pub fn checked_add(self, other: Self) -> Result<Self, MoneyError> {
        self.0.checked_add(other.0).map(Self).ok_or(MoneyError::Overflow)
    }

    /// Difference, where it fits.
    pub fn checked_sub(self, other: Self) -> Result<Self, MoneyError> {
        self.0.checked_sub(other.0).map(Self).ok_or(MoneyError::Overflow)
    }

    /// The same amount for people: rounded to five decimals of KVR, with the name of the credit.
    pub const fn kvr(self) -> Kvr {
        Kvr(self)
    }

    /// Reads a decimal amount of KVR, for example `12.5`: no sign, no exponent, at most nine decimals.
    pub fn from_kvr_text(text: &str) -> Result<Self, MoneyError> {
        let bad = || MoneyError::Text(text.chars().take(40).collect());
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(decimals) || decimals.len() > 9 {
            return Err(bad());
        }
        let whole: i64 = whole.parse().map_err(|_| MoneyError::Overflow)?;
        let decimals: i64 = format!("{decimals:0<9}").parse().map_err(|_| bad())?;
        let amount = i128::from(whole) * i128::from(NANOKVR_PER_KVR) + i128::from(decimals);
        i64::try_from(amount).map(Self).map_err(|_| MoneyError::Overflow)
    }
}

impl fmt::Display for NanoKvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An amount as people read it: `0.00895 KVR`. Half of the last place is rounded away from zero. Never parsed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kvr(NanoKvr);

impl fmt::Display for Kvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NANO_PER_PLACE: u64 = 10_000;
        const PLACES_PER_KVR: u64 = 100_000;
        let places = (self.0.0.unsigned_abs() + NANO_PER_PLACE / 2) / NANO_PER_PLACE;
        let sign = if self.0.0 < 0 && places > 0 { "-" } else { "" };
        write!(f, "{sign}{}.{:05} KVR", places / PLACES_PER_KVR, places % PLACES_PER_KVR)
    }
}

/// A price: whole nanoKVR for one metered byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PricePerByte(u64);

impl PricePerByte {
    /// The network's founding price: 0.007 KVR a unit, 7 nanoKVR a byte.
    pub const FOUNDING: Self = Self(7);

    /// `nanokvr` for one byte: 1 to [`MAX_NANOKVR_PER_BYTE`].
    pub const fn new(nanokvr: u64) -> Result<Self, MoneyError> {
        if nanokvr == 0 || nanokvr > MAX_NANOKVR_PER_BYTE {
            Err(MoneyError::Price(nanokvr))
        } else {
            Ok(Self(nanokvr))
        }
    }

    /// nanoKVR for one byte.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// What `bytes` earn: one exact product.
    pub fn credit(self, bytes: MeteredBytes) -> Result<NanoKvr, MoneyError> {
        let product = i128::from(self.0) * i128::from(bytes.0);
        i64::try_from(product).map(NanoKvr).map_err(|_| MoneyError::Overflow)
    }
}

impl FromStr for PricePerByte {
    type Err = MoneyError;
    fn from_str(text: &str) -> Result<Self, MoneyError> {
        text.parse().map_err(|_| MoneyError::Price(0)).and_then(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_the_mission() {
        let bytes = MeteredBytes::new(1_277_952).unwrap();
        assert_eq!(bytes.units().to_string(), "1.277952");
        let credit = PricePerByte::FOUNDING.credit(bytes).unwrap();
        assert_eq!(credit, NanoKvr::new(8_945_664));
        assert_eq!(credit.kvr().to_string(), "0.00895 KVR");
    }

    #[test]
    fn display_rounds_half_away_from_zero_and_never_shows_minus_zero() {
        for (nano, shown) in [
            (0, "0.00000 KVR"),
            (4_999, "0.00000 KVR"),
            (5_000, "0.00001 KVR"),
            (-4_999, "0.00000 KVR"),
            (-5_000, "-0.00001 KVR"),
            (1_999_999_999, "2.00000 KVR"),
            (i64::MAX, "9223372036.85478 KVR"),
            (i64::MIN, "-9223372036.85478 KVR"),
        ] {
            assert_eq!(NanoKvr::new(nano).kvr().to_string(), shown);
        }
    }

    #[test]
    fn products_outside_63_bits_are_refused() {
        let largest = MeteredBytes::new(MAX_NUMBER).unwrap();
        assert_eq!(PricePerByte::FOUNDING.credit(largest), Err(MoneyError::Overflow));
        assert_eq!(MeteredBytes::new(MAX_NUMBER + 1), Err(MoneyError::Overflow));
        assert_eq!(largest.checked_add(MeteredBytes(1)), Err(MoneyError::Overflow));
        assert_eq!(NanoKvr::new(i64::MIN).checked_sub(NanoKvr::new(1)), Err(MoneyError::Overflow));
        assert!(PricePerByte::new(0).is_err());
        assert!(PricePerByte::new(MAX_NANOKVR_PER_BYTE + 1).is_err());
        let fell = MoneyError::BytesFell { before: 2, after: 1 };
        assert_eq!(MeteredBytes(1).since(MeteredBytes(2)), Err(fell));
    }

    #[test]
    fn amounts_in_text() {
        for (text, nano) in [
            ("1", NANOKVR_PER_KVR),
            ("0.000000001", 1),
            ("12.50", 12_500_000_000),
            ("9223372036.854775807", i64::MAX),
        ] {
            assert_eq!(NanoKvr::from_kvr_text(text), Ok(NanoKvr::new(nano)), "{text}");
        }
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "+1",
            "1e3",
            "1,5",
            "1.0000000001",
            "9223372036.854775808",
            "١",
            "99999999999999999999",
        ] {
            assert!(NanoKvr::from_kvr_text(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn receipt_by_receipt_is_the_same_as_all_at_once(parts in prop::collection::vec(0u64..1 << 40, 0..200)) {
            let mut total = MeteredBytes::ZERO;
            let mut credited = NanoKvr::ZERO;
            for part in parts {
                let bytes = MeteredBytes::new(part).unwrap();
                total = total.checked_add(bytes).unwrap();
                credited = credited.checked_add(PricePerByte::FOUNDING.credit(bytes).unwrap()).unwrap();
            }
            prop_assert_eq!(credited, PricePerByte::FOUNDING.credit(total).unwrap());
        }
    }
}
