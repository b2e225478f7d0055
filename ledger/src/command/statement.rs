//! `statement`: one wallet or paying account over a period, from a ledger that is served or from its database file.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use kvasir_merkle::Hash;
use rusqlite::types::Value;
use serde_json::json;

use super::sign::{KeyOrDigest, client};
use super::table::{Format, TableWriter};
use super::{print, report};
use crate::api::{AccountStatement, MAX_PAGE, Side, StatementLine, StatementQuery, exact_kvr};
use crate::calendar::{Moment, day_and_time};
use crate::client::Client;
use crate::config::ConfigFlags;
use crate::store::{Answers, open_for_reading};

/// Show every posting of a wallet or a paying account in a period, with the balance before and after
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvasir-ledger statement ed25519:<64 hex> --from 2026-11-01 --to 2026-12-01\n  \
                        kvasir-ledger statement ed25519:<64 hex> --csv > statement.csv\n  \
                        kvasir-ledger statement <64 hex> --store /backup/ledger.db --network atlas --json\n\n\
                        Times are Unix seconds, or days (their beginning, UTC). The period ends before `--to`, so that periods\n\
                        that meet share no posting. Opening balance and all changes are the closing balance, to the nanoKVR."
)]
pub(super) struct ShowStatement {
    /// The key, or its digest
    wallet: KeyOrDigest,
    /// The account that earns or the one that pays, where the key has both [default: the one in which anything moved]
    #[arg(long, value_enum)]
    side: Option<AskedSide>,
    /// The period begins here [default: with the ledger]
    #[arg(long, value_name = "TIME")]
    from: Option<Moment>,
    /// The period ends before this [default: it is open]
    #[arg(long, value_name = "TIME")]
    to: Option<Moment>,
    /// As the books stood at the end of this second [default: now]
    #[arg(long, value_name = "TIME")]
    at: Option<Moment>,
    /// Print CSV, one line a posting
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Address of the ledger [default: http:// and `listen` of the settings file]
    #[arg(long, env = "KVASIR_LEDGER_URL", value_name = "URL")]
    ledger: Option<String>,
    /// Read this database file, or a backup, and ask no ledger
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Name of the network of that file [default: that of the settings file]
    #[arg(long, env = "KVASIR_LEDGER_NETWORK", value_name = "NAME")]
    network: Option<String>,
    /// Settings file [default: ledger.toml, where there is one]
    #[arg(long, env = "KVASIR_LEDGER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AskedSide {
    /// The wallet that earns
    Payee,
    /// The account that pays
    Payer,
}

/// Where pages come from.
enum Source {
    Served(Client),
    File(rusqlite::Connection, PathBuf),
}

const COLUMNS: [&str; 13] = [
    "number",
    "at",
    "entry",
    "kind",
    "nanokvr",
    "kvr",
    "balance_nanokvr",
    "other",
    "settlement",
    "sessions",
    "bytes",
    "pending_until",
    "state",
];

impl ShowStatement {
    pub(super) fn run(self, json: bool) -> Result<()> {
        let source = self.source()?;
        let seconds = |moment: Option<Moment>| moment.map(|Moment(seconds)| seconds);
        let asked = StatementQuery {
            from: seconds(self.from),
            to: seconds(self.to),
            at: seconds(self.at),
            after: None,
            limit: Some(MAX_PAGE),
        };
        let owner = Hash(self.wallet.key().0);
        let statement = match self.side {
            Some(AskedSide::Payee) => source.whole(Side::Payee, owner, asked)?,
            Some(AskedSide::Payer) => source.whole(Side::Payer, owner, asked)?,
            None => {
                let earns = source.whole(Side::Payee, owner, asked)?;
                let pays = source.whole(Side::Payer, owner, asked)?;
                match (is_blank(&earns), is_blank(&pays)) {
                    (_, true) => earns,
                    (true, false) => pays,
                    (false, false) => bail!(
                        "{owner} earns and pays: give --side payee for its wallet or --side payer for its account"
                    ),
                }
            }
        };
        if self.csv {
            return print(&csv(&statement)?);
        }
        let mut object = serde_json::to_value(&statement)?;
        for (name, moment) in [("from", asked.from), ("to", asked.to), ("as_of", asked.at)] {
            object[name] = json!(moment);
        }
        report(json, &object, &text(&statement))
    }

    fn source(&self) -> Result<Source> {
        let flags = ConfigFlags {
            config: self.config.clone(),
            store: self.store.clone(),
            network: self.network.clone(),
            ..ConfigFlags::default()
        };
        match &self.store {
            None => Ok(Source::Served(client(self.ledger.as_deref(), &flags)?)),
            Some(path) => {
                let network = flags.network_of(&flags.file()?.0)?;
                Ok(Source::File(open_for_reading(path, &network)?, path.clone()))
            }
        }
    }
}

impl Source {
    /// All pages as one. What they say must fit together, or something is wrong with the ledger.
    fn whole(&self, side: Side, owner: Hash, mut asked: StatementQuery) -> Result<AccountStatement> {
        let mut whole = self.page(side, &owner, &asked)?;
        while let Some(next) = whole.next {
            ensure!(asked.after.is_none_or(|before| next > before), "the ledger's pages do not advance");
            asked.after = Some(next);
            let page = self.page(side, &owner, &asked)?;
            let balance = whole.postings.last().map_or(whole.opening_nanokvr, |line| line.balance_nanokvr);
            ensure!(
                page.opening_nanokvr == balance,
                "after posting {next} the balance is {balance} nanoKVR on one page and {} on the next: run `verify`",
                page.opening_nanokvr
            );
            whole.postings.extend(page.postings);
            whole.closing_nanokvr = page.closing_nanokvr;
            whole.closing_kvr = page.closing_kvr;
            whole.closing_pending_nanokvr = page.closing_pending_nanokvr;
            whole.next = page.next;
        }
        let changes: i128 = whole.postings.iter().map(|line| i128::from(line.nanokvr)).sum();
        ensure!(
            i128::from(whole.opening_nanokvr) + changes == i128::from(whole.closing_nanokvr),
            "the postings add {changes} nanoKVR to {}, but the books close with {}: run `verify`",
            whole.opening_nanokvr,
            whole.closing_nanokvr
        );
        Ok(whole)
    }

