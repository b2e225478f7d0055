//! What the tests share: random experts and rows, the definition's answer, the device to run on or the reason why there is none.
#![allow(dead_code, clippy::unwrap_used)] // Each test uses a part of this; a test that cannot set itself up has failed.

use std::path::PathBuf;
use std::sync::OnceLock;

use kvasir_gpu::message::{ExpertShape, MatrixShape, Rows};
use kvasir_gpu::{AdapterChoice, Gpu, GpuError, GpuOptions, describe};
use kvasir_numerics::{Format, InstructionSet, Matrix, RowFormat, Swiglu, quantise_row, swiglu};
use kvasir_plugin::PluginDigest;

pub const PLUGIN: PluginDigest = PluginDigest([7; 32]);
pub const FORMATS: [&str; 3] = ["Q4_K", "Q8_0", "F16"];

/// The program under test, on whatever device there is.
pub fn options() -> GpuOptions {
    GpuOptions {
        program: Some(PathBuf::from(env!("CARGO_BIN_EXE_kvasir-gpu"))),
        adapter: AdapterChoice::Any,
        ..GpuOptions::default()
    }
}

/// The options, or `None` with the reason printed where no device is found.
pub fn device() -> Option<GpuOptions> {
    static FOUND: OnceLock<Result<String, GpuError>> = OnceLock::new();
    match FOUND.get_or_init(|| describe(&options()).map(|adapter| adapter.to_string())) {
        Ok(_) => Some(options()),
        Err(error @ GpuError::NoDevice { .. }) => {
            println!("skipped: no Vulkan device ({error})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub fn source() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins/swiglu/shaders/swiglu.wgsl");
    std::fs::read_to_string(path).unwrap()
}

pub fn formats() -> Vec<String> {
    FORMATS.map(str::to_owned).to_vec()
}

pub fn gpu(options: GpuOptions) -> Gpu {
    Gpu::new(PLUGIN, &source(), &formats(), options).unwrap()
}

/// A small generator, so that a failure is repeated by running again.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Weights that keep the values of an expert near one, some scales subnormal.
pub fn weights(random: &mut Random, format: Format, outputs: usize, columns: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..format.row_bytes(columns).unwrap() * outputs).map(|_| random.next() as u8).collect();
    let half = |random: &mut Random, exponent: u64| -> [u8; 2] {
        let scale = if random.next().is_multiple_of(16) {
            random.next() as u16 & 0x83ff
        } else {
            ((exponent - random.next() % 3) << 10) as u16 | random.next() as u16 & 0x83ff
        };
        scale.to_le_bytes()
    };
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        match format {
            Format::Q4K => {
                block[..2].copy_from_slice(&half(random, 4));
                block[2..4].copy_from_slice(&half(random, 4));
            }
            Format::Q8_0 => {
                block[..2].copy_from_slice(&half(random, 5));
                block[2..].iter_mut().filter(|quant| **quant == 0x80).for_each(|quant| *quant = 0);
            }
            Format::F16 => block.copy_from_slice(&half(random, 12)),
            _ => unimplemented!("no shader for {format}"),
        }
    }
    bytes
}

/// An expert's bytes and shape.
pub struct Expert {
    pub formats: [Format; 3],
    pub hidden: usize,
    pub width: usize,
    pub bytes: [Vec<u8>; 3],
}

impl Expert {
    pub fn random(random: &mut Random, formats: [Format; 3], hidden: usize, width: usize) -> Self {
        let bytes = [
            weights(random, formats[0], width, hidden),
            weights(random, formats[1], width, hidden),
            weights(random, formats[2], hidden, width),
        ];
        Expert { formats, hidden, width, bytes }
    }

    pub fn matrix(&self, index: usize) -> Matrix<'_> {
        let (outputs, columns) =
            if index == 2 { (self.hidden, self.width) } else { (self.width, self.hidden) };
        Matrix::new(self.formats[index], outputs, columns, &self.bytes[index]).unwrap()
    }

    pub fn swiglu(&self) -> Swiglu<'_> {
        Swiglu::new(self.matrix(0), self.matrix(1), self.matrix(2)).unwrap()
    }

    pub fn shape(&self) -> ExpertShape {
        std::array::from_fn(|index| {
            let matrix = self.matrix(index);
            MatrixShape {
                format: matrix.format().name().to_owned(),
                rows_format: rows_format(matrix.row_format()),
                outputs: matrix.rows() as u32,
                columns: matrix.columns() as u32,
                row_bytes: matrix.format().row_bytes(matrix.columns()).unwrap() as u32,
            }
        })
    }

    pub fn load(&self, gpu: &mut Gpu, number: u64) -> Result<(), GpuError> {
        gpu.load(number, self.shape(), [&self.bytes[0], &self.bytes[1], &self.bytes[2]])
    }

    /// The definition's answer.
    pub fn answer(&self, rows: &[u8], count: usize) -> Vec<f32> {
        let expert = self.swiglu();
        let mut scratch = vec![0.0; expert.scratch_len(count).unwrap()];
        let mut out = vec![0.0; self.hidden * count];
        swiglu(InstructionSet::detect(), &expert, rows, count, &mut scratch, &mut out).unwrap();
        out
    }

    pub fn rows(&self, random: &mut Random, count: usize) -> Vec<u8> {
        rows(random, self.matrix(0).row_format(), self.hidden, count)
    }
}

pub fn rows_format(format: RowFormat) -> Rows {
    Rows::from_number(format.number()).unwrap()
}

/// Rows of values about one, now and then one that is much larger or zero.
pub fn rows(random: &mut Random, format: RowFormat, columns: usize, count: usize) -> Vec<u8> {
    let row_bytes = format.row_bytes(columns).unwrap();
    let mut bytes = vec![0; row_bytes * count];
    for bytes in bytes.chunks_exact_mut(row_bytes) {
        let size = [1.0, 1.0, 1.0, 0.0, 8.0][(random.next() % 5) as usize];
        let row: Vec<f32> = (0..columns).map(|_| random.unit() * size).collect();
        quantise_row(&row, format, bytes).unwrap();
    }
    bytes
}

/// How far two results are apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deviation {
    pub values: usize,
    pub bits: usize,
    pub largest: f32,
    pub relative: f32,
    pub cosine: f64,
}

pub fn deviation(found: &[f32], due: &[f32]) -> Deviation {
    assert_eq!(found.len(), due.len());
    let largest_due = due.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let mut deviation = Deviation { values: due.len(), ..Deviation::default() };
    let (mut dot, mut left, mut right) = (0f64, 0f64, 0f64);
    for (&a, &b) in found.iter().zip(due) {
        assert!(a.is_finite());
        deviation.bits += usize::from(a.to_bits() != b.to_bits());
        deviation.largest = deviation.largest.max((a - b).abs());
        deviation.relative = deviation.relative.max((a - b).abs() / largest_due.max(1e-30));
        dot += f64::from(a) * f64::from(b);
        left += f64::from(a) * f64::from(a);
        right += f64::from(b) * f64::from(b);
    }
    deviation.cosine = if left * right == 0.0 { 1.0 } else { dot / (left * right).sqrt() };
    deviation
}
