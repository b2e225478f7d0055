//! Handshake and pairing: what passes, what is refused, and with which code.

use kvasir_wire::frame::{HUB_STREAM, Kind};
use kvasir_wire::handshake::{
    Admission, Challenge, Class, Features, Hello, HolderHandshake, HubHandshake, HubIdentity, Purpose,
};
use kvasir_wire::id::{ModelDigest, Nonce, PluginDigest, SessionId};
use kvasir_wire::key::SecretKey;
use kvasir_wire::limits::{MAX_OFFERED_FORMATS, MAX_OFFERED_PLUGINS};
use kvasir_wire::pairing::{EndPairing, Expectation, HubPairing, Transcript};
use kvasir_wire::refusal::{Refusal, RefusalCode};
use kvasir_wire::ticket::{Role, Ticket};

use crate::samples::*;

fn start(ticket: &Ticket, key: &SecretKey, purpose: Purpose) -> (HolderHandshake, Vec<u8>) {
    HolderHandshake::start(ticket, key, purpose, Features::NONE, WORKER_NONCE, NOW).unwrap()
}

fn worker_start() -> (HolderHandshake, Vec<u8>) {
    start(&worker_ticket(), &worker(), worker_purpose())
}

fn hub_hello(hello: &[u8]) -> Result<(HubHandshake, Vec<u8>), Refusal> {
    HubHandshake::hello(&identity(), hello, Role::Worker, HUB_NONCE, NOW)
}

/// Both ends admitted: worker, backbone (its data link).
fn admitted() -> (Admission, Admission) {
    let (holder, hello) = worker_start();
    let (mut at_hub, challenge) = hub_hello(&hello).unwrap();
    let (worker_admission, proof) = holder.challenge(&challenge, &worker()).unwrap();
    assert_eq!(at_hub.proof(&proof).unwrap(), worker_admission, "both sides know the same");
    let (holder, hello) = HolderHandshake::start(
        &backbone_ticket(),
        &backbone(),
        Purpose::Session(SESSION),
        Features::NONE,
        BACKBONE_NONCE,
        NOW,
    )
    .unwrap();
    let (mut at_hub, challenge) =
        HubHandshake::hello(&identity(), &hello, Role::Backbone, HUB_NONCE, NOW).unwrap();
    let (_, proof) = holder.challenge(&challenge, &backbone()).unwrap();
    (worker_admission, at_hub.proof(&proof).unwrap())
}

#[test]
fn a_holder_is_admitted_and_a_second_answer_is_a_replay() {
    let (holder, hello) = worker_start();
    let (mut at_hub, challenge) = hub_hello(&hello).unwrap();
    let (_, proof) = holder.challenge(&challenge, &worker()).unwrap();
    let admission = at_hub.proof(&proof).unwrap();
    assert_eq!(admission.holder, worker().public());
    assert_eq!(admission.nonce, WORKER_NONCE);
    assert_eq!(at_hub.proof(&proof).unwrap_err().code, RefusalCode::ReplayedAnswer);
}

#[test]
fn a_wrong_answer_uses_the_challenge_up() {
    let (holder, hello) = worker_start();
    let (mut at_hub, challenge) = hub_hello(&hello).unwrap();
    assert_eq!(at_hub.proof(&[0; 64]).unwrap_err().code, RefusalCode::WrongKey);
    let (_, proof) = holder.challenge(&challenge, &worker()).unwrap();
    assert_eq!(at_hub.proof(&proof).unwrap_err().code, RefusalCode::ReplayedAnswer);
}

#[test]
fn a_stolen_ticket_is_worth_nothing_without_its_key() {
    let thief = backbone();
    let refusal =
        HolderHandshake::start(&worker_ticket(), &thief, worker_purpose(), Features::NONE, WORKER_NONCE, NOW);
    assert_eq!(refusal.unwrap_err().code, RefusalCode::WrongKey);
    // A thief who skips his own check: the hub finds the wrong key.
    let (holder, hello) = worker_start();
    let (mut at_hub, challenge) = hub_hello(&hello).unwrap();
    let (_, proof) = holder.challenge(&challenge, &thief).unwrap();
    assert_eq!(at_hub.proof(&proof).unwrap_err().code, RefusalCode::WrongKey);
}

