//! Lists with pages: entries, receipts, settlements, wallets; and the tables that other pages show of them.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use kvasir_merkle::Hash;
use kvasir_wire::key::PublicKey;
use kvasir_wire::receipt::Receipt;
use maud::{Markup, html};

use super::frame::{Page, Problem};
use super::index::{MOST_RANKED, SettlementRow};
use super::question::{ListQuery, PAGE_ROWS, Paged, digest_text, parameters};
use super::show::{entry_link, exact_kvr, grouped, kind, link, meaning, moment, short, stranger};
use super::{Explorer, View};
use crate::store::{Entry, Stretch};

type Parameters = Result<Query<ListQuery>, QueryRejection>;

/// Longest summary of an entry.
const MAX_SUMMARY_CHARACTERS: usize = 60;
/// Longest name of a kind.
const MAX_KIND_CHARACTERS: usize = 32;

/// `/entries`
pub(super) async fn entries(State(explorer): State<Explorer>, query: Parameters) -> Result<Page, Problem> {
    let query = parameters(query)?;
    let stretch = query.stretch()?;
    let chosen = query.kind.filter(|kind| !kind.is_empty());
    if chosen.as_ref().is_some_and(|kind| !is_word(kind)) {
        return Err(Problem::unreadable(
            "That is no kind of note.",
            "Choose one from the list of all entries.",
        ));
    }
    explorer
        .page(move |view| {
            let rows = view.ask(|answers| answers.entries_page(chosen.as_deref(), stretch, PAGE_ROWS + 1))?;
            let paged = Paged::new(stretch, rows, |entry: &Entry| entry.number);
            let kinds = view.index.totals()?.kinds;
            let address = match &chosen {
                Some(kind) => format!("/entries?kind={kind}&"),
                None => "/entries?".to_owned(),
            };
            let body = html! {
                h1 #title { "Entries" @if let Some(chosen) = &chosen { ": " (kind(chosen)) } }
                p.lead {
                    @match &chosen {
                        Some(chosen) => (meaning(chosen)),
                        None => "Everything that was accepted, in one order.",
                    }
                }
                nav aria-label="Kinds of notes" {
                    ul.kinds {
                        li { a href="/entries" aria-current=[chosen.is_none().then_some("page")] { "All" } }
                        @for (name, count) in &kinds {
                            li {
                                a href={ "/entries?kind=" (name) }
                                    aria-current=[(chosen.as_ref() == Some(name)).then_some("page")] { (kind(name)) }
                                " " span.count { (grouped(*count)) }
                            }
                        }
                    }
                }
                (entry_table("title", &paged.rows))
                (paged.links(&address))
            };
            Ok(view.page("Entries", body))
        })
        .await
}

/// `/receipts`
pub(super) async fn receipts(State(explorer): State<Explorer>, query: Parameters) -> Result<Page, Problem> {
    let query = parameters(query)?;
    let stretch = query.stretch()?;
    let wallet = query.wallet.as_deref().map(digest_text).transpose()?;
    explorer
        .page(move |view| {
            let rows = match wallet {
                Some(wallet) => named_entries(view, wallet, ("receipt", "payee"), stretch, PAGE_ROWS + 1)?,
                None => view.ask(|answers| answers.entries_page(Some("receipt"), stretch, PAGE_ROWS + 1))?,
            };
            let paged = Paged::new(stretch, rows, |entry: &Entry| entry.number);
            let body = html! {
                h1 #title { "Receipts" }
                p.lead { (meaning("receipt")) " Bytes count up over a session; the latest receipt has them all." }
                (of_wallet(wallet))
                (receipt_table("title", &paged.rows, wallet.is_some()))
                (paged.links(&address("/receipts", wallet)))
            };
            Ok(view.page("Receipts", body))
        })
        .await
}

/// `/settlements`
pub(super) async fn settlements(
    State(explorer): State<Explorer>,
    query: Parameters,
) -> Result<Page, Problem> {
    let query = parameters(query)?;
    let stretch = query.stretch()?;
    let wallet = query.wallet.as_deref().map(digest_text).transpose()?;
    explorer
        .page(move |view| {
            let rows = match wallet {
                Some(wallet) => {
                    let found = view.index.entries_naming(wallet, ("settle", "payee"), stretch, PAGE_ROWS + 1)?;
                    view.index.settlements(&found)?
                }
                None => view.index.settlements_page(stretch, PAGE_ROWS + 1)?,
            };
            let paged = Paged::new(stretch, rows, |row: &SettlementRow| row.entry);
            let body = html! {
                h1 #title { "Settlements" }
                p.lead {
                    "Receipts, credited. For 24 hours the credit is pending and can be reversed as a whole; then it is "
                    "posted, which is final."
                }
                (of_wallet(wallet))
                (settlement_table("title", &paged.rows, wallet.is_some()))
                (paged.links(&address("/settlements", wallet)))
            };
            Ok(view.page("Settlements", body))
        })
        .await
}

