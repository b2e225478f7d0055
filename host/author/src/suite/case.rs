//! Made-up experts with rows, and what exact-v1 makes of them.

use kvasir_experts::measure::{Random, random_matrix};
use kvasir_numerics::{Format, InstructionSet, Matrix, RowFormat, Swiglu, quantise_row, swiglu};
use kvasir_sandbox::{ExpertHandle, ExpertShape, KernelInstance, MatrixShape, SandboxError, WeightFormat};

/// An expert and rows for it.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Of gate, up and down.
    pub formats: [Format; 3],
    pub hidden: usize,
    pub width: usize,
    pub count: usize,
    pub gate: Vec<u8>,
    pub up: Vec<u8>,
    pub down: Vec<u8>,
    pub rows: Vec<u8>,
}

/// What made-up weights are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weights {
    /// As a trained model has them.
    Usual,
    /// Scales of either sign.
    Signed,
    /// Every quant at one end of its range.
    Extreme,
    /// Scales so small that they are subnormal as f16.
    Subnormal,
}

impl Weights {
    pub const ALL: [Weights; 4] = [Weights::Usual, Weights::Signed, Weights::Extreme, Weights::Subnormal];

    fn name(self) -> &'static str {
        match self {
            Weights::Usual => "usual",
            Weights::Signed => "signed",
            Weights::Extreme => "extreme",
            Weights::Subnormal => "subnormal",
        }
    }
}

impl Case {
    pub fn new(
        random: &mut Random,
        formats: [Format; 3],
        (hidden, width): (usize, usize),
        count: usize,
        weights: Weights,
    ) -> Case {
        let [gate, up, down] = formats;
        let mut matrix = |format, rows, columns| {
            let mut bytes = random_matrix(random, format, rows, columns);
            shape_weights(random, format, weights, &mut bytes);
            bytes
        };
        let (gate_bytes, up_bytes, down_bytes) =
            (matrix(gate, width, hidden), matrix(up, width, hidden), matrix(down, hidden, width));
        let rows = made_rows(random, gate.row_format(), hidden, count);
        Case { formats, hidden, width, count, gate: gate_bytes, up: up_bytes, down: down_bytes, rows }
    }

    /// A small expert in one format: `blocks` blocks wide and high, or about as much for float formats.
    pub fn small(random: &mut Random, format: Format, count: usize, weights: Weights) -> Case {
        Case::new(random, [format; 3], (sides(format, 2), sides(format, 1)), count, weights)
    }

    pub fn shape(&self) -> Option<ExpertShape> {
        let matrix = |format: Format, rows: usize, columns: usize| {
            let format = WeightFormat::from_gguf(format.number())?;
            Some(MatrixShape { format, rows: rows as u32, columns: columns as u32 })
        };
        let [gate, up, down] = self.formats;
        Some(ExpertShape {
            gate: matrix(gate, self.width, self.hidden)?,
            up: matrix(up, self.width, self.hidden)?,
            down: matrix(down, self.hidden, self.width)?,
        })
    }

    pub fn load(&self, instance: &mut KernelInstance) -> Result<ExpertHandle, SandboxError> {
        let shape = self.shape().ok_or(SandboxError::BrokenContract {
            call: "load",
            reason: "the contract has no name for the format".to_owned(),
        })?;
        instance.load(shape, &self.gate, &self.up, &self.down)
    }

    /// Row `row` alone.
    pub fn row(&self, row: usize) -> &[u8] {
        let bytes = self.rows.len() / self.count.max(1);
        &self.rows[row * bytes..][..bytes]
    }

    /// What is due, count x hidden values; nothing where the arithmetic overflows.
    pub fn due(&self) -> Result<Option<Vec<f32>>, String> {
        let told = |what: &dyn std::fmt::Display| format!("{self}: {what}");
        let [gate, up, down] = self.formats;
        let matrix = |format, rows, columns, bytes| {
            Matrix::new(format, rows, columns, bytes).map_err(|error| told(&error))
        };
        let expert = Swiglu::new(
            matrix(gate, self.width, self.hidden, &self.gate)?,
            matrix(up, self.width, self.hidden, &self.up)?,
            matrix(down, self.hidden, self.width, &self.down)?,
        )
        .map_err(|error| told(&error))?;
        let mut scratch = vec![0.0; expert.scratch_len(self.count).unwrap_or(0)];
        let mut out = vec![0.0; self.hidden * self.count];
        let done = swiglu(InstructionSet::detect(), &expert, &self.rows, self.count, &mut scratch, &mut out);
        Ok(done.is_ok().then_some(out))
    }

