//! Names and sizes of the weight formats (GGUF's numbers and block layouts) and of the row formats. No arithmetic.

/// How a weight matrix is stored. The number is GGUF's; a matrix row is a whole number of blocks, back to back.
///
/// d, m and dmin are f16, q a weight's stored integer; sc and mn are integers of a sub-block. "Nibbles, low first" means that
/// the low nibbles of some bytes come before their high nibbles in column order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Format {
    /// IEEE-754 binary32, little-endian.
    F32 = 0,
    /// IEEE-754 binary16, little-endian.
    F16 = 1,
    /// 32 weights: d, 16 bytes of nibbles (low first); weight = d * (q - 8).
    Q4_0 = 2,
    /// 32 weights: d, m, 16 bytes of nibbles (low first); weight = d * q + m.
    Q4_1 = 3,
    /// 32 weights: d, 32 fifth bits (bit i for weight i), 16 bytes of nibbles (low first); weight = d * (q - 16).
    Q5_0 = 6,
    /// 32 weights: d, m, 32 fifth bits, 16 bytes of nibbles (low first); weight = d * q + m.
    Q5_1 = 7,
    /// 32 weights: d, 32 x i8; weight = d * q.
    Q8_0 = 8,
    /// 256 weights in 16 sub-blocks: 16 bytes of 4-bit sc and mn, 64 bytes of pairs of bits, d, dmin;
    /// weight = (d * sc) * q - dmin * mn.
    Q2K = 10,
    /// 256 weights in 16 sub-blocks: 32 bytes of third bits, 64 bytes of pairs of bits, 12 bytes of 6-bit sc, d;
    /// weight = (d * (sc - 32)) * (q - 4).
    Q3K = 11,
    /// 256 weights in 8 sub-blocks: d, dmin, 12 bytes of 6-bit sc and mn, 128 bytes of nibbles;
    /// weight = (d * sc) * q - dmin * mn.
    Q4K = 12,
    /// 256 weights in 8 sub-blocks: d, dmin, 12 bytes of 6-bit sc and mn, 32 bytes of fifth bits, 128 bytes of nibbles;
    /// weight = (d * sc) * q - dmin * mn.
    Q5K = 13,
    /// 256 weights in 16 sub-blocks: 128 bytes of low nibbles, 64 bytes of high pairs, 16 x i8 sc, d;
    /// weight = (d * sc) * (q - 32).
    Q6K = 14,
    /// 32 weights: d, 16 bytes of nibbles (low first) that number the values of the IQ4 table; weight = d * value.
    IQ4NL = 20,
    /// 256 weights in 8 sub-blocks: d, 16 bits with the upper pairs of the 6-bit sc, 4 bytes with their lower nibbles, 128 bytes
    /// of nibbles that number the values of the IQ4 table; weight = (d * (sc - 32)) * value.
    IQ4XS = 23,
    /// The upper half of a binary32, little-endian.
    BF16 = 30,
    /// 32 weights: an exponent e, 16 bytes of nibbles (low first), each a four-bit float; weight = 2^(e-128) * twice the float.
    MXFP4 = 39,
}

impl Format {
    /// Every format of this version, in ascending number.
    pub const ALL: [Format; 16] = [
        Format::F32,
        Format::F16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::IQ4NL,
        Format::IQ4XS,
        Format::BF16,
        Format::MXFP4,
    ];

    /// The format with this GGUF type number; `None` where this version has no arithmetic for it.
    pub const fn from_number(number: u32) -> Option<Format> {
        Some(match number {
            0 => Format::F32,
            1 => Format::F16,
            2 => Format::Q4_0,
            3 => Format::Q4_1,
            6 => Format::Q5_0,
            7 => Format::Q5_1,
            8 => Format::Q8_0,
            10 => Format::Q2K,
            11 => Format::Q3K,
            12 => Format::Q4K,
            13 => Format::Q5K,
            14 => Format::Q6K,
            20 => Format::IQ4NL,
            23 => Format::IQ4XS,
            30 => Format::BF16,
            39 => Format::MXFP4,
            _ => return None,
        })
    }

    /// GGUF's type number.
    pub const fn number(self) -> u32 {
        self as u32
    }

