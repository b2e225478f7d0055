//! `golden_vectors FOLDER`: writes the golden vectors of the expert kernel, made by the scalar reference from fixed seeds.
//! The layout of the files is described in `kvasir_numerics::golden`.

use std::path::Path;

use kvasir_numerics::golden::MAGIC;
use kvasir_numerics::{Format, InstructionSet, Matrix, Swiglu, check_rows, swiglu};

#[path = "../tests/random/mod.rs"]
mod random;

use random::{Random, Scales};

/// One file: its name, the formats of gate, up and down, the shape, and how many rows.
struct Case {
    name: &'static str,
    formats: [Format; 3],
    hidden: usize,
    width: usize,
    count: usize,
}

const CASES: [Case; 19] = [
    case("f32", [Format::F32; 3], 40, 24, 3),
    case("f16", [Format::F16; 3], 40, 24, 3),
    case("bf16", [Format::BF16; 3], 40, 24, 3),
    case("q8_0", [Format::Q8_0; 3], 96, 64, 5),
    case("q4_0", [Format::Q4_0; 3], 96, 64, 5),
    case("q4_0-with-q8_0", [Format::Q4_0, Format::Q8_0, Format::F16], 96, 64, 4),
    case("q4_k", [Format::Q4K; 3], 512, 256, 5),
    case("q6_k", [Format::Q6K; 3], 256, 256, 6),
    case("q4_k-with-q6_k", [Format::Q4K, Format::Q4K, Format::Q6K], 256, 256, 7),
    case("q4_1", [Format::Q4_1; 3], 96, 64, 5),
    case("q5_0", [Format::Q5_0; 3], 96, 64, 5),
    case("q5_1", [Format::Q5_1; 3], 96, 64, 5),
    case("iq4_nl", [Format::IQ4NL; 3], 96, 64, 5),
    case("mxfp4", [Format::MXFP4; 3], 96, 64, 5),
    case("q2_k", [Format::Q2K; 3], 512, 256, 5),
    case("q3_k", [Format::Q3K; 3], 256, 256, 5),
    case("q5_k", [Format::Q5K; 3], 256, 256, 5),
    case("iq4_xs", [Format::IQ4XS; 3], 256, 256, 5),
    case("q5_k-with-q3_k", [Format::Q5K, Format::Q2K, Format::Q3K], 256, 256, 6),
];

const fn case(name: &'static str, formats: [Format; 3], hidden: usize, width: usize, count: usize) -> Case {
    Case { name, formats, hidden, width, count }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: golden_vectors FOLDER")?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    for (seed, case) in CASES.iter().enumerate() {
        let mut random = Random(0x6b76_6173_6972 + seed as u64);
        let parts = case.parts(&mut random);
        std::fs::write(folder.join(format!("{}.vector", case.name)), file(case, &parts)?)?;
    }

    let q8_0 = &CASES[3];
    let mut parts = q8_0.parts(&mut Random(1));
    parts.up[2 + 7] = 0x80;
    std::fs::write(folder.join("q8_0-weight-128.vector"), file(q8_0, &parts)?)?;
    let mut parts = q8_0.parts(&mut Random(2));
    parts.down[..2].copy_from_slice(&0x7c00u16.to_le_bytes());
    std::fs::write(folder.join("q8_0-infinite-scale.vector"), file(q8_0, &parts)?)?;
    let mut parts = q8_0.parts(&mut Random(3));
    parts.rows[4 + 3] = 0x80;
    std::fs::write(folder.join("q8_0-row-128.vector"), file(q8_0, &parts)?)?;
    let mut parts = q8_0.parts(&mut Random(4));
    parts.rows[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(folder.join("q8_0-row-nan-scale.vector"), file(q8_0, &parts)?)?;
    let mut parts = q8_0.parts(&mut Random(5));
    parts.rows[..4].copy_from_slice(&f32::MAX.to_le_bytes());
    std::fs::write(folder.join("q8_0-overflow.vector"), file(q8_0, &parts)?)?;
    let mxfp4 = &CASES[13];
    let mut parts = mxfp4.parts(&mut Random(6));
    parts.gate[0] = 253;
    std::fs::write(folder.join("mxfp4-infinite-weight.vector"), file(mxfp4, &parts)?)?;
    Ok(())
}

struct Parts {
    gate: Vec<u8>,
    up: Vec<u8>,
    down: Vec<u8>,
    rows: Vec<u8>,
}

impl Case {
    fn parts(&self, random: &mut Random) -> Parts {
        let [gate, up, down] = self.formats;
        Parts {
            gate: random::weights(random, gate, self.width, self.hidden, Scales::Usual),
            up: random::weights(random, up, self.width, self.hidden, Scales::Usual),
            down: random::weights(random, down, self.hidden, self.width, Scales::Usual),
            rows: random::rows(random, gate.row_format(), self.hidden, self.count),
        }
    }
}

fn file(case: &Case, parts: &Parts) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let (hidden, width) = (case.hidden, case.width);
    let gate = Matrix::new(case.formats[0], width, hidden, &parts.gate)?;
    let up = Matrix::new(case.formats[1], width, hidden, &parts.up)?;
    let down = Matrix::new(case.formats[2], hidden, width, &parts.down)?;
    let (outcome, output) = answer(&Swiglu::new(gate, up, down)?, &parts.rows, case.count)?;

    let mut file = MAGIC.to_vec();
    let mut put = |value: usize| -> Result<(), Box<dyn std::error::Error>> {
        file.extend(u32::try_from(value)?.to_le_bytes());
        Ok(())
    };
    for matrix in [gate, up, down] {
        put(matrix.format().number() as usize)?;
        put(matrix.rows())?;
        put(matrix.columns())?;
    }
    put(case.count)?;
    put(outcome)?;
    for bytes in [&parts.gate, &parts.up, &parts.down, &parts.rows] {
        file.extend_from_slice(bytes);
    }
    file.extend(output.iter().flat_map(|value| value.to_le_bytes()));
    Ok(file)
}

/// The outcome's number and, for 0, the output.
fn answer(
    expert: &Swiglu<'_>,
    rows: &[u8],
    count: usize,
) -> Result<(usize, Vec<f32>), Box<dyn std::error::Error>> {
    if [expert.gate(), expert.up(), expert.down()].iter().any(|matrix| matrix.check_weights().is_err()) {
        return Ok((1, vec![]));
    }
    if check_rows(expert.gate().row_format(), expert.hidden(), rows, count).is_err() {
        return Ok((2, vec![]));
    }
    let mut scratch = vec![0.0; expert.scratch_len(count).ok_or("too large")?];
    let mut output = vec![0.0; expert.hidden() * count];
    match swiglu(InstructionSet::SCALAR, expert, rows, count, &mut scratch, &mut output) {
        Ok(()) => Ok((0, output)),
        Err(_) => Ok((3, vec![])),
    }
}
