//! The released swiglu component against the scalar reference, bit for bit: every format, random and extreme weights,
//! rows alone and in batches, through the runner as a backbone and as a worker use it.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use kvasir_experts::*;
use kvasir_numerics::{Format, InstructionSet, Matrix, quantise_row, swiglu};

const LAYER: LayerIndex = LayerIndex(0);

/// The released plugin, packed and signed as a release is.
fn released() -> VerifiedPlugin {
    let folder = plugin::root().join("plugins/swiglu");
    let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
    plugin::verified(&kvasir_plugin::PackageContents {
        manifest: read("plugin.toml"),
        component: read("release/swiglu-0.2.0.wasm"),
        shaders: plugin::folder_files(&folder.join("shaders")),
        vectors: plugin::folder_files(&folder.join("vectors")),
        sbom: Vec::new(),
    })
}

/// One runner for all tests of this file: compiled and proven once.
fn runner() -> &'static ExpertRunner {
    static RUNNER: OnceLock<ExpertRunner> = OnceLock::new();
    RUNNER.get_or_init(|| ExpertRunner::new(&released(), options(3)).unwrap())
}

fn options(instances: usize) -> RunnerOptions {
    RunnerOptions { instances: NonZeroUsize::new(instances).unwrap(), ..RunnerOptions::default() }
}

/// A small generator, so that a failure is repeated by running again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Where the f16 scales of a block lie, and the largest scale that keeps results finite.
fn scales(format: Format) -> &'static [usize] {
    match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::IQ4NL | Format::IQ4XS => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::F32 | Format::F16 | Format::BF16 | Format::MXFP4 => &[],
    }
}

/// Bytes of a matrix: any bits that the load check lets pass, of a size that mostly keeps results finite.
fn weights(random: &mut Random, format: Format, rows: usize, columns: usize, extreme: bool) -> Vec<u8> {
    let length = format.row_bytes(columns).unwrap() * rows;
    let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
    let half = |random: &mut Random| -> u16 {
        // Subnormal, zero, tiny or about 2^-6; with either sign.
        let magnitude = match random.below(if extreme { 5 } else { 1 }) {
            0 => 0x2400 | (random.next() as u16 & 0x3ff),
            1 => 0,
            2 => 1,
            3 => random.next() as u16 & 0x3ff,
            _ => 0x4000 | (random.next() as u16 & 0x3ff),
        };
        magnitude | (random.next() as u16 & 0x8000)
    };
    match format {
        Format::F32 => {
            for value in bytes.chunks_exact_mut(4) {
                let scale = if extreme { 2f32.powi(random.below(40) as i32 - 30) } else { 0.05 };
                value.copy_from_slice(&(random.unit() * scale).to_le_bytes());
            }
        }
        Format::BF16 => {
            for value in bytes.chunks_exact_mut(2) {
                let scale = if extreme { 2f32.powi(random.below(40) as i32 - 30) } else { 0.05 };
                value.copy_from_slice(&(random.unit() * scale).to_le_bytes()[2..]);
            }
        }
        Format::F16 => {
            for value in bytes.chunks_exact_mut(2) {
                value.copy_from_slice(&half(random).to_le_bytes());
            }
        }
        _ => {
            for block in bytes.chunks_exact_mut(format.block_bytes()) {
                for &at in scales(format) {
                    block[at..at + 2].copy_from_slice(&half(random).to_le_bytes());
                }
                if format == Format::MXFP4 {
                    // 2^-10 or so, or a subnormal.
                    let tiny = extreme && random.below(3) == 0;
                    block[0] = if tiny { random.below(3) as u8 } else { 116 + random.below(4) as u8 };
                    if extreme {
                        let fill = [0x00, 0xff, 0x77, 0x88][random.below(4)];
                        block[1..].fill(fill);
                    }
                } else if format == Format::Q8_0 {
                    block[2..].iter_mut().filter(|byte| **byte == 0x80).for_each(|byte| *byte = 0x81);
                    if extreme {
                        let full = if random.below(2) == 0 { 0x7f } else { 0x81 };
                        block[2..].fill(full);
                    }
                } else if extreme {
                    let fill = [0x00, 0xff, 0x0f, 0xf0, random.next() as u8][random.below(5)];
                    let scales = scales(format);
                    block
                        .iter_mut()
                        .enumerate()
                        .filter(|(at, _)| !scales.iter().any(|scale| (*scale..scale + 2).contains(at)))
                        .for_each(|(_, byte)| *byte = fill);
                }
            }
        }
    }
    bytes
}

