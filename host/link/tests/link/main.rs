//! Links over in-memory pipes and over TCP with TLS: handshake, pairing, priority, credit, liveness, refusals,
//! resumption.
#![allow(clippy::unwrap_used)] // a test that unwraps fails, which is what it should do

mod at_once;
mod bulk;
mod bulk_worker;
mod dialling;
mod doctor;
mod ends;
mod flow;
mod pace;
mod parties;
mod raw_holder;
mod refusals;
mod resume;
