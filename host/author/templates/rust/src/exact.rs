//! exact-v1, the arithmetic whose bits every machine agrees on, for five weight formats (GGUF's block layouts).
//!
//! Three rules make the bits: multiply and add are rounded apart, nothing is fused; integer sums inside a block are exact, so
//! their order is free; float sums keep the order written here. Reordering a float sum is what breaks a kernel.

/// How weights are stored.
#[derive(Clone, Copy, PartialEq)]
pub enum Format {
    F32,
    F16,
    Q8_0,
    Q4K,
    Q6K,
}

/// How the rows are stored that a matrix is multiplied with.
#[derive(Clone, Copy, PartialEq)]
pub enum RowFormat {
    /// f32, little-endian.
    Float32,
    /// Blocks of this many values: f32 scale, then i8 in -127..=127.
    Blocks(usize),
}

impl Format {
    /// The format that the contract's enumeration gives this number.
    pub fn from_contract(number: u32) -> Option<Format> {
        Some(match number {
            0 => Format::F32,
            1 => Format::F16,
            7 => Format::Q8_0,
            10 => Format::Q4K,
            12 => Format::Q6K,
            _ => return None,
        })
    }

    pub fn block_len(self) -> usize {
        match self {
            Format::F32 | Format::F16 => 1,
            Format::Q8_0 => 32,
            Format::Q4K | Format::Q6K => 256,
        }
    }

    pub fn block_bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 => 2,
            Format::Q8_0 => 34,
            Format::Q4K => 144,
            Format::Q6K => 210,
        }
    }

    pub fn rows(self) -> RowFormat {
        match self {
            Format::F32 | Format::F16 => RowFormat::Float32,
            _ => RowFormat::Blocks(self.block_len()),
        }
    }

    /// Bytes of a matrix row; `None` where the columns are no whole number of blocks.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        columns.is_multiple_of(self.block_len()).then(|| columns / self.block_len() * self.block_bytes())
    }

    /// Whether a quantiser could have written these blocks: no NaN or infinity, no Q8_0 weight of -128.
    pub fn are_weights(self, bytes: &[u8]) -> bool {
        bytes.chunks_exact(self.block_bytes()).all(|block| match self {
            Format::F32 => f32_at(block, 0).is_finite(),
            Format::F16 => f16_at(block, 0).is_finite(),
            Format::Q8_0 => f16_at(block, 0).is_finite() && !block[2..].contains(&0x80),
            Format::Q4K => f16_at(block, 0).is_finite() && f16_at(block, 2).is_finite(),
            Format::Q6K => f16_at(block, 208).is_finite(),
        })
    }

    /// One matrix row times one row: block by block, in order.
    pub fn dot(self, weights: &[u8], row: &[u8]) -> f32 {
        match self {
            Format::F32 => sixteen_sum(weights.chunks_exact(4).zip(row.chunks_exact(4)), |w| f32_at(w, 0)),
            Format::F16 => sixteen_sum(weights.chunks_exact(2).zip(row.chunks_exact(4)), |w| f16_at(w, 0)),
            Format::Q8_0 => blocks::<34, 36>(weights, row, q8_0_term),
            Format::Q4K => blocks::<144, 260>(weights, row, q4_k_term),
            Format::Q6K => blocks::<210, 260>(weights, row, q6_k_term),
        }
    }
}

impl RowFormat {
    /// Bytes of a row of `len` values; `None` where they are no whole number of blocks.
    pub fn row_bytes(self, len: usize) -> Option<usize> {
        match self {
            RowFormat::Float32 => Some(4 * len),
            RowFormat::Blocks(block) => len.is_multiple_of(block).then(|| len / block * (4 + block)),
        }
    }

    /// Whether a quantiser could have written these rows: scales finite and their sign bit clear, no value of -128.
    pub fn are_rows(self, bytes: &[u8]) -> bool {
        match self {
            RowFormat::Float32 => bytes.chunks_exact(4).all(|value| f32_at(value, 0).is_finite()),
            RowFormat::Blocks(block) => bytes.chunks_exact(4 + block).all(|block| {
                let scale = f32_at(block, 0);
                scale.is_finite() && scale.is_sign_positive() && !block[4..].contains(&0x80)
            }),
        }
    }
}

/// The sum of the blocks' terms, from +0 in ascending order. Both lengths are known here, which lets the compiler use vectors.
#[inline(always)]
fn blocks<const W: usize, const X: usize>(
    weights: &[u8],
    row: &[u8],
    term: impl Fn(&[u8; W], &[u8; X]) -> f32,
) -> f32 {
    let (weights, row) = (weights.as_chunks::<W>().0, row.as_chunks::<X>().0);
    weights.iter().zip(row).fold(0.0, |sum, (block, row)| sum + term(block, row))
}

/// `(d * dx) * sum q x`: f16 d, 32 x i8.
#[inline(always)]
fn q8_0_term(block: &[u8; 34], row: &[u8; 36]) -> f32 {
    let sum: i32 = block[2..].iter().zip(&row[4..]).map(|(&q, &x)| i32::from(q as i8) * i32::from(x as i8)).sum();
    (f16_at(block, 0) * f32_at(row, 0)) * sum as f32
}

