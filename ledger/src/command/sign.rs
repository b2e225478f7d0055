//! Commands that sign a note with a secret key file and send it to the ledger.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use kvasir_merkle::Hash;
use kvasir_wire::account::{
    Appeal, Correction, Delegation, Fund, Grant, MAX_REASON_BYTES, Measure, Penalty, Price, SettlementId,
    Statement,
};
use kvasir_wire::id::{KeyDigest, SessionId, WalletDigest};
use kvasir_wire::key::{PublicKey, SecretKey};
use kvasir_wire::money::{MeteredBytes, NanoKvr, PricePerByte};
use kvasir_wire::note::NetworkName;
use serde_json::json;

use super::{print, report, unix_now};
use crate::client::{Client, ClientError};
use crate::config::{ConfigFlags, DEFAULT_LISTEN, read_secret, write_secret};

/// Seconds in a day.
const DAY: u64 = 24 * 3600;
/// Latest time that a note can state.
const MAX_SECONDS: u64 = i64::MAX as u64;

/// Which ledger, and which network is signed for.
#[derive(Debug, Args)]
pub(super) struct Where {
    /// Address of the ledger [default: http:// and `listen` of the settings file]
    #[arg(long, env = "KVASIR_LEDGER_URL", value_name = "URL")]
    ledger: Option<String>,
    /// Name of the network [default: that of the settings file]
    #[arg(long, env = "KVASIR_LEDGER_NETWORK", value_name = "NAME")]
    network: Option<String>,
    /// Settings file [default: ledger.toml, where there is one]
    #[arg(long, env = "KVASIR_LEDGER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the note to standard output instead of sending it
    #[arg(long, conflicts_with = "json")]
    print_note: bool,
}

impl Where {
    fn flags(&self) -> ConfigFlags {
        ConfigFlags { config: self.config.clone(), network: self.network.clone(), ..ConfigFlags::default() }
    }

    pub(super) fn client(&self) -> Result<Client> {
        client(self.ledger.as_deref(), &self.flags())
    }

    fn network(&self) -> Result<NetworkName> {
        let flags = self.flags();
        flags.network_of(&flags.file()?.0)
    }

    /// Signs and sends; the sentence follows `stored as entry N`.
    fn send<S: Statement>(&self, statement: &S, key: &SecretKey, json: bool, sentence: &str) -> Result<()> {
        let note = statement.sign(key)?;
        if self.print_note {
            return print(note.to_string().as_bytes());
        }
        let accepted = self.client()?.post_note(&note)?;
        let line = format!("{sentence}\nstored as entry {}, leaf {}", accepted.index, accepted.leaf);
        let mut object = serde_json::to_value(&accepted)?;
        object["note"] = json!(note.to_string());
        report(json, &object, &line)
            .with_context(|| format!("the note is stored as entry {}", accepted.index))
    }
}

/// Whether a failed call may have stored its note all the same.
fn is_open(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<ClientError>()
        .is_some_and(|error| error.is_passing() || matches!(error, ClientError::BadAnswer { .. }))
}

