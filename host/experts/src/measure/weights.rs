//! Made-up experts: random quants, scales as a trained model has them, so that nothing overflows and no speed comes of zeros.

use kvasir_model::ExpertIndex;
use kvasir_numerics::{Format, Matrix, Swiglu, quantise_row};

use super::{MAX_EXPERTS, MAX_ROWS, MAX_SIDE, MeasureError};

/// What experts look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// The format of all three matrices.
    pub format: Format,
    /// Values of a row in and out.
    pub hidden: usize,
    /// Values between the matrices.
    pub width: usize,
}

impl ExpertShape {
    /// Bytes of one expert's three matrices; 0 where the sides are no whole blocks.
    pub fn expert_bytes(self) -> usize {
        let wide = self.format.row_bytes(self.hidden).unwrap_or(0) * self.width;
        2 * wide + self.format.row_bytes(self.width).unwrap_or(0) * self.hidden
    }

    /// Whether an expert can look like this.
    ///
    /// # Errors
    /// Sides that are no whole blocks, or more than [`MAX_SIDE`].
    pub fn check(self) -> Result<(), MeasureError> {
        for side in [self.hidden, self.width] {
            let blocks = self.format.block_len().max(self.format.row_format().block_len());
            if side == 0 || !side.is_multiple_of(blocks) || side > MAX_SIDE {
                return Err(MeasureError::Impossible(format!(
                    "an expert of {} cannot have a side of {side}: it must be a multiple of {blocks}, at most {MAX_SIDE}",
                    self.format
                )));
            }
        }
        Ok(())
    }
}

/// Experts of one shape, each with memory of its own, and rows for them.
pub struct MadeUpExperts {
    shape: ExpertShape,
    experts: Vec<[Vec<u8>; 3]>,
    values: Vec<f32>,
}

impl MadeUpExperts {
    /// `count` experts and `rows` rows.
    ///
    /// # Errors
    /// Sides that are no whole blocks, or more than [`MAX_SIDE`], [`MAX_EXPERTS`] or [`MAX_ROWS`].
    pub fn new(shape: ExpertShape, count: usize, rows: usize) -> Result<Self, MeasureError> {
        shape.check()?;
        if count == 0 || count > MAX_EXPERTS {
            let told = format!("{count} experts cannot be measured at once: 1 to {MAX_EXPERTS} can");
            return Err(MeasureError::Impossible(told));
        }
        if rows == 0 || rows > MAX_ROWS {
            let told = format!("{rows} rows cannot be measured at once: 1 to {MAX_ROWS} can");
            return Err(MeasureError::Impossible(told));
        }
        let mut random = Random(1);
        let mut first = || {
            [(shape.width, shape.hidden), (shape.width, shape.hidden), (shape.hidden, shape.width)]
                .map(|(rows, columns)| random_matrix(&mut random, shape.format, rows, columns))
        };
        // Copies: what counts is that each lies elsewhere in memory.
        let experts = vec![first(); count];
        let mut random = Random(2);
        let values = (0..rows * shape.hidden).map(|_| random.signed()).collect();
        Ok(MadeUpExperts { shape, experts, values })
    }

    /// What the experts look like.
    pub fn shape(&self) -> ExpertShape {
        self.shape
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.experts.len()
    }

    /// An expert.
    ///
    /// # Errors
    /// Where there is none of this number.
    pub fn expert(&self, expert: ExpertIndex) -> Result<Swiglu<'_>, MeasureError> {
        let ExpertShape { format, hidden, width } = self.shape;
        let impossible = |told: String| MeasureError::Impossible(format!("expert {}: {told}", expert.0));
        let [gate, up, down] = self
            .experts
            .get(usize::from(expert.0))
            .ok_or_else(|| impossible(format!("only {} were made", self.experts.len())))?;
        let matrix = |bytes, rows, columns| {
            Matrix::new(format, rows, columns, bytes).map_err(|error| impossible(error.to_string()))
        };
        Swiglu::new(matrix(gate, width, hidden)?, matrix(up, width, hidden)?, matrix(down, hidden, width)?)
            .map_err(|error| impossible(error.to_string()))
    }

    /// The values of a row before it is quantised; the last row's where there is no such row.
    pub(super) fn values(&self, row: u32) -> &[f32] {
        let rows = self.values.len() / self.shape.hidden;
        &self.values[(row as usize).min(rows - 1) * self.shape.hidden..][..self.shape.hidden]
    }
}

