//! The golden vectors inside the package.

use kvasir_numerics::golden::{GoldenVector, Outcome as Due};
use kvasir_sandbox::{ExpertShape, Fault, KernelInstance, MatrixShape, SandboxError, WeightFormat};

use super::case::same_bits;
use super::{Outcome, Subject, format_named};

/// Every format of the manifest is one, and appears in a vector that has an output.
pub(super) fn cover_formats(subject: &Subject<'_>) -> Outcome {
    let mut shown = Vec::new();
    for (file, bytes) in subject.plugin.vectors() {
        let vector = GoldenVector::parse(bytes).map_err(|error| format!("vectors/{file}: {error}"))?;
        if matches!(vector.outcome, Due::Output(_)) {
            shown.extend([vector.gate, vector.up, vector.down].map(|matrix| matrix.format()));
        }
    }
    let formats = &subject.plugin.manifest().formats;
    for name in formats {
        let format = format_named(name)
            .ok_or_else(|| format!("the manifest names {name:?}, which is no format of this version"))?;
        if !shown.contains(&format) {
            return Err(format!(
                "the manifest promises {name}, but no golden vector shows it; add one to vectors, or take {name} out of formats"
            ));
        }
    }
    Ok(format!("{} formats in {} vectors", formats.len(), subject.plugin.vectors().len()))
}

/// Every vector, all rows at once and each alone.
pub(super) fn golden(subject: &Subject<'_>) -> Outcome {
    let mut instance = subject.instance()?;
    let mut rows = 0;
    for (file, bytes) in subject.plugin.vectors() {
        let vector = GoldenVector::parse(bytes).map_err(|error| format!("vectors/{file}: {error}"))?;
        one(&mut instance, &vector).map_err(|told| format!("vectors/{file}: {told}"))?;
        rows += vector.count;
    }
    match subject.plugin.vectors().len() {
        0 => Err("there are none, so nothing shows what the kernel computes; `kvasir plugin build` puts some there".to_owned()),
        files => Ok(format!("{files} vectors, {rows} rows")),
    }
}

pub(super) fn shape(vector: &GoldenVector<'_>) -> Option<ExpertShape> {
    let matrix = |matrix: kvasir_numerics::Matrix<'_>| {
        let format = WeightFormat::from_gguf(matrix.format().number())?;
        Some(MatrixShape { format, rows: matrix.rows() as u32, columns: matrix.columns() as u32 })
    };
    Some(ExpertShape { gate: matrix(vector.gate)?, up: matrix(vector.up)?, down: matrix(vector.down)? })
}

pub(super) fn values(output: &[u8]) -> Vec<f32> {
    output.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn one(instance: &mut KernelInstance, vector: &GoldenVector<'_>) -> Result<(), String> {
    let shape = shape(vector).ok_or("the contract has no name for a format of it")?;
    let loaded = instance.load(shape, vector.gate.bytes(), vector.up.bytes(), vector.down.bytes());
    let expert = match (loaded, vector.outcome) {
        (Err(SandboxError::Fault { fault: Fault::MalformedWeights, .. }), Due::MalformedWeights) => {
            return Ok(());
        }
        (Ok(_), Due::MalformedWeights) => {
            return Err("malformed-weights was due, but the expert was taken".to_owned());
        }
        (Err(error), _) => return Err(error.to_string()),
        (Ok(expert), _) => expert,
    };
    let hidden = vector.down.rows();
    let answer = instance.forward(&expert, vector.rows, vector.count as u32);
    match (answer, vector.outcome) {
        (Ok(found), Due::Output(output)) => {
            let due = values(output);
            same_bits(&found, &due, hidden)?;
            let row_bytes = vector.rows.len() / vector.count.max(1);
            for row in 0..vector.count {
                let alone = instance
                    .forward(&expert, &vector.rows[row * row_bytes..][..row_bytes], 1)
                    .map_err(|error| format!("row {row} alone: {error}"))?;
                same_bits(&alone, &due[row * hidden..][..hidden], hidden)
                    .map_err(|told| format!("row {row} alone: {told}"))?;
            }
        }
        (Err(SandboxError::Fault { fault: Fault::MalformedRows, .. }), Due::MalformedRows)
        | (Err(SandboxError::Fault { fault: Fault::NotFinite, .. }), Due::NotFinite) => {}
        (Err(error), _) => return Err(error.to_string()),
        (Ok(_), Due::NotFinite) => return Err("not-finite was due, but it answered".to_owned()),
        (Ok(_), _) => return Err("malformed-rows was due, but it answered".to_owned()),
    }
    instance.unload(expert).map_err(|error| error.to_string())
}
