//! The audit of a log on the disk: how long it takes, how much memory, and how large the log is.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvasir_ledger::audit::{AuditOptions, audit, hash_only};
use kvasir_ledger::log::{Policy, source_at};
use serde_json::{Value, json};

use crate::checks::Checks;
use crate::figures::{Figures, timed};
use crate::network::{Network, good_log};

/// The first argument of the process that audits, so that its memory is the audit's alone.
pub const CHILD: &str = "--audit";

/// Most memory that the audit of a million receipts may take.
const AIM_MIB: f64 = 512.0;
/// Leaves a second, for hashing alone.
const AIM_LEAVES: f64 = 400_000.0;
/// Part of the receipts a second that the signature checks alone would allow.
const AIM_OF_CHECKS: f64 = 0.9;

/// Writes a log of so many receipts and audits it in another process.
pub fn measure(figures: &mut Figures, folder: &Path, receipts: usize, per_session: usize, checks: &Checks) {
    let place = folder.join(format!("log-{per_session}"));
    eprintln!("a log of {receipts} receipts, {per_session} a session");
    let entries = write(&place, receipts as u64, receipts.div_ceil(per_session) as u64);
    eprintln!("auditing it");
    let run = std::env::current_exe().unwrap();
    let output = std::process::Command::new(run).arg(CHILD).arg(&place).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let number = |name: &str| told[name].as_f64().unwrap();
    assert_eq!(told["receipts"].as_u64(), Some(receipts as u64));
    let what = format!("{receipts} receipts, {per_session} a session, {entries} entries");
    let rate = receipts as f64 / number("seconds");
    figures.at_least(
        &format!("audit of signature checks, {per_session} a session"),
        rate / (checks.cores as f64 * checks.strict / 3.0),
        "of cores / (3 x the time of a check)",
        AIM_OF_CHECKS,
        format!(
            "{rate:.0} receipts/s, {:.1} s: {what}; {:.2} of a third of the checks/s with all cores at work",
            number("seconds"),
            rate / (checks.strict_on_all / 3.0)
        ),
    );
    figures.at_most(
        &format!("audit memory, {per_session} a session"),
        number("peak_bytes") / f64::from(1 << 20),
        "MiB at most",
        AIM_MIB,
        what.clone(),
    );
    figures.at_least(
        &format!("audit's hashing alone, {per_session} a session"),
        entries as f64 / number("hashing_seconds"),
        "leaves/s on all cores",
        AIM_LEAVES,
        format!("tiles and bundles read, hashed and compared, {:.1} s", number("hashing_seconds")),
    );
    figures.plain(
        &format!("published log, {per_session} a session"),
        size(&place) as f64 / receipts as f64,
        "bytes a receipt",
        format!("{:.0} MB in all; tiles, bundles, head", size(&place) as f64 / 1e6),
    );
    std::fs::remove_dir_all(&place).unwrap();
}

/// What the other process does: one JSON object to standard output.
pub fn child(place: &str) {
    let source = source_at(place).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let policy = Policy::parse(&good_log::policy()).unwrap();
    let options = AuditOptions { policy, treasury: None, remembered: None, now, clock: now, threads };
    let (seconds, report) = timed(|| audit(source.as_ref(), &options, &mut |_, _| {}).unwrap());
    let peak_bytes = peak_bytes();
    let (hashing_seconds, _) = timed(|| hash_only(source.as_ref(), &options).unwrap());
    let told = json!({
        "receipts": report.receipts, "seconds": seconds, "peak_bytes": peak_bytes,
        "hashing_seconds": hashing_seconds,
    });
    println!("{told}");
}

/// The number of entries.
fn write(place: &Path, receipts: u64, sessions: u64) -> usize {
    let entries = good_log::entries(&Network::new(), receipts, sessions);
    for (path, bytes) in good_log::published(&entries).0 {
        let file = place.join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
    entries.len()
}

fn size(place: &Path) -> u64 {
    let inside = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap());
    inside
        .map(|entry| {
            let about = entry.metadata().unwrap();
            if about.is_dir() { size(&entry.path()) } else { about.len() }
        })
        .sum()
}

/// Most memory that this process had at a time, by Linux's account of it.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
