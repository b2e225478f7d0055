//! Accepting prices, grants, fundings, delegations and corrections.

use kvasir_wire::account::{
    AccountError, Appeal, Audit, Correction, Delegation, Fund, Grant, Penalty, Price, Statement,
};
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::Note;
use rusqlite::params;

use super::receipts::accepted;
use super::{CLOCK_SKEW_SECONDS, Owner, Writing, at, rows, signed};
use crate::api::Accepted;
use crate::refusal::{LedgerError, Refusal};

/// Most delegations of one wallet to one worker. Anybody can make them, and each can be renewed for a year.
const MAX_DELEGATIONS: u64 = 1_024;
/// Most grants of an account into which the treasury has put nothing. A key that nobody knows can sign them too.
const MAX_UNFUNDED_GRANTS: u64 = 256;

impl Writing<'_> {
    pub(super) fn note(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        let kind = note.text().lines().next().unwrap_or_default();
        let kept = [
            Price::KIND,
            Grant::KIND,
            Fund::KIND,
            Delegation::KIND,
            Correction::KIND,
            Audit::KIND,
            Penalty::KIND,
            Appeal::KIND,
        ];
        if kept.contains(&kind)
            && let Some(first) = self.stored(&note)?
        {
            return Ok(accepted(first));
        }
        match kind {
            Price::KIND => self.price(note),
            Grant::KIND => self.grant(note),
            Fund::KIND => self.fund(note),
            Delegation::KIND => self.delegation(note),
            Correction::KIND => self.correction(note),
            Audit::KIND => self.audit(note),
            Penalty::KIND => self.penalty(note),
            Appeal::KIND => self.appeal(note),
            other => {
                let other: String = other.chars().take(80).collect();
                let message = format!("`{other}` is no kind of note that is kept here");
                let advice = "send price, grant, fund, delegate, correct, audit, penalty and appeal notes here, receipts to /v1/receipts and \
                              settlements to /v1/settlements";
                Err(Refusal::new(400, "unknown_kind", message, advice).into())
            }
        }
    }

    fn price(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        self.verified::<Price>(&note, &self.keys.treasury)?;
        self.append("price", &note)
    }

    fn grant(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        // The grant names the key that signs it: whoever holds that key spends from its own account.
        let named = Grant::parse(note.text()).map_err(Refusal::from)?.backbone;
        let grant = self.verified::<Grant>(&note, &[named])?;
        let price = rows::entry_by_leaf(&self.transaction, &grant.price).map_err(at(self.path))?;
        if price.is_none_or(|entry| entry.kind != "price") {
            return Err(Refusal::new(
                422,
                "unknown_price",
                format!("the grant names price {}, which is not kept here", grant.price),
                "use the leaf hash that GET /v1/price gives",
            )
            .into());
        }
        let payer = grant.payer();
        let count = rows::count_grants_unfunded(&self.transaction, payer).map_err(at(self.path))?;
        if count >= MAX_UNFUNDED_GRANTS {
            return Err(Refusal::new(
                422,
                "account_unfunded",
                format!("account {payer} has {count} grants here, and nothing was ever put into it"),
                "have the treasury fund the account (`kvasir-ledger fund`), then send this grant again",
            )
            .into());
        }
        let accepted = self.append("grant", &note)?;
        self.transaction
            .execute(
                "INSERT INTO grants (entry, payer) VALUES (?, ?)",
                params![signed(accepted.index), payer.0],
            )
            .map_err(at(self.path))?;
        Ok(accepted)
    }

    fn fund(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        let fund = self.verified::<Fund>(&note, &self.keys.treasury)?;
        let balance = rows::balance(&self.transaction, Owner::Payer(fund.account)).map_err(at(self.path))?;
        let issued = rows::balance(&self.transaction, Owner::Treasury).map_err(at(self.path))?;
        let amount = fund.amount.get();
        // What all accounts hold together has 63 bits, so what one of them holds has, whatever is given back to it later.
        if balance.checked_add(amount).is_none()
            || issued.checked_sub(amount).is_none_or(|left| left < -i64::MAX)
        {
            return Err(Refusal::new(
                422,
                "amount_out_of_range",
                format!(
                    "account {} holds {balance} nanoKVR, all accounts together {}; {amount} more do not fit into 63 bits",
                    fund.account,
                    issued.saturating_neg()
                ),
                "fund a smaller amount",
            )
            .into());
        }
        let accepted = self.append("fund", &note)?;
        self.post(accepted.index, "fund", Owner::Treasury, Owner::Payer(fund.account), amount)?;
        Ok(accepted)
    }

    fn delegation(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        let named = Delegation::parse(note.text()).map_err(Refusal::from)?.wallet;
        let delegation = self.verified::<Delegation>(&note, &[named])?;
        let (worker, payee) = (delegation.worker.digest(), delegation.payee());
        let count = rows::count_delegations(&self.transaction, worker, payee).map_err(at(self.path))?;
        if count >= MAX_DELEGATIONS {
            return Err(Refusal::new(
                422,
                "too_many_delegations",
                format!("wallet {payee} has given worker {worker} {count} delegations, which is the most"),
                "use one of those that hold, or a new key for the worker",
            )
            .into());
        }
        let accepted = self.append("delegate", &note)?;
        self.transaction
            .execute(
                "INSERT INTO delegations (entry, worker, payee, begins, ends) VALUES (?, ?, ?, ?, ?)",
                params![
                    signed(accepted.index),
                    worker.0,
                    payee.0,
                    signed(delegation.from),
                    signed(delegation.until)
                ],
            )
            .map_err(at(self.path))?;
        Ok(accepted)
    }

    fn correction(&mut self, note: Note) -> Result<Accepted, LedgerError> {
        let correction = self.verified::<Correction>(&note, &self.keys.treasury)?;
        let Some(settled) = self.settlement_by_id(correction.settlement)? else {
            return Err(Refusal::new(
                422,
                "unknown_settlement",
                format!("no settlement {} is kept here", correction.settlement),
                "name the id of a settlement, as its answer and its note give it",
            )
            .into());
        };
        if settled.reversed || settled.posted || self.now >= settled.pending_until {
            let state =
                if settled.reversed { "is reversed already" } else { "is posted: its 24 hours are over" };
            return Err(Refusal::new(
                409,
                "not_pending",
                format!("settlement {} {state}", correction.settlement),
                "only pending credit can be reversed",
            )
            .into());
        }
        // Whoever audits the log has no clock but the notes': what is dated wrong there would make the log a wrong one.
        if correction.at.abs_diff(self.now) > CLOCK_SKEW_SECONDS {
            return Err(Refusal::new(
                422,
                "clock_skew",
                format!(
                    "the correction was made at {}, the ledger's clock says {} (Unix seconds)",
                    correction.at, self.now
                ),
                "set the clocks of treasury and ledger, then sign the correction again and send it at once",
            )
            .into());
        }
        if correction.at >= settled.pending_until {
            return Err(Refusal::new(
                409,
                "not_pending",
                format!(
                    "the correction is of {}, settlement {} is final at {} (Unix seconds)",
                    correction.at, correction.settlement, settled.pending_until
                ),
                "set the treasury's clock, then sign the correction again",
            )
            .into());
        }
        let accepted = self.append("correct", &note)?;
        // Booked on the settlement, so that it can be reversed or posted, once, and never both.
        let (pending, payer) = (Owner::Pending(settled.payee), Owner::Payer(settled.payer));
        self.post(settled.entry, "reverse", pending, payer, settled.nanokvr)?;
        Ok(accepted)
    }

    /// A statement that names the key that signs it.
    pub(super) fn verified_own<S: Statement>(
        &self,
        note: &Note,
        named: impl Fn(&S) -> PublicKey,
    ) -> Result<S, LedgerError> {
        let key = named(&S::parse(note.text()).map_err(Refusal::from)?);
        self.verified(note, &[key])
    }

    pub(super) fn verified<S: Statement>(&self, note: &Note, keys: &[PublicKey]) -> Result<S, LedgerError> {
        let statement = S::parse(note.text()).map_err(Refusal::from)?;
        // First the network: a key of another network's treasury should not read as an unknown signer.
        self.check_network(statement.network())?;
        self.verify::<S>(note, keys).map_err(|error: AccountError| Refusal::from(error))?;
        Ok(statement)
    }
}
