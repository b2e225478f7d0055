//! SIGINT and SIGTERM, heard from the moment that somebody listens.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears the signals that ask a program to end. The first one need not be waited for when it comes: it is kept.
pub(crate) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Listens from now on, within a tokio runtime.
    ///
    /// # Errors
    /// Where the system refuses.
    pub(crate) fn listen() -> io::Result<EndSignals> {
        Ok(EndSignals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Until the next of them.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