/// The ledger's client: a flag or the environment, else the settings file's address, else the default one.
pub(super) fn client(ledger: Option<&str>, flags: &ConfigFlags) -> Result<Client> {
    let address = match ledger {
        Some(address) => address.to_owned(),
        None => match flags.file()?.0.listen {
            Some(listen) => format!("http://{listen}"),
            None => format!("http://{DEFAULT_LISTEN}"),
        },
    };
    Ok(Client::new(&address)?)
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvasir-ledger key treasury.key")]
pub(super) struct MakeKey {
    /// File to make; an existing one is never overwritten
    file: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Example (0.007 KVR a unit of 1,000,000 bytes):\n  \
                        kvasir-ledger price --treasury-key treasury.key --nanokvr-per-byte 7")]
pub(super) struct SetPrice {
    /// Secret key file of the treasury
    #[arg(long, value_name = "FILE")]
    treasury_key: PathBuf,
    /// Whole nanoKVR for one metered byte
    #[arg(long, default_value_t = PricePerByte::FOUNDING.get(), value_name = "N")]
    nanokvr_per_byte: u64,
    /// Unix seconds from which it holds [default: now]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS))]
    from: Option<u64>,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger fund --treasury-key treasury.key --account ed25519:<64 hex> --kvr 100"
)]
pub(super) struct MakeFund {
    /// Secret key file of the treasury
    #[arg(long, value_name = "FILE")]
    treasury_key: PathBuf,
    /// The paying account: a backbone's public key, or its digest
    #[arg(long, value_name = "KEY")]
    account: KeyOrDigest,
    /// Amount in KVR, at most nine decimals
    #[arg(long, value_name = "AMOUNT", required_unless_present = "nanokvr", conflicts_with = "nanokvr", value_parser = NanoKvr::from_kvr_text)]
    kvr: Option<NanoKvr>,
    /// Amount in nanoKVR
    #[arg(long, value_name = "AMOUNT")]
    nanokvr: Option<i64>,
    /// 64 hexadecimal digits that make the funding one of a kind [default: random]. Give the same again to retry
    #[arg(long, value_name = "HEX")]
    nonce: Option<Hash>,
    /// Unix seconds that the note states [default: now]. Give the same again to retry
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=MAX_SECONDS))]
    at: Option<u64>,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger grant --backbone-key backbone.key --hub ed25519:<64 hex> --bytes 10000000000"
)]
pub(super) struct MakeGrant {
    /// Secret key file of the backbone, whose account pays
    #[arg(long, value_name = "FILE")]
    backbone_key: PathBuf,
    /// The hub that may meter: its public key, or its digest
    #[arg(long, value_name = "KEY")]
    hub: KeyOrDigest,
    /// Most bytes that may be billed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    bytes: u64,
    /// One session only [default: any; the cap holds for all together]
    #[arg(long, value_name = "HEX")]
    session: Option<SessionId>,
    /// One worker only [default: any]
    #[arg(long, value_name = "KEY")]
    worker: Option<KeyOrDigest>,
    /// Leaf hash of the price note [default: the ledger's price now]
    #[arg(long, value_name = "HEX")]
    price: Option<Hash>,
    /// Days until it ends
    #[arg(long, default_value_t = 30, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    days: u32,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger delegate --wallet-key wallet.key --worker ed25519:<64 hex>"
)]
pub(super) struct MakeDelegation {
    /// Secret key file of the wallet
    #[arg(long, value_name = "FILE")]
    wallet_key: PathBuf,
    /// Public key of the worker
    #[arg(long, value_name = "KEY")]
    worker: PublicKey,
    /// Days until it ends
    #[arg(long, default_value_t = 365, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    days: u32,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger correct --treasury-key treasury.key --settlement <64 hex> \\\n    \
                        --reason \"two receipts with one number: entry 40\""
)]
pub(super) struct MakeCorrection {
    /// Secret key file of the treasury
    #[arg(long, value_name = "FILE")]
    treasury_key: PathBuf,
    /// Id of the settlement
    #[arg(long, value_name = "HEX")]
    settlement: SettlementId,
    /// Why, in one line; it stays readable for ever
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger penalty --treasury-key treasury.key --worker ed25519:<64 hex> --measure watched \\\n    \
                        --evidence <64 hex> --reason \"convicted by replay\"\n\n\
                        It is published with its reason and its evidence. No hub acts on it by itself."
)]
pub(super) struct MakePenalty {
    /// Secret key file of the treasury
    #[arg(long, value_name = "FILE")]
    treasury_key: PathBuf,
    /// The worker: its public key, or its digest
    #[arg(long, value_name = "KEY")]
    worker: KeyOrDigest,
    /// excluded, watched or lifted; the last ends an earlier one
    #[arg(long, value_name = "MEASURE", value_parser = parse_measure)]
    measure: Measure,
    /// Leaf hash of the entry that shows it, such as a finding
    #[arg(long, value_name = "HEX")]
    evidence: Hash,
    /// Why, in one line; it stays readable for ever
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  kvasir-ledger appeal --worker-key worker.key --penalty <64 hex> \\\n    \
                        --reason \"the memory was bad; it is replaced\""
)]
pub(super) struct MakeAppeal {
    /// Secret key file of the worker
    #[arg(long, value_name = "FILE")]
    worker_key: PathBuf,
    /// Leaf hash of the penalty
    #[arg(long, value_name = "HEX")]
    penalty: Hash,
    /// What is said to it, in one line; it stays readable for ever
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: String,
    #[command(flatten)]
    place: Where,
}

/// What a note takes as a reason.
fn parse_reason(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.len() > MAX_REASON_BYTES || text.chars().any(char::is_control) {
        return Err(format!("expected one line of at most {MAX_REASON_BYTES} bytes"));
    }
    Ok(text.to_owned())
}

fn parse_measure(text: &str) -> Result<Measure, String> {
    text.parse().map_err(|()| "expected excluded, watched or lifted".to_owned())
}

/// A public key, or the digest that stands for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyOrDigest([u8; 32]);

impl KeyOrDigest {
    pub(super) fn key(self) -> KeyDigest {
        KeyDigest(self.0)
    }

    pub(super) fn wallet(self) -> WalletDigest {
        WalletDigest(self.0)
    }
}