/// `(d * dx) * sum sc q x - (dmin * dx) * sum mn x`: f16 d and dmin, eight 6-bit scales and minima in 12 bytes, then four times
/// 32 bytes whose low nibbles are 32 weights and whose high nibbles are the next 32.
#[inline(always)]
fn q4_k_term(block: &[u8; 144], row: &[u8; 260]) -> f32 {
    let packed = &block[4..16];
    let (mut scaled, mut lowered) = (0i32, 0i32);
    for j in 0..8 {
        let (scale, minimum) = match j {
            0..4 => (packed[j] & 63, packed[j + 4] & 63),
            _ => (
                packed[j + 4] & 15 | packed[j - 4] >> 6 << 4,
                packed[j + 4] >> 4 | packed[j] >> 6 << 4,
            ),
        };
        let (nibbles, shift) = (&block[16 + j / 2 * 32..][..32], j % 2 * 4);
        let (mut dot, mut sum) = (0i32, 0i32);
        for (&q, &x) in nibbles.iter().zip(&row[4 + 32 * j..][..32]) {
            dot += i32::from(q >> shift & 15) * i32::from(x as i8);
            sum += i32::from(x as i8);
        }
        scaled += i32::from(scale) * dot;
        lowered += i32::from(minimum) * sum;
    }
    let dx = f32_at(row, 0);
    (f16_at(block, 0) * dx) * scaled as f32 - (f16_at(block, 2) * dx) * lowered as f32
}

/// `(d * dx) * sum sc (q - 32) x`: 128 bytes of low nibbles, 64 of upper pairs of bits, sixteen i8 scales, f16 d. Each half of
/// the block holds four times 32 weights.
#[inline(always)]
fn q6_k_term(block: &[u8; 210], row: &[u8; 260]) -> f32 {
    let mut scaled = 0i32;
    for j in 0..16 {
        let (half, quarter, from) = (j / 8, j % 8 / 2, j % 2 * 16);
        let low = &block[half * 64 + quarter % 2 * 32 + from..][..16];
        let high = &block[128 + half * 32 + from..][..16];
        let mut dot = 0i32;
        for ((&low, &high), &x) in low.iter().zip(high).zip(&row[4 + 16 * j..][..16]) {
            let q = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
            dot += (i32::from(q) - 32) * i32::from(x as i8);
        }
        scaled += i32::from(block[192 + j] as i8) * dot;
    }
    (f16_at(block, 208) * f32_at(row, 0)) * scaled as f32
}

/// The order in which products of floats are added: sixteen partial sums, element i into number i mod 16, then halved.
#[inline(always)]
fn sixteen_sum<'a>(
    pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    weight: impl Fn(&[u8]) -> f32,
) -> f32 {
    let mut partial = [0f32; 16];
    for (i, (w, x)) in pairs.enumerate() {
        partial[i % 16] += weight(w) * f32_at(x, 0);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            partial[lane] += partial[lane + half];
        }
    }
    partial[0]
}

/// Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// A vector as a row; `None` where it holds a NaN or an infinity.
pub fn quantise(values: &[f32], format: RowFormat) -> Option<Vec<u8>> {
    if !values.iter().all(|value| value.is_finite()) {
        return None;
    }
    let RowFormat::Blocks(len) = format else {
        return Some(values.iter().flat_map(|value| value.to_le_bytes()).collect());
    };
    let mut row = Vec::with_capacity(values.len() / len * (4 + len));
    for block in values.chunks_exact(len) {
        let largest = block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        if largest < 1e-30 {
            row.resize(row.len() + 4 + len, 0);
            continue;
        }
        row.extend((largest / 127.0).to_le_bytes());
        let factor = 127.0 / largest;
        row.extend(block.iter().map(|value| (value * factor + ROUNDER).to_bits() as u8));
    }
    Some(row)
}

/// `x / (1 + e^-x)`.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// e^x by a polynomial, x clamped to -87.3..=88. A library's `exp` would give other bits on other machines.
#[allow(clippy::excessive_precision, reason = "the digits of the definition")]
fn exp(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let x = x.clamp(-87.3, 88.0);
    let shifted = x * 1.442_695_04 + ROUNDER;
    let n = shifted - ROUNDER;
    let r = (x - n * 0.693_359_375) - n * -2.121_944_4e-4;
    let mut p = 1.987_569_15e-4;
    for coefficient in
        [1.398_199_950_7e-3, 8.333_451_907_3e-3, 4.166_579_589_4e-2, 1.666_666_545_9e-1, 5.000_000_120_1e-1]
    {
        p = p * r + coefficient;
    }
    // n stands in the low bits of `shifted`; n + 127 is the exponent of 2^n.
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    (((p * (r * r)) + r) + 1.0) * power
}

#[inline(always)]
fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// binary16 widened: exact, so any way to do it gives the same bits.
#[inline(always)]
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    let bits = u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (sign, exponent, mantissa) = ((bits & 0x8000) << 16, bits >> 10 & 31, bits & 1023);
    let magnitude = match exponent {
        // Subnormal: mantissa * 2^-24.
        0 => (mantissa as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        31 => 0x7f80_0000 | mantissa << 13,
        _ => exponent + 112 << 23 | mantissa << 13,
    };
    f32::from_bits(sign | magnitude)
}
