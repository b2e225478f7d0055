//! The checks of a ticket before the upgrade, answered as HTTP refusals.
//!
//! What a ticket must say is decided in `kvasir-wire`; here is only which of its three checks is made at which door, and
//! which status tells the peer so: 401 for what is no good ticket, 403 for a good one that is not for this door.

use kvasir_wire::{
    key::PublicKey,
    refusal::{Refusal, RefusalCode},
    ticket::{EdgeKey, Role, Ticket},
};

use crate::http_refusal::HttpRefusal;

/// The edge's check: MAC (in constant time), network and time, then the role. It says nothing about the holder: the
/// hub asks for proof of the key. `now` in unix seconds.
pub fn at_edge(
    text: &str,
    edge_key: &EdgeKey,
    network: &str,
    now: u64,
    role: Role,
) -> Result<Ticket, HttpRefusal> {
    let ticket = read(text)?;
    ticket.check_at_edge(edge_key, network, now).map_err(|refusal| HttpRefusal::of(&refusal))?;
    // The claims are the hub's since the MAC is right, and only its edges and it know the key.
    let found = ticket.claims().role;
    if found != role {
        return Err(HttpRefusal::of(&Refusal::new(
            RefusalCode::WrongRole,
            format!("the ticket is for a {found}, this door is for a {role}"),
            format!("use a ticket that was made for a {role}"),
        )));
    }
    Ok(ticket)
}

/// The hub's check of everything that can be known before the holder proved its key. `now` in unix seconds.
pub fn at_hub(
    text: &str,
    hub: &PublicKey,
    edge_key: &EdgeKey,
    network: &str,
    now: u64,
    role: Role,
) -> Result<Ticket, HttpRefusal> {
    let ticket = read(text)?;
    ticket.check_at_hub(hub, edge_key, network, role, now).map_err(|refusal| HttpRefusal::of(&refusal))?;
    Ok(ticket)
}

fn read(text: &str) -> Result<Ticket, HttpRefusal> {
    Ticket::from_text(text).map_err(|error| HttpRefusal::of(&error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_wire::{
        id::WalletDigest,
        key::SecretKey,
        ticket::{TicketClaims, TicketLimits},
    };

    const NOW: u64 = 1_800_000_000;

    fn claims(hub: &SecretKey, role: Role) -> TicketClaims {
        TicketClaims {
            network: "atlas".into(),
            role,
            holder: SecretKey::from_seed([2; 32]).public(),
            hub: hub.public(),
            wallet: Some(WalletDigest([3; 32])),
            plugins: Vec::new(),
            publishers: Vec::new(),
            limits: TicketLimits::default(),
            issued: NOW - 10,
            expires: NOW + 10,
        }
    }

    #[test]
    fn each_fault_has_its_status_and_code() {
        let hub = SecretKey::from_seed([1; 32]);
        let other_hub = SecretKey::from_seed([9; 32]);
        let edge = EdgeKey::from_bytes([4; 32]);
        let other_edge = EdgeKey::from_bytes([5; 32]);
        let good = Ticket::issue(&claims(&hub, Role::Worker), &hub, &edge).unwrap().to_text();
        at_edge(&good, &edge, "atlas", NOW, Role::Worker).unwrap();
        at_hub(&good, &hub.public(), &edge, "atlas", NOW, Role::Worker).unwrap();

        let at_edge = |text: &str, network: &str, now| {
            let refusal = at_edge(text, &edge, network, now, Role::Worker).unwrap_err();
            assert!(
                !format!("{:?}", refusal.body()).contains(&good[20..60]),
                "a refusal never quotes the ticket"
            );
            refusal.status()
        };
        assert_eq!(at_edge("", "atlas", NOW), 401);
        assert_eq!(at_edge("kvasir-ticket-v1.AAAA", "atlas", NOW), 401);
        let forged = Ticket::issue(&claims(&hub, Role::Worker), &hub, &other_edge).unwrap().to_text();
        assert_eq!(at_edge(&forged, "atlas", NOW), 401);
        assert_eq!(at_edge(&good, "other", NOW), 403);
        assert_eq!(at_edge(&good, "atlas", NOW + 11), 401);
        let backbone = Ticket::issue(&claims(&hub, Role::Backbone), &hub, &edge).unwrap().to_text();
        assert_eq!(at_edge(&backbone, "atlas", NOW), 403);
        let elsewhere =
            Ticket::issue(&claims(&other_hub, Role::Worker), &other_hub, &edge).unwrap().to_text();
        let refusal = at_hub(&elsewhere, &hub.public(), &edge, "atlas", NOW, Role::Worker).unwrap_err();
        assert_eq!(refusal.status(), 401);
    }
}
