//! Random weights and rows for tests and for the golden vectors: a fixed generator, so that a seed names its bytes forever.

#![allow(dead_code, reason = "each user needs a part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use kvasir_numerics::{Format, RowFormat, quantise_row};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Uniform in -1..1.
    pub fn signed(&mut self) -> f32 {
        ((self.next() >> 40) as f32) / (1u64 << 23) as f32 - 1.0
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// How large the scales of random blocks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scales {
    /// As in a trained model: outputs of the order of one.
    Usual,
    /// Any finite f16 or float: subnormals, the largest, both zeros and both signs.
    Any,
}

/// Valid weight bytes of `rows x columns`: every bit pattern that the format's check allows may come up.
pub fn weights(random: &mut Random, format: Format, rows: usize, columns: usize, scales: Scales) -> Vec<u8> {
    let mut bytes = random.bytes(format.row_bytes(columns).unwrap() * rows);
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let (len, typical) = (columns as f32, 0.5 / (columns as f32).sqrt());
        let value = random.signed() * typical * 2.0;
        match format {
            Format::F32 if scales == Scales::Usual => block.copy_from_slice(&value.to_le_bytes()),
            Format::F32 => {
                let bits = random.next() as u32;
                let bits = if bits & 0x7f80_0000 == 0x7f80_0000 { bits & 0x807f_ffff } else { bits };
                block.copy_from_slice(&bits.to_le_bytes());
            }
            Format::BF16 if scales == Scales::Usual => block.copy_from_slice(&value.to_le_bytes()[2..]),
            Format::BF16 => {
                let bits = random.next() as u16;
                let bits = if bits & 0x7f80 == 0x7f80 { bits & 0x807f } else { bits };
                block.copy_from_slice(&bits.to_le_bytes());
            }
            Format::F16 => put_scale(random, block, 0.5 / len.sqrt(), scales),
            Format::Q4_0 => put_scale(random, block, typical / 4.0, scales),
            Format::Q5_0 => put_scale(random, block, typical / 8.0, scales),
            Format::IQ4NL => put_scale(random, block, typical / 64.0, scales),
            Format::Q4_1 | Format::Q5_1 => {
                put_scale(random, &mut block[..2], typical / 16.0, scales);
                put_scale(random, &mut block[2..4], typical / 2.0, scales);
            }
            Format::MXFP4 if scales == Scales::Usual => {
                // 2^(e-128) of about typical / 8.
                block[0] = (((typical / 8.0).to_bits() >> 23) as u8) + 1 - random.below(3) as u8;
            }
            Format::MXFP4 => block[0] = block[0].min(252),
            Format::Q8_0 => {
                put_scale(random, &mut block[..2], typical / 64.0, scales);
                for quant in block[2..].iter_mut().filter(|quant| **quant == 0x80) {
                    *quant = 0x81;
                }
            }
            Format::Q4K | Format::Q5K => {
                put_scale(random, &mut block[..2], typical / 256.0, scales);
                put_scale(random, &mut block[2..4], typical / 64.0, scales);
            }
            Format::Q2K => {
                put_scale(random, &mut block[80..82], typical / 16.0, scales);
                put_scale(random, &mut block[82..], typical / 16.0, scales);
            }
            Format::Q3K => put_scale(random, &mut block[108..], typical / 64.0, scales),
            Format::IQ4XS => put_scale(random, &mut block[..2], typical / 1024.0, scales),
            Format::Q6K => put_scale(random, &mut block[208..], typical / 1024.0, scales),
        }
    }
    bytes
}

/// `count` rows of `columns` values in `format`.
pub fn rows(random: &mut Random, format: RowFormat, columns: usize, count: usize) -> Vec<u8> {
    let len = format.row_bytes(columns).unwrap();
    let mut bytes = vec![0; len * count];
    for row in bytes.chunks_exact_mut(len) {
        let values: Vec<f32> = (0..columns).map(|_| random.signed() * 2.0).collect();
        quantise_row(&values, format, row).unwrap();
    }
    bytes
}

/// Rows that a hostile peer may send and the check allows: extreme values, zero, subnormal and huge scales.
pub fn extreme_rows(random: &mut Random, format: RowFormat, columns: usize, count: usize) -> Vec<u8> {
    let mut bytes = random.bytes(format.row_bytes(columns).unwrap() * count);
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let bits = match random.below(8) {
            0 => 0,
            1 => random.next() as u32 & 0x007f_ffff,
            2 => (random.next() as u32 & 0x7fff_ffff).min(0x7f7f_ffff),
            _ => (random.signed().abs() / 127.0).to_bits(),
        };
        let sign = if format == RowFormat::Float32 { (random.next() as u32) & 0x8000_0000 } else { 0 };
        block[..4].copy_from_slice(&(bits | sign).to_le_bytes());
        let kind = random.below(4);
        for value in &mut block[4..] {
            *value = match kind {
                0 => 127,
                1 => 129,
                2 => [0, 127, 129][random.below(3) as usize],
                _ => {
                    if *value == 0x80 {
                        0
                    } else {
                        *value
                    }
                }
            };
        }
    }
    bytes
}

fn put_scale(random: &mut Random, bytes: &mut [u8], magnitude: f32, scales: Scales) {
    let bits = match scales {
        Scales::Usual => {
            to_f16(magnitude * (0.5 + random.signed().abs())) | ((random.next() as u16 & 1) << 15)
        }
        Scales::Any => {
            let bits = random.next() as u16;
            if bits & 0x7c00 == 0x7c00 { bits & 0x83ff } else { bits }
        }
    };
    bytes[..2].copy_from_slice(&bits.to_le_bytes());
}

/// The f16 just below a magnitude; zero where that is subnormal.
fn to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let exponent = (bits >> 23) as i32 - 112;
    if exponent <= 0 {
        (value * 16_777_216.0) as u16
    } else {
        ((exponent as u16) << 10) | ((bits >> 13) & 0x3ff) as u16
    }
}
