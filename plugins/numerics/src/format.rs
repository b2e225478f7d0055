//! Names and sizes of the weight formats (GGUF's numbers and block layouts) and of the row formats. No arithmetic.

/// How a weight matrix is stored. The number is GGUF's; a matrix row is a whole number of blocks, back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Format {
    /// IEEE-754 binary32, little-endian.
    F32 = 0,
    /// IEEE-754 binary16, little-endian.
    F16 = 1,
    /// 32 weights: f16 d, 16 bytes of nibbles (low nibbles first); weight = d * (q - 8).
    Q4_0 = 2,
    /// 32 weights: f16 d, 32 x i8; weight = d * q.
    Q8_0 = 8,
    /// 256 weights: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles.
    Q4K = 12,
    /// 256 weights: 128 bytes of low nibbles, 64 bytes of high pairs, 16 x i8 scales, f16 d.
    Q6K = 14,
    /// The upper half of a binary32, little-endian.
    BF16 = 30,
}

impl Format {
    /// Every format of this version, in ascending number.
    pub const ALL: [Format; 7] =
        [Format::F32, Format::F16, Format::Q4_0, Format::Q8_0, Format::Q4K, Format::Q6K, Format::BF16];

    /// The format with this GGUF type number; `None` where this version has no arithmetic for it.
    pub const fn from_number(number: u32) -> Option<Format> {
        Some(match number {
            0 => Format::F32,
            1 => Format::F16,
            2 => Format::Q4_0,
            8 => Format::Q8_0,
            12 => Format::Q4K,
            14 => Format::Q6K,
            30 => Format::BF16,
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
            Format::Q8_0 => "Q8_0",
            Format::Q4K => "Q4_K",
            Format::Q6K => "Q6_K",
            Format::BF16 => "BF16",
        }
    }

    /// Weights in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => 1,
            Format::Q4_0 | Format::Q8_0 => 32,
            Format::Q4K | Format::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::BF16 => 2,
            Format::Q4_0 => 18,
            Format::Q8_0 => 34,
            Format::Q4K => 144,
            Format::Q6K => 210,
        }
    }

    /// The format of the rows that matrices of this format are multiplied with.
    pub const fn row_format(self) -> RowFormat {
        match self {
            Format::F32 | Format::F16 | Format::BF16 => RowFormat::Float32,
            Format::Q4_0 | Format::Q8_0 => RowFormat::Q8,
            Format::Q4K | Format::Q6K => RowFormat::Q8K,
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
