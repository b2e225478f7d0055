//! SIGHUP: what stands in the file is read again.

/// Calls `reload` at every SIGHUP. It answers the keys that another process alone can change; on an error nothing was changed.
#[cfg(unix)]
pub(super) fn on_hangup(reload: impl Fn() -> anyhow::Result<Vec<&'static str>> + Send + Sync + 'static) {
    use std::sync::Arc;

    use tokio::signal::unix::{SignalKind, signal};

    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(hangup) => hangup,
        Err(error) => {
            tracing::error!("waiting for SIGHUP: {error}; settings are read at the start alone");
            return;
        }
    };
    let reload = Arc::new(reload);
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            let reload = reload.clone();
            // Files are read there.
            match tokio::task::spawn_blocking(move || reload()).await {
                Ok(Ok(fixed)) if fixed.is_empty() => tracing::info!("settings reloaded"),
                Ok(Ok(fixed)) => {
                    tracing::warn!("settings reloaded, but for {}: these take a restart", fixed.join(", "));
                }
                Ok(Err(error)) => {
                    tracing::error!("settings not reloaded, those in use stay: {}", super::sentence(&error));
                }
                Err(error) => tracing::error!("reloading settings: {error}"),
            }
        }
    });
}

/// There is no such signal here.
#[cfg(not(unix))]
pub(super) fn on_hangup(_: impl Fn() -> anyhow::Result<Vec<&'static str>> + Send + Sync + 'static) {}