#[test]
fn an_answer_fits_no_other_challenge() {
    let (holder, hello) = worker_start();
    let (_, challenge) = hub_hello(&hello).unwrap();
    let (_, proof) = holder.challenge(&challenge, &worker()).unwrap();
    let other = HubHandshake::hello(&identity(), &hello, Role::Worker, Nonce([1; 32]), NOW);
    assert_eq!(other.unwrap().0.proof(&proof).unwrap_err().code, RefusalCode::WrongKey);
}

#[test]
fn a_false_hub_is_found_out_before_the_proof_is_given() {
    let mallory = HubIdentity { key: SecretKey::from_seed([13; 32]), ..identity() };
    let (holder, hello) = worker_start();
    // It cannot even read the ticket as its own.
    let refusal = HubHandshake::hello(&mallory, &hello, Role::Worker, HUB_NONCE, NOW).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::BadTicket);
    let forged = Challenge { version: 3, nonce: HUB_NONCE, signature: mallory.key.sign(b"anything") };
    let refusal = holder.challenge(&forged.encode(), &worker()).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::BadSignature);
}

#[test]
fn what_was_offered_cannot_be_changed_on_the_way() {
    let (holder, hello) = worker_start();
    let mut read = Hello::decode(&hello).unwrap();
    if let Purpose::Worker(offer) = &mut read.purpose {
        offer.memory_bytes = 1;
    }
    let (_, challenge) = hub_hello(&read.encode()).unwrap();
    assert_eq!(holder.challenge(&challenge, &worker()).unwrap_err().code, RefusalCode::BadSignature);
}

#[test]
fn versions_are_negotiated_or_both_are_named() {
    let (_, hello) = worker_start();
    let with = |min_version, max_version| {
        let hello = Hello { min_version, max_version, ..Hello::decode(&hello).unwrap() };
        hub_hello(&hello.encode())
    };
    assert!(with(3, 200).is_ok());
    assert!(with(0, 3).is_ok());
    for (min, max) in [(4, 5), (0, 2), (0, 0)] {
        let refusal = with(min, max).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::UnsupportedVersion);
        assert!(refusal.sentence.contains(&format!("{min} to {max}")), "{refusal}");
    }
    assert_eq!(with(4, 3).unwrap_err().code, RefusalCode::ProtocolError);
}

#[test]
fn a_hello_of_another_version_is_refused_by_its_version_whatever_its_form() {
    // What a worker of version 1 says ends before the class.
    let (_, mut hello) = worker_start();
    hello.pop();
    hello[..2].copy_from_slice(&[1, 1]);
    let refusal = hub_hello(&hello).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::UnsupportedVersion);
    assert!(
        refusal.sentence.contains("versions 1 to 1") && refusal.what_to_do.contains("update"),
        "{refusal}"
    );
}

#[test]
fn a_class_is_accepted_by_whoever_accepts_it_or_a_looser_one() {
    assert!(Class::Exact.accepts(Class::Exact) && !Class::Exact.accepts(Class::Tolerance));
    assert!(Class::Tolerance.accepts(Class::Exact) && Class::Tolerance.accepts(Class::Tolerance));
}

#[test]
fn doors_are_for_roles() {
    let (_, hello) = worker_start();
    let refusal = HubHandshake::hello(&identity(), &hello, Role::Backbone, HUB_NONCE, NOW).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::WrongRole);
    // A backbone's ticket with a worker's purpose: the ticket passes the backbone's door, the purpose does not.
    let hello = Hello { purpose: worker_purpose(), ..control_hello() };
    let refusal =
        HubHandshake::hello(&identity(), &hello.encode(), Role::Backbone, HUB_NONCE, NOW).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::WrongRole);
}

#[test]
fn an_expired_ticket_is_refused_at_hello() {
    let (_, hello) = worker_start();
    let refusal = HubHandshake::hello(&identity(), &hello, Role::Worker, HUB_NONCE, EXPIRES).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::TicketExpired);
}

#[test]
fn what_a_hello_offers_is_limited() {
    let with = |plugins: usize, formats: usize| {
        let mut hello = control_hello();
        if let Purpose::Control(offer) = &mut hello.purpose {
            offer.plugins = vec![PLUGIN; plugins];
            offer.formats = vec![1; formats];
        }
        Hello::decode(&hello.encode())
    };
    assert!(with(MAX_OFFERED_PLUGINS, MAX_OFFERED_FORMATS).is_ok());
    assert!(with(MAX_OFFERED_PLUGINS + 1, 1).is_err());
    assert!(with(1, MAX_OFFERED_FORMATS + 1).is_err());
}

