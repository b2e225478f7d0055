//! Crediting: a settlement moves what receipts added from the payer to the wallet, pending; a sweep posts it later.

use kvasir_wire::account::{Price, SettledSession, Settlement, SettlementId, Statement};
use kvasir_wire::id::{KeyDigest, WalletDigest};
use kvasir_wire::money::{MeteredBytes, NanoKvr};
use kvasir_wire::note::Note;
use rusqlite::{OptionalExtension, params};

use super::receipts::accepted;
use super::{CLOCK_SKEW_SECONDS, Owner, Writing, at, rows, signed};
use crate::api::Accepted;
use crate::refusal::{LedgerError, Refusal};

/// A settlement as the tables have it.
pub(super) struct SettledRow {
    pub entry: u64,
    pub payer: KeyDigest,
    pub payee: WalletDigest,
    pub nanokvr: i64,
    pub pending_until: u64,
    pub posted: bool,
    pub reversed: bool,
}

const READ_AGAIN: &str = "ask GET /v1/unsettled again and settle what it says";

impl Writing<'_> {
    pub(super) fn settlement(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        let settlement = Settlement::parse(note.text()).map_err(Refusal::from)?;
        let id = settlement.id();
        if let Some(first) = self.stored(&note)? {
            return Ok(Accepted { settlement: Some(id.to_string()), ..accepted(first) });
        }
        // Here a clock that ran backwards would shorten the time for objections; receipts lose nothing by it.
        if self.now > self.clock {
            return Err(Refusal::new(
                503,
                "clock_backwards",
                format!(
                    "the ledger's clock says {}, but its latest entry is of {} (Unix seconds)",
                    self.clock, self.now
                ),
                "have the ledger's operator set the clock; settlements wait until it has caught up",
            )
            .into());
        }
        self.check_network(&settlement.network)?;
        self.verify::<Settlement>(&note, &self.keys.settlers).map_err(Refusal::from)?;
        if let Some(row) = self.settlement_by_id(id)? {
            let message =
                format!("settlement {id} exists with another content; these receipts are credited already");
            return Err(self.conflict(row.entry, message)?.into());
        }
        self.check_time(&settlement)?;
        self.check_amount(&settlement)?;
        for part in &settlement.sessions {
            self.check_session(&settlement, part)?;
        }
        self.check_balances(&settlement)?;

        let mut accepted = self.append("settle", &note)?;
        accepted.settlement = Some(id.to_string());
        let failed = at(self.path);
        self.transaction
            .execute(
                "INSERT INTO settlements (entry, id, payer, payee, bytes, nanokvr, pending_until) VALUES (?, ?, ?, ?, ?, ?, ?)",
                params![
                    signed(accepted.index),
                    id.0,
                    settlement.payer.0,
                    settlement.payee.0,
                    settlement.bytes.signed(),
                    settlement.amount.get(),
                    signed(settlement.pending_until())
                ],
            )
            .map_err(&failed)?;
        for part in &settlement.sessions {
            self.transaction
                .execute(
                    "INSERT INTO settled_sessions (session, from_seq, to_seq, bytes, entry) VALUES (?, ?, ?, ?, ?)",
                    params![
                        part.session.0,
                        signed(part.from_seq),
                        signed(part.to_seq),
                        part.bytes.signed(),
                        signed(accepted.index)
                    ],
                )
                .map_err(&failed)?;
            self.transaction
                .execute(
                    "DELETE FROM unsettled WHERE session = (SELECT entry FROM sessions WHERE session = ?)
                     AND NOT EXISTS (SELECT 1 FROM receipts WHERE session = unsettled.session AND seq > ?)",
                    params![part.session.0, signed(part.to_seq)],
                )
                .map_err(&failed)?;
            self.known.sessions.remove(&part.session);
        }
        // The ledger's clock may have been ahead at the last sweep.
        if settlement.pending_until() <= self.known.swept {
            self.known.swept = 0;
        }
        let (payer, pending) = (Owner::Payer(settlement.payer), Owner::Pending(settlement.payee));
        self.post(accepted.index, "settle", payer, pending, settlement.amount.get())?;
        Ok(accepted)
    }

    pub(super) fn sweep(&mut self) -> Result<u64, LedgerError> {
        let failed = at(self.path);
        let due: Vec<(i64, [u8; 32], i64)> = self
            .transaction
            .prepare_cached(
                "SELECT entry, payee, nanokvr FROM settlements s WHERE pending_until > ? AND pending_until <= ?
                 AND NOT EXISTS (SELECT 1 FROM postings WHERE cause = s.entry AND step IN ('post', 'reverse'))
                 ORDER BY entry",
            )
            .and_then(|mut find| {
                find.query_map([signed(self.known.swept), signed(self.now)], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                    .collect()
            })
            .map_err(&failed)?;
        for (entry, payee, nanokvr) in &due {
            let payee = WalletDigest(*payee);
            self.post(rows::unsigned(*entry), "post", Owner::Pending(payee), Owner::Posted(payee), *nanokvr)?;
        }
        self.known.swept = self.now;
        Ok(due.len() as u64)
    }

    pub(super) fn settlement_by_id(&self, id: SettlementId) -> Result<Option<SettledRow>, LedgerError> {
        let find = "SELECT entry, payer, payee, nanokvr, pending_until,
                           EXISTS (SELECT 1 FROM postings WHERE cause = entry AND step = 'post'),
                           EXISTS (SELECT 1 FROM postings WHERE cause = entry AND step = 'reverse')
                    FROM settlements WHERE id = ?";
        let row = |row: &rusqlite::Row<'_>| {
            Ok(SettledRow {
                entry: rows::unsigned(row.get(0)?),
                payer: KeyDigest(row.get(1)?),
                payee: WalletDigest(row.get(2)?),
                nanokvr: row.get(3)?,
                pending_until: rows::unsigned(row.get(4)?),
                posted: row.get(5)?,
                reversed: row.get(6)?,
            })
        };
        self.transaction.query_row(find, [id.0], row).optional().map_err(at(self.path))
    }

    fn check_time(&self, settlement: &Settlement) -> Result<(), LedgerError> {
        if settlement.at.abs_diff(self.now) <= CLOCK_SKEW_SECONDS {
            return Ok(());
        }
        // Otherwise a settlement dated back would leave no time for objections.
        Err(Refusal::new(
            422,
            "clock_skew",
            format!(
                "the settlement was made at {}, the ledger's clock says {} (Unix seconds)",
                settlement.at, self.now
            ),
            "set the clocks of gateway and ledger, then settle again",
        )
        .into())
    }

    fn check_amount(&self, settlement: &Settlement) -> Result<(), LedgerError> {
        let found = rows::entry_by_leaf(&self.transaction, &settlement.price).map_err(at(self.path))?;
        let Some(entry) = found.filter(|entry| entry.kind == "price") else {
            let message = format!("no price with leaf hash {} is kept here", settlement.price);
            return Err(Refusal::new(422, "unknown_price", message, READ_AGAIN).into());
        };
        let price: Price = self.read(&entry)?;
        let earned = price.per_byte.credit(settlement.bytes).map_err(Refusal::from)?;
        if settlement.amount != earned || earned == NanoKvr::ZERO {
            let message = format!(
                "{} bytes at {} nanoKVR earn {earned} nanoKVR, the settlement says {}",
                settlement.bytes,
                price.per_byte.get(),
                settlement.amount
            );
            return Err(Refusal::new(422, "wrong_amount", message, READ_AGAIN).against(entry).into());
        }
        Ok(())
    }

    /// The receipts are there, of these parties, and the stretch begins where the last one ended.
    fn check_session(&mut self, settlement: &Settlement, part: &SettledSession) -> Result<(), LedgerError> {
        let failed = at(self.path);
        let last: Option<(i64, i64)> = self
            .transaction
            .prepare_cached(
                "SELECT to_seq, entry FROM settled_sessions WHERE session = ? ORDER BY to_seq DESC LIMIT 1",
            )
            .and_then(|mut find| {
                find.query_row([part.session.0], |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .map_err(&failed)?;
        let settled_seq = last.map_or(0, |(seq, _)| rows::unsigned(seq));
        if part.from_seq != settled_seq + 1 {
            let message = format!(
                "session {} is settled up to receipt {settled_seq}, this settlement begins at {}",
                part.session, part.from_seq
            );
            return Err(match last {
                Some((_, entry)) => self.conflict(rows::unsigned(entry), message)?,
                None => Refusal::new(409, "conflict", message, READ_AGAIN),
            }
            .into());
        }
        let receipt = self.billed(part, part.to_seq)?;
        let Some((bytes, payer, payee, price)) = receipt else {
            let message = format!("session {} has no receipt {} here", part.session, part.to_seq);
            return Err(Refusal::new(422, "unknown_receipt", message, READ_AGAIN).into());
        };
        let before = match settled_seq {
            0 => MeteredBytes::ZERO,
            seq => self.billed(part, seq)?.map_or(MeteredBytes::ZERO, |(bytes, ..)| bytes),
        };
        let fits = [
            ("payer", payer == settlement.payer.0),
            ("payee", payee == settlement.payee.0),
            ("price", price == settlement.price.0),
            ("bytes", bytes.since(before).map_err(Refusal::from)? == part.bytes),
        ];
        if let Some((field, _)) = fits.into_iter().find(|(_, fits)| !fits) {
            let message = format!("`{field}` of session {} is not what its receipts say", part.session);
            return Err(Refusal::new(422, "not_as_received", message, READ_AGAIN).into());
        }
        Ok(())
    }

    fn check_balances(&self, settlement: &Settlement) -> Result<(), LedgerError> {
        let failed = at(self.path);
        let pending = rows::balance(&self.transaction, Owner::Pending(settlement.payee)).map_err(&failed)?;
        let posted = rows::balance(&self.transaction, Owner::Posted(settlement.payee)).map_err(&failed)?;
        let before = NanoKvr::new(pending).checked_add(NanoKvr::new(posted)).map_err(Refusal::from)?;
        if settlement.before != before {
            let message = format!(
                "wallet {} has {before} nanoKVR, the settlement says {} before it",
                settlement.payee, settlement.before
            );
            return Err(Refusal::new(409, "balance_moved", message, READ_AGAIN).into());
        }
        let available = rows::balance(&self.transaction, Owner::Payer(settlement.payer)).map_err(&failed)?;
        if available < settlement.amount.get() {
            let message = format!(
                "account {} holds {available} nanoKVR, {} are due",
                settlement.payer, settlement.amount
            );
            let advice = "have the treasury fund the account (`kvasir-ledger fund`), then settle again: \
                          the receipts stay valid";
            return Err(Refusal::new(402, "payer_short", message, advice).into());
        }
        Ok(())
    }

    /// Billed bytes and parties of a session's receipt.
    #[allow(clippy::type_complexity)] // one row, used twice, right above
    fn billed(
        &self,
        part: &SettledSession,
        seq: u64,
    ) -> Result<Option<(MeteredBytes, [u8; 32], [u8; 32], [u8; 32])>, LedgerError> {
        let find = "SELECT r.billed, s.payer, s.payee, s.price_leaf FROM sessions s JOIN receipts r ON r.session = s.entry
                    WHERE s.session = ? AND r.seq = ?";
        let row = self
            .transaction
            .prepare_cached(find)
            .and_then(|mut find| {
                let row = |row: &rusqlite::Row<'_>| {
                    Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
                };
                find.query_row(params![part.session.0, signed(seq)], row).optional()
            })
            .map_err(at(self.path))?;
        row.map(|(billed, payer, payee, price)| {
            Ok((MeteredBytes::new(rows::unsigned(billed)).map_err(Refusal::from)?, payer, payee, price))
        })
        .transpose()
    }

    fn conflict(&self, entry: u64, message: String) -> Result<Refusal, LedgerError> {
        let evidence = rows::entry_by_number(&self.transaction, entry).map_err(at(self.path))?;
        let evidence =
            evidence.ok_or_else(|| self.damaged(entry, "the settlement's entry is missing".to_owned()))?;
        Ok(Refusal::new(409, "conflict", message, READ_AGAIN).against(evidence))
    }
}