struct Expert {
    gate: (Format, Vec<u8>),
    up: (Format, Vec<u8>),
    down: (Format, Vec<u8>),
    hidden: usize,
    width: usize,
}

impl Expert {
    fn random(random: &mut Random, formats: [Format; 3], hidden: usize, width: usize, extreme: bool) -> Self {
        let [gate, up, down] = formats;
        Expert {
            gate: (gate, weights(random, gate, width, hidden, extreme)),
            up: (up, weights(random, up, width, hidden, extreme)),
            down: (down, weights(random, down, hidden, width, extreme)),
            hidden,
            width,
        }
    }

    fn swiglu(&self) -> Swiglu<'_> {
        let wide = |(format, bytes)| Matrix::new(format, self.width, self.hidden, bytes).unwrap();
        let (gate, up, down) = (&self.gate, &self.up, &self.down);
        let down = Matrix::new(down.0, self.hidden, self.width, &down.1).unwrap();
        Swiglu::new(wide((gate.0, &gate.1[..])), wide((up.0, &up.1[..])), down).unwrap()
    }

    /// The scalar reference; `None` where a value is not finite.
    fn reference(&self, rows: &[u8], count: usize) -> Option<Vec<f32>> {
        let expert = self.swiglu();
        let mut scratch = vec![0.0; expert.scratch_len(count).unwrap()];
        let mut out = vec![0.0; count * self.hidden];
        let done = swiglu(InstructionSet::SCALAR, &expert, rows, count, &mut scratch, &mut out);
        done.ok().map(|()| out)
    }
}

