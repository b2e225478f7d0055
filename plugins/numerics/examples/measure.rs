//! `measure [FORMAT] [SET]`: microseconds per expert-row of a 3,072 x 1,024 expert on one thread, for growing batches, over
//! enough experts that the weights do not stay in the caches. For people; nothing asserts on it.

use std::time::Instant;

use kvasir_numerics::{Format, InstructionSet, Matrix, Swiglu, swiglu};

#[path = "../tests/random/mod.rs"]
mod random;

use random::{Random, Scales};

const HIDDEN: usize = 3072;
const WIDTH: usize = 1024;
const EXPERTS: usize = 24;
/// The best pass counts: other programs disturb the rest.
const PASSES: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or("Q4_K".into());
    let set = std::env::args().nth(2);
    let format = Format::ALL.into_iter().find(|format| format.name() == name).ok_or("no such format")?;
    let mut random = Random(1);
    let mut matrices = |rows, columns| -> Vec<Vec<u8>> {
        let first = random::weights(&mut random, format, rows, columns, Scales::Usual);
        vec![first; EXPERTS]
    };
    let (gate, up, down) = (matrices(WIDTH, HIDDEN), matrices(WIDTH, HIDDEN), matrices(HIDDEN, WIDTH));
    let experts = (0..EXPERTS)
        .map(|i| {
            let gate = Matrix::new(format, WIDTH, HIDDEN, &gate[i])?;
            let up = Matrix::new(format, WIDTH, HIDDEN, &up[i])?;
            Ok(Swiglu::new(gate, up, Matrix::new(format, HIDDEN, WIDTH, &down[i])?)?)
        })
        .collect::<Result<Vec<_>, Box<dyn std::error::Error>>>()?;
    for isa in InstructionSet::available().filter(|isa| set.as_ref().is_none_or(|set| set == isa.name())) {
        for count in [1, 2, 3, 4, 8, 16, 64] {
            let rows = random::rows(&mut Random(2), format.row_format(), HIDDEN, count);
            let mut scratch = vec![0.0; experts[0].scratch_len(count).ok_or("too large")?];
            let mut out = vec![0.0; HIDDEN * count];
            let mut best = f64::INFINITY;
            for _ in 0..if isa == InstructionSet::SCALAR { 1 } else { PASSES } {
                let start = Instant::now();
                let turns = if isa == InstructionSet::SCALAR { &experts[..1] } else { &experts[..] };
                for expert in turns {
                    swiglu(isa, expert, &rows, count, &mut scratch, &mut out)?;
                }
                best = best.min(start.elapsed().as_secs_f64() * 1e6 / (turns.len() * count) as f64);
            }
            let rate = (3 * HIDDEN * WIDTH) as f64 / best / 1000.0;
            println!(
                "{name} {isa} {count:3} rows: {best:7.1} us per expert-row, {rate:5.1} G multiply-adds/s"
            );
        }
    }
    Ok(())
}