    /// GGUF's name, for example `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            Format::F32 => "F32",
            Format::F16 => "F16",
            Format::Q4_0 => "Q4_0",
            Format::Q4_1 => "Q4_1",
            Format::Q5_0 => "Q5_0",
            Format::Q5_1 => "Q5_1",
            Format::Q8_0 => "Q8_0",
            Format::Q2K => "Q2_K",
            Format::Q3K => "Q3_K",
            Format::Q4K => "Q4_K",
            Format::Q5K => "Q5_K",
            Format::Q6K => "Q6_K",
            Format::IQ4NL => "IQ4_NL",
            Format::IQ4XS => "IQ4_XS",
            Format::BF16 => "BF16",
            Format::MXFP4 => "MXFP4",
        }
    }

    /// Weights in a block.
    pub const fn block_len(self) -> usize {
        self.row_format().block_len()
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q4_0 | Format::IQ4NL => 18,
            Format::Q4_1 => 20,
            Format::Q5_0 => 22,
            Format::Q5_1 => 24,
            Format::Q8_0 => 34,
            Format::MXFP4 => 17,
            Format::Q2K => 84,
            Format::Q3K => 110,
            Format::Q4K => 144,
            Format::Q5K => 176,
            Format::Q6K => 210,
            Format::IQ4XS => 136,
        }
    }

    /// The format of the rows that matrices of this format are multiplied with.
    pub const fn row_format(self) -> RowFormat {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => RowFormat::Float32,
            Format::Q4_0
            | Format::Q4_1
            | Format::Q5_0
            | Format::Q5_1
            | Format::Q8_0
            | Format::IQ4NL
            | Format::MXFP4 => RowFormat::Q8,
            Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K | Format::IQ4XS => {
                RowFormat::Q8K
            }
        }
    }

    /// Bytes of a matrix row of `columns` weights; `None` where that is no whole number of blocks, or overflows.
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        blocks_to_bytes(columns, self.block_len(), self.block_bytes())
    }
}

impl core::fmt::Display for Format {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// How a row (one hidden vector) is stored: what crosses the wire and what a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RowFormat {
    /// f32, little-endian.
    Float32 = 0,
    /// Blocks of 32 values: f32 d, 32 x i8 in -127..=127.
    Q8 = 1,
    /// Blocks of 256 values: f32 d, 256 x i8 in -127..=127.
    Q8K = 2,
}

impl RowFormat {
    /// Every row format, in ascending number.
    pub const ALL: [RowFormat; 3] = [RowFormat::Float32, RowFormat::Q8, RowFormat::Q8K];

    /// The row format with this number on the wire.
    pub const fn from_number(number: u8) -> Option<RowFormat> {
        Some(match number {
            0 => RowFormat::Float32,
            1 => RowFormat::Q8,
            2 => RowFormat::Q8K,
            _ => return None,
        })
    }

    /// The number on the wire.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The name in the design: `f32`, `q8`, `q8k`.
    pub const fn name(self) -> &'static str {
        match self {
            RowFormat::Float32 => "f32",
            RowFormat::Q8 => "q8",
            RowFormat::Q8K => "q8k",
        }
    }

    /// Values in a block.
    pub const fn block_len(self) -> usize {
        match self {
            RowFormat::Float32 => 1,
            RowFormat::Q8 => 32,
            RowFormat::Q8K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            RowFormat::Float32 => 4,
            RowFormat::Q8 => 36,
            RowFormat::Q8K => 260,
        }
    }

    /// Bytes of a row of `columns` values; `None` where that is no whole number of blocks, or overflows.
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        blocks_to_bytes(columns, self.block_len(), self.block_bytes())
    }
}

impl core::fmt::Display for RowFormat {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

const fn blocks_to_bytes(len: usize, block_len: usize, block_bytes: usize) -> Option<usize> {
    if !len.is_multiple_of(block_len) {
        return None;
    }
    (len / block_len).checked_mul(block_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_unknown_ones_are_refused() {
        for format in Format::ALL {
            assert_eq!(Format::from_number(format.number()), Some(format));
        }
        let known = (0..1000).filter(|&n| Format::from_number(n).is_some()).count();
        assert_eq!(known, Format::ALL.len());
        for format in RowFormat::ALL {
            assert_eq!(RowFormat::from_number(format.number()), Some(format));
        }
        assert_eq!(RowFormat::from_number(3), None);
    }

    #[test]
    fn row_bytes_refuse_broken_blocks_and_overflow() {
        assert_eq!(Format::Q4K.row_bytes(3072), Some(1728));
        assert_eq!(RowFormat::Q8K.row_bytes(3072), Some(3120));
        assert_eq!(Format::Q4K.row_bytes(3071), None);
        assert_eq!(Format::F32.row_bytes(usize::MAX), None);
        assert_eq!(RowFormat::Float32.row_bytes(usize::MAX / 2), None);
    }
}
