//! Tickets: each check refuses what it must, with the right code, and says what to do.

use kvasir_wire::codec::DecodeError;
use kvasir_wire::id::{KeyDigest, PluginDigest};
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::{
    CLOCK_SKEW_SECONDS, MAX_NETWORK_BYTES, MAX_TICKET_ALLOWED, MAX_TICKET_BYTES, MAX_TICKET_SECONDS,
};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::{EdgeKey, Role, Ticket, TicketClaims, TicketError};

use crate::samples::*;

fn code(result: Result<(), Refusal>) -> RefusalCode {
    let refusal = result.unwrap_err();
    assert!(!refusal.what_to_do.is_empty() && !refusal.sentence.is_empty());
    refusal.code
}

fn at_hub(ticket: &Ticket, now: u64) -> Result<(), Refusal> {
    ticket.check_at_hub(&hub().public(), &edge(), NETWORK, Role::Worker, now)
}

#[test]
fn a_good_ticket_passes_all_three_checks_and_both_forms() {
    let ticket = worker_ticket();
    ticket.check_at_edge(&edge(), NETWORK, NOW).unwrap();
    at_hub(&ticket, NOW).unwrap();
    ticket.check_as_holder(&worker().public(), Role::Worker, NOW).unwrap();
    assert_eq!(Ticket::from_text(&ticket.to_text()).as_ref(), Ok(&ticket));
    assert_eq!(Ticket::from_text(&format!("{}\n", ticket.to_text())).as_ref(), Ok(&ticket));
    assert_eq!(Ticket::from_authorization(&format!("Bearer {}", ticket.to_text())).as_ref(), Ok(&ticket));
    assert_eq!(Ticket::from_bytes(ticket.as_bytes()).as_ref(), Ok(&ticket));
    assert_eq!(ticket.claims(), &worker_claims());
    assert!(!format!("{ticket:?}").contains(&ticket.to_text()), "logs do not hold the ticket");
}

#[test]
fn every_flipped_bit_is_found_by_the_hub() {
    let good = worker_ticket();
    for at in 0..good.as_bytes().len() {
        let mut bytes = good.as_bytes().to_vec();
        bytes[at] ^= 1;
        if let Ok(bent) = Ticket::from_bytes(&bytes) {
            assert!(bent.check_at_edge(&edge(), NETWORK, NOW).is_err(), "byte {at}");
            assert!(at_hub(&bent, NOW).is_err(), "byte {at}");
        }
    }
}

#[test]
fn a_ticket_forged_without_the_edge_key_does_not_pass_the_edge() {
    let other_edge = EdgeKey::from_bytes([6; 32]);
    let forged = Ticket::issue(&worker_claims(), &hub(), &other_edge).unwrap();
    assert_eq!(code(forged.check_at_edge(&edge(), NETWORK, NOW)), RefusalCode::BadTicket);
    assert_eq!(code(at_hub(&forged, NOW)), RefusalCode::BadTicket);
}

#[test]
fn an_edge_that_forges_does_not_pass_the_hub_or_the_holder() {
    // The edge key is known, the hub's is not: another hub's signature under a right MAC.
    let mallory = SecretKey::from_seed([13; 32]);
    let claims = TicketClaims { hub: mallory.public(), ..worker_claims() };
    let forged = Ticket::issue(&claims, &mallory, &edge()).unwrap();
    assert!(forged.check_at_edge(&edge(), NETWORK, NOW).is_ok(), "the edge only routes");
    assert_eq!(code(at_hub(&forged, NOW)), RefusalCode::BadTicket);
    // The hub's key in the claims, another key's signature: only possible by writing bytes.
    let mut bytes = worker_ticket().as_bytes().to_vec();
    let at = bytes.len() - 96;
    bytes[at..at + 64].copy_from_slice(&[0; 64]);
    let forged = Ticket::from_bytes(&bytes).unwrap();
    let code = code(forged.check_as_holder(&worker().public(), Role::Worker, NOW));
    assert_eq!(code, RefusalCode::BadTicket);
}

#[test]
fn time_is_checked_and_both_clocks_are_named() {
    let ticket = worker_ticket();
    at_hub(&ticket, EXPIRES - 1).unwrap();
    let expired = at_hub(&ticket, EXPIRES).unwrap_err();
    assert_eq!(expired.code, RefusalCode::TicketExpired);
    assert!(expired.sentence.contains(&EXPIRES.to_string()), "{expired}");
    at_hub(&ticket, ISSUED - CLOCK_SKEW_SECONDS).unwrap();
    let early = ISSUED - CLOCK_SKEW_SECONDS - 1;
    let refusal = at_hub(&ticket, early).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::TicketNotYetValid);
    assert!(refusal.sentence.contains(&ISSUED.to_string()) && refusal.sentence.contains(&early.to_string()));
    assert_eq!(code(ticket.check_at_edge(&edge(), NETWORK, EXPIRES)), RefusalCode::TicketExpired);
    let holder = ticket.check_as_holder(&worker().public(), Role::Worker, EXPIRES);
    assert_eq!(code(holder), RefusalCode::TicketExpired);
}

