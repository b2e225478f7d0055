//! Accepting a receipt: signatures, the notes that it rests on, the grant's cap, and its place in the session.

use kvasir_wire::account::{Delegation, Grant, Price, Statement};
use kvasir_wire::id::SessionId;
use kvasir_wire::key::PublicKey;
use kvasir_wire::money::MeteredBytes;
use kvasir_wire::note::Note;
use kvasir_wire::receipt::{ContinuityError, Receipt, ReceiptError, ReceiptId, ReceiptKeys};
use rusqlite::{OptionalExtension, params};

use super::known::Latest;
use super::{CLOCK_SKEW_SECONDS, Writing, at, rows, signed};
use crate::api::{Accepted, StoredNote};
use crate::refusal::{LedgerError, Refusal};

/// Conflicting receipts kept for one (session, seq): one convicts, more is noise.
const MAX_CONFLICTS: i64 = 8;

impl Writing<'_> {
    /// Accepts what `note` says, which is `receipt`.
    pub(super) fn receipt(&mut self, note: &Note, receipt: &Receipt) -> Result<Accepted, LedgerError> {
        let (session, seq) = (receipt.terms.session, receipt.seq);
        // A text with a number beyond its session's highest cannot be here yet.
        let is_next = self.known.sessions.get(&session).is_some_and(|latest| seq > latest.receipt.seq);
        if !is_next && let Some(first) = self.stored(note)? {
            return Ok(accepted(first));
        }
        self.check_network(&receipt.terms.network)?;
        let grant = self.grant_of(receipt)?;
        let keys = ReceiptKeys {
            hub: self.hub_of(receipt)?,
            worker: self.worker_of(receipt)?,
            backbone: grant.backbone,
        };
        self.verify_receipt(note, &keys).map_err(Refusal::from)?;
        self.check_price(receipt)?;
        self.check_clock(receipt)?;
        let place = self.check_place(receipt, note)?;
        self.check_cap(receipt, grant.bytes)?;

        let accepted = self.append("receipt", note)?;
        let row = match place.session {
            Some(row) => row,
            None => self.open_session(accepted.index, receipt)?,
        };
        let billed = receipt.billed().signed();
        self.transaction
            .prepare_cached("INSERT INTO receipts (entry, session, seq, billed) VALUES (?, ?, ?, ?)")
            .and_then(|mut insert| {
                insert.execute(params![signed(accepted.index), signed(row), signed(seq), billed])
            })
            .map_err(at(self.path))?;
        self.known.caps.add(receipt.terms.grant, session, billed);
        if place.is_latest {
            // One that is remembered is in the list: a settlement makes it forgotten.
            if self.known.sessions.get(&session).is_none() {
                self.transaction
                    .prepare_cached("INSERT OR IGNORE INTO unsettled (session) VALUES (?)")
                    .and_then(|mut insert| insert.execute([signed(row)]))
                    .map_err(at(self.path))?;
            }
            let id = ReceiptId(note.text_digest());
            self.known.sessions.put(session, Latest { row, receipt: receipt.clone(), id });
        }
        Ok(accepted)
    }

    /// The session of a first receipt, which is entry `entry`.
    fn open_session(&self, entry: u64, receipt: &Receipt) -> Result<u64, LedgerError> {
        let terms = &receipt.terms;
        self.transaction
            .prepare_cached(
                "INSERT INTO sessions (entry, session, worker, payer, payee, grant_leaf, price_leaf)
                 VALUES (?, ?, ?, ?, ?, ?, ?)",
            )
            .and_then(|mut insert| {
                insert.execute(params![
                    signed(entry),
                    terms.session.0,
                    terms.worker.0,
                    terms.backbone.0,
                    terms.payee.0,
                    terms.grant.0,
                    terms.price.0
                ])
            })
            .map(|_| entry)
            .map_err(at(self.path))
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

    /// What is needed of the receipt's grant, which must allow the receipt.
    fn grant_of(&mut self, receipt: &Receipt) -> Result<Payer, LedgerError> {
        let terms = &receipt.terms;
        if let Some(grant) = self.known.grants.get(&terms.grant)
            && grant_allows(grant, receipt).is_ok()
        {
            return Ok(Payer::of(grant));
        }
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
        grant_allows(&grant, receipt).map_err(|refusal| refusal.against(entry))?;
        let payer = Payer::of(&grant);
        self.known.grants.put(terms.grant, grant);
        Ok(payer)
    }

    /// The worker's full key, from a delegation of the payee's wallet that holds at the receipt's end.
    fn worker_of(&mut self, receipt: &Receipt) -> Result<PublicKey, LedgerError> {
        let terms = &receipt.terms;
        let pair = (terms.worker, terms.payee);
        if let Some(given) = self.known.delegations.get(&pair)
            && holds(given.from, given.until, receipt.to)
        {
            return Ok(given.worker);
        }
        // As `holds` has it.
        let begins = receipt.to.saturating_add(CLOCK_SKEW_SECONDS);
        let found = rows::delegation_over(&self.transaction, pair, begins, receipt.to);
        if let Some(entry) = found.map_err(at(self.path))? {
            let given: Delegation = self.read(&entry)?;
            let worker = given.worker;
            self.known.delegations.put(pair, given);
            return Ok(worker);
        }
        let expired = rows::latest_delegation(&self.transaction, terms.worker, terms.payee);
        let expired = expired.map_err(at(self.path))?;
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

    fn check_price(&mut self, receipt: &Receipt) -> Result<(), LedgerError> {
        let leaf = receipt.terms.price;
        if self.known.prices.get(&leaf).is_some_and(|from| receipt.to >= *from) {
            return Ok(());
        }
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
        self.known.prices.put(leaf, price.from);
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
    fn check_place(&mut self, receipt: &Receipt, note: &Note) -> Result<Place, LedgerError> {
        let (session, seq) = (receipt.terms.session, receipt.seq);
        if let Some(latest) = self.known.sessions.get(&session)
            && latest.is_followed_by(receipt)
        {
            return Ok(Place { session: Some(latest.row), is_latest: true });
        }
        let Some(row) = self.session_row(session)? else {
            return Ok(Place { session: None, is_latest: true });
        };
        if let Some(entry) = self.neighbour(row, seq, "seq = ?")? {
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
        let earlier = self.neighbour(row, seq, "seq < ? ORDER BY seq DESC")?;
        let later = self.neighbour(row, seq, "seq > ? ORDER BY seq")?;
        let is_latest = later.is_none();
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
        Ok(Place { session: Some(row), is_latest })
    }

    fn check_cap(&mut self, receipt: &Receipt, allowed: MeteredBytes) -> Result<(), LedgerError> {
        // A grant for any session caps all of them together; each session counts with its latest receipt.
        let (grant_leaf, session) = (receipt.terms.grant, receipt.terms.session);
        let others = self.known.caps.others(&self.transaction, grant_leaf, session).map_err(at(self.path))?;
        let others = MeteredBytes::new(u64::try_from(others).unwrap_or(u64::MAX)).map_err(Refusal::from)?;
        let total = receipt.billed().checked_add(others).map_err(Refusal::from)?;
        if total <= allowed {
            return Ok(());
        }
        Err(Refusal::new(
            422,
            "grant_exhausted",
            format!("{total} bytes would be billed under grant {}, which allows {allowed}", receipt.terms.grant),
            "have the backbone sign a larger grant and open a new session; the worker should have stopped earlier",
        )
        .into())
    }

    fn session_row(&self, session: SessionId) -> Result<Option<u64>, LedgerError> {
        self.transaction
            .prepare_cached("SELECT entry FROM sessions WHERE session = ?")
            .and_then(|mut find| find.query_row([session.0], |row| row.get(0)).optional())
            .map(|row| row.map(rows::unsigned))
            .map_err(at(self.path))
    }

    /// A receipt of the session in row `session`, chosen by its number.
    fn neighbour(&self, session: u64, seq: u64, which: &str) -> Result<Option<StoredNote>, LedgerError> {
        let find = format!("SELECT entry FROM receipts WHERE session = ? AND {which} LIMIT 1");
        let number: Option<i64> = self
            .transaction
            .prepare_cached(&find)
            .and_then(|mut find| {
                find.query_row(params![signed(session), signed(seq)], |row| row.get(0)).optional()
            })
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
        let Some(row) = self.session_row(session)? else { return Ok(None) };
        let Some(entry) = self.neighbour(row, seq, "seq = ?")? else { return Ok(None) };
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

/// What the rest of the checks need of a grant.
struct Payer {
    backbone: PublicKey,
    bytes: MeteredBytes,
}

impl Payer {
    fn of(grant: &Grant) -> Self {
        Self { backbone: grant.backbone, bytes: grant.bytes }
    }
}

/// Where a receipt comes to stand.
struct Place {
    /// The session's row, if it has receipts.
    session: Option<u64>,
    /// Whether its number is the highest.
    is_latest: bool,
}

fn grant_allows(grant: &Grant, receipt: &Receipt) -> Result<(), Refusal> {
    let terms = &receipt.terms;
    let checks = [
        ("hub", grant.hub == terms.hub),
        ("backbone", grant.payer() == terms.backbone),
        ("price", grant.price == terms.price),
        ("session", grant.session.is_none_or(|session| session == terms.session)),
        ("worker", grant.worker.is_none_or(|worker| worker == terms.worker)),
    ];
    if let Some((field, _)) = checks.into_iter().find(|(_, fits)| !fits) {
        let message = format!("`{field}` of the receipt is not what grant {} allows", terms.grant);
        let advice = "have the backbone sign a grant that fits the session";
        return Err(Refusal::new(422, "grant_mismatch", message, advice));
    }
    if holds(grant.from, grant.until, receipt.to) {
        return Ok(());
    }
    Err(Refusal::new(
        422,
        "grant_expired",
        format!("the receipt ends at {}, its grant holds from {} to {}", receipt.to, grant.from, grant.until),
        "have the backbone sign a new grant and open a new session",
    ))
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
