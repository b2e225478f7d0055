//! The kernel over many calls: the same bits, no more memory, within what it asks for.

use kvasir_experts::measure::Random;
use kvasir_numerics::Format;
use kvasir_sandbox::{KernelInstance, KernelLimits, SandboxError};

use super::case::{Case, Weights, same_bits};
use super::{CALL_DEADLINE, Outcome, Subject};

/// Times that a call is repeated.
const REPEATS: usize = 200;
/// Experts held at once beside the one that is called.
const NEIGHBOURS: usize = 12;
/// Experts that come and go, and how many of them may still grow the memory.
const VISITS: usize = 400;
const WARM_UP: usize = 40;
/// How far memory may grow after that, whatever the kernel is: far less than a leak of one row a visit.
const SLACK_BYTES: u64 = 256 << 10;

fn first_format(subject: &Subject<'_>) -> Result<Format, String> {
    // The one with the smallest rows of f32 results says the least about leaks; any other will do.
    let quantised = subject.formats.iter().find(|format| format.block_len() > 1);
    quantised
        .or(subject.formats.first())
        .copied()
        .ok_or_else(|| "the manifest names no format that is known".to_owned())
}

/// One call again and again, among other experts, with faults in between.
pub(super) fn repeated(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(41);
    let mut instance = subject.instance()?;
    let format = first_format(subject)?;
    let neighbours: Vec<Case> =
        (0..NEIGHBOURS).map(|_| Case::small(&mut random, format, 2, Weights::Usual)).collect();
    let mut held = Vec::new();
    for case in &neighbours {
        held.push(Some(case.load(&mut instance).map_err(|error| format!("{case}: {error}"))?));
    }
    let case = Case::small(&mut random, format, 4, Weights::Signed);
    let told = |error: SandboxError| format!("{case}: {error}");
    let expert = case.load(&mut instance).map_err(told)?;
    let due = case.due()?.ok_or("the suite's own rows overflow; report this")?;
    for turn in 0..REPEATS {
        let found = instance.forward(&expert, &case.rows, case.count as u32).map_err(told)?;
        same_bits(&found, &due, case.hidden).map_err(|where_| format!("{case}: call {turn}: {where_}"))?;
        let place = turn * 5 % NEIGHBOURS;
        // Others are called, refused, dropped and loaded again.
        if let Some(neighbour) = held[place].take() {
            neighbours[place]
                .compare(&mut instance, &neighbour)
                .map_err(|told| format!("call {turn}: {told}"))?;
            let _refused = instance.forward(&neighbour, &[1, 2, 3], 1);
            if turn % 3 == 0 {
                instance.unload(neighbour).map_err(told)?;
            } else {
                held[place] = Some(neighbour);
            }
        } else {
            held[place] = Some(neighbours[place].load(&mut instance).map_err(told)?);
        }
    }
    Ok(format!("{REPEATS} calls beside {NEIGHBOURS} other experts"))
}

/// Experts come and go, calls answer and fail; memory stays.
pub(super) fn memory(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(42);
    let format = first_format(subject)?;
    let case = Case::small(&mut random, format, 4, Weights::Usual);
    let mut bad = case.clone();
    bad.down.pop();
    let mut instance = subject.instance()?;
    let told = |error: SandboxError| format!("{case}: {error}");
    flat(&mut instance, "experts that are loaded, called and unloaded", |instance| {
        let expert = case.load(instance).map_err(told)?;
        instance.forward(&expert, &case.rows, case.count as u32).map_err(told)?;
        instance.unload(expert).map_err(told)
    })?;
    flat(&mut instance, "experts whose load is refused", |instance| match bad.load(instance) {
        Ok(_) => Err(format!("{case}: it takes an expert that is a byte short")),
        Err(error) if instance.is_poisoned() => Err(told(error)),
        Err(_) => Ok(()),
    })?;
    let expert = case.load(&mut instance).map_err(told)?;
    flat(&mut instance, "calls", |instance| {
        instance.forward(&expert, &case.rows, case.count as u32).map(drop).map_err(told)
    })?;
    let short = &case.rows[1..];
    flat(&mut instance, "calls that are refused", |instance| {
        match instance.forward(&expert, short, case.count as u32) {
            Ok(_) => Err(format!("{case}: it takes rows that are a byte short")),
            Err(error) if instance.is_poisoned() => Err(told(error)),
            Err(_) => Ok(()),
        }
    })?;
    Ok(format!("4 x {VISITS} times, {} KiB of memory in the end", instance.memory_bytes() >> 10))
}

fn flat(
    instance: &mut KernelInstance,
    what: &str,
    mut visit: impl FnMut(&mut KernelInstance) -> Result<(), String>,
) -> Result<(), String> {
    for _ in 0..WARM_UP {
        visit(instance)?;
    }
    let before = instance.memory_bytes();
    for _ in 0..VISITS {
        visit(instance)?;
    }
    let after = instance.memory_bytes();
    if after > before + SLACK_BYTES {
        return Err(format!(
            "{VISITS} {what} took the memory from {before} to {after} bytes, about {} each; something is not freed",
            (after - before) / VISITS as u64
        ));
    }
    Ok(())
}

/// As many rows as the manifest says a call may have, with the fuel that it asks for.
pub(super) fn limits(subject: &Subject<'_>) -> Outcome {
    let mut random = Random(43);
    let request = subject.plugin.manifest().limits;
    let format = first_format(subject)?;
    // The suite's experts are small; more rows than this would say nothing more.
    let count = request.rows_per_call.clamp(1, 4096) as usize;
    let case = Case::small(&mut random, format, count, Weights::Usual);
    let limits = KernelLimits { deadline: CALL_DEADLINE, ..KernelLimits::default() }.grant(&request);
    let mut instance = subject.kernel.instantiate(limits).map_err(|error| error.to_string())?;
    let told = |error: SandboxError| format!("{case}: {error}");
    let expert = case.load(&mut instance).map_err(told)?;
    instance.forward(&expert, &case.rows, count as u32).map_err(told)?;
    let work = 3 * case.hidden as u64 * case.width as u64 * count as u64;
    let fuel = instance.fuel_used();
    Ok(format!("{count} rows took {:.2} fuel a multiply-add", fuel as f64 / work as f64))
}
