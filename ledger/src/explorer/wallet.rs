//! The page of a wallet, that of a paying account, and the moves of their credit.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use kvasir_merkle::Hash;
use maud::{Markup, html};

use super::chart::{self, Value, Words};
use super::frame::{Page, Problem};
use super::index::{AccountMove, DAY};
use super::lists::{named_entries, receipt_table, settlement_table};
use super::named::named_by;
use super::overview::kvr;
use super::question::{FEW_ROWS, ListQuery, PAGE_ROWS, Paged, digest, parameters};
use super::show::{amount, entry_link, exact_kvr, grouped, metered, moment, short, step};
use super::{Explorer, View};
use crate::store::Stretch;

type Parameters = Result<Query<ListQuery>, QueryRejection>;

/// Days with changes that a chart reads.
const MOST_DAYS: u32 = 60;

/// `/wallet/<64 hex>`
pub(super) async fn wallet(State(explorer): State<Explorer>, path: Path<String>) -> Result<Page, Problem> {
    let asked = digest(&path)?;
    explorer.page(move |view| wallet_page(view, asked)).await
}

fn wallet_page(view: &View<'_>, asked: Hash) -> Result<Page, Problem> {
    let Some(wallet) = view.index.wallet(asked)? else {
        return if view.index.mentions(asked)?.is_empty() {
            Err(Problem::unknown(format!("No entry names wallet {asked}.")))
        } else {
            Err(Problem::Elsewhere(format!("/digest/{asked}")))
        };
    };
    let receipts = named_entries(view, asked, ("receipt", "payee"), Stretch::Latest, FEW_ROWS)?;
    let settled = view.index.entries_naming(asked, ("settle", "payee"), Stretch::Latest, FEW_ROWS)?;
    let settled = view.index.settlements(&settled)?;
    let moves = view.index.moves(asked, true, Stretch::Latest, FEW_ROWS)?;
    let body = html! {
        h1 { "Wallet " code { (short(&asked)) } }
        p.digest-line { code.full { (asked) } }
        @if let Some(key) = view.index.key(asked)? { p { "Key: " code.full { (key) } } }
        dl.tiles {
            div { dt { "Posted, final" } dd { (amount(wallet.posted)) } }
            div { dt { "Pending, can be reversed" } dd { (amount(wallet.pending)) } }
            div { dt { "Bytes in receipts" } dd { (metered(wallet.metered)) } }
            div { dt { "Not settled yet" } dd { (metered(wallet.metered.saturating_sub(wallet.settled))) } }
            @if wallet.reversed > 0 { div { dt { "Reversed" } dd { (metered(wallet.reversed)) } } }
            div { dt { "Sessions" } dd { (grouped(wallet.sessions)) } }
        }
        (charts(view, asked, wallet.pending.saturating_add(wallet.posted))?)
        section aria-labelledby="receipts" {
            h2 #receipts { "Receipts " span.count { (grouped(wallet.receipts)) } }
            (receipt_table("receipts", &receipts, true))
            @if wallet.receipts > receipts.len() as u64 { p { a href={ "/receipts?wallet=" (asked) } { "All receipts" } } }
        }
        section aria-labelledby="settlements" {
            h2 #settlements { "Settlements " span.count { (grouped(wallet.settlements)) } }
            (settlement_table("settlements", &settled, true))
            @if wallet.settlements > settled.len() as u64 {
                p { a href={ "/settlements?wallet=" (asked) } { "All settlements" } }
            }
        }
        section aria-labelledby="moves" {
            h2 #moves { "Statement" }
            p { "Every move of this wallet's credit, and what it was after it." }
            (move_table("moves", &moves))
            @if moves.len() == FEW_ROWS as usize { p { a href={ "/wallet/" (asked) "/moves" } { "The whole statement" } } }
        }
        (named_by(view, &[asked])?)
    };
    Ok(view.page(format!("Wallet {}", short(&asked)), body))
}

fn charts(view: &View<'_>, owner: Hash, credit_now: i64) -> Result<Markup, Problem> {
    let today = view.now / DAY;
    let first = chart::first_day(today);
    let days = view.index.days(Some(owner), first, MOST_DAYS)?;
    let bytes: Vec<Value> =
        days.iter().filter(|day| day.bytes > 0).map(|day| Value { day: day.day, value: day.bytes }).collect();
    let changed: i64 = days.iter().fold(0, |sum, day| sum.saturating_add(day.credit));
    let before = credit_now.saturating_sub(changed);
    let mut credit = before;
    let mut line = Vec::new();
    for day in days.iter().filter(|day| day.credit != 0) {
        credit = credit.saturating_add(day.credit);
        line.push(Value { day: day.day, value: u64::try_from(credit).unwrap_or(0) });
    }
    let credit_words = Words { title: "Credit over time", value: "Credit at the end of the day", write: kvr };
    let bytes_words =
        Words { title: "Bytes a day", value: "Bytes", write: |bytes| format!("{} bytes", grouped(bytes)) };
    Ok(html! {
        div.charts {
            (chart::line(&credit_words, u64::try_from(before).unwrap_or(0), &line, today))
            (chart::bars(&bytes_words, &bytes, today))
        }
    })
}

