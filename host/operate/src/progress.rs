//! A sign of life on standard error for anything that may take longer than two seconds.

use std::io::IsTerminal;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// How long something may take before a line is printed where there is no terminal.
const LINE_AFTER: Duration = Duration::from_secs(2);

/// Shown on a terminal while it exists; elsewhere nothing.
pub struct Spinner(ProgressBar);

/// One line on standard error, where that is no terminal and something still lasts after two seconds. Dropping it before that
/// prevents the line.
pub struct LateLine {
    _over: mpsc::Sender<()>,
}

impl LateLine {
    /// Print `what` after two seconds, unless only errors are wanted.
    pub fn new(what: impl Into<String>) -> Option<LateLine> {
        if std::io::stderr().is_terminal() || !tracing::enabled!(tracing::Level::WARN) {
            return None;
        }
        let what = what.into();
        let (over, wait) = mpsc::channel::<()>();
        thread::spawn(move || {
            if wait.recv_timeout(LINE_AFTER) == Err(mpsc::RecvTimeoutError::Timeout) {
                output::remark(what);
            }
        });
        Some(LateLine { _over: over })
    }
}

impl Spinner {
    /// Begin to show `what`.
    pub fn new(what: impl Into<String>) -> Spinner {
        let bar =
            if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.set_message(what.into());
        bar.enable_steady_tick(Duration::from_millis(200));
        Spinner(bar)
    }

    /// Write something to standard output with the spinner out of the way.
    pub fn beside<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }

    /// Show something else from now on.
    pub fn say(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