fn expectation() -> Expectation {
    Expectation { plugins: vec![PLUGIN], ..Expectation::default() }
}

#[test]
fn two_ends_pair_over_one_transcript() {
    let (worker_admission, backbone_admission) = admitted();
    let mut at_hub = HubPairing::new(transcript());
    let payload = at_hub.transcript().encode();
    let (worker_end, sign) =
        EndPairing::transcript(&payload, &worker_admission, &worker(), &expectation()).unwrap();
    at_hub.signed(Role::Worker, &sign).unwrap();
    assert_eq!(at_hub.welcomes(), None, "one signature is not two");
    let strict = Expectation {
        plugins: vec![PLUGIN],
        model: Some(MODEL),
        class: Some(Class::Exact),
        peer: Some(worker().public()),
        session: Some(SESSION),
    };
    let (backbone_end, sign) =
        EndPairing::transcript(&payload, &backbone_admission, &backbone(), &strict).unwrap();
    at_hub.signed(Role::Backbone, &sign).unwrap();
    let (to_worker, to_backbone) = at_hub.welcomes().unwrap();
    assert_eq!(worker_end.welcome(&to_worker).unwrap(), transcript());
    assert_eq!(backbone_end.welcome(&to_backbone).unwrap(), transcript());
}

#[test]
fn an_end_signs_nothing_that_it_did_not_say_or_does_not_want() {
    let (admission, _) = admitted();
    let refused = |transcript: &Transcript, expectation: &Expectation| {
        let refusal =
            EndPairing::transcript(&transcript.encode(), &admission, &worker(), expectation).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::TranscriptMismatch);
        refusal.sentence
    };
    let with = |change: fn(&mut Transcript)| {
        let mut transcript = transcript();
        change(&mut transcript);
        refused(&transcript, &expectation())
    };
    assert!(with(|t| t.version = 1).contains("version"));
    assert!(with(|t| t.network = "other".to_owned()).contains("network"));
    assert!(with(|t| t.worker.key = hub().public()).contains("key of this end"));
    assert!(with(|t| t.worker.nonce = Nonce([0; 32])).contains("nonce"));
    assert!(with(|t| t.worker.ticket = backbone_ticket().digest()).contains("ticket"));
    assert!(with(|t| t.plugin = PluginDigest([0; 32])).contains("plugin"));
    assert!(with(|t| t.features = Features(1)).contains("features"));
    assert!(with(|t| t.backbone.key = t.worker.key).contains("ends"));
    let demand = |change: fn(&mut Expectation)| {
        let mut expectation = expectation();
        change(&mut expectation);
        refused(&transcript(), &expectation)
    };
    assert!(demand(|e| e.model = Some(ModelDigest([0; 32]))).contains("model"));
    let told = demand(|e| e.class = Some(Class::Tolerance));
    assert!(told.contains("class exact") && told.contains("class tolerance"), "{told}");
    assert!(demand(|e| e.peer = Some(hub().public())).contains("other end"));
    assert!(demand(|e| e.session = Some(SessionId([0; 32]))).contains("session"));
}

#[test]
fn signatures_of_the_pair_cannot_be_swapped_or_forged() {
    let (worker_admission, _) = admitted();
    let mut at_hub = HubPairing::new(transcript());
    let own = worker().sign(&transcript().signed_bytes(Role::Worker));
    // One end's signature does not pass for the other's, even under the right key.
    let as_backbone = worker().sign(&transcript().signed_bytes(Role::Backbone));
    assert_eq!(at_hub.signed(Role::Backbone, &own.0).unwrap_err().code, RefusalCode::BadSignature);
    assert_eq!(at_hub.signed(Role::Worker, &as_backbone.0).unwrap_err().code, RefusalCode::BadSignature);
    assert_eq!(at_hub.signed(Role::Worker, &own.0[..63]).unwrap_err().code, RefusalCode::ProtocolError);
    let (end, _) =
        EndPairing::transcript(&transcript().encode(), &worker_admission, &worker(), &expectation()).unwrap();
    let forged = kvasir_wire::handshake::Welcome::Paired { peer: own };
    assert_eq!(end.welcome(&forged.encode()).unwrap_err().code, RefusalCode::BadSignature);
}

#[test]
fn the_handshake_s_frames_fit_one_message_each() {
    for (kind, payload) in [Kind::Hello, Kind::Challenge, Kind::Proof].into_iter().zip(worker_handshake()) {
        message(kind, HUB_STREAM, payload);
    }
}
