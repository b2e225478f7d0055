//! The books, kept anew: who is believed, who pays, who earned. Entry by entry, in the log's order, in memory.
//!
//! An entry is taken or the log is wrong. What an entry must be signed by follows from the entries before it, so taking one
//! gives its signers; the signatures themselves are verified elsewhere, on all cores.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kvasir_merkle::{Accumulator, Hash};
use kvasir_wire::account::{
    Appeal, Audit, AuditVerdict, Correction, Delegation, Fund, Grant, KeyBelief, KeyRole, KeyState,
    OriginChange, Penalty, Price, Settlement, SettlementId,
};
use kvasir_wire::id::{KeyDigest, SessionId, WalletDigest};
use kvasir_wire::key::PublicKey;
use kvasir_wire::limits::CLOCK_SKEW_SECONDS;
use kvasir_wire::note::{NetworkName, Signer};
use kvasir_wire::receipt::{Class, ContinuityError, Receipt, ReceiptId, Terms};

use super::entry::{Entry, Said, Signers};
use super::session::{Point, Session};
use super::{AuditReport, AuditedBalance, BelievedKey, MAX_NAMED_GAPS};

type Taken = Result<Signers, String>;

/// The state after some entries.
pub(super) struct Books {
    pinned_treasury: Option<PublicKey>,
    /// The latest that receipts and settlements may be of, Unix seconds.
    not_after: u64,
    network: Option<NetworkName>,
    believed: Vec<(KeyRole, PublicKey, u64)>,
    prices: HashMap<Hash, Price>,
    grants: HashMap<Hash, GrantAccount>,
    delegations: HashMap<(KeyDigest, WalletDigest), Vec<Delegation>>,
    sessions: HashMap<SessionId, Box<Session>>,
    /// What sessions have in common; their own number and beginning are left out.
    terms: HashSet<Arc<Terms>>,
    settlements: HashMap<SettlementId, Settled>,
    penalties: HashMap<Hash, KeyDigest>,
    /// Texts of all entries but receipts, whose numbers tell them apart.
    texts: HashSet<[u8; 32]>,
    /// Leaf hashes of all entries but receipts, which are too many to be kept for the few that a penalty rests on.
    leaves: HashSet<Hash>,
    /// What penalties rest on and is none of [`Books::leaves`], so a receipt or nothing: by leaf hash, the first such penalty.
    unseen: HashMap<Hash, u64>,
    funded: i128,
    payers: BTreeMap<KeyDigest, i128>,
    wallets: BTreeMap<WalletDigest, i128>,
    receipts: u64,
    reversed: u64,
    index: u64,
    /// The latest end of a receipt, or time of a settlement or correction, in Unix seconds.
    latest: u64,
}

struct GrantAccount {
    grant: Grant,
    /// Billed by all its sessions together, each by its highest receipt.
    billed: u64,
}

struct Settled {
    index: u64,
    payer: KeyDigest,
    payee: WalletDigest,
    nanokvr: i64,
    pending_until: u64,
    is_reversed: bool,
}

impl Books {
    /// Nothing may say that it is of later than `not_after`, Unix seconds.
    pub(super) fn new(pinned_treasury: Option<PublicKey>, not_after: u64) -> Self {
        Self {
            pinned_treasury,
            not_after,
            network: None,
            believed: Vec::new(),
            prices: HashMap::new(),
            grants: HashMap::new(),
            delegations: HashMap::new(),
            sessions: HashMap::new(),
            terms: HashSet::new(),
            settlements: HashMap::new(),
            penalties: HashMap::new(),
            texts: HashSet::new(),
            leaves: HashSet::new(),
            unseen: HashMap::new(),
            funded: 0,
            payers: BTreeMap::new(),
            wallets: BTreeMap::new(),
            receipts: 0,
            reversed: 0,
            index: 0,
            latest: 0,
        }
    }

