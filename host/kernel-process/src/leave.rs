//! The ways out: at once, without unwinding, and with a reason for the host.

use std::fmt;

pub use kvasir_kernel::compile::{EXIT_FOREIGN_ARTEFACT, EXIT_SETUP};

/// The process panicked.
const EXIT_PANIC: i32 = 101;

/// Ends the process with a line for the host.
pub fn fail(code: i32, reason: impl fmt::Display) -> ! {
    eprintln!("{reason}");
    exit(code)
}

/// Ends the process without destructors.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit takes any number and does not return.
    unsafe { libc::_exit(code) }
}

/// A panic ends the whole process and not one thread of it.
pub fn end_on_panic() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        exit(EXIT_PANIC);
    }));
}