    fn page(&self, side: Side, owner: &Hash, asked: &StatementQuery) -> Result<AccountStatement> {
        Ok(match self {
            Source::Served(client) => client.statement(side, owner, asked)?,
            Source::File(connection, path) => {
                Answers::new(connection, path).statement(side, owner.0, asked)?
            }
        })
    }
}

fn is_blank(statement: &AccountStatement) -> bool {
    statement.postings.is_empty() && statement.opening_nanokvr == 0 && statement.closing_nanokvr == 0
}

fn csv(statement: &AccountStatement) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut table = TableWriter::begin(&mut bytes, Format::Csv, &COLUMNS)?;
    let number = |number: u64| i64::try_from(number).map(Value::Integer).context("a number beyond 63 bits");
    let word = |text: &str| Value::Text(text.to_owned());
    for line in &statement.postings {
        let settlement = line.settlement.as_ref();
        let sessions = settlement.map(|settlement| {
            let sessions = settlement.sessions.iter().map(|part| part.session.as_str());
            word(&sessions.collect::<Vec<_>>().join(" "))
        });
        table.row(vec![
            number(line.number)?,
            number(line.at)?,
            number(line.entry)?,
            word(&line.kind),
            Value::Integer(line.nanokvr),
            word(&line.kvr),
            Value::Integer(line.balance_nanokvr),
            line.other.as_deref().map_or(Value::Null, word),
            settlement.map_or(Value::Null, |settlement| word(&settlement.id)),
            sessions.unwrap_or(Value::Null),
            settlement.map(|settlement| number(settlement.bytes)).transpose()?.unwrap_or(Value::Null),
            settlement.map(|settlement| number(settlement.pending_until)).transpose()?.unwrap_or(Value::Null),
            settlement.map_or(Value::Null, |settlement| word(&settlement.state)),
        ])?;
    }
    table.finish()?;
    Ok(bytes)
}

fn text(statement: &AccountStatement) -> String {
    let mut rows = vec![
        ["time (UTC)", "entry", "kind", "session", "bytes", "nanoKVR", "KVR", "balance", "state"]
            .map(str::to_owned),
    ];
    rows.extend(statement.postings.iter().map(cells));
    let mut widths = [0; 9];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let side = match statement.side {
        Side::Payee => "wallet ",
        Side::Payer => "account",
    };
    let (opening, closing) = (&statement.opening_kvr, &statement.closing_kvr);
    let mut text = format!("{side} {}\nopening {opening} KVR\n", statement.owner);
    if statement.postings.is_empty() {
        text.push_str("nothing moved\n");
    } else {
        for row in &rows {
            // Words to the left, numbers to the right, under each other.
            let line: Vec<String> = row
                .iter()
                .zip(widths)
                .enumerate()
                .map(|(at, (cell, width))| match at {
                    1 | 4..=7 => format!("{cell:>width$}"),
                    _ => format!("{cell:<width$}"),
                })
                .collect();
            text.push_str(line.join("  ").trim_end());
            text.push('\n');
        }
    }
    text.push_str(&format!("closing {closing} KVR ({} nanoKVR)", statement.closing_nanokvr));
    if statement.closing_pending_nanokvr != 0 {
        text.push_str(&format!(", of which {} KVR pending", exact_kvr(statement.closing_pending_nanokvr)));
    }
    text
}

fn cells(line: &StatementLine) -> [String; 9] {
    let moment = |seconds| match day_and_time(seconds) {
        Some((day, time)) => format!("{day} {time}"),
        None => seconds.to_string(),
    };
    let settlement = line.settlement.as_ref();
    let session = settlement.map(|settlement| match settlement.sessions.as_slice() {
        [one] => one.session.chars().take(16).collect(),
        several => format!("{} sessions", several.len()),
    });
    let state = settlement.map(|settlement| match settlement.state.as_str() {
        "pending" => format!("pending until {}", moment(settlement.pending_until)),
        state => state.to_owned(),
    });
    [
        moment(line.at),
        line.entry.to_string(),
        line.kind.clone(),
        session.unwrap_or_default(),
        settlement.map(|settlement| settlement.bytes.to_string()).unwrap_or_default(),
        line.nanokvr.to_string(),
        line.kvr.clone(),
        exact_kvr(line.balance_nanokvr),
        state.unwrap_or_default(),
    ]
}