impl std::str::FromStr for KeyOrDigest {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("ed25519:") {
            text.parse::<PublicKey>().map(|key| Self(key.digest().0)).map_err(|error| error.to_string())
        } else {
            text.parse::<KeyDigest>().map(|digest| Self(digest.0)).map_err(|_| {
                "neither a public key (`ed25519:` and 64 hexadecimal digits) nor a digest (64 of them)"
                    .to_owned()
            })
        }
    }
}

impl MakeKey {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).context("the system gives no randomness")?;
        let key = SecretKey::from_seed(seed);
        write_secret(&self.file, &key)?;
        let (public, digest) = (key.public(), key.public().digest());
        let object = json!({ "file": self.file.display().to_string(), "public": public.to_string(), "digest": digest.to_string() });
        report(json, &object, &format!("public key {public}\ndigest     {digest}"))
            .with_context(|| format!("{}: the key was made, for {public}", self.file.display()))
    }
}

impl SetPrice {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let key = read_secret(&self.treasury_key)?;
        let price = Price {
            network: self.place.network()?,
            per_byte: PricePerByte::new(self.nanokvr_per_byte)?,
            from: self.from.unwrap_or_else(unix_now),
        };
        let sentence = format!("{} nanoKVR a byte from {} on", self.nanokvr_per_byte, price.from);
        self.place.send(&price, &key, json, &sentence)
    }
}

impl MakeFund {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let key = read_secret(&self.treasury_key)?;
        let amount = match (&self.kvr, self.nanokvr) {
            (Some(kvr), _) => *kvr,
            (None, Some(nanokvr)) => NanoKvr::new(nanokvr),
            (None, None) => NanoKvr::ZERO,
        };
        ensure!(amount > NanoKvr::ZERO, "the amount must be above zero");
        let mut nonce = [0; 32];
        match self.nonce {
            Some(given) => nonce = given.0,
            None => getrandom::fill(&mut nonce).context("the system gives no randomness")?,
        }
        let account = self.account.key();
        let at = self.at.unwrap_or_else(unix_now);
        let fund = Fund { network: self.place.network()?, account, amount, nonce, at };
        let sentence = format!("{} into account {account}", amount.kvr());
        let retry = || {
            let nonce = Hash(nonce);
            format!(
                "whether it was stored is open; to retry without funding twice add: --nonce {nonce} --at {at}"
            )
        };
        let sent = self.place.send(&fund, &key, json, &sentence);
        sent.map_err(|error| if is_open(&error) { error.context(retry()) } else { error })
    }
}

impl MakeGrant {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let key = read_secret(&self.backbone_key)?;
        let price = match self.price {
            Some(price) => price,
            None => self.place.client()?.price()?.leaf.parse().context("the ledger's price")?,
        };
        let from = unix_now();
        let grant = Grant {
            network: self.place.network()?,
            session: self.session,
            hub: self.hub.key(),
            worker: self.worker.map(KeyOrDigest::key),
            backbone: key.public(),
            price,
            bytes: MeteredBytes::new(self.bytes)?,
            from,
            until: from + u64::from(self.days) * DAY,
        };
        let sentence = format!("{} bytes may be billed to account {}", self.bytes, grant.payer());
        self.place.send(&grant, &key, json, &sentence)
    }
}

impl MakeDelegation {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let key = read_secret(&self.wallet_key)?;
        let from = unix_now();
        let delegation = Delegation {
            network: self.place.network()?,
            wallet: key.public(),
            worker: self.worker,
            from,
            until: from + u64::from(self.days) * DAY,
        };
        let sentence = format!("worker {} earns for wallet {}", self.worker, delegation.payee());
        self.place.send(&delegation, &key, json, &sentence)
    }
}

impl MakeCorrection {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let key = read_secret(&self.treasury_key)?;
        let (settlement, reason) = (self.settlement, self.reason);
        let correction = Correction { network: self.place.network()?, settlement, reason, at: unix_now() };
        self.place.send(&correction, &key, json, &format!("settlement {settlement} reversed"))
    }
}

impl MakePenalty {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let key = read_secret(&self.treasury_key)?;
        let (worker, measure) = (self.worker.key(), self.measure);
        let penalty = Penalty {
            network: self.place.network()?,
            worker,
            measure,
            reason: self.reason,
            evidence: self.evidence,
            at: unix_now(),
        };
        self.place.send(&penalty, &key, json, &format!("worker {worker}: {measure}"))
    }
}

impl MakeAppeal {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let key = read_secret(&self.worker_key)?;
        let penalty = self.penalty;
        let appeal = Appeal {
            network: self.place.network()?,
            worker: key.public(),
            penalty,
            reason: self.reason,
            at: unix_now(),
        };
        self.place.send(&appeal, &key, json, &format!("appealed against penalty {penalty}"))
    }
}
