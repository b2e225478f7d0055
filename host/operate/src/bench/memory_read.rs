//! How fast this machine reads its memory: the bound of every product that meets each weight once.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::memory::{MEBIBYTE, expert_bytes};

/// Assumed where the system does not say how large its last cache is.
const UNKNOWN_CACHE_BYTES: u64 = 64 * MEBIBYTE;
/// The buffer is so many times the last cache, so that nothing of a pass is there in the next.
const TIMES_CACHE: u64 = 8;
/// Smallest and largest buffer.
const BUFFER_BYTES: std::ops::RangeInclusive<u64> = 256 * MEBIBYTE..=2048 * MEBIBYTE;

/// Bytes of the last level of cache that one core sees.
pub fn last_cache_bytes() -> u64 {
    let size = |index: u32| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        cache_bytes(&std::fs::read_to_string(path).ok()?)
    };
    (0..8).filter_map(size).max().unwrap_or(UNKNOWN_CACHE_BYTES)
}

/// Bytes that [`read_rate`] reads in a pass on this machine.
pub fn buffer_bytes() -> u64 {
    let wanted = last_cache_bytes().saturating_mul(TIMES_CACHE);
    // Half of what experts may take by default, so a quarter of what is free; never so little that it means nothing.
    wanted.clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end()).min(expert_bytes(None) / 2).max(MEBIBYTE)
}

/// Bytes per second that `threads` threads read together, each its own part of `bytes`: the best of the passes that fit into
/// `budget`, at least two.
///
/// # Errors
/// Where the system gives no such number of threads.
pub fn read_rate(threads: usize, bytes: u64, budget: Duration) -> Result<f64> {
    let threads = threads.max(1);
    let words = (bytes / 8 / threads as u64).max(1);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.with_context(|| format!("cannot start {threads} threads that read memory"))?;
    // Each part is written by the thread that reads it, so that it lies near that thread's core.
    let parts: Vec<Vec<u64>> = pool.broadcast(|_| (0..words).collect());
    let begun = Instant::now();
    let mut best = f64::INFINITY;
    let mut passes = 0;
    while passes < 2 || begun.elapsed() < budget {
        let start = Instant::now();
        pool.broadcast(|thread| black_box(sum(black_box(&parts[thread.index()]))));
        best = best.min(start.elapsed().as_secs_f64());
        passes += 1;
    }
    Ok((words * 8 * threads as u64) as f64 / best)
}

fn sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

/// `32768K` or `1M` as the kernel writes it (Documentation/ABI/testing/sysfs-devices-system-cpu).
fn cache_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => (text.strip_suffix('M')?, MEBIBYTE),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_sizes_are_read_as_the_kernel_writes_them() {
        assert_eq!(cache_bytes("32768K\n"), Some(32 * MEBIBYTE));
        assert_eq!(cache_bytes("2M"), Some(2 * MEBIBYTE));
        for wrong in ["", "K", "12", "x1K", "99999999999999999999K"] {
            assert_eq!(cache_bytes(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn reading_takes_time_on_every_number_of_threads() {
        for threads in [1, 3] {
            let rate = read_rate(threads, MEBIBYTE, Duration::ZERO).unwrap();
            assert!(rate.is_finite() && rate > 0.0, "{rate}");
        }
    }
}
