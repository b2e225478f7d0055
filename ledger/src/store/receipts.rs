//! Accepting a receipt: signatures, the notes that it rests on, the grant's cap, and its place in the session.

use kvasir_wire::account::{Delegation, Grant, Price, Statement};
use kvasir_wire::id::SessionId;
use kvasir_wire::key::PublicKey;
use kvasir_wire::money::MeteredBytes;
use kvasir_wire::note::Note;
use kvasir_wire::receipt::{ContinuityError, Receipt, ReceiptError, ReceiptKeys};
use rusqlite::{OptionalExtension, params};

use super::{CLOCK_SKEW_SECONDS, Writing, at, rows, signed};
use crate::api::{Accepted, StoredNote};
use crate::refusal::{LedgerError, Refusal};

/// Conflicting receipts kept for one (session, seq): one convicts, more is noise.
const MAX_CONFLICTS: i64 = 8;

impl Writing<'_> {
    pub(super) fn receipt(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        let receipt = Receipt::parse(note.text()).map_err(Refusal::from)?;
        if let Some(first) = self.stored(&note)? {
            return Ok(accepted(first));
        }
        self.check_network(&receipt.terms.network)?;
        let grant = self.grant_of(&receipt)?;
        let keys = ReceiptKeys {
            hub: self.hub_of(&receipt)?,
            worker: self.worker_of(&receipt)?,
            backbone: grant.backbone,
        };
        self.verify_receipt(&note, &keys).map_err(Refusal::from)?;
        self.check_price(&receipt)?;
        self.check_clock(&receipt)?;
        self.check_place(&receipt, &note)?;
        self.check_cap(&receipt, &grant)?;

        let accepted = self.append("receipt", &note)?;
        let terms = &receipt.terms;
        self.transaction
            .prepare_cached(
                "INSERT INTO receipts (entry, session, seq, worker, payer, payee, grant_leaf, price_leaf, billed)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .and_then(|mut insert| {
                insert.execute(params![
                    signed(accepted.index),
                    terms.session.0,
                    signed(receipt.seq),
                    terms.worker.0,
                    terms.backbone.0,
                    terms.payee.0,
                    terms.grant.0,
                    terms.price.0,
                    receipt.billed().signed()
                ])
            })
            .map_err(at(self.path))?;
        self.caps.add(terms.grant, terms.session, receipt.billed().signed());
        Ok(accepted)
    }

    fn hub_of(&self, receipt: &Receipt) -> Result<PublicKey, LedgerError> {
        let named = receipt.terms.hub;
        self.keys.hubs.iter().copied().find(|key| key.digest() == named).ok_or_else(|| {
            Refusal::new(
                403,
                "unknown_hub",
                format!("the receipt names hub {named}, which is not among the hubs of ledger.toml"),
                "have the ledger's operator add the hub's key to `hubs` in ledger.toml",
            )
            .into()
        })
    }

    fn grant_of(&self, receipt: &Receipt) -> Result<Grant, LedgerError> {
        let terms = &receipt.terms;
        let found = rows::entry_by_leaf(&self.transaction, &terms.grant).map_err(at(self.path))?;
        let Some(entry) = found.filter(|entry| entry.kind == "grant") else {
            return Err(Refusal::new(
                422,
                "unknown_grant",
                format!("no grant with leaf hash {} is kept here", terms.grant),
                "post the backbone's grant note to /v1/notes first, then this receipt again",
            )
            .into());
        };
        let grant: Grant = self.read(&entry)?;
        let differs = |field| {
            let message = format!("`{field}` of the receipt is not what grant {} allows", terms.grant);
            Refusal::new(
                422,
                "grant_mismatch",
                message,
                "have the backbone sign a grant that fits the session",
            )
            .against(entry.clone())
        };
        let checks = [
            ("hub", grant.hub == terms.hub),
            ("backbone", grant.payer() == terms.backbone),
            ("price", grant.price == terms.price),
            ("session", grant.session.is_none_or(|session| session == terms.session)),
            ("worker", grant.worker.is_none_or(|worker| worker == terms.worker)),
        ];
        if let Some((field, _)) = checks.into_iter().find(|(_, fits)| !fits) {
            return Err(differs(field).into());
        }
        if !holds(grant.from, grant.until, receipt.to) {
            return Err(Refusal::new(
                422,
                "grant_expired",
                format!(
                    "the receipt ends at {}, its grant holds from {} to {}",
                    receipt.to, grant.from, grant.until
                ),
                "have the backbone sign a new grant and open a new session",
            )
            .against(entry.clone())
            .into());
        }
        Ok(grant)
    }

    /// The worker's full key, from a delegation of the payee's wallet that holds at the receipt's end.
    fn worker_of(&self, receipt: &Receipt) -> Result<PublicKey, LedgerError> {
        let terms = &receipt.terms;
        let entries =
            rows::delegations(&self.transaction, terms.worker, terms.payee).map_err(at(self.path))?;
        let mut expired = None;
        for entry in entries {
            let delegation: Delegation = self.read(&entry)?;
            if holds(delegation.from, delegation.until, receipt.to) {
                return Ok(delegation.worker);
            }
            expired = Some(entry);
        }
        let message = |problem| {
            format!("wallet {} has {problem} to worker {} at {}", terms.payee, terms.worker, receipt.to)
        };
        let advice = "have the wallet's owner sign a delegation to the worker's key and post it to /v1/notes, \
                      then send this receipt again";
        Err(match expired {
            Some(entry) => {
                Refusal::new(422, "delegation_expired", message("no delegation that holds"), advice)
                    .against(entry)
            }
            None => Refusal::new(422, "unknown_delegation", message("no delegation"), advice),
        }
        .into())
    }

    fn check_price(&self, receipt: &Receipt) -> Result<(), LedgerError> {
        let leaf = receipt.terms.price;
        let found = rows::entry_by_leaf(&self.transaction, &leaf).map_err(at(self.path))?;
        let Some(entry) = found.filter(|entry| entry.kind == "price") else {
            return Err(Refusal::new(
                422,
                "unknown_price",
                format!("no price with leaf hash {leaf} is kept here"),
                "use the leaf hash that GET /v1/price gives",
            )
            .into());
        };
        let price: Price = self.read(&entry)?;
        if receipt.to < price.from {
            let message = format!("the price holds from {}, the receipt ends at {}", price.from, receipt.to);
            return Err(Refusal::new(
                422,
                "price_not_yet",
                message,
                "use the price that GET /v1/price gives",
            )
            .against(entry)
            .into());
        }
        Ok(())
    }

    fn check_clock(&self, receipt: &Receipt) -> Result<(), LedgerError> {
        if receipt.to <= self.now.saturating_add(CLOCK_SKEW_SECONDS) {
            return Ok(());
        }
        Err(Refusal::new(
            422,
            "clock_ahead",
            format!(
                "the receipt ends at {}, the ledger's clock says {} (Unix seconds)",
                receipt.to, self.now
            ),
            "set the clocks of hub and ledger, then send the same receipt again",
        )
        .into())
    }

    /// Its place in the session: nothing else at this seq, and in line with the neighbours that are there.
    fn check_place(&mut self, receipt: &Receipt, note: &Note) -> Result<(), LedgerError> {
        let (session, seq) = (receipt.terms.session, receipt.seq);
        if let Some(entry) = self.neighbour(session, seq, "seq = ?")? {
            self.keep_conflict(&entry, note)?;
            return Err(Refusal::new(
                409,
                "conflict",
                format!(
                    "session {session} already has another receipt {seq} ({}); both are kept as evidence",
                    entry.id
                ),
                "find out who signed two receipts with one number; the first one stands",
            )
            .against(entry)
            .into());
        }
        let earlier = self.neighbour(session, seq, "seq < ? ORDER BY seq DESC")?;
        let later = self.neighbour(session, seq, "seq > ? ORDER BY seq")?;
        for (entry, is_earlier) in earlier.into_iter().map(|e| (e, true)).chain(later.map(|e| (e, false))) {
            let other = read_receipt(&entry).map_err(|error| self.damaged(entry.index, error))?;
            let placed = if is_earlier { receipt.follows(&other) } else { other.follows(receipt) };
            if let Err(error) = placed {
                let code = match error {
                    ContinuityError::ClockRanBackwards { .. } => "clock_backwards",
                    _ => "discontinuous",
                };
                let advice = "cut the receipt again from the one that stands; counters and clock never fall";
                return Err(Refusal::new(409, code, error.to_string(), advice).against(entry).into());
            }
        }
        Ok(())
    }

    fn check_cap(&mut self, receipt: &Receipt, grant: &Grant) -> Result<(), LedgerError> {
        // A grant for any session caps all of them together; each session counts with its latest receipt.
        let (grant_leaf, session) = (receipt.terms.grant, receipt.terms.session);
        let others = self.caps.others(&self.transaction, grant_leaf, session).map_err(at(self.path))?;
        let others = MeteredBytes::new(u64::try_from(others).unwrap_or(u64::MAX)).map_err(Refusal::from)?;
        let total = receipt.billed().checked_add(others).map_err(Refusal::from)?;
        if total <= grant.bytes {
            return Ok(());
        }
        Err(Refusal::new(
            422,
            "grant_exhausted",
            format!("{total} bytes would be billed under grant {}, which allows {}", receipt.terms.grant, grant.bytes),
            "have the backbone sign a larger grant and open a new session; the worker should have stopped earlier",
        )
        .into())
    }

    fn neighbour(
        &self,
        session: SessionId,
        seq: u64,
        which: &str,
    ) -> Result<Option<StoredNote>, LedgerError> {
        let find = format!("SELECT entry FROM receipts WHERE session = ? AND {which} LIMIT 1");
        let number: Option<i64> = self
            .transaction
            .prepare_cached(&find)
            .and_then(|mut find| find.query_row(params![session.0, signed(seq)], |row| row.get(0)).optional())
            .map_err(at(self.path))?;
        match number {
            None => Ok(None),
            Some(number) => {
                let number = rows::unsigned(number);
                let entry = rows::entry_by_number(&self.transaction, number).map_err(at(self.path))?;
                entry
                    .map(Some)
                    .ok_or_else(|| self.damaged(number, "the receipt's entry is missing".to_owned()))
            }
        }
    }

    /// The receipt with this number, and its entry.
    pub(super) fn receipt_of(
        &self,
        session: SessionId,
        seq: u64,
    ) -> Result<Option<(StoredNote, Receipt)>, LedgerError> {
        let Some(entry) = self.neighbour(session, seq, "seq = ?")? else { return Ok(None) };
        let receipt = read_receipt(&entry).map_err(|error| self.damaged(entry.index, error))?;
        Ok(Some((entry, receipt)))
    }

    fn keep_conflict(&mut self, against: &StoredNote, note: &Note) -> Result<(), LedgerError> {
        let keep = "INSERT OR IGNORE INTO conflicts (id, against, received, note)
                    SELECT ?1, ?2, ?3, ?4 WHERE (SELECT COUNT(*) FROM conflicts WHERE against = ?2) < ?5";
        let values = params![
            note.text_digest(),
            signed(against.index),
            signed(self.now),
            note.to_string(),
            MAX_CONFLICTS
        ];
        self.transaction.execute(keep, values).map_err(at(self.path))?;
        self.keep_evidence = true;
        Ok(())
    }

    /// Reads a stored note of a known kind; it was valid when it was accepted.
    pub(super) fn read<S: Statement>(&self, entry: &StoredNote) -> Result<S, LedgerError> {
        let note = Note::parse(entry.note.as_bytes());
        let read = note
            .map_err(|error| error.to_string())
            .and_then(|note| S::parse(note.text()).map_err(|error| error.to_string()));
        read.map_err(|error| self.damaged(entry.index, error))
    }

    pub(super) fn damaged(&self, index: u64, reason: String) -> LedgerError {
        LedgerError::Damaged { path: self.path.to_owned(), index, reason }
    }
}

/// Whether a period covers a time. Its beginning is lenient, since another machine's clock wrote it.
fn holds(from: u64, until: u64, time: u64) -> bool {
    from <= time.saturating_add(CLOCK_SKEW_SECONDS) && time <= until
}

/// The answer for an entry that was there before: the same as when it was new.
pub(super) fn accepted(entry: StoredNote) -> Accepted {
    let StoredNote { index, kind, id, leaf, .. } = entry;
    Accepted { index, kind, id, leaf, settlement: None, repeated: true }
}

fn read_receipt(entry: &StoredNote) -> Result<Receipt, String> {
    let note = Note::parse(entry.note.as_bytes()).map_err(|error| error.to_string())?;
    Receipt::parse(note.text()).map_err(|error: ReceiptError| error.to_string())
}
