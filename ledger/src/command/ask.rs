//! Commands that ask a running ledger.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use kvasir_wire::money::NanoKvr;
use kvasir_wire::note::Note;
use kvasir_wire::receipt::Receipt;

use super::report;
use super::sign::{KeyOrDigest, client};
use crate::api::DEFAULT_PAGE;
use crate::client::Client;
use crate::config::ConfigFlags;

/// Which ledger is asked.
#[derive(Debug, Args)]
pub(super) struct Asked {
    /// Address of the ledger [default: http:// and `listen` of the settings file]
    #[arg(long, env = "KVASIR_LEDGER_URL", value_name = "URL")]
    ledger: Option<String>,
    /// Settings file [default: ledger.toml, where there is one]
    #[arg(long, env = "KVASIR_LEDGER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Asked {
    pub(super) fn client(&self) -> Result<Client> {
        let flags = ConfigFlags { config: self.config.clone(), ..ConfigFlags::default() };
        client(self.ledger.as_deref(), &flags)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvasir-ledger wallet ed25519:<64 hex> --ledger http://192.168.1.5:9750")]
pub(super) struct ShowWallet {
    /// The wallet's public key, or its digest
    wallet: KeyOrDigest,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvasir-ledger account ed25519:<64 hex> --json")]
pub(super) struct ShowAccount {
    /// The backbone's public key, or its digest
    account: KeyOrDigest,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  kvasir-ledger receipts --after 120 --limit 10 --json")]
pub(super) struct ListReceipts {
    /// Only receipts after this index
    #[arg(long, value_name = "INDEX")]
    after: Option<u64>,
    /// How many at most, up to 500
    #[arg(long, default_value_t = DEFAULT_PAGE, value_name = "N")]
    limit: u32,
    #[command(flatten)]
    asked: Asked,
}

impl ShowWallet {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let wallet = self.asked.client()?.wallet(&self.wallet.wallet())?;
        let sentence = format!(
            "wallet    {}\npending   {}  ({} nanoKVR)\nposted    {}  ({} nanoKVR)\nsettled   {} units  ({} bytes)\n\
             unsettled {}  ({} bytes)",
            wallet.payee,
            NanoKvr::new(wallet.pending_nanokvr).kvr(),
            wallet.pending_nanokvr,
            NanoKvr::new(wallet.posted_nanokvr).kvr(),
            wallet.posted_nanokvr,
            wallet.units,
            wallet.bytes,
            NanoKvr::new(wallet.unsettled_nanokvr).kvr(),
            wallet.unsettled_bytes,
        );
        report(json, &wallet, &sentence)
    }
}

impl ShowAccount {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let account = self.asked.client()?.account(&self.account.key())?;
        let mut sentence = format!(
            "account   {}\navailable {}  ({} nanoKVR)\nfunded    {}\nspent     {}\nunsettled {}",
            account.account,
            account.kvr,
            account.available_nanokvr,
            NanoKvr::new(account.funded_nanokvr).kvr(),
            NanoKvr::new(account.spent_nanokvr).kvr(),
            NanoKvr::new(account.unsettled_nanokvr).kvr(),
        );
        if account.unsettled_nanokvr > account.available_nanokvr {
            sentence.push_str("\nThe account cannot cover what it owes: have the treasury fund it.");
        }
        report(json, &account, &sentence)
    }
}

impl ListReceipts {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let page = self.asked.client()?.receipts(self.after, self.limit)?;
        let mut lines = String::new();
        for stored in &page.receipts {
            let note = Note::parse(stored.note.as_bytes())?;
            let receipt = Receipt::parse(note.text())?;
            lines.push_str(&format!(
                "{:>8}  session {}  seq {:>4}  up {:>12}  down {:>12}  calls {:>8}  {}\n",
                stored.index,
                receipt.terms.session.short(),
                receipt.seq,
                receipt.counters.up,
                receipt.counters.down,
                receipt.counters.calls,
                if receipt.is_final { "final" } else { "" },
            ));
        }
        if page.receipts.is_empty() {
            lines.push_str("no receipts");
        }
        report(json, &page, &lines)
    }
}
