//! What a kernel must refuse, and how.

use kvasir_experts::measure::Random;
use kvasir_numerics::{Format, RowFormat};
use kvasir_sandbox::{ExpertHandle, Fault, KernelInstance, MatrixShape, SandboxError};

use super::case::{Case, Weights, f16_places};
use super::{Outcome, Subject};

const HALF_INFINITY: u16 = 0x7c00;
const HALF_NAN: u16 = 0x7e00;

/// Weights that no quantiser writes, and wrong lengths.
pub(super) fn weights(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(21);
    let mut instance = subject.instance()?;
    let mut refused = 0;
    for &format in &subject.formats {
        let good = Case::small(&mut random, format, 1, Weights::Usual);
        for (what, bad) in broken_weights(&good) {
            expect(&good, &what, "malformed-weights", bad.load(&mut instance), |fault| {
                matches!(fault, Fault::MalformedWeights)
            })?;
            refused += 1;
        }
        works_still(&mut instance, &good)?;
    }
    Ok(format!("{refused} refused"))
}

fn broken_weights(good: &Case) -> Vec<(String, Case)> {
    let format = good.formats[0];
    let mut broken = Vec::new();
    // The last block of each matrix: a check that stops early misses it.
    for (matrix, name) in ["gate", "up", "down"].into_iter().enumerate() {
        let mut put = |what: String, change: &dyn Fn(&mut Vec<u8>)| {
            let mut bad = good.clone();
            change([&mut bad.gate, &mut bad.up, &mut bad.down][matrix]);
            broken.push((format!("{what} in {name}"), bad));
        };
        let last = |bytes: &[u8]| bytes.len() - format.block_bytes();
        for &place in f16_places(format) {
            for (word, half) in [("an infinity", HALF_INFINITY), ("a NaN", HALF_NAN), ("-infinity", 0xfc00)] {
                put(format!("{word} at byte {place} of the last block"), &|bytes| {
                    let at = last(bytes) + place;
                    bytes[at..at + 2].copy_from_slice(&half.to_le_bytes());
                });
            }
        }
        match format {
            Format::F32 => put("a NaN".to_owned(), &|bytes| {
                let at = last(bytes);
                bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
            }),
            Format::BF16 => put("an infinity".to_owned(), &|bytes| {
                let at = last(bytes);
                bytes[at..].copy_from_slice(&0x7f80u16.to_le_bytes());
            }),
            Format::MXFP4 => put("an exponent of 253".to_owned(), &|bytes| {
                let at = last(bytes);
                bytes[at] = 253;
            }),
            Format::Q8_0 => put("a weight of -128".to_owned(), &|bytes| {
                if let Some(quant) = bytes.last_mut() {
                    *quant = 0x80;
                }
            }),
            _ => {}
        }
        put("a byte too few".to_owned(), &|bytes| bytes.truncate(bytes.len() - 1));
        put("a byte too many".to_owned(), &|bytes| bytes.push(0));
        put("a block too few".to_owned(), &|bytes| bytes.truncate(last(bytes)));
        put("no bytes".to_owned(), &|bytes| bytes.clear());
    }
    broken
}

/// Rows that no quantiser writes, and wrong lengths.
pub(super) fn rows(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(22);
    let mut instance = subject.instance()?;
    let mut refused = 0;
    for &format in &subject.formats {
        let good = Case::small(&mut random, format, 3, Weights::Usual);
        let expert = good.load(&mut instance).map_err(|error| format!("{good}: {error}"))?;
        for (what, bytes, count) in broken_rows(&good) {
            expect(&good, what, "malformed-rows", instance.forward(&expert, &bytes, count), |fault| {
                matches!(fault, Fault::MalformedRows)
            })?;
            refused += 1;
        }
        good.compare(&mut instance, &expert).map_err(|told| format!("after refusals, {told}"))?;
        instance.unload(expert).map_err(|error| error.to_string())?;
    }
    Ok(format!("{refused} refused"))
}

fn broken_rows(good: &Case) -> Vec<(&'static str, Vec<u8>, u32)> {
    let row_format = good.formats[0].row_format();
    let count = good.count as u32;
    let mut broken = Vec::new();
    let mut put = |what: &'static str, change: &dyn Fn(&mut [u8])| {
        let mut bytes = good.rows.clone();
        // The last block of the last row.
        let at = bytes.len() - row_format.block_bytes();
        change(&mut bytes[at..]);
        broken.push((what, bytes, count));
    };
    let scale = |value: f32| move |block: &mut [u8]| block[..4].copy_from_slice(&value.to_le_bytes());
    put("a NaN", &scale(f32::NAN));
    put("an infinity", &scale(f32::INFINITY));
    put("-infinity", &scale(f32::NEG_INFINITY));
    if row_format != RowFormat::Float32 {
        put("a negative scale", &scale(-1.0));
        put("a scale of -0", &scale(-0.0));
        put("a value of -128", &|block| {
            if let Some(value) = block.last_mut() {
                *value = 0x80;
            }
        });
    }
    let rows = &good.rows;
    broken.push(("a byte too few", rows[..rows.len() - 1].to_vec(), count));
    broken.push(("a byte too many", [rows.as_slice(), &[0]].concat(), count));
    broken.push(("a row too few", rows[..rows.len() / good.count * (good.count - 1)].to_vec(), count));
    broken.push(("a row too many", rows.clone(), count - 1));
    broken.push(("no bytes", Vec::new(), count));
    broken.push(("a count of 2^32 - 1", rows.clone(), u32::MAX));
    // 2^32 values of a block of 2^n bytes: a product of 32 bits would be right again.
    broken.push(("a count of 2^31", rows.clone(), 1 << 31));
    broken
}