fn quantised(random: &mut Random, format: RowFormat, count: usize, hidden: usize, extreme: bool) -> Vec<u8> {
    let row_bytes = format.row_bytes(hidden).unwrap();
    let mut rows = vec![0; count * row_bytes];
    for out in rows.chunks_exact_mut(row_bytes) {
        let kind = if extreme { random.below(4) } else { 0 };
        let row: Vec<f32> = (0..hidden)
            .map(|_| match kind {
                0 => random.unit() * 3.0,
                1 => 0.0,
                2 => 1e-38 * random.unit(),
                _ => [40.0, -40.0, 1e-3][random.below(3)],
            })
            .collect();
        quantise_row(&row, format, out).unwrap();
    }
    rows
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

const COMBINATIONS: [[Format; 3]; 28] = [
    [Format::F32; 3],
    [Format::F16; 3],
    [Format::BF16; 3],
    [Format::Q4_0; 3],
    [Format::Q8_0; 3],
    [Format::Q4K; 3],
    [Format::Q6K; 3],
    [Format::Q4K, Format::Q4K, Format::Q6K],
    [Format::Q4K, Format::Q6K, Format::Q8_0],
    [Format::Q4_0, Format::Q8_0, Format::F16],
    [Format::F16, Format::BF16, Format::Q4_0],
    [Format::F32, Format::F16, Format::F32],
    [Format::Q8_0, Format::Q4_0, Format::Q4K],
    [Format::Q6K, Format::Q4K, Format::BF16],
    [Format::Q4_1; 3],
    [Format::Q5_0; 3],
    [Format::Q5_1; 3],
    [Format::IQ4NL; 3],
    [Format::MXFP4; 3],
    [Format::Q2K; 3],
    [Format::Q3K; 3],
    [Format::Q5K; 3],
    [Format::IQ4XS; 3],
    // As files of the mixtures Q5_K_M, Q3_K_M, Q2_K and IQ4_XS, and where a width is no multiple of 256.
    [Format::Q5K, Format::Q5K, Format::Q6K],
    [Format::Q3K, Format::Q3K, Format::Q5K],
    [Format::Q2K, Format::Q2K, Format::Q3K],
    [Format::IQ4XS, Format::Q4K, Format::IQ4NL],
    [Format::Q3K, Format::IQ4XS, Format::Q5_0],
];

#[test]
fn the_released_plugin_proves_itself() {
    let report = conformance(&released()).unwrap();
    assert!(report.vectors >= 25 && report.rows >= 90, "{report:?}");
}

#[test]
fn every_format_equals_the_scalar_reference_alone_and_batched() {
    let runner = runner();
    let mut random = Random(0x6b76_6173_6972);
    let (mut finite, mut refused, mut index) = (0, 0, 0u16);
    for formats in COMBINATIONS {
        let blocks = |format: Format| format.block_len().max(8);
        // Both dimensions whole blocks of every format that reads them: a row of one or two super-blocks, or fewer.
        let hidden = formats[..2].iter().map(|&format| blocks(format)).max().unwrap();
        let width = blocks(formats[2]);
        for (turn, extreme) in [(0, false), (1, false), (2, true), (3, true), (4, true)] {
            let (hidden, width) = (hidden * (1 + turn % 2), width * (1 + turn / 2 % 2));
            let expert = Expert::random(&mut random, formats, hidden, width, extreme);
            let row_format = expert.swiglu().gate().row_format();
            let id = ExpertIndex(index);
            index += 1;
            runner.load(LAYER, id, &expert.swiglu()).unwrap();
            let rows = quantised(&mut random, row_format, 9, hidden, extreme);
            let row_bytes = rows.len() / 9;
            for count in 1..=9 {
                let rows = &rows[..count * row_bytes];
                let request = [ExpertRows { expert: id, rows: (0..count as u32).collect(), weights: vec![] }];
                let found = runner.each(LAYER, row_format, rows, hidden, &request);
                match expert.reference(rows, count) {
                    Some(due) => {
                        assert_eq!(bits(&found.unwrap()), bits(&due), "{formats:?}, {count} rows, {extreme}");
                        finite += 1;
                    }
                    None => {
                        let error = kvasir_backbone::ExpertsError::from(found.unwrap_err());
                        assert!(matches!(error, kvasir_backbone::ExpertsError::NotFinite { .. }), "{error}");
                        refused += 1;
                    }
                }
            }
            for row in 0..9 {
                let request = [ExpertRows { expert: id, rows: vec![row], weights: vec![] }];
                let found = runner.each(LAYER, row_format, &rows, hidden, &request).ok();
                let alone = expert.reference(&rows[row as usize * row_bytes..][..row_bytes], 1);
                assert_eq!(
                    found.as_deref().map(bits),
                    alone.as_deref().map(bits),
                    "{formats:?}, row {row} alone"
                );
            }
            runner.unload(LAYER, id);
        }
    }
    // The extremes must not have turned the test into one of refusals.
    assert!(finite > 4 * refused && finite > 400, "{finite} finite, {refused} refused");
    assert_eq!(runner.failures(), 0);
}

#[test]
fn sums_are_the_same_however_experts_are_held() {
    let mut random = Random(42);
    let formats = [Format::Q4K, Format::Q4K, Format::Q6K];
    let experts: Vec<Expert> =
        (0..16).map(|_| Expert::random(&mut random, formats, 256, 256, false)).collect();
    let count = 6;
    let rows = quantised(&mut random, RowFormat::Q8K, count, 256, false);
    let mut requests: Vec<ExpertRows> = Vec::new();
    for index in 0..16u16 {
        let chosen: Vec<u32> = (0..count as u32).filter(|_| random.below(2) == 0).collect();
        let weights = chosen.iter().map(|_| random.unit()).collect();
        requests.push(ExpertRows { expert: ExpertIndex(index), rows: chosen, weights });
    }
    let reference: Vec<f32> = requests
        .iter()
        .flat_map(|request| {
            let expert = &experts[usize::from(request.expert.0)];
            let row_bytes = rows.len() / count;
            let outputs =
                |&row: &u32| expert.reference(&rows[row as usize * row_bytes..][..row_bytes], 1).unwrap();
            request.rows.iter().flat_map(outputs).collect::<Vec<f32>>()
        })
        .collect();
    let due = bits(&combine(count, 256, &requests, &reference));
    let plugin = released();
    for instances in [1, 2, 5, 16, 40] {
        let runner = ExpertRunner::new(&plugin, options(instances)).unwrap();
        for (index, expert) in experts.iter().enumerate() {
            runner.load(LAYER, ExpertIndex(index as u16), &expert.swiglu()).unwrap();
        }
        let each = runner.each(LAYER, RowFormat::Q8K, &rows, 256, &requests).unwrap();
        assert_eq!(bits(&each), bits(&reference), "{instances} instances");
        let sum = runner.sum(LAYER, RowFormat::Q8K, &rows, 256, &requests).unwrap();
        assert_eq!(bits(&sum), due, "{instances} instances");
        // Two halves, each computed apart, second half first.
        let (low, high) = requests.split_at(7);
        let parts = [high, low].concat();
        let answers =
            [high, low].map(|half| runner.each(LAYER, RowFormat::Q8K, &rows, 256, half).unwrap()).concat();
        assert_eq!(bits(&combine(count, 256, &parts, &answers)), due, "{instances} instances, in two parts");
    }
}
