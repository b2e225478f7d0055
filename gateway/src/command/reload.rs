//! SIGHUP: what stands in the file is read again.

/// The hangups of this process. From the moment that they are watched for they do not end it.
pub(super) struct Hangups {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Hangups {
    /// Watches for them from here on.
    #[cfg(unix)]
    pub(super) fn watch() -> Self {
        use tokio::signal::unix::{SignalKind, signal};

        let watched = signal(SignalKind::hangup());
        if let Err(error) = &watched {
            tracing::error!("waiting for SIGHUP: {error}; settings are read at the start alone");
        }
        Hangups { signal: watched.ok() }
    }

    /// Calls `reload` at each. It answers the keys that another process alone can change; on an error nothing was changed.
    #[cfg(unix)]
    pub(super) fn reload(
        self,
        reload: impl Fn() -> anyhow::Result<Vec<&'static str>> + Send + Sync + 'static,
    ) {
        let Some(mut hangups) = self.signal else { return };
        let reload = std::sync::Arc::new(reload);
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                let reload = reload.clone();
                // Files are read there.
                match tokio::task::spawn_blocking(move || reload()).await {
                    Ok(Ok(fixed)) if fixed.is_empty() => tracing::info!("settings reloaded"),
                    Ok(Ok(fixed)) => {
                        let fixed = fixed.join(", ");
                        tracing::warn!(
                            "settings reloaded, but for {fixed}: these take a restart or a hand-over"
                        );
                    }
                    Ok(Err(error)) => {
                        tracing::error!(
                            "settings not reloaded, those in use stay: {}",
                            super::sentence(&error)
                        );
                    }
                    Err(error) => tracing::error!("reloading settings: {error}"),
                }
            }
        });
    }

    /// There is no such signal here.
    #[cfg(not(unix))]
    pub(super) fn watch() -> Self {
        Hangups {}
    }

    /// Never.
    #[cfg(not(unix))]
    pub(super) fn reload(self, _: impl Fn() -> anyhow::Result<Vec<&'static str>> + Send + Sync + 'static) {}
}
