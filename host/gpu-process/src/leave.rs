//! The two ways out: at once, and when the host is gone. Nothing is dropped on the way, since dropping a queue waits for the device.

use std::io;

/// The device was lost.
pub const EXIT_DEVICE_LOST: i32 = 3;
/// The host broke the protocol.
pub const EXIT_PROTOCOL: i32 = 4;
/// The process panicked.
pub const EXIT_PANIC: i32 = 101;

/// Ends the process without unwinding, without destructors, without waiting for the device.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit takes any number and does not return.
    unsafe { libc::_exit(code) }
}

/// Ends the process as soon as nobody holds the other end of standard input: also while the device keeps every other thread
/// waiting.
///
/// # Errors
/// No thread.
pub fn exit_with_the_host() -> io::Result<()> {
    std::thread::Builder::new().name("watch the host".to_owned()).spawn(|| {
        loop {
            let mut input = libc::pollfd { fd: libc::STDIN_FILENO, events: 0, revents: 0 };
            // SAFETY: one descriptor, as the count says, in memory that outlives the call. With no events asked for, it returns
            // when the other end is closed and not before.
            let ready = unsafe { libc::poll(&raw mut input, 1, -1) };
            if ready > 0 {
                exit(0);
            }
        }
    })?;
    Ok(())
}
