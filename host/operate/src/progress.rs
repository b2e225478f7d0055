//! A sign of life on standard error for anything that may take longer than two seconds.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Shown on a terminal while it exists; elsewhere nothing.
pub struct Spinner(ProgressBar);

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