    /// Takes the next entry; gives who must have signed it. `before` is the tree over all earlier entries.
    pub(super) fn take(&mut self, entry: &Entry, before: &Accumulator) -> Taken {
        if !matches!(entry.said, Said::Receipt(_)) {
            if !self.texts.insert(entry.note.text_digest()) {
                return Err("it says what an earlier entry says".into());
            }
            self.leaves.insert(entry.leaf);
        }
        let signers = match &entry.said {
            Said::Key(belief) => self.key(belief),
            Said::Origin(change) => self.origin(change, before),
            Said::Receipt(receipt) => self.receipt(receipt, entry),
            Said::Price(price) => self.price(price, entry.leaf),
            Said::Grant(grant) => self.grant(grant, entry.leaf),
            Said::Fund(fund) => self.fund(fund),
            Said::Delegation(delegation) => self.delegation(delegation),
            Said::Settlement(settlement) => self.settlement(settlement),
            Said::Correction(correction) => self.correction(correction),
            Said::Audit(audit) => self.audit(audit),
            Said::Penalty(penalty) => self.penalty(penalty, entry.leaf),
            Said::Appeal(appeal) => self.appeal(appeal),
        }?;
        self.check_has_come(&entry.said)?;
        // Roles whose key is not named in the text: the line itself says which of the believed keys it was.
        let signers = match signers {
            Who::These(signers) => signers,
            Who::OneOf(signer, role) => vec![self.signer_of(entry, signer, role)?],
        };
        self.index += 1;
        Ok(signers)
    }

    /// The ledger takes receipts and settlements by its clock, so that none is of a time to come.
    fn check_has_come(&self, said: &Said) -> Result<(), String> {
        let at = match said {
            Said::Receipt(receipt) => receipt.to,
            Said::Settlement(settlement) => settlement.at,
            _ => return Ok(()),
        };
        if at <= self.not_after {
            return Ok(());
        }
        Err(format!(
            "it is of {at}, a time to come: nothing in this log can be later than {}",
            self.not_after
        ))
    }

