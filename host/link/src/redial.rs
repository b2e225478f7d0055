//! Another connection for the link of a session: dialled, proved and handed to the link, again and again for a while.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kvasir_wire::assemble::Assembler;
use kvasir_wire::frame::Party;
use kvasir_wire::handshake::Resumption;
use kvasir_wire::key::SecretKey;
use kvasir_wire::ticket::{Role, Ticket};
use tokio::time::{sleep, timeout};

use crate::backoff::Backoff;
use crate::dial::{TlsTrust, open};
use crate::error::LinkError;
use crate::holder::greet_again;
use crate::opening::{Opening, within};
use crate::options::{BACKBONE_RESUME, LinkOptions};
use crate::reader::MessageStream;
use crate::shared::Shared;
use crate::writer::write;

/// What an end needs to dial as it did before.
pub(crate) struct Redial {
    pub(crate) url: String,
    pub(crate) path: &'static str,
    pub(crate) trust: TlsTrust,
    pub(crate) ticket: Ticket,
    pub(crate) key: SecretKey,
    pub(crate) role: Role,
    pub(crate) options: LinkOptions,
}

impl fmt::Debug for Redial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redial").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Redial {
    /// Dials until the hub takes the link up again: gives what comes from there, and the connection's number. An error ends
    /// the link: the one for which the connection was lost, unless the link ended otherwise meanwhile.
    pub(crate) async fn resume(&self, shared: &Arc<Shared>) -> Result<(MessageStream, u64), LinkError> {
        tokio::select! {
            error = shared.ended() => Err(error),
            resumed = timeout(self.options.resume_within, self.tries(shared)) => match resumed {
                Ok(Some(resumed)) => Ok(resumed),
                Ok(None) | Err(_) => Err(shared.why_cut()),
            },
        }
    }

    /// Tries until one succeeds; nothing where no further one could.
    async fn tries(&self, shared: &Arc<Shared>) -> Option<(MessageStream, u64)> {
        let mut backoff = Backoff::new();
        let mut asked = None;
        loop {
            sleep(backoff.next_wait(getrandom::u64().unwrap_or(u64::MAX / 2), asked)).await;
            match self.once(shared).await {
                Ok(resumed) => {
                    tracing::info!(connection = resumed.1, "the session goes on over another connection");
                    return Some(resumed);
                }
                Err(error) if may_pass(&error) => {
                    tracing::debug!(%error, "no other connection yet");
                    asked = wait_asked(&error, self.waited_for());
                }
                Err(error) => {
                    tracing::info!(%error, "the session cannot go on over another connection");
                    return None;
                }
            }
        }
    }

    /// How long the hub waits for this end.
    fn waited_for(&self) -> Duration {
        match self.role {
            Role::Worker => self.options.resume_within,
            Role::Backbone => self.options.resume_within.min(BACKBONE_RESUME),
        }
    }

    async fn once(&self, shared: &Arc<Shared>) -> Result<(MessageStream, u64), LinkError> {
        let Redial { url, path, trust, ticket, key, role, options } = self;
        let socket = open(url, path, trust, ticket, options).await?;
        let mut opening = Opening::new(socket, Assembler::from_peer(Party::Hub));
        let (session, received) = shared.to_resume().ok_or(LinkError::Ended)?;
        let resumption = Resumption { role: *role, session, received };
        let steps = greet_again(&mut opening, ticket, key, resumption);
        let theirs = match within(options.handshake, "the handshake with the hub", steps).await {
            Ok(theirs) => theirs,
            Err(error) => return Err(opening.fail(error, options.close_linger).await),
        };
        let (connection, _) = shared.attach(theirs)?;
        let (sink, stream) = opening.socket.split();
        let writer = tokio::spawn(write(sink, Arc::clone(shared), options.clone(), connection));
        shared.writes(connection, writer.abort_handle());
        Ok((Box::pin(stream), connection))
    }
}

/// Whether another try may succeed: the network is at fault, or whoever answered says when to come back.
pub(crate) fn may_pass(error: &LinkError) -> bool {
    match error {
        LinkError::Connect { .. }
        | LinkError::Tls { .. }
        | LinkError::Http { .. }
        | LinkError::Lost(_)
        | LinkError::Closed { .. }
        | LinkError::TimedOut { .. } => true,
        LinkError::Refused(refusal) => refusal.retry_after.is_some(),
        _ => false,
    }
}

/// What whoever refused asked to wait. Who comes back later than the hub waits need not come back at all, so not for longer than a
/// part of that.
fn wait_asked(error: &LinkError, waited_for: Duration) -> Option<Duration> {
    let asked = Duration::from_secs(error.retry_after()?.into());
    Some(asked.min(waited_for / 8))
}

#[cfg(test)]
mod tests {
    use kvasir_wire::refusal::{Refusal, RefusalCode};

    use super::*;

    #[test]
    fn nobody_is_waited_for_longer_than_the_hub_waits() {
        let within = Duration::from_secs(16);
        let busy = |seconds| {
            let refusal = Refusal::new(RefusalCode::TooManySessions, "full", "come back");
            LinkError::Refused(refusal.retry_after(seconds))
        };
        assert_eq!(wait_asked(&busy(1), within), Some(Duration::from_secs(1)));
        assert_eq!(wait_asked(&busy(60), within), Some(Duration::from_secs(2)));
        assert_eq!(wait_asked(&LinkError::Ended, within), None);
    }
}