/// Formats that the manifest leaves out, and columns that break a block.
pub(super) fn unsupported(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(23);
    let mut instance = subject.instance()?;
    let is_unsupported = |fault: &Fault| matches!(fault, Fault::Unsupported(text) if !text.is_empty());
    let mut refused = 0;
    for format in Format::ALL.into_iter().filter(|format| !subject.formats.contains(format)) {
        let case = Case::small(&mut random, format, 1, Weights::Usual);
        let what = "a format that the manifest does not name";
        expect(&case, what, "unsupported, with a sentence,", case.load(&mut instance), is_unsupported)?;
        refused += 1;
    }
    for &format in subject.formats.iter().filter(|format| format.block_len() > 1) {
        let case = Case::small(&mut random, format, 1, Weights::Usual);
        let mut shape = case.shape().ok_or("the contract has no name for the format")?;
        // One column more than whole blocks, in gate and up and so in down's rows.
        let wider = |matrix: MatrixShape| MatrixShape { columns: matrix.columns + 1, ..matrix };
        shape.gate = wider(shape.gate);
        shape.up = wider(shape.up);
        shape.down.rows += 1;
        let loaded = instance.load(shape, &case.gate, &case.up, &case.down);
        expect(&case, "columns that break a block", "unsupported or malformed-weights", loaded, |fault| {
            is_unsupported(fault) || matches!(fault, Fault::MalformedWeights)
        })?;
        refused += 1;
    }
    if let Some(&format) = subject.formats.first() {
        works_still(&mut instance, &Case::small(&mut random, format, 1, Weights::Usual))?;
    }
    Ok(format!("{refused} refused"))
}

/// Rows so large that the products overflow.
pub(super) fn overflow(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(24);
    let mut instance = subject.instance()?;
    for &format in &subject.formats {
        let mut case = Case::small(&mut random, format, 2, Weights::Usual);
        let expert = case.load(&mut instance).map_err(|error| format!("{case}: {error}"))?;
        let row_format = format.row_format();
        let good = case.rows.clone();
        let row_bytes = case.rows.len() / case.count;
        // The first row alone: the second one's answer must not hide it.
        for block in case.rows[..row_bytes].chunks_exact_mut(row_format.block_bytes()) {
            block[..4].copy_from_slice(&f32::MAX.to_le_bytes());
            block[4..].fill(0x7f);
        }
        if case.due()?.is_some() {
            return Err(format!("{case}: the suite's own rows do not overflow; report this"));
        }
        expect(&case, "rows of 3e38", "not-finite", instance.forward(&expert, &case.rows, 2), |fault| {
            matches!(fault, Fault::NotFinite)
        })?;
        case.rows = good;
        case.compare(&mut instance, &expert).map_err(|told| format!("after an overflow, {told}"))?;
        instance.unload(expert).map_err(|error| error.to_string())?;
    }
    Ok(format!("{} formats", subject.formats.len()))
}

/// The kernel refuses, and in the way that is due. A result that is not finite, which the sandbox would catch too, is no refusal.
fn expect<T>(
    case: &Case,
    what: &str,
    due: &str,
    answer: Result<T, SandboxError>,
    right: impl Fn(&Fault) -> bool,
) -> Result<(), String> {
    match answer {
        Err(SandboxError::Fault { fault, .. }) if right(&fault) => Ok(()),
        Err(SandboxError::Fault { fault, .. }) => {
            Err(format!("{case}: {what}: {due} was due, it said: {fault}"))
        }
        Err(error) => Err(format!("{case}: {what}: {due} was due, but {error}")),
        Ok(_) => Err(format!("{case}: {what}: {due} was due, but it was taken")),
    }
}

fn works_still(instance: &mut KernelInstance, case: &Case) -> Result<(), String> {
    let after = |told: String| format!("after refusals, {told}");
    let expert: ExpertHandle = case.load(instance).map_err(|error| after(format!("{case}: {error}")))?;
    case.compare(instance, &expert).map_err(after)?;
    instance.unload(expert).map_err(|error| error.to_string())
}
