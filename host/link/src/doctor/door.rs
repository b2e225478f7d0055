//! From the upgrade request to an open WebSocket: who answers, what it says of the ticket, which protocol it speaks.
//!
//! A gateway refuses with a JSON body that has a code; whatever refuses otherwise is not a gateway but stands in front
//! of one, or in its place.

use std::time::Instant;

use kvasir_wire::limits::CLOCK_SKEW_SECONDS;
use kvasir_wire::refusal::RefusalCode;
use kvasir_wire::ticket::Ticket;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;

use super::hub::{clock_advice, is_about_backbones};
use super::text::{ahead, title_or_beginning};
use super::{Deadlines, HopName, Log, Stop, shown};
use crate::dial::Target;
use crate::upgrade::{Head, RefusalBody, SWITCHING_PROTOCOLS, ask};
use crate::{SUBPROTOCOL, unix_now};

/// What to do where the request came without its upgrade.
const UPGRADE_LOST: &str = "a proxy in front of the gateway does not pass the upgrade on: its operator has to let it forward the headers Upgrade and Connection";

/// Asks for the upgrade as a worker does, and says at which hop the answer ends the way.
pub(super) async fn pass<S>(
    stream: S,
    target: &Target,
    ticket: &Ticket,
    deadlines: &Deadlines,
    log: &mut Log<'_>,
) -> Result<WebSocketStream<S>, Stop>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let began = Instant::now();
    let text = ticket.to_text();
    let asked = ask(stream, &target.authority, &target.path, &text);
    let mut answer = match timeout(deadlines.upgrade, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let remedy = "no gateway answers so: check host and port, and whether a proxy or portal of this network stands between";
            return Err(log.fail(HopName::Upgrade, began, shown(&error.to_string()), remedy));
        }
        Err(_) => {
            let seen = format!("no answer to the upgrade request within {:?}", deadlines.upgrade);
            let remedy = "something takes the connection and does not answer: check host and port, then ask the gateway's operator";
            return Err(log.fail(HopName::Upgrade, began, seen, remedy));
        }
    };
    if answer.head.status != SWITCHING_PROTOCOLS {
        let body = answer.body().await;
        return Err(refused(&answer.head, &body, began, log));
    }
    if !answer.key_fits() {
        let remedy = "no gateway answers so: something between answers in its place, perhaps from a cache";
        return Err(log.fail(HopName::Upgrade, began, "the answer was made for another request", remedy));
    }
    let advice = date_advice(&answer.head);
    log.pass(HopName::Upgrade, began, format!("HTTP 101{}", told_by(&answer.head)), advice);
    if answer.head.protocol.as_deref() != Some(SUBPROTOCOL) {
        log.leave_out(
            HopName::Ticket,
            "what answered is no gateway of this version, so that its yes says nothing",
        );
        let seen = match &answer.head.protocol {
            Some(other) => {
                format!("the subprotocol {} was chosen; asked for was {SUBPROTOCOL}", shown(other))
            }
            None => format!("no subprotocol was chosen; asked for was {SUBPROTOCOL}"),
        };
        let remedy = "another WebSocket server answers there, or a gateway of another version: check address and path, then update the older side";
        return Err(log.fail(HopName::Version, began, seen, remedy));
    }
    log.pass(HopName::Ticket, began, "taken by edge and hub", None);
    Ok(answer.open().await)
}

/// Notes an answer that is no upgrade.
fn refused(head: &Head, body: &[u8], began: Instant, log: &mut Log<'_>) -> Stop {
    let Ok(body) = serde_json::from_slice::<RefusalBody>(body) else {
        let seen = format!("HTTP {}{}, {}", head.status, told_by(head), title_or_beginning(body));
        return log.fail(HopName::Upgrade, began, seen, stranger(head));
    };
    let name = hop_of(&body.code);
    if name != HopName::Upgrade {
        log.pass(HopName::Upgrade, began, "a gateway answers", date_advice(head));
    }
    // An edge hands nothing on, not even to a hub that is away, before it has checked the ticket.
    if name == HopName::Hub {
        log.pass(HopName::Ticket, began, "taken by the edge", None);
    }
    let seen =
        format!("HTTP {} {}: {}{}", head.status, shown(&body.code), shown(&body.message), told_by(head));
    // It was asked for as a gateway of this version wants it, so somebody on the way took it out.
    if body.code == "upgrade_required" {
        return log.fail(
            name,
            began,
            seen,
            format!("{UPGRADE_LOST}; the gateway says: {}", shown(&body.what_to_do)),
        );
    }
    log.fail(name, began, seen, shown(&body.what_to_do))
}

