//! What the system lets this process and its children use, where that is less than a compiler may have: then what the compiler does
//! not manage says nothing about the kernel.

use crate::options::CompileLimits;

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// The first limit of this process that is lower than what the compiler's is to be, in words.
pub(crate) fn lowered(limits: &CompileLimits) -> Option<String> {
    let wanted = [
        (libc::RLIMIT_DATA, limits.memory_bytes, "of private memory (ulimit -d)", "bytes"),
        (libc::RLIMIT_AS, limits.address_bytes, "of address space (ulimit -v)", "bytes"),
        (libc::RLIMIT_CPU, limits.processor_seconds, "of processor time (ulimit -t)", "seconds"),
        (libc::RLIMIT_FSIZE, limits.artefact_bytes, "of a file's size (ulimit -f)", "bytes"),
    ];
    wanted.into_iter().find_map(|(resource, wanted, what, unit)| {
        let there = hard_limit(resource).filter(|there| *there < wanted)?;
        Some(format!(
            "the compiler did not finish within this machine's limit {what} of {there} {unit}; it may need {wanted}"
        ))
    })
}

/// The limit that this process may not raise; none where there is none.
fn hard_limit(resource: Resource) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a whole rlimit that lives over the call, which fills it in.
    let known = unsafe { libc::getrlimit(resource, &raw mut limit) } == 0;
    (known && limit.rlim_max != libc::RLIM_INFINITY).then_some(limit.rlim_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_gives_is_not_called_lowered() {
        let nothing = CompileLimits {
            memory_bytes: 0,
            address_bytes: 0,
            processor_seconds: 0,
            artefact_bytes: 0,
            ..CompileLimits::default()
        };
        assert_eq!(lowered(&nothing), None);
    }
}