/// `/wallets`
pub(super) async fn wallets(State(explorer): State<Explorer>, query: Parameters) -> Result<Page, Problem> {
    let page = parameters(query)?.page.unwrap_or(1);
    let last = MOST_RANKED / PAGE_ROWS;
    if page == 0 || page > last {
        let advice = format!(
            "This list has pages 1 to {last}. Search for a wallet's digest or key to find any other."
        );
        return Err(Problem::unreadable("There is no such page of this list.", advice));
    }
    explorer
        .page(move |view| {
            let skip = (page - 1) * PAGE_ROWS;
            let mut rows = view.index.wallets(skip, PAGE_ROWS + 1)?;
            let more = rows.len() > PAGE_ROWS as usize && page < last;
            rows.truncate(PAGE_ROWS as usize);
            let body = html! {
                h1 #title { "Wallets" }
                p.lead { "What each wallet has earned, the most first. A wallet is named by the digest of its key." }
                @if rows.is_empty() {
                    p.empty { "No wallet was named yet." }
                } @else {
                    div.scroll role="region" aria-labelledby="title" tabindex="0" {
                        table {
                            thead {
                                tr {
                                    th scope="col" { "Wallet" }
                                    th.number scope="col" { "Posted, KVR" }
                                    th.number scope="col" { "Pending, KVR" }
                                    th.number scope="col" { "Bytes in receipts" }
                                    th.number scope="col" { "Not settled yet" }
                                    th.number scope="col" { "Receipts" }
                                    th.number scope="col" { "Settlements" }
                                }
                            }
                            tbody {
                                @for wallet in &rows {
                                    tr {
                                        th scope="row" { (link("wallet", &wallet.digest)) }
                                        td.number { (exact_kvr(wallet.posted)) }
                                        td.number { (exact_kvr(wallet.pending)) }
                                        td.number { (grouped(wallet.metered)) }
                                        td.number { (grouped(wallet.metered.saturating_sub(wallet.settled))) }
                                        td.number { (grouped(wallet.receipts)) }
                                        td.number { (grouped(wallet.settlements)) }
                                    }
                                }
                            }
                        }
                    }
                }
                @if page > 1 || more {
                    nav.pages aria-label="Pages of this list" {
                        @if page > 1 { a rel="prev" href={ "/wallets?page=" (page - 1) } { "← Richer" } }
                        @if more { a rel="next" href={ "/wallets?page=" (page + 1) } { "Next →" } }
                    }
                }
            };
            Ok(view.page("Wallets", body))
        })
        .await
}

/// Entries that name a digest in a field.
pub(super) fn named_entries(
    view: &View<'_>,
    digest: Hash,
    field: (&str, &str),
    stretch: Stretch,
    limit: u32,
) -> Result<Vec<Entry>, Problem> {
    let found = view.index.entries_naming(digest, field, stretch, limit)?;
    Ok(view.ask(|answers| answers.entries_numbered(&found))?)
}

