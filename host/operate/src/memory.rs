//! How much memory experts may take where nobody says: half of what the machine has free now.

/// A mebibyte in bytes.
pub const MEBIBYTE: u64 = 1 << 20;
/// Assumed free where the system does not say.
const UNKNOWN_BYTES: u64 = 4 << 30;

/// The named number of mebibytes in bytes, or half of what is free.
pub fn expert_bytes(named_mebibytes: Option<u64>) -> u64 {
    match named_mebibytes {
        Some(mebibytes) => mebibytes.saturating_mul(MEBIBYTE),
        None => available(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()) / 2,
    }
}

/// `MemAvailable` of /proc/meminfo (proc(5)), which is in units of 1,024 bytes.
fn available(meminfo: &str) -> u64 {
    meminfo
        .lines()
        .find_map(|line| {
            line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .map_or(UNKNOWN_BYTES, |kibibytes| kibibytes.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_read_from_the_system_and_a_named_figure_goes_before() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), 2 * MEBIBYTE);
        assert_eq!(available("nothing of the kind"), UNKNOWN_BYTES);
        assert_eq!(expert_bytes(Some(3)), 3 * MEBIBYTE);
        assert_eq!(expert_bytes(Some(u64::MAX)), u64::MAX);
    }
}