/// `/wallet/<64 hex>/moves`
pub(super) async fn wallet_moves(
    State(explorer): State<Explorer>,
    path: Path<String>,
    query: Parameters,
) -> Result<Page, Problem> {
    moves(explorer, digest(&path)?, true, parameters(query)?).await
}

/// `/account/<64 hex>/moves`
pub(super) async fn account_moves(
    State(explorer): State<Explorer>,
    path: Path<String>,
    query: Parameters,
) -> Result<Page, Problem> {
    moves(explorer, digest(&path)?, false, parameters(query)?).await
}

async fn moves(explorer: Explorer, asked: Hash, wallet: bool, query: ListQuery) -> Result<Page, Problem> {
    let stretch = query.stretch()?;
    explorer
        .page(move |view| {
            let (word, page) = if wallet { ("Wallet", "wallet") } else { ("Account", "account") };
            let rows = view.index.moves(asked, wallet, stretch, PAGE_ROWS + 1)?;
            if rows.is_empty() && stretch == Stretch::Latest {
                return Err(Problem::unknown(format!("Nothing has moved in {page} {asked}.")));
            }
            let paged = Paged::new(stretch, rows, |row: &AccountMove| row.posting);
            let body = html! {
                h1 #title { "Statement of " (page) " " code { (short(&asked)) } }
                p.lead { a href={ "/" (page) "/" (asked) } { "Back to the " (page) } }
                (move_table("title", &paged.rows))
                (paged.links(&format!("/{page}/{asked}/moves?")))
            };
            Ok(view.page(format!("{word} {}", short(&asked)), body))
        })
        .await
}

fn move_table(heading: &str, moves: &[AccountMove]) -> Markup {
    html! {
        @if moves.is_empty() {
            p.empty { "Nothing has moved yet." }
        } @else {
            div.scroll role="region" aria-labelledby=(heading) tabindex="0" {
                table {
                    thead {
                        tr {
                            th scope="col" { "What" }
                            th.number scope="col" { "Change, KVR" }
                            th.number scope="col" { "Credit after, KVR" }
                            th.number scope="col" { "Entry" }
                            th scope="col" { "Time (UTC)" }
                        }
                    }
                    tbody {
                        @for row in moves {
                            tr {
                                td { (step(&row.step)) }
                                td.number { @if row.nanokvr == 0 { "–" } @else { (exact_kvr(row.nanokvr)) } }
                                td.number { (exact_kvr(row.after)) }
                                td.number { (entry_link(row.cause)) }
                                td { (moment(row.at)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// `/account/<64 hex>`
pub(super) async fn account(State(explorer): State<Explorer>, path: Path<String>) -> Result<Page, Problem> {
    let asked = digest(&path)?;
    explorer
        .page(move |view| {
            let Some(payer) = view.index.payer(asked)? else {
                return if view.index.mentions(asked)?.is_empty() {
                    Err(Problem::unknown(format!("No entry names account {asked}.")))
                } else {
                    Err(Problem::Elsewhere(format!("/digest/{asked}")))
                };
            };
            let receipts = named_entries(view, asked, ("receipt", "backbone"), Stretch::Latest, FEW_ROWS)?;
            let settled = view.index.entries_naming(asked, ("settle", "payer"), Stretch::Latest, FEW_ROWS)?;
            let settled = view.index.settlements(&settled)?;
            let moves = view.index.moves(asked, false, Stretch::Latest, FEW_ROWS)?;
            let body = html! {
                h1 { "Paying account " code { (short(&asked)) } }
                p.digest-line { code.full { (asked) } }
                @if let Some(key) = view.index.key(asked)? { p { "Key of its backbone: " code.full { (key) } } }
                dl.tiles {
                    div { dt { "Available" } dd { (amount(payer.available)) } }
                    div { dt { "Funded by the treasury" } dd { (amount(payer.funded)) } }
                    div { dt { "Paid to wallets" } dd { (amount(payer.funded.saturating_sub(payer.available))) } }
                }
                section aria-labelledby="moves" {
                    h2 #moves { "Statement" }
                    (move_table("moves", &moves))
                    @if moves.len() == FEW_ROWS as usize {
                        p { a href={ "/account/" (asked) "/moves" } { "The whole statement" } }
                    }
                }
                section aria-labelledby="settlements" {
                    h2 #settlements { "Settlements that it paid" }
                    (settlement_table("settlements", &settled, false))
                }
                section aria-labelledby="receipts" {
                    h2 #receipts { "Receipts that it pays for" }
                    (receipt_table("receipts", &receipts, false))
                }
                (named_by(view, &[asked])?)
            };
            Ok(view.page(format!("Account {}", short(&asked)), body))
        })
        .await
}
