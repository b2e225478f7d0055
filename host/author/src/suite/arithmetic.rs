//! Made-up experts, judged by the exact arithmetic.

use kvasir_experts::measure::Random;
use kvasir_numerics::{Format, RowFormat};
use kvasir_sandbox::{Fault, SandboxError};

use super::case::{Case, Weights, labelled, same_bits, sides};
use super::{Outcome, Subject};

/// Sizes of batches: around the powers of two, where kernels change their ways.
const BATCHES: [usize; 9] = [1, 2, 3, 4, 5, 8, 9, 17, 33];

/// Every format with every kind of weights.
pub(super) fn exact(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(11);
    let mut instance = subject.instance()?;
    let mut experts = 0;
    for &format in &subject.formats {
        for weights in Weights::ALL {
            let case = Case::small(&mut random, format, 6, weights);
            let compared =
                case.load(&mut instance).map_err(|error| format!("{case}: {error}")).and_then(|expert| {
                    case.compare(&mut instance, &expert)?;
                    instance.unload(expert).map_err(|error| error.to_string())
                });
            labelled(weights, compared)?;
            experts += 1;
        }
    }
    Ok(format!("{experts} experts"))
}

/// Gate, up and down in different formats.
pub(super) fn mixed(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(12);
    let mut instance = subject.instance()?;
    let (mut right, mut refused) = (0, 0);
    let mut combinations = Vec::new();
    for &first in &subject.formats {
        for &second in subject.formats.iter().filter(|second| **second != first) {
            combinations.push([first, first, second]);
            if first.row_format() == second.row_format() {
                combinations.push([first, second, first]);
            }
        }
    }
    for formats in combinations {
        let side = formats.iter().map(|format| sides(*format, 1)).max().unwrap_or(256);
        // A multiple of every block: 256 where one of them is of 256 values, else 32.
        let side = side.next_multiple_of(if side > 64 { 256 } else { 32 });
        let case = Case::new(&mut random, formats, (side, side), 2, Weights::Usual);
        match case.load(&mut instance) {
            Ok(expert) => {
                case.compare(&mut instance, &expert)?;
                instance.unload(expert).map_err(|error| error.to_string())?;
                right += 1;
            }
            Err(SandboxError::Fault { fault: Fault::Unsupported(_), .. }) => refused += 1,
            Err(error) => return Err(format!("{case}: {error}")),
        }
    }
    Ok(format!("{right} combinations right, {refused} unsupported"))
}

/// Rows alone, in batches, and in another order.
pub(super) fn batches(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(13);
    let mut instance = subject.instance()?;
    let mut rows = 0;
    for &format in &subject.formats {
        let most = BATCHES.into_iter().max().unwrap_or(1);
        let case = Case::small(&mut random, format, most, Weights::Usual);
        let told = |what: String| format!("{case}: {what}");
        let expert = case.load(&mut instance).map_err(|error| told(error.to_string()))?;
        let mut alone = Vec::new();
        for row in 0..most {
            let values =
                instance.forward(&expert, case.row(row), 1).map_err(|error| told(error.to_string()))?;
            alone.push(values);
        }
        for batch in BATCHES {
            // From the end backwards, so that a row meets other neighbours in each batch.
            let order: Vec<usize> =
                (0..batch).map(|place| (most - 1 + most * batch - place * batch) % most).collect();
            let bytes: Vec<u8> = order.iter().flat_map(|row| case.row(*row)).copied().collect();
            let found = instance
                .forward(&expert, &bytes, batch as u32)
                .map_err(|error| told(format!("in a batch of {batch}: {error}")))?;
            for (place, row) in order.iter().enumerate() {
                let values = &found[place * case.hidden..][..case.hidden];
                same_bits(values, &alone[*row], case.hidden).map_err(|where_| {
                    told(format!("row {row} differs alone and as number {place} of {batch}: {where_}"))
                })?;
            }
            rows += batch;
        }
        instance.unload(expert).map_err(|error| told(error.to_string()))?;
    }
    Ok(format!("{rows} rows in batches of {} sizes", BATCHES.len()))
}

/// Shapes at the edges.
pub(super) fn odd_shapes(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(14);
    let mut instance = subject.instance()?;
    let (mut right, mut refused) = (0, 0);
    for &format in &subject.formats {
        for (hidden, width) in shapes(format) {
            let case = Case::new(&mut random, [format; 3], (hidden, width), 3, Weights::Usual);
            let expert = match case.load(&mut instance) {
                Ok(expert) => expert,
                Err(SandboxError::Fault { fault: Fault::Unsupported(_), .. }) => {
                    refused += 1;
                    continue;
                }
                Err(error) => return Err(format!("{case}: {error}")),
            };
            case.compare(&mut instance, &expert)?;
            // No row at all: nothing, or a refusal.
            match instance.forward(&expert, &[], 0) {
                Ok(_) | Err(SandboxError::Fault { fault: Fault::MalformedRows, .. }) => {}
                Err(error) => return Err(format!("{case}: a call of no rows: {error}")),
            }
            instance.unload(expert).map_err(|error| error.to_string())?;
            right += 1;
        }
    }
    match right {
        0 => Err("the kernel refuses every shape that was tried as unsupported".to_owned()),
        _ => Ok(format!("{right} shapes right, {refused} unsupported")),
    }
}

fn shapes(format: Format) -> Vec<(usize, usize)> {
    match format.row_format() {
        RowFormat::Float32 => vec![(1, 1), (1, 17), (15, 16), (33, 5), (16, 1), (257, 3)],
        RowFormat::Q8 | RowFormat::Q8K => {
            let block = format.block_len();
            vec![(block, block), (block, 3 * block), (5 * block, block), (3 * block, 2 * block)]
        }
    }
}