#[test]
fn network_role_and_key_are_checked() {
    let ticket = worker_ticket();
    assert_eq!(code(ticket.check_at_edge(&edge(), "other", NOW)), RefusalCode::UnknownNetwork);
    let as_backbone = ticket.check_at_hub(&hub().public(), &edge(), NETWORK, Role::Backbone, NOW);
    assert_eq!(code(as_backbone), RefusalCode::WrongRole);
    let as_backbone = ticket.check_as_holder(&worker().public(), Role::Backbone, NOW);
    assert_eq!(code(as_backbone), RefusalCode::WrongRole);
    let with_other_key = ticket.check_as_holder(&backbone().public(), Role::Worker, NOW);
    assert_eq!(code(with_other_key), RefusalCode::WrongKey);
}

#[test]
fn plugins_are_allowed_by_digest_or_publisher_and_not_by_default() {
    let claims = worker_claims();
    let (plugin, publisher) = (PluginDigest([1; 32]), KeyDigest([2; 32]));
    assert!(claims.allows(&PLUGIN, &publisher));
    assert!(claims.allows(&plugin, &KeyDigest([0x77; 32])));
    assert!(!claims.allows(&plugin, &publisher));
    assert!(claims.may_allow(&plugin), "the hub does not know the publisher");
    assert!(!backbone_claims().may_allow(&plugin), "no publisher is named");
    let nothing = TicketClaims { plugins: vec![], publishers: vec![], ..claims };
    assert!(!nothing.allows(&PLUGIN, &publisher) && !nothing.may_allow(&PLUGIN));
}

#[test]
fn claims_that_break_a_rule_are_not_signed() {
    let refused = |change: fn(&mut TicketClaims)| {
        let mut claims = worker_claims();
        change(&mut claims);
        match Ticket::issue(&claims, &hub(), &edge()) {
            Err(TicketError::Decode(
                DecodeError::Broken { field, .. } | DecodeError::AboveLimit { field, .. },
            )) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|c| c.network.clear()), "network");
    assert_eq!(refused(|c| c.network = "Atlas".to_owned()), "network");
    assert_eq!(refused(|c| c.network = "a/b".to_owned()), "network");
    assert_eq!(refused(|c| c.network = "a".repeat(MAX_NETWORK_BYTES + 1)), "network");
    assert_eq!(refused(|c| c.wallet = None), "wallet");
    assert_eq!(refused(|c| c.limits.sessions = 0), "sessions");
    assert_eq!(refused(|c| c.expires = c.issued), "expires");
    assert_eq!(refused(|c| c.expires = c.issued + MAX_TICKET_SECONDS + 1), "lifetime in seconds");
    assert_eq!(refused(|c| c.plugins = vec![PLUGIN; MAX_TICKET_ALLOWED + 1]), "allowed plugins");
    let other_hub = Ticket::issue(&worker_claims(), &worker(), &edge());
    assert_eq!(other_hub, Err(TicketError::OtherHub));
}

#[test]
fn the_largest_ticket_fits_and_what_is_larger_is_refused() {
    let claims = TicketClaims {
        network: "a".repeat(MAX_NETWORK_BYTES),
        plugins: vec![PLUGIN; MAX_TICKET_ALLOWED],
        publishers: vec![KeyDigest([1; 32]); MAX_TICKET_ALLOWED],
        ..worker_claims()
    };
    let ticket = Ticket::issue(&claims, &hub(), &edge()).unwrap();
    assert!(ticket.as_bytes().len() <= MAX_TICKET_BYTES);
    assert_eq!(Ticket::from_text(&ticket.to_text()), Ok(ticket));
    assert!(Ticket::from_bytes(&vec![0; MAX_TICKET_BYTES + 1]).is_err());
    assert!(Ticket::from_text(&format!("kvasir-ticket-v1.{}", "A".repeat(6000))).is_err());
    for text in ["", "kvasir-ticket-v1.", "kvasir-ticket-v1.!!!!", "Bearer x", "kvasir-ticket-v2.AAAA"] {
        assert!(Ticket::from_text(text).is_err(), "{text:?}");
    }
}

#[test]
fn edge_key_files_round_trip() {
    let text = edge().to_text();
    let again = EdgeKey::from_text(&text).unwrap();
    assert_eq!(*again.to_text(), *text);
    assert!(EdgeKey::from_text("kvasir-edge-v1 00").is_none());
    assert_eq!(format!("{again:?}"), "EdgeKey(..)");
}