    /// Computes all rows at once and compares every bit.
    pub fn compare(&self, instance: &mut KernelInstance, expert: &ExpertHandle) -> Result<(), String> {
        let answer = instance.forward(expert, &self.rows, self.count as u32);
        match (answer, self.due()?) {
            (Ok(values), Some(due)) => {
                same_bits(&values, &due, self.hidden).map_err(|where_| format!("{self}: {where_}"))
            }
            (Err(SandboxError::Fault { fault: kvasir_sandbox::Fault::NotFinite, .. }), None) => Ok(()),
            (Err(error), _) => Err(format!("{self}: {error}")),
            (Ok(_), None) => Err(format!("{self}: it answered, not-finite was due")),
        }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [gate, up, down] = self.formats;
        if gate == up && up == down {
            write!(f, "{gate}")?;
        } else {
            write!(f, "gate {gate}, up {up}, down {down}")?;
        }
        write!(f, ", hidden {}, width {}, {} rows", self.hidden, self.width, self.count)
    }
}

/// With the kind of weights in front, where a message needs it.
pub(super) fn labelled(weights: Weights, result: Result<(), String>) -> Result<(), String> {
    result.map_err(|told| format!("{} weights, {told}", weights.name()))
}

/// Says where two answers differ first.
pub(super) fn same_bits(found: &[f32], due: &[f32], hidden: usize) -> Result<(), String> {
    if found.len() != due.len() {
        return Err(format!("{} values came, {} were due", found.len(), due.len()));
    }
    let differs = found.iter().zip(due).position(|(found, due)| found.to_bits() != due.to_bits());
    match differs {
        None => Ok(()),
        Some(at) => Err(format!(
            "value {} of row {} has the bits {:#010x} ({:e}), {:#010x} ({:e}) were due; {} of {} values differ",
            at % hidden,
            at / hidden,
            found[at].to_bits(),
            found[at],
            due[at].to_bits(),
            due[at],
            found.iter().zip(due).filter(|(found, due)| found.to_bits() != due.to_bits()).count(),
            due.len()
        )),
    }
}

/// A side of so many blocks: of 1 for float formats, where a block is one value, about as many values as a small block has.
pub(super) fn sides(format: Format, blocks: usize) -> usize {
    match format.row_format() {
        RowFormat::Float32 => blocks * 24 + 8,
        RowFormat::Q8 | RowFormat::Q8K => blocks * format.block_len(),
    }
}

/// Where the f16 numbers of a block lie.
pub(super) fn f16_places(format: Format) -> &'static [usize] {
    match format {
        Format::F16 | Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::IQ4NL | Format::IQ4XS => &[0],
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::F32 | Format::BF16 | Format::MXFP4 => &[],
    }
}

fn shape_weights(random: &mut Random, format: Format, weights: Weights, bytes: &mut [u8]) {
    let places = f16_places(format);
    let quantised = format.block_len() > 1;
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let scale_byte = |at: usize| places.iter().any(|place| at == *place || at == place + 1);
        match weights {
            Weights::Usual => {}
            Weights::Signed => {
                for &place in places {
                    block[place + 1] ^= (random.next() as u8) & 0x80;
                }
            }
            Weights::Extreme if quantised && format != Format::MXFP4 => {
                let quant = match (format, random.next() % 2) {
                    (Format::Q8_0, 0) => 0x81,
                    (Format::Q8_0, _) => 0x7f,
                    (_, 0) => 0x00,
                    (_, _) => 0xff,
                };
                (0..block.len()).filter(|at| !scale_byte(*at)).for_each(|at| block[at] = quant);
            }
            Weights::Subnormal => {
                for &place in places {
                    let half = (random.next() as u16) & 0x03ff;
                    block[place..place + 2].copy_from_slice(&half.to_le_bytes());
                }
            }
            Weights::Extreme => {}
        }
    }
}

/// Rows of several kinds in turn: random, all at the ends of the range, zero, one value far above the others.
fn made_rows(random: &mut Random, format: RowFormat, hidden: usize, count: usize) -> Vec<u8> {
    let row_bytes = format.row_bytes(hidden).unwrap_or(0);
    let mut bytes = vec![0; row_bytes * count];
    for (row, out) in bytes.chunks_exact_mut(row_bytes.max(1)).enumerate() {
        let mut values: Vec<f32> = (0..hidden)
            .map(|_| {
                let value = ((random.next() >> 40) as f32) / (1u64 << 23) as f32 - 1.0;
                match row % 5 {
                    1 => 1f32.copysign(value),
                    3 => 0.0,
                    _ => value,
                }
            })
            .collect();
        if row % 5 == 4 {
            values[(random.next() % hidden.max(1) as u64) as usize] = 1000.0;
        }
        // The values are finite and the sides whole blocks, so this cannot fail.
        let _ = quantise_row(&values, format, out);
    }
    bytes
}
