//! Another connection for the link of a session: dialled, proved and handed to the link, again and again for a while.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use kvasir_wire::assemble::Assembler;
use kvasir_wire::frame::Party;
use kvasir_wire::handshake::Resumption;
use kvasir_wire::key::SecretKey;
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::{Role, Ticket};
use tokio::time::{sleep, timeout};

use crate::USER_TIMEOUT;
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
            resumed = timeout(tries_for(self.role, &self.options), self.tries(shared)) => match resumed {
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
                    asked = wait_asked(&error, waited_for(self.role, &self.options));
                }
                Err(error) => {
                    tracing::info!(%error, "the session cannot go on over another connection");
                    return None;
                }
            }
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
        let connection = match shared.attach(theirs) {
            Ok((connection, _)) => connection,
            Err(error) => {
                // The hub has taken the link up already, and would wait for yet another connection.
                let sentence = format!("the session cannot go on over another connection: {error}");
                let refusal = Refusal::new(RefusalCode::UnknownSession, sentence, "end the session");
                opening.leave(refusal, options.close_linger).await;
                return Err(error);
            }
        };
        let (sink, stream) = opening.socket.split();
        let writer = tokio::spawn(write(sink, Arc::clone(shared), options.clone(), connection));
        shared.writes(connection, writer.abort_handle());
        Ok((Box::pin(stream), connection))
    }
}

/// How long the hub waits for an end of this role.
fn waited_for(role: Role, options: &LinkOptions) -> Duration {
    match role {
        Role::Worker => options.resume_within,
        Role::Backbone => options.resume_within.min(BACKBONE_RESUME),
    }
}

/// How long an end of this role dials: as long as the hub waits, which may find the connection gone so much later where nothing was
/// acknowledged. Beyond that a session is over, and its end better looks for another one.
fn tries_for(role: Role, options: &LinkOptions) -> Duration {
    options.resume_within.min(waited_for(role, options) + USER_TIMEOUT)
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
    use kvasir_wire::frame::{HUB_STREAM, Kind};
    use kvasir_wire::handshake::{HubHandshake, HubIdentity, Purpose, Welcome};
    use kvasir_wire::id::SessionId;
    use kvasir_wire::limits::{MAX_FRAME_PAYLOAD_BYTES, MAX_REPLAY_BYTES};
    use kvasir_wire::schedule::{Outgoing, Scheduler};
    use kvasir_wire::ticket::{EdgeKey, TicketClaims, TicketLimits};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
    use tokio_tungstenite::tungstenite::protocol::CloseFrame;

    use super::*;
    use crate::shared::{Next, Resumable};
    use crate::{BACKBONE_PATH, SUBPROTOCOL, fresh_nonce, unix_now, websocket_config};

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

    #[test]
    fn an_end_dials_no_longer_than_the_hub_may_wait_for_it() {
        let options = LinkOptions::default();
        assert_eq!(tries_for(Role::Worker, &options), options.resume_within);
        assert_eq!(tries_for(Role::Backbone, &options), BACKBONE_RESUME + USER_TIMEOUT);
        assert!(tries_for(Role::Backbone, &options) < options.resume_within);
        let short = LinkOptions { resume_within: Duration::from_millis(400), ..options };
        assert_eq!(tries_for(Role::Backbone, &short), short.resume_within);
    }

    /// A hub that takes one link up again, has none of its messages, and gives what ends the connection.
    async fn hub_that_has_nothing(stream: TcpStream, hub: &HubIdentity) -> Option<CloseFrame> {
        #[allow(clippy::result_large_err)] // the callback's type is the library's
        let callback = |_: &Request, mut response: Response| {
            response.headers_mut().insert("sec-websocket-protocol", SUBPROTOCOL.parse().unwrap());
            Ok(response)
        };
        let config = Some(websocket_config());
        let socket = tokio_tungstenite::accept_hdr_async_with_config(stream, callback, config).await.unwrap();
        let mut opening = Opening::new(socket, Assembler::from_peer(Party::Backbone));
        let hello = opening.expect(Kind::Hello, "a hello").await.unwrap();
        let nonce = fresh_nonce().unwrap();
        let (mut state, challenge) =
            HubHandshake::hello(hub, &hello.bytes, Role::Backbone, nonce, unix_now()).unwrap();
        opening.send(Kind::Challenge, challenge).await.unwrap();
        let proof = opening.expect(Kind::Proof, "a proof").await.unwrap();
        let admission = state.proof(&proof.bytes).unwrap();
        assert!(matches!(admission.purpose, Purpose::Resume(_)));
        opening.send(Kind::Welcome, Welcome::Resumed { received: 0 }.encode()).await.unwrap();
        match opening.socket.next().await.unwrap().unwrap() {
            Message::Close(frame) => frame,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn an_end_that_keeps_no_longer_what_the_hub_lacks_says_so_and_gives_up() {
        let (hub_key, key) = (SecretKey::from_seed([1; 32]), SecretKey::from_seed([3; 32]));
        let hub = HubIdentity {
            network: "test.example".to_owned(),
            key: hub_key,
            edge: EdgeKey::from_bytes([5; 32]),
        };
        let claims = TicketClaims {
            network: hub.network.clone(),
            role: Role::Backbone,
            holder: key.public(),
            hub: hub.key.public(),
            wallet: None,
            plugins: Vec::new(),
            publishers: Vec::new(),
            limits: TicketLimits::default(),
            issued: unix_now(),
            expires: unix_now() + 3600,
        };
        let ticket = Ticket::issue(&claims, &hub.key, &hub.edge).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let redial = Redial {
            url: format!("ws://{}", listener.local_addr().unwrap()),
            path: BACKBONE_PATH,
            trust: TlsTrust::PlainText,
            ticket,
            key,
            role: Role::Backbone,
            options: LinkOptions::default(),
        };
        // A link that has written more than is kept, none of it acknowledged, and is cut.
        let shared = Shared::new(Scheduler::new(), Some(Resumable::new(1, None)));
        assert!(shared.arm(SessionId([3; 32])));
        for _ in 0..=MAX_REPLAY_BYTES / MAX_FRAME_PAYLOAD_BYTES {
            let report = Outgoing::new(Kind::Report, HUB_STREAM, vec![7; MAX_FRAME_PAYLOAD_BYTES]);
            shared.push(report).unwrap();
            let next = shared.next(0, redial.options.close_drain);
            assert!(matches!(next, Next::Message(_)), "{next:?}");
        }
        assert!(shared.cut(0, LinkError::Lost("the cable was pulled".to_owned())).is_ok());

        let at_hub = async { hub_that_has_nothing(listener.accept().await.unwrap().0, &hub).await };
        let (closed, resumed) = tokio::join!(at_hub, redial.resume(&shared));
        let closed = closed.unwrap();
        assert_eq!(u16::from(closed.code), 4000 + RefusalCode::UnknownSession as u16);
        let error = resumed.err().unwrap();
        assert!(error.to_string().contains("the cable was pulled"), "{error}");
    }
}
