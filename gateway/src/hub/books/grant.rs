//! The grant of a session: whether it allows the session, and when it is spent.
//!
//! The ledger refuses a receipt whole that goes beyond its grant's bytes or time. So a session is finished while there is room
//! for what is still on the way.

use kvasir_wire::{
    account::{Grant, Statement as _},
    key::PublicKey,
    limits::CLOCK_SKEW_SECONDS,
    note::Note,
};

use super::SessionFacts;

/// Bytes of a grant that are kept for calls that are on the way when the session is told to finish,
const RESERVE_BYTES: u64 = 16 * 1024 * 1024;
/// at most this part of it.
const RESERVE_PART: u64 = 8;
/// Seconds before a grant's end at which its session is told to finish: ten for open calls, five for what comes between.
const RESERVE_SECONDS: u64 = 15;

/// A grant that was checked against its session.
#[derive(Debug)]
pub(super) struct SessionGrant {
    /// Leaf hash of the note, in hexadecimal.
    leaf: String,
    bytes: u64,
    until: u64,
}

impl SessionGrant {
    /// Reads a `grant` payload: the backbone's signature, every line that the hub can know, and that it holds `now`. What is
    /// billed to the same grant in other sessions only the ledger knows.
    pub(super) fn read(
        payload: &[u8],
        facts: &SessionFacts,
        hub: &PublicKey,
        now: u64,
    ) -> Result<(Self, Note), String> {
        let note = Note::parse(payload).map_err(|error| error.to_string())?;
        let transcript = &facts.transcript;
        let (grant, _) =
            Grant::verify(&note, &[transcript.backbone.key]).map_err(|error| error.to_string())?;
        let checks = [
            ("network", grant.network.to_string() == transcript.network),
            ("session", grant.session.is_none_or(|session| session == transcript.session)),
            ("hub", grant.hub == hub.digest()),
            ("worker", grant.worker.is_none_or(|worker| worker == transcript.worker.key.digest())),
            ("price", grant.price.to_string() == facts.price),
        ];
        if let Some((line, _)) = checks.into_iter().find(|(_, holds)| !holds) {
            return Err(format!("the line `{line}` of the backbone's grant is not this session's"));
        }
        if grant.from > now.saturating_add(CLOCK_SKEW_SECONDS) || grant.until < now {
            return Err(format!(
                "the backbone's grant holds from {} to {}, the hub's clock says {now} (Unix seconds)",
                grant.from, grant.until
            ));
        }
        let checked =
            SessionGrant { leaf: note.leaf_hash().to_string(), bytes: grant.bytes.get(), until: grant.until };
        Ok((checked, note))
    }

    /// Its leaf hash in hexadecimal: what receipts call it.
    pub(super) fn leaf(&self) -> &str {
        &self.leaf
    }

    /// Most bytes that may be billed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Why its session has to be finished, in a few words, if it has to: `passed` payload bytes went by.
    pub(super) fn spent(&self, passed: u64, now: u64) -> Option<&'static str> {
        let reserve = (self.bytes / RESERVE_PART).min(RESERVE_BYTES);
        if passed.saturating_add(reserve) >= self.bytes {
            return Some("the grant's bytes are used up");
        }
        (now.saturating_add(RESERVE_SECONDS) >= self.until).then_some("the grant's time is over")
    }
}
