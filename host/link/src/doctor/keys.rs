//! Ticket and key on this machine: what can be known before anybody is asked.

use std::time::Instant;

use kvasir_wire::key::SecretKey;
use kvasir_wire::refusal::RefusalCode;
use kvasir_wire::ticket::{Role, Ticket};

use super::text::date;
use super::{Hop, HopName, shown};

/// Life of a ticket, in seconds, below which its operator should be asked for the next one.
const SOON_SECONDS: u64 = 3 * 24 * 3600;

/// Checks a ticket as a worker does before it uses it: the hub's signature in it, its key, its role, its time by this
/// machine's clock, `now` in unix seconds.
pub fn check_keys(ticket: &Ticket, key: &SecretKey, now: u64) -> Hop {
    let began = Instant::now();
    let claims = ticket.claims();
    if let Err(refusal) = ticket.check_as_holder(&key.public(), Role::Worker, now) {
        // Dates instead of seconds, since a person has to compare them with a clock on the wall.
        let seen = match refusal.code {
            RefusalCode::TicketExpired => {
                format!(
                    "the ticket expired {}; by this machine's clock it is {}",
                    date(claims.expires),
                    date(now)
                )
            }
            RefusalCode::TicketNotYetValid => format!(
                "the ticket was issued {}; by this machine's clock it is {}",
                date(claims.issued),
                date(now)
            ),
            _ => shown(&refusal.sentence),
        };
        return Hop::failed(HopName::Keys, began, seen, shown(&refusal.what_to_do));
    }
    let seen =
        format!("the ticket for network {} is this key's, until {}", claims.network, date(claims.expires));
    let soon = claims.expires - now < SOON_SECONDS;
    let advice =
        soon.then(|| "ask the network's operator for a new ticket before this one expires".to_owned());
    Hop::passed(HopName::Keys, began, seen).with_advice(advice)
}

#[cfg(test)]
mod tests {
    use kvasir_wire::ticket::{EdgeKey, TicketClaims, TicketLimits};

    use super::super::Outcome;
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn ticket(role: Role, issued: u64, expires: u64) -> Ticket {
        let hub = SecretKey::from_seed([1; 32]);
        let holder = SecretKey::from_seed([2; 32]).public();
        let claims = TicketClaims {
            network: "atlas".to_owned(),
            role,
            holder,
            hub: hub.public(),
            wallet: Some(holder.wallet_digest()),
            plugins: Vec::new(),
            publishers: Vec::new(),
            limits: TicketLimits::default(),
            issued,
            expires,
        };
        Ticket::issue(&claims, &hub, &EdgeKey::from_bytes([5; 32])).unwrap()
    }

    #[test]
    fn a_good_ticket_passes_and_one_that_ends_soon_comes_with_advice() {
        let key = SecretKey::from_seed([2; 32]);
        let good = check_keys(&ticket(Role::Worker, NOW, NOW + 30 * 24 * 3600), &key, NOW);
        assert_eq!((good.outcome, good.remedy), (Outcome::Passed, None));
        let soon = check_keys(&ticket(Role::Worker, NOW, NOW + 3600), &key, NOW);
        assert_eq!(soon.outcome, Outcome::Passed);
        assert!(soon.remedy.unwrap().contains("new ticket"));
    }

    #[test]
    fn each_fault_is_named() {
        let key = SecretKey::from_seed([2; 32]);
        let fault = |ticket: Ticket, key: &SecretKey| {
            let hop = check_keys(&ticket, key, NOW);
            assert_eq!(hop.outcome, Outcome::Failed, "{hop:?}");
            assert!(hop.remedy.is_some());
            hop.seen
        };
        let year_of_now = "2027";
        let expired = fault(ticket(Role::Worker, NOW - 10, NOW), &key);
        assert!(expired.contains("expired") && expired.contains(year_of_now), "{expired}");
        let early = fault(ticket(Role::Worker, NOW + 3600, NOW + 7200), &key);
        assert!(early.contains("was issued"), "{early}");
        let other = fault(ticket(Role::Worker, NOW, NOW + 10), &SecretKey::from_seed([3; 32]));
        assert!(other.contains("belongs to key"), "{other}");
        let role = fault(ticket(Role::Backbone, NOW, NOW + 10), &key);
        assert!(role.contains("backbone"), "{role}");
    }
}