/// A table of entries of any kind.
pub(super) fn entry_table(heading: &str, entries: &[Entry]) -> Markup {
    html! {
        @if entries.is_empty() {
            p.empty { "Nothing yet." }
        } @else {
            div.scroll role="region" aria-labelledby=(heading) tabindex="0" {
                table {
                    thead {
                        tr {
                            th.number scope="col" { "Entry" }
                            th scope="col" { "Kind" }
                            th scope="col" { "Says" }
                            th scope="col" { "Received (UTC)" }
                            th scope="col" { "Identity" }
                        }
                    }
                    tbody {
                        @for entry in entries {
                            tr {
                                th.number scope="row" { (entry_link(entry.number)) }
                                td { (kind(&entry.kind)) }
                                td { (summary(entry)) }
                                td { (moment(entry.received)) }
                                td { code.digest title=(entry.id) { (short(&entry.id)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A table of receipts; without the wallet's column where all are one wallet's.
pub(super) fn receipt_table(heading: &str, entries: &[Entry], one_wallet: bool) -> Markup {
    html! {
        @if entries.is_empty() {
            p.empty { "No receipts." }
        } @else {
            div.scroll role="region" aria-labelledby=(heading) tabindex="0" {
                table {
                    thead {
                        tr {
                            th.number scope="col" { "Entry" }
                            th.number scope="col" { "Bytes so far" }
                            th scope="col" { "Session" }
                            th.number scope="col" { "Seq" }
                            th scope="col" { "Cut (UTC)" }
                            @if !one_wallet { th scope="col" { "Wallet" } }
                            th scope="col" { "Worker" }
                            th.number scope="col" { "Calls so far" }
                        }
                    }
                    tbody {
                        @for entry in entries {
                            tr {
                                th.number scope="row" { (entry_link(entry.number)) }
                                @match receipt_of(entry) {
                                    Some(receipt) => {
                                        td.number { (grouped(receipt.billed().get())) }
                                        td { (link("session", &Hash(receipt.terms.session.0))) }
                                        td.number { (grouped(receipt.seq)) @if receipt.is_final { " (last)" } }
                                        td { (moment(receipt.to)) }
                                        @if !one_wallet { td { (link("wallet", &Hash(receipt.terms.payee.0))) } }
                                        td { (link("digest", &Hash(receipt.terms.worker.0))) }
                                        td.number { (grouped(receipt.counters.calls)) }
                                    }
                                    None => td colspan="7" { "cannot be read" },
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A table of settlements; without the wallet's column where all are one wallet's.
pub(super) fn settlement_table(heading: &str, rows: &[SettlementRow], one_wallet: bool) -> Markup {
    html! {
        @if rows.is_empty() {
            p.empty { "No settlements." }
        } @else {
            div.scroll role="region" aria-labelledby=(heading) tabindex="0" {
                table {
                    thead {
                        tr {
                            th.number scope="col" { "Entry" }
                            th.number scope="col" { "KVR" }
                            th scope="col" { "State" }
                            th.number scope="col" { "Bytes" }
                            th scope="col" { "Made (UTC)" }
                            @if !one_wallet { th scope="col" { "Wallet" } }
                            th scope="col" { "Paid by" }
                        }
                    }
                    tbody {
                        @for row in rows {
                            tr {
                                th.number scope="row" { (entry_link(row.entry)) }
                                td.number { (exact_kvr(row.nanokvr)) }
                                td { (state(row)) }
                                td.number { (grouped(row.bytes)) }
                                td { (moment(row.at)) }
                                @if !one_wallet { td { (link("wallet", &row.payee)) } }
                                td { (link("account", &row.payer)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// What became of a settlement.
pub(super) fn state(row: &SettlementRow) -> Markup {
    html! {
        @match row.state.as_str() {
            "pending" => { span.state.pending { "Pending" } " until " (moment(row.pending_until)) }
            "posted" => span.state.posted { "Posted" },
            "reversed" => span.state.reversed { "Reversed" },
            other => (other),
        }
    }
}

/// What an entry says, in a few words.
fn summary(entry: &Entry) -> Markup {
    if let Some(receipt) = receipt_of(entry) {
        return html! { (grouped(receipt.billed().get())) " bytes so far" };
    }
    let text = entry.note.rsplit_once("\n\n").map_or("", |(text, _)| text);
    let value = |name: &str| {
        text.lines()
            .skip(1)
            .find_map(|line| line.split_once(' ').filter(|(field, _)| *field == name))
            .map(|(_, value)| value)
    };
    let amount = || value("nanokvr").and_then(|amount| amount.parse().ok()).map(exact_kvr);
    let said = match entry.kind.as_str() {
        "settle" | "fund" => amount().map(|amount| format!("{amount} KVR")),
        "price" => value("nanokvr-per-byte").map(|price| format!("{price} nanoKVR a byte")),
        "grant" => value("bytes")
            .and_then(|bytes| bytes.parse::<u64>().ok())
            .map(|bytes| format!("up to {} bytes", grouped(bytes))),
        "delegate" => value("wallet")
            .and_then(|key| key.parse::<PublicKey>().ok())
            .map(|key| format!("a worker earns for {}", short(&Hash(key.digest().0)))),
        _ => ["measure", "verdict", "role", "reason"].iter().find_map(|name| value(name)).map(str::to_owned),
    };
    let mut said = stranger(&said.unwrap_or_default());
    if said.chars().count() > MAX_SUMMARY_CHARACTERS {
        said = said.chars().take(MAX_SUMMARY_CHARACTERS).chain(['…']).collect();
    }
    html! { span.words { (said) } }
}

/// The receipt in an entry.
pub(super) fn receipt_of(entry: &Entry) -> Option<Receipt> {
    let (text, _) = entry.note.rsplit_once("\n\n")?;
    Receipt::parse(&format!("{text}\n")).ok()
}

fn of_wallet(wallet: Option<Hash>) -> Markup {
    html! {
        @if let Some(wallet) = wallet {
            p { "Of wallet " (link("wallet", &wallet)) " only." }
        }
    }
}

fn address(list: &str, wallet: Option<Hash>) -> String {
    match wallet {
        Some(wallet) => format!("{list}?wallet={wallet}&"),
        None => format!("{list}?"),
    }
}

/// A kind's or a field's name.
pub(super) fn is_word(text: &str) -> bool {
    text.len() <= MAX_KIND_CHARACTERS
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}