/// The rows of `experts`, quantised as their gate reads them, back to back.
///
/// # Errors
/// Never: the values are finite and the sides whole blocks. The type is the caller's.
pub fn made_up_rows(experts: &MadeUpExperts) -> Result<Vec<u8>, MeasureError> {
    let (format, hidden) = (experts.shape.format.row_format(), experts.shape.hidden);
    let row_bytes = format.row_bytes(hidden).unwrap_or(0);
    let mut bytes = vec![0; experts.values.len() / hidden * row_bytes];
    for (values, row) in experts.values.chunks_exact(hidden).zip(bytes.chunks_exact_mut(row_bytes)) {
        quantise_row(values, format, row)?;
    }
    Ok(bytes)
}

/// A matrix of random weights of the order of 1 / sqrt(columns), which the format's check takes.
pub fn random_matrix(random: &mut Random, format: Format, rows: usize, columns: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    let len = format.row_bytes(columns).unwrap_or(0) * rows;
    bytes.reserve_exact(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len);
    let size = 1.0 / (columns.max(1) as f32).sqrt();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        match format {
            Format::F32 => block.copy_from_slice(&(random.signed() * size).to_le_bytes()),
            Format::BF16 => block.copy_from_slice(&(random.signed() * size).to_le_bytes()[2..]),
            Format::F16 => put_half(block, random.signed() * size),
            Format::Q4_0 | Format::Q5_0 => put_half(&mut block[..2], size / 8.0),
            Format::IQ4NL => put_half(&mut block[..2], size / 64.0),
            Format::Q4_1 | Format::Q5_1 => {
                put_half(&mut block[..2], size / 16.0);
                put_half(&mut block[2..4], -size);
            }
            // 2^(e - 128): the exponent of an f32 is e - 127.
            Format::MXFP4 => block[0] = ((size / 8.0).to_bits() >> 23) as u8,
            Format::Q8_0 => {
                put_half(&mut block[..2], size / 128.0);
                block[2..].iter_mut().filter(|quant| **quant == 0x80).for_each(|quant| *quant = 0x81);
            }
            Format::Q4K | Format::Q5K => {
                put_half(&mut block[..2], size / 512.0);
                put_half(&mut block[2..4], size / 64.0);
            }
            Format::Q2K => {
                put_half(&mut block[80..82], size / 16.0);
                put_half(&mut block[82..84], size / 16.0);
            }
            Format::Q3K => put_half(&mut block[108..], size / 64.0),
            Format::IQ4XS => put_half(&mut block[..2], size / 1024.0),
            Format::Q6K => put_half(&mut block[208..], size / 2048.0),
        }
    }
    bytes
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    fn signed(&mut self) -> f32 {
        ((self.next() >> 40) as f32) / (1u64 << 23) as f32 - 1.0
    }
}

/// The f16 next towards zero, little-endian; below the smallest normal one it is a subnormal.
fn put_half(bytes: &mut [u8], value: f32) {
    let bits = value.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let exponent = (bits >> 23 & 0xff) as i32 - 112;
    let half = if exponent <= 0 {
        (value.abs() * 16_777_216.0) as u16
    } else {
        ((exponent as u16) << 10) | ((bits >> 13) & 0x3ff) as u16
    };
    bytes.copy_from_slice(&(sign | half).to_le_bytes());
}
