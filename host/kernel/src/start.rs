//! Starts the program so that it gets nothing but what it is handed: no environment, no input, no open files of this process, and
//! an end together with it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Under which number the program finds the first descriptor that it is handed.
pub const FIRST_DESCRIPTOR: i32 = 3;
/// The second one.
pub const SECOND_DESCRIPTOR: i32 = 4;
/// Descriptors of this process from here on are none of the numbers above.
const ABOVE: i32 = 16;

/// Starts `program word` with the two descriptors. The process ends with the *thread* that calls this, at the latest.
///
/// # Errors
/// The system's answer.
pub(crate) fn start(program: &Path, word: &str, handed: [BorrowedFd<'_>; 2]) -> io::Result<Child> {
    // As it is from here, since the command runs elsewhere.
    let mut command = Command::new(std::path::absolute(program).unwrap_or_else(|_| program.to_owned()));
    command.arg(word).env_clear().current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let [first, second] = [above(handed[0])?, above(handed[1])?];
    let parent = std::process::id();
    let prepare = move || {
        // Nothing here allocates or locks: between fork and exec nothing else is safe.
        // SAFETY: numbers and descriptors that this closure owns; the calls take no pointers.
        unsafe {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if libc::getppid() != parent as libc::pid_t {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            check(libc::dup2(first.as_raw_fd(), FIRST_DESCRIPTOR))?;
            check(libc::dup2(second.as_raw_fd(), SECOND_DESCRIPTOR))?;
            // Everything else is closed by exec, also what some library opened without saying so. Systems before 5.11 do not know
            // the call; there it is up to that library.
            libc::syscall(libc::SYS_close_range, SECOND_DESCRIPTOR + 1, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
        }
        Ok(())
    };
    // SAFETY: the closure calls system functions alone, as the comment in it says.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

fn above(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: fcntl with a number on an open descriptor.
    let copy = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, ABOVE) };
    check(copy)?;
    // SAFETY: opened just now, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a descriptor has something to read, or its other end has closed, within `limit`.
pub(crate) fn readable(descriptor: BorrowedFd<'_>, limit: std::time::Duration) -> bool {
    let mut asked = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: one entry, as the count says, in memory that outlives the call.
    unsafe { libc::poll(&raw mut asked, 1, limit) > 0 }
}
