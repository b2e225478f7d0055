//! The compiled kernel beside the same kernel interpreted: what depends on the processor shows here.

use kvasir_experts::measure::Random;
use kvasir_numerics::golden::{GoldenVector, Outcome as Due};
use kvasir_sandbox::{CompiledKernel, Engine, KernelInstance, KernelLimits};

use super::case::{Case, Weights, same_bits};
use super::vectors::shape;
use super::{CALL_DEADLINE, Outcome, Subject};

/// Rows of a golden vector that are interpreted: it is slow.
const ROWS: usize = 2;

/// Golden vectors and extreme experts on both.
pub(super) fn two(subject: &Subject<'_>) -> Outcome {
    let failed = |error: kvasir_sandbox::SandboxError| format!("interpreted: {error}");
    let engine = Engine::interpreter().map_err(failed)?;
    let interpreted = CompiledKernel::compile(&engine, subject.plugin).map_err(failed)?;
    // The interpreter takes about as much fuel and many times the time.
    let limits = KernelLimits { deadline: 10 * CALL_DEADLINE, ..KernelLimits::default() };
    let mut slow = interpreted.instantiate(limits).map_err(failed)?;
    let mut fast = subject.instance()?;
    let mut rows = 0;
    for (file, bytes) in subject.plugin.vectors() {
        let vector = GoldenVector::parse(bytes).map_err(|error| format!("vectors/{file}: {error}"))?;
        if matches!(vector.outcome, Due::Output(_)) {
            rows += vector_on_both((&mut fast, &mut slow), &vector)
                .map_err(|told| format!("vectors/{file}: {told}"))?;
        }
    }
    let mut random = Random(31);
    for &format in &subject.formats {
        for weights in [Weights::Extreme, Weights::Subnormal] {
            let case = Case::small(&mut random, format, ROWS, weights);
            let told = |error: kvasir_sandbox::SandboxError| format!("{case}: {error}");
            let mut answers = Vec::new();
            for instance in [&mut fast, &mut slow] {
                let expert = case.load(instance).map_err(told)?;
                answers.push(instance.forward(&expert, &case.rows, case.count as u32));
                instance.unload(expert).map_err(told)?;
            }
            match answers.as_slice() {
                [Ok(compiled), Ok(interpreted)] => same_bits(interpreted, compiled, case.hidden)
                    .map_err(|where_| format!("{case}: interpreted, {where_}"))?,
                [Err(compiled), Err(interpreted)] if compiled == interpreted => {}
                [compiled, interpreted] => {
                    return Err(format!("{case}: compiled {compiled:?}, interpreted {interpreted:?}"));
                }
                _ => {}
            }
            rows += case.count;
        }
    }
    Ok(format!("{rows} rows on Cranelift and on Pulley"))
}

fn vector_on_both(
    (fast, slow): (&mut KernelInstance, &mut KernelInstance),
    vector: &GoldenVector<'_>,
) -> Result<usize, String> {
    let shape = shape(vector).ok_or("the contract has no name for a format of it")?;
    let count = vector.count.min(ROWS);
    let rows = &vector.rows[..vector.rows.len() / vector.count.max(1) * count];
    let mut answers = Vec::new();
    for (name, instance) in [("compiled", fast), ("interpreted", slow)] {
        let told = |error: kvasir_sandbox::SandboxError| format!("{name}: {error}");
        let expert = instance
            .load(shape, vector.gate.bytes(), vector.up.bytes(), vector.down.bytes())
            .map_err(told)?;
        answers.push(instance.forward(&expert, rows, count as u32).map_err(told)?);
        instance.unload(expert).map_err(told)?;
    }
    same_bits(&answers[1], &answers[0], vector.down.rows()).map_err(|told| format!("interpreted, {told}"))?;
    Ok(count)
}
