//! Two ends of pipes, read and written with a deadline: `poll(2)` on descriptors that never block.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

/// Bytes asked for as a pipe's buffer: fewer switches between the two processes.
const PIPE_BYTES: libc::c_int = 1 << 20;

/// Makes a descriptor non-blocking and, where the system allows it, its pipe larger.
pub(crate) fn prepare(pipe: &impl AsRawFd) -> io::Result<()> {
    let descriptor = pipe.as_raw_fd();
    // SAFETY: fcntl with these commands reads and writes nothing but the descriptor's flags; the descriptor is open, since
    // `pipe` is borrowed.
    let done = unsafe {
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        // Without a larger pipe everything works, only slower.
        libc::fcntl(descriptor, libc::F_SETPIPE_SZ, PIPE_BYTES);
        flags >= 0 && libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes all of `bytes`. `TimedOut` at the deadline, `BrokenPipe` where the other side is gone.
pub(crate) fn write_all(
    pipe: &mut (impl Write + AsRawFd),
    mut bytes: &[u8],
    deadline: Instant,
) -> io::Result<()> {
    while !bytes.is_empty() {
        match pipe.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) => wait_after(error, pipe.as_raw_fd(), libc::POLLOUT, deadline)?,
        }
    }
    Ok(())
}

/// Fills `bytes`. `TimedOut` at the deadline, `UnexpectedEof` where the other side is gone.
pub(crate) fn read_exact(
    pipe: &mut (impl Read + AsRawFd),
    bytes: &mut [u8],
    deadline: Instant,
) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match pipe.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) => wait_after(error, pipe.as_raw_fd(), libc::POLLIN, deadline)?,
        }
    }
    Ok(())
}

fn wait_after(
    error: io::Error,
    descriptor: RawFd,
    events: libc::c_short,
    deadline: Instant,
) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => wait(descriptor, events, deadline),
        _ => Err(error),
    }
}

fn wait(descriptor: RawFd, events: libc::c_short, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let milliseconds = libc::c_int::try_from(left.as_millis() + 1).unwrap_or(libc::c_int::MAX);
    let mut descriptor = libc::pollfd { fd: descriptor, events, revents: 0 };
    // SAFETY: one descriptor, as the count says, in memory that outlives the call.
    let ready = unsafe { libc::poll(&raw mut descriptor, 1, milliseconds) };
    match ready {
        0 => Err(io::ErrorKind::TimedOut.into()),
        ready if ready > 0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
    }
}