    /// Leaf hashes that penalties rest on and that must still be found in the log: each before the entry with this index, the
    /// first penalty that names it.
    pub(super) fn unseen(&self) -> impl Iterator<Item = (Hash, u64)> + '_ {
        self.unseen.iter().map(|(leaf, index)| (*leaf, *index))
    }

    /// The balances as of `now`, and what else a report says. An account below zero, or credit that came from nowhere, is an
    /// error at the last entry.
    pub(super) fn close(self, now: u64) -> Result<AuditReport, (u64, String)> {
        let last = self.index.saturating_sub(1);
        let overflow = |what: &str| (last, format!("{what} does not fit into 63 bits"));
        let mut pending: BTreeMap<WalletDigest, i128> = BTreeMap::new();
        for settled in
            self.settlements.values().filter(|settled| !settled.is_reversed && settled.pending_until > now)
        {
            *pending.entry(settled.payee).or_default() += i128::from(settled.nanokvr);
        }
        let small = |what: &'static str, amount: i128| i64::try_from(amount).map_err(|_| overflow(what));
        let mut balances = vec![AuditedBalance {
            kind: "treasury",
            owner: Hash([0; 32]).to_string(),
            nanokvr: small("the treasury", -self.funded)?,
        }];
        for (payer, amount) in &self.payers {
            balances.push(AuditedBalance {
                kind: "payer",
                owner: payer.to_string(),
                nanokvr: small("a payer's account", *amount)?,
            });
        }
        for (wallet, amount) in &self.wallets {
            let waiting = pending.get(wallet).copied().unwrap_or(0);
            for (kind, amount) in [("pending", waiting), ("posted", amount - waiting)] {
                balances.push(AuditedBalance {
                    kind,
                    owner: wallet.to_string(),
                    nanokvr: small("a wallet", amount)?,
                });
            }
        }
        if let Some(overdrawn) = balances.iter().find(|one| one.kind != "treasury" && one.nanokvr < 0) {
            return Err((last, format!("{} account {} is overdrawn", overdrawn.kind, overdrawn.owner)));
        }
        let sum: i128 = balances.iter().map(|one| i128::from(one.nanokvr)).sum();
        if sum != 0 {
            return Err((last, format!("all accounts together hold {sum} nanoKVR, not zero")));
        }
        let gaps = self
            .sessions
            .iter()
            .filter_map(|(session, state)| Some((session.to_string(), state.first_gap()?)));
        let mut gaps: Vec<_> = gaps.collect();
        gaps.sort();
        gaps.truncate(MAX_NAMED_GAPS);
        let key = |(role, key, since): &(KeyRole, PublicKey, u64)| BelievedKey {
            role: role.to_string(),
            key: key.to_string(),
            since: *since,
        };
        Ok(AuditReport {
            origin: String::new(),
            entries: self.index,
            root: String::new(),
            checkpoint: String::new(),
            witnesses: Vec::new(),
            cosigned_at: None,
            receipts: self.receipts,
            settlements: self.settlements.len() as u64,
            reversed: self.reversed,
            signatures: 0,
            keys: self.believed.iter().map(key).collect(),
            balances,
            gaps,
        })
    }

    fn key(&mut self, belief: &KeyBelief) -> Result<Who, String> {
        if self.index == 0 {
            if belief.role != KeyRole::Ledger || belief.state != KeyState::Believed {
                return Err("the first entry of a log names the ledger's own key".into());
            }
            self.network = Some(belief.network.clone());
            self.believed.push((KeyRole::Ledger, belief.key, 0));
            return Ok(Who::These(vec![Signer::Ledger.verifier(&belief.network, belief.key)]));
        }
        self.check_network(&belief.network)?;
        if belief.role == KeyRole::Treasury && self.pinned_treasury.is_some_and(|pinned| pinned != belief.key)
        {
            return Err(format!("it believes treasury key {}, which is not the pinned one", belief.key));
        }
        let signer = Who::OneOf(Signer::Ledger, KeyRole::Ledger);
        let at = self.believed.iter().position(|(role, key, _)| (*role, *key) == (belief.role, belief.key));
        match (belief.state, at) {
            (KeyState::Believed, None) => self.believed.push((belief.role, belief.key, self.index)),
            // Keys are looked up before they go, so that the ledger can retire its own.
            (KeyState::Retired, Some(at)) if belief.role != KeyRole::Ledger => {
                self.believed.remove(at);
            }
            (KeyState::Retired, Some(_)) => {
                return Err("a ledger's key is not retired but by a new log".into());
            }
            (state, _) => return Err(format!("{} key {} is {state} already", belief.role, belief.key)),
        }
        Ok(signer)
    }

    fn origin(&mut self, change: &OriginChange, before: &Accumulator) -> Result<Who, String> {
        self.check_network(&change.network)?;
        if (change.size, change.root) != (before.size(), before.root()) {
            return Err(format!(
                "it continues a log of {} entries with root {}, before it stand {}",
                change.size,
                change.root,
                before.size()
            ));
        }
        Ok(Who::OneOf(Signer::Ledger, KeyRole::Ledger))
    }

    fn receipt(&mut self, receipt: &Receipt, entry: &Entry) -> Result<Who, String> {
        let terms = &receipt.terms;
        self.check_network(&terms.network)?;
        let account = self.grants.get(&terms.grant).ok_or("its grant is not in the log before it")?;
        let grant = &account.grant;
        let differs = [
            ("hub", grant.hub == terms.hub),
            ("backbone", grant.payer() == terms.backbone),
            ("price", grant.price == terms.price),
            ("session", grant.session.is_none_or(|session| session == terms.session)),
            ("worker", grant.worker.is_none_or(|worker| worker == terms.worker)),
        ];
        if let Some((field, _)) = differs.into_iter().find(|(_, fits)| !fits) {
            return Err(format!("its `{field}` is not what its grant allows"));
        }
        if !holds(grant.from, grant.until, receipt.to) {
            return Err(format!(
                "it ends at {}, its grant holds from {} to {}",
                receipt.to, grant.from, grant.until
            ));
        }
        let price = self.prices.get(&terms.price).ok_or("its price is not in the log before it")?;
        if receipt.to < price.from {
            return Err(format!("it ends at {}, its price holds from {}", receipt.to, price.from));
        }
        let hub =
            self.believed.iter().find(|(role, key, _)| *role == KeyRole::Hub && key.digest() == terms.hub);
        let (_, hub, _) = *hub.ok_or("its hub is not believed here")?;
        let worker = self
            .delegations
            .get(&(terms.worker, terms.payee))
            .and_then(|given| given.iter().rev().find(|one| holds(one.from, one.until, receipt.to)));
        let worker = worker.ok_or("no delegation of its payee to its worker holds at its end")?.worker;
        let backbone = grant.backbone;
        let added = self.place(receipt, ReceiptId(entry.note.text_digest()))?;
        if let Some(account) = self.grants.get_mut(&terms.grant) {
            account.billed = account.billed.saturating_add(added);
            if account.billed > account.grant.bytes.get() {
                return Err(format!(
                    "{} bytes are billed under its grant, which allows {}",
                    account.billed, account.grant.bytes
                ));
            }
        }
        self.receipts += 1;
        self.latest = self.latest.max(receipt.to);
        let network = &terms.network;
        Ok(Who::These(vec![
            Signer::Hub.verifier(network, hub),
            Signer::Worker.verifier(network, worker),
            Signer::Backbone.verifier(network, backbone),
        ]))
    }

    /// Puts a receipt into its session. Gives how much more is billed now.
    fn place(&mut self, receipt: &Receipt, id: ReceiptId) -> Result<u64, String> {
        let point = Point { mark: receipt.mark(), id };
        let common = common_terms(&receipt.terms);
        if let Some(session) = self.sessions.get_mut(&receipt.terms.session) {
            let (terms, from) = &session.terms;
            let changed = common.first_difference(terms).or((receipt.terms.from != *from).then_some("from"));
            if let Some(field) = changed {
                return Err(ContinuityError::TermsChanged(field).to_string());
            }
            let before = session.billed();
            session.add(point)?;
            return Ok(session.billed().saturating_sub(before));
        }
        let terms = match self.terms.get(&common) {
            Some(terms) => Arc::clone(terms),
            None => Arc::new(common),
        };
        self.terms.insert(Arc::clone(&terms));
        let session = Session::new((terms, receipt.terms.from), point);
        let billed = session.billed();
        self.sessions.insert(receipt.terms.session, Box::new(session));
        Ok(billed)
    }

    fn price(&mut self, price: &Price, leaf: Hash) -> Result<Who, String> {
        self.check_network(&price.network)?;
        self.prices.insert(leaf, price.clone());
        Ok(Who::OneOf(Signer::Treasury, KeyRole::Treasury))
    }

    fn grant(&mut self, grant: &Grant, leaf: Hash) -> Result<Who, String> {
        self.check_network(&grant.network)?;
        if !self.prices.contains_key(&grant.price) {
            return Err("its price is not in the log before it".into());
        }
        self.grants.insert(leaf, GrantAccount { grant: grant.clone(), billed: 0 });
        Ok(Who::These(vec![Signer::Backbone.verifier(&grant.network, grant.backbone)]))
    }

    fn fund(&mut self, fund: &Fund) -> Result<Who, String> {
        self.check_network(&fund.network)?;
        let amount = i128::from(fund.amount.get());
        self.funded += amount;
        *self.payers.entry(fund.account).or_default() += amount;
        Ok(Who::OneOf(Signer::Treasury, KeyRole::Treasury))
    }

    fn delegation(&mut self, delegation: &Delegation) -> Result<Who, String> {
        self.check_network(&delegation.network)?;
        let parties = (delegation.worker.digest(), delegation.payee());
        self.delegations.entry(parties).or_default().push(delegation.clone());
        Ok(Who::These(vec![Signer::Wallet.verifier(&delegation.network, delegation.wallet)]))
    }

    fn settlement(&mut self, settlement: &Settlement) -> Result<Who, String> {
        self.check_network(&settlement.network)?;
        let id = settlement.id();
        if let Some(first) = self.settlements.get(&id) {
            return Err(format!("entry {} settles the same receipts", first.index));
        }
        // Dated back, it would be final before anybody could object. The ledger's clock never runs back from entry to entry; a
        // receipt may end one skew ahead of it and a settlement be one behind, so that two may lie between what is in order.
        if settlement.at.saturating_add(2 * CLOCK_SKEW_SECONDS) < self.latest {
            return Err(format!(
                "it is dated back to {}, the log before it has come to {}",
                settlement.at, self.latest
            ));
        }
        let price = self.prices.get(&settlement.price).ok_or("its price is not in the log before it")?;
        let earned = i128::from(price.per_byte.get()) * i128::from(settlement.bytes.get());
        let amount = i128::from(settlement.amount.get());
        if earned != amount || amount == 0 {
            return Err(format!(
                "{} bytes at {} nanoKVR earn {earned}, it says {amount}",
                settlement.bytes,
                price.per_byte.get()
            ));
        }
        let wallet = self.wallets.entry(settlement.payee).or_default();
        if *wallet != i128::from(settlement.before.get()) {
            return Err(format!("its wallet has {wallet} nanoKVR, it says {} before it", settlement.before));
        }
        if *wallet + amount != i128::from(settlement.after.get()) {
            return Err(format!(
                "its wallet has {} nanoKVR after it, it says {}",
                *wallet + amount,
                settlement.after
            ));
        }
        for part in &settlement.sessions {
            let named = |reason: String| format!("session {} {reason}", part.session);
            let session =
                self.sessions.get_mut(&part.session).ok_or_else(|| named("has no receipts here".into()))?;
            let (terms, _) = &session.terms;
            let parties = (terms.backbone, terms.payee, terms.price);
            if parties != (settlement.payer, settlement.payee, settlement.price) {
                return Err(named("is of other parties, or has another price".into()));
            }
            session.settle(part.from_seq, part.to_seq, part.bytes.get()).map_err(named)?;
        }
        let payer = self.payers.entry(settlement.payer).or_default();
        if *payer < amount {
            return Err(format!("account {} holds {payer} nanoKVR, it takes {amount}", settlement.payer));
        }
        *payer -= amount;
        *wallet += amount;
        let settled = Settled {
            index: self.index,
            payer: settlement.payer,
            payee: settlement.payee,
            nanokvr: settlement.amount.get(),
            pending_until: settlement.pending_until(),
            is_reversed: false,
        };
        self.settlements.insert(id, settled);
        self.latest = self.latest.max(settlement.at);
        Ok(Who::OneOf(Signer::Settler, KeyRole::Settler))
    }

    fn correction(&mut self, correction: &Correction) -> Result<Who, String> {
        self.check_network(&correction.network)?;
        let settled = self
            .settlements
            .get_mut(&correction.settlement)
            .ok_or("its settlement is not in the log before it")?;
        if settled.is_reversed {
            return Err("its settlement is reversed already".into());
        }
        // Dated back, it would be in time for what was final already; as much as with a settlement may lie between.
        if correction.at.saturating_add(2 * CLOCK_SKEW_SECONDS) < self.latest {
            return Err(format!(
                "it is dated back to {}, the log before it has come to {}",
                correction.at, self.latest
            ));
        }
        if correction.at >= settled.pending_until {
            return Err(format!(
                "its settlement was final at {}, it is of {}",
                settled.pending_until, correction.at
            ));
        }
        settled.is_reversed = true;
        let amount = i128::from(settled.nanokvr);
        *self.wallets.entry(settled.payee).or_default() -= amount;
        *self.payers.entry(settled.payer).or_default() += amount;
        self.reversed += 1;
        self.latest = self.latest.max(correction.at);
        Ok(Who::OneOf(Signer::Treasury, KeyRole::Treasury))
    }

    fn audit(&mut self, audit: &Audit) -> Result<Who, String> {
        self.check_network(&audit.network)?;
        let session = self.sessions.get(&audit.session).filter(|session| session.has(audit.seq));
        let session = session.ok_or("its receipt is not in the log before it")?;
        // The terms are the same in all receipts of a session; of older ones nothing else is remembered.
        let (terms, _) = &session.terms;
        if let Some(role) = audit.party_of(terms) {
            return Err(format!("its auditor is the {role} of the session"));
        }
        if (audit.model, audit.plugin) != (terms.model, terms.plugin) {
            return Err("its model or plugin is not the session's".into());
        }
        if audit.verdict == AuditVerdict::Convicted && terms.class == Class::Tolerance {
            return Err("it convicts by bytes in a session of class tolerance".into());
        }
        if session.work(audit.seq).is_some_and(|work| work != audit.work) {
            return Err("its work root is not its receipt's".into());
        }
        Ok(Who::These(vec![Signer::Auditor.verifier(&audit.network, audit.auditor)]))
    }

    fn penalty(&mut self, penalty: &Penalty, leaf: Hash) -> Result<Who, String> {
        self.check_network(&penalty.network)?;
        if !self.leaves.contains(&penalty.evidence) {
            self.unseen.entry(penalty.evidence).or_insert(self.index);
        }
        self.penalties.insert(leaf, penalty.worker);
        Ok(Who::OneOf(Signer::Treasury, KeyRole::Treasury))
    }

    fn appeal(&mut self, appeal: &Appeal) -> Result<Who, String> {
        self.check_network(&appeal.network)?;
        if self.penalties.get(&appeal.penalty) != Some(&appeal.worker.digest()) {
            return Err("its penalty is not in the log before it, or is against another worker".into());
        }
        Ok(Who::These(vec![Signer::Worker.verifier(&appeal.network, appeal.worker)]))
    }

    fn check_network(&self, network: &NetworkName) -> Result<(), String> {
        match &self.network {
            Some(own) if own == network => Ok(()),
            Some(own) => Err(format!("it is for network {network}, this log is {own}'s")),
            None => Err("the first entry of a log names the ledger's own key".into()),
        }
    }

    fn signer_of(
        &self,
        entry: &Entry,
        signer: Signer,
        role: KeyRole,
    ) -> Result<kvasir_wire::note::Verifier, String> {
        let network = self.network.as_ref().ok_or("the first entry of a log names the ledger's own key")?;
        let claimed = entry.note.signatures().first().map(|line| line.id);
        let mut known = self.believed.iter().filter(|(believed, ..)| *believed == role);
        let signer = known.find_map(|(_, key, _)| {
            Some(signer.verifier(network, *key)).filter(|one| Some(one.id()) == claimed)
        });
        signer.ok_or_else(|| format!("it is not signed by a {role} key that is believed here"))
    }
}

/// Whose signatures an entry needs.
enum Who {
    These(Signers),
    /// One of the keys that are believed in a role, under the name of this signer.
    OneOf(Signer, KeyRole),
}

/// The terms without what is a session's own.
fn common_terms(terms: &Terms) -> Terms {
    Terms { session: SessionId([0; 32]), from: 0, ..terms.clone() }
}

/// Whether a period covers a time. Its beginning is lenient, since another machine's clock wrote it.
fn holds(from: u64, until: u64, time: u64) -> bool {
    from <= time.saturating_add(CLOCK_SKEW_SECONDS) && time <= until
}