/// The hop that a gateway's refusal is about.
fn hop_of(code: &str) -> HopName {
    use RefusalCode::*;
    match RefusalCode::from_name(code) {
        Some(BadTicket | TicketExpired | TicketNotYetValid | WrongRole | WrongKey | UnknownNetwork) => {
            HopName::Ticket
        }
        Some(UnsupportedVersion) => HopName::Version,
        Some(code) if is_about_backbones(code) => HopName::Backbone,
        Some(Draining | Internal | TooManySessions) => HopName::Hub,
        Some(_) => HopName::Upgrade,
        None => match code {
            "ticket_missing" => HopName::Ticket,
            // The edge's and the hub's word for a hub that does not answer or takes no more.
            "unavailable" => HopName::Hub,
            _ => HopName::Upgrade,
        },
    }
}

/// What to do about an answer that is no gateway's.
fn stranger(head: &Head) -> String {
    let wait = head.retry_after.map_or_else(String::new, |seconds| format!(" (it asks to wait {seconds} s)"));
    let remedy = match head.status {
        200..=299 | 511 => {
            "a web page answers: log in to this network's portal with a browser if it has one; else check the gateway's address"
        }
        300..=399 => {
            "it sends elsewhere, as portals of networks do: log in with a browser; else check the gateway's address"
        }
        401 | 407 => "a proxy wants a log-in, which Kvasir does not do: ask for a direct way to the gateway",
        403 | 451 => {
            "a firewall or proxy forbids this address: have it let WebSockets to the gateway through"
        }
        404 | 405 => "a web server that is no gateway answers: check the address, and the path if it has one",
        400 | 426 => UPGRADE_LOST,
        429 => "a proxy in front of the gateway takes no more connections from here: wait",
        500..=599 => {
            "a proxy in front of the gateway does not reach it: wait and try again, then ask its operator"
        }
        _ => "no gateway answers so: check the address, then ask the gateway's operator",
    };
    format!("{remedy}{wait}")
}

/// Who says it, and what else stands in the head.
fn told_by(head: &Head) -> String {
    let mut told = String::new();
    if let Some(server) = &head.server {
        told.push_str(&format!(" from {}", shown(server)));
    }
    if let Some(location) = &head.location {
        told.push_str(&format!(", location {}", shown(location)));
    }
    if let Some(seconds) = head.retry_after {
        told.push_str(&format!(", retry after {seconds} s"));
    }
    told
}

/// What the answer's date says of this machine's clock.
fn date_advice(head: &Head) -> Option<String> {
    let ahead = ahead(head.date.as_deref()?, unix_now())?;
    clock_advice(ahead, CLOCK_SKEW_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_hop_and_every_status_a_remedy() {
        for code in RefusalCode::ALL {
            assert!(HopName::NETWORK.contains(&hop_of(code.name())), "{code}");
        }
        assert_eq!(hop_of("ticket_expired"), HopName::Ticket);
        assert_eq!(hop_of("upgrade_required"), HopName::Upgrade);
        assert_eq!(hop_of("unavailable"), HopName::Hub);
        for status in 0..1000 {
            let head = Head { status, retry_after: Some(7), ..Head::default() };
            assert!(stranger(&head).contains("7 s"), "{status}");
        }
    }

    #[test]
    fn a_clock_that_is_off_is_named_by_the_answer_s_date() {
        let head = |date: &str| Head { date: Some(date.to_owned()), ..Head::default() };
        let advice = date_advice(&head("Thu, 01 Jan 1970 00:02:00 GMT")).unwrap();
        assert!(advice.contains("ahead of"), "{advice}");
        assert_eq!(date_advice(&head("not a date")), None);
        assert_eq!(date_advice(&Head::default()), None);
    }
}
