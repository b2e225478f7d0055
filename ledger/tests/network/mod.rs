//! A small network for tests: one key for each party, and the notes that they sign.
#![allow(clippy::unwrap_used, dead_code)] // test support: a failure should fail the test; not every test uses all of it

pub mod good_log;

use kvasir_ledger::api::Accepted;
use kvasir_ledger::refusal::{LedgerError, Refusal};
use kvasir_ledger::store::{Keys, Store};
use kvasir_merkle::{Hash, leaf_hash};
use kvasir_wire::account::{
    Correction, Delegation, Fund, Grant, Price, SettledSession, Settlement, SettlementId, Statement,
};
use kvasir_wire::id::{KeyDigest, ModelDigest, PluginDigest, SessionId, WalletDigest};
use kvasir_wire::key::SecretKey;
use kvasir_wire::money::{MeteredBytes, NanoKvr, PricePerByte};
use kvasir_wire::note::{NetworkName, Note};
use kvasir_wire::receipt::{Class, Counters, Receipt, ReceiptKeys, ReceiptSignatures, SignedReceipt, Terms};

/// The time at which everything begins.
pub const START: u64 = 1_790_000_000;

pub struct Network {
    pub name: NetworkName,
    pub hub: SecretKey,
    pub worker: SecretKey,
    pub backbone: SecretKey,
    pub wallet: SecretKey,
    pub treasury: SecretKey,
    pub settler: SecretKey,
}

impl Network {
    pub fn new() -> Self {
        let key = |number| SecretKey::from_seed([number; 32]);
        let [hub, worker, backbone, wallet, treasury, settler] = [1, 2, 3, 4, 5, 6].map(key);
        Self { name: "atlas".parse().unwrap(), hub, worker, backbone, wallet, treasury, settler }
    }

    pub fn keys(&self) -> Keys {
        Keys {
            hubs: vec![self.hub.public()],
            treasury: vec![self.treasury.public()],
            settlers: vec![self.settler.public()],
            retired: vec![],
        }
    }

    pub fn payer(&self) -> KeyDigest {
        self.backbone.public().digest()
    }

    pub fn payee(&self) -> WalletDigest {
        self.wallet.public().wallet_digest()
    }

    pub fn price(&self) -> Note {
        let per_byte = PricePerByte::FOUNDING;
        Price { network: self.name.clone(), per_byte, from: START - 100 }.sign(&self.treasury).unwrap()
    }

    /// A grant for any session, of `bytes`.
    pub fn grant(&self, bytes: u64) -> Note {
        self.grant_text(bytes).sign(&self.backbone).unwrap()
    }

    pub fn grant_text(&self, bytes: u64) -> Grant {
        Grant {
            network: self.name.clone(),
            session: None,
            hub: self.hub.public().digest(),
            worker: None,
            backbone: self.backbone.public(),
            price: self.price().leaf_hash(),
            bytes: MeteredBytes::new(bytes).unwrap(),
            from: START,
            until: START + 1_000_000,
        }
    }

    pub fn delegation(&self) -> Note {
        let (wallet, worker) = (self.wallet.public(), self.worker.public());
        let network = self.name.clone();
        Delegation { network, wallet, worker, from: START, until: START + 1_000_000 }
            .sign(&self.wallet)
            .unwrap()
    }

    pub fn fund(&self, nanokvr: i64, nonce: u8) -> Note {
        let amount = NanoKvr::new(nanokvr);
        let (network, account) = (self.name.clone(), self.payer());
        Fund { network, account, amount, nonce: [nonce; 32], at: START }.sign(&self.treasury).unwrap()
    }

    pub fn correction(&self, settlement: SettlementId, at: u64) -> Note {
        let reason = "for a test".to_owned();
        Correction { network: self.name.clone(), settlement, reason, at }.sign(&self.treasury).unwrap()
    }

    /// Price, delegation, grant of 1 GB and 1,000 KVR.
    pub fn prepare(&self, store: &mut Store) {
        for note in self.foundation() {
            store.accept_note(note.to_string().as_bytes(), START).unwrap();
        }
    }

    pub fn foundation(&self) -> [Note; 4] {
        [self.price(), self.delegation(), self.grant(1_000_000_000), self.fund(1_000_000_000_000, 0)]
    }

    pub fn terms(&self, session: u8) -> Terms {
        Terms {
            network: self.name.clone(),
            session: SessionId([session; 32]),
            grant: self.grant(1_000_000_000).leaf_hash(),
            hub: self.hub.public().digest(),
            worker: self.worker.public().digest(),
            backbone: self.payer(),
            payee: self.payee(),
            model: ModelDigest([7; 32]),
            plugin: PluginDigest([8; 32]),
            class: Class::Exact,
            price: self.price().leaf_hash(),
            from: START,
        }
    }

    /// The first receipt of a session.
    pub fn first(&self, session: u8, up: u64, down: u64) -> Receipt {
        Receipt::first(self.terms(session), counters(up, down), START + 10, false).unwrap()
    }

    pub fn sign(&self, receipt: &Receipt) -> Note {
        let keys = ReceiptKeys {
            hub: self.hub.public(),
            worker: self.worker.public(),
            backbone: self.backbone.public(),
        };
        let signatures = ReceiptSignatures {
            hub: receipt.sign(&self.hub),
            worker: receipt.sign(&self.worker),
            backbone: receipt.sign(&self.backbone),
        };
        SignedReceipt::assemble(receipt.clone(), &keys, &signatures).unwrap().note().clone()
    }

    /// A settlement of (session, from, to, bytes) parts.
    pub fn settlement(&self, parts: &[(u8, u64, u64, u64)], before: i64, at: u64) -> Settlement {
        let sessions = parts.iter().map(|(session, from_seq, to_seq, bytes)| SettledSession {
            session: SessionId([*session; 32]),
            from_seq: *from_seq,
            to_seq: *to_seq,
            bytes: MeteredBytes::new(*bytes).unwrap(),
        });
        let price = (self.price().leaf_hash(), PricePerByte::FOUNDING);
        let before = NanoKvr::new(before);
        let parties = (self.payer(), self.payee());
        Settlement::new(self.name.clone(), parties, price, sessions.collect(), before, at).unwrap()
    }

    pub fn settle(&self, store: &mut Store, settlement: &Settlement) -> Result<Accepted, LedgerError> {
        let note = settlement.sign(&self.settler).unwrap();
        store.accept_settlement(note.to_string().as_bytes(), settlement.at)
    }
}

/// A store in memory with the foundation laid.
pub fn prepared() -> (Network, Store) {
    let network = Network::new();
    let mut store = Store::in_memory(&network.name, network.keys()).unwrap();
    network.prepare(&mut store);
    (network, store)
}

pub fn counters(up: u64, down: u64) -> Counters {
    let bytes = |number| MeteredBytes::new(number).unwrap();
    Counters { up: bytes(up), down: bytes(down), calls: 3, rows: 9, work: leaf_hash(b"work") }
}

pub fn post(store: &mut Store, note: &Note) -> Result<Accepted, LedgerError> {
    post_at(store, note, START + 10)
}

pub fn post_at(store: &mut Store, note: &Note, now: u64) -> Result<Accepted, LedgerError> {
    store.accept_receipt(note.to_string().as_bytes(), now)
}

/// The refusal, or a failed test.
pub fn refused<T: std::fmt::Debug>(result: Result<T, LedgerError>) -> Refusal {
    match result {
        Err(LedgerError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

pub fn leaf(accepted: &Accepted) -> Hash {
    accepted.leaf.parse().unwrap()
}
