//! The limits that the process sets on itself, so that what no check foresees ends this process and nothing else.

use std::io;

/// Private memory of the process that checks a shader and does nothing else, in bytes.
pub const CHECK_MEMORY_BYTES: u64 = 512 << 20;
/// Processor time of the process that checks a shader and does nothing else, in seconds.
pub const CHECK_SECONDS: u64 = 20;

/// Bounds private memory (RLIMIT_DATA) and turns core dumps off. An allocation beyond it ends the process.
///
/// # Errors
/// The system's answer.
pub fn memory(bytes: u64) -> io::Result<()> {
    set(libc::RLIMIT_CORE, 0)?;
    set(libc::RLIMIT_DATA, bytes)
}

/// Bounds the processor time of all threads together; beyond it the process is killed.
///
/// # Errors
/// The system's answer.
pub fn processor_time(seconds: u64) -> io::Result<()> {
    set(libc::RLIMIT_CPU, seconds)
}

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

fn set(resource: Resource, limit: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: limit as libc::rlim_t, rlim_max: limit as libc::rlim_t };
    // SAFETY: `limit` is a whole rlimit that lives over the call, which only reads it.
    if unsafe { libc::setrlimit(resource, &raw const limit) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
