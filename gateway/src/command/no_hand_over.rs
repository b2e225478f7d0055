//! Where there is no signal that could ask for it, nothing is handed over.

use std::io;

use tokio::net::TcpListener;

/// Nothing.
pub(super) struct HandOver;

impl HandOver {
    /// Nothing will ask for it.
    pub(super) fn of(_: &TcpListener, _: bool) -> io::Result<Self> {
        Ok(HandOver)
    }

    /// Never returns.
    pub(super) async fn done(self) -> Watch {
        std::future::pending().await
    }
}

/// There is none.
pub(super) enum Watch {}

impl Watch {
    /// Nothing to end.
    pub(super) fn end(&self) {
        match *self {}
    }
}
