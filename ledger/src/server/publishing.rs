//! The thread that publishes.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;

use tracing::error;

use super::PUBLISH_EVERY;
use crate::publish::Publisher;

/// Publishes until it is ended, and once more then.
pub(super) struct Publishing {
    end: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Publishing {
    pub(super) fn start(mut log: Publisher) -> Self {
        let (end, ended) = sync_channel(1);
        let thread = std::thread::spawn(move || {
            loop {
                let last = match ended.recv_timeout(PUBLISH_EVERY) {
                    Err(RecvTimeoutError::Timeout) => false,
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
                };
                // Nothing that was acknowledged is lost by it: the next try publishes what this one could not.
                if let Err(problem) = log.publish() {
                    error!(%problem, "the public log cannot be published");
                }
                if last {
                    return;
                }
            }
        });
        Self { end, thread }
    }

    pub(super) fn end(self) {
        // It fails only where the thread has ended already.
        let _ = self.end.try_send(());
        let _ = self.thread.join();
    }
}
