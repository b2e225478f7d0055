//! What each grant has been billed, kept in memory: the sum over its sessions would cost more with every session.
//!
//! Everything here can be read out of the tables again, and is, whenever a transaction was not committed or another process
//! wrote.

use std::collections::HashMap;

use kvasir_merkle::Hash;
use kvasir_wire::id::SessionId;
use rusqlite::{Connection, params};

/// Sessions kept for all grants together; beyond it all are forgotten.
const MAX_SESSIONS: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Caps {
    grants: HashMap<Hash, Billed>,
    sessions: usize,
}

/// The latest receipt's bytes of each session under one grant, and their sum.
#[derive(Default)]
struct Billed {
    sessions: HashMap<SessionId, i64>,
    sum: i128,
}

impl Caps {
    /// Bytes billed under `grant` by all sessions but `session`.
    pub(super) fn others(
        &mut self,
        connection: &Connection,
        grant: Hash,
        session: SessionId,
    ) -> rusqlite::Result<i128> {
        if !self.grants.contains_key(&grant) {
            let billed = Billed::read(connection, &grant)?;
            if self.sessions + billed.sessions.len() > MAX_SESSIONS {
                self.forget();
            }
            self.sessions += billed.sessions.len();
            self.grants.insert(grant, billed);
        }
        let billed = self.grants.get(&grant);
        Ok(billed
            .map_or(0, |billed| billed.sum - i128::from(billed.sessions.get(&session).copied().unwrap_or(0))))
    }

    /// A receipt was stored.
    pub(super) fn add(&mut self, grant: Hash, session: SessionId, bytes: i64) {
        let Some(billed) = self.grants.get_mut(&grant) else { return };
        let before = billed.sessions.len();
        let latest = billed.sessions.entry(session).or_insert(0);
        // A gap may be filled later: the most is what counts.
        billed.sum += i128::from(bytes.max(*latest) - *latest);
        *latest = bytes.max(*latest);
        self.sessions += billed.sessions.len() - before;
    }

    /// What is here may not be what the file says.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

impl Billed {
    /// Billed bytes never fall from one receipt to the next: the last one of a session has its most.
    fn read(connection: &Connection, grant: &Hash) -> rusqlite::Result<Self> {
        let mut find = connection.prepare_cached(
            "SELECT session, (SELECT billed FROM receipts WHERE session = s.entry ORDER BY seq DESC LIMIT 1)
             FROM sessions s WHERE grant_leaf = ?",
        )?;
        let rows =
            find.query_map(params![grant.0], |row| Ok((SessionId(row.get(0)?), row.get::<_, i64>(1)?)))?;
        let sessions: HashMap<_, _> = rows.collect::<rusqlite::Result<_>>()?;
        let sum = sessions.values().map(|bytes| i128::from(*bytes)).sum();
        Ok(Self { sessions, sum })
    }
}
