//! What a stranger says first: the ticket, at the edge and at the hub, and the handshake up to the proof.
//!
//! The first byte chooses. `t`: a ticket's bytes. `a`: an `Authorization` header. Anything else: a hello, its length as u16
//! first, and a proof. The seeds hold the protocol page's vectors, made with its keys, so that what is behind the
//! signatures is reached.
#![no_main]

use std::sync::LazyLock;

use kvasir_wire::handshake::{Hello, HubHandshake, HubIdentity};
use kvasir_wire::id::Nonce;
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::CLOCK_SKEW_SECONDS;
use kvasir_wire::ticket::{EdgeKey, Role, Ticket};
use libfuzzer_sys::fuzz_target;

/// A time at which the vectors' tickets hold.
const NOW: u64 = 1_767_312_000;

static HUB: LazyLock<HubIdentity> = LazyLock::new(|| HubIdentity {
    network: "atlas.example".to_owned(),
    key: SecretKey::from_seed([1; 32]),
    edge: EdgeKey::from_bytes([5; 32]),
});

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        None => {}
        Some((b't', bytes)) => {
            if let Ok(ticket) = Ticket::from_bytes(bytes) {
                assert_eq!(ticket.as_bytes(), bytes, "a ticket has one spelling");
                look(&ticket);
            }
        }
        Some((b'a', value)) => {
            let Ok(value) = std::str::from_utf8(value) else { return };
            if let Ok(ticket) = Ticket::from_authorization(value) {
                look(&ticket);
            }
        }
        Some((_, rest)) => {
            let Some((length, rest)) = rest.split_first_chunk::<2>() else { return };
            let (hello, proof) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
            shake_hands(hello, proof);
        }
    }
});

/// Every check of a ticket, and what must hold of one that could be read.
fn look(ticket: &Ticket) {
    let again = Ticket::from_text(&ticket.to_text()).expect("what was read can be written and read");
    assert!(again == *ticket);
    let edge = ticket.check_at_edge(&HUB.edge, &HUB.network, NOW);
    for role in [Role::Worker, Role::Backbone] {
        let hub = ticket.check_at_hub(&HUB.key.public(), &HUB.edge, &HUB.network, role, NOW);
        assert!(hub.is_err() || edge.is_ok(), "the edge lets through what the hub takes");
        if hub.is_ok() {
            assert_eq!(ticket.claims().role, role);
            assert!(ticket.claims().issued <= NOW + CLOCK_SKEW_SECONDS && NOW < ticket.claims().expires);
            // Nobody but the hub makes a ticket: what it takes is, byte for byte, what it would issue.
            let issued = Ticket::issue(ticket.claims(), &HUB.key, &HUB.edge).expect("it was issued");
            assert!(issued == *ticket);
        }
        let _ = ticket.check_as_holder(&ticket.claims().holder, role, NOW);
    }
}

fn shake_hands(hello: &[u8], proof: &[u8]) {
    if let Ok(read) = Hello::decode(hello) {
        assert_eq!(read.encode(), hello, "a hello has one spelling");
        look(&read.ticket);
    }
    for role in [Role::Worker, Role::Backbone] {
        let Ok((mut handshake, _)) = HubHandshake::hello(&HUB, hello, role, Nonce([0x66; 32]), NOW) else {
            continue;
        };
        if let Ok(admission) = handshake.proof(proof) {
            assert_eq!(admission.holder, admission.ticket.claims().holder);
            assert_eq!(admission.ticket.claims().role, role);
        }
        assert!(handshake.proof(proof).is_err(), "one challenge has one answer");
    }
}
