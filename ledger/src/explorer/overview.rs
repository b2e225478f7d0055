//! The first page.

use axum::extract::State;
use maud::{Markup, html};

use super::chart::{self, Value, Words};
use super::frame::{Page, Problem};
use super::index::DAY;
use super::lists::entry_table;
use super::question::FEW_ROWS;
use super::show::{amount, exact_kvr, grouped, kind, metered};
use super::{Explorer, View};
use crate::store::Stretch;

/// `/`
pub(super) async fn overview(State(explorer): State<Explorer>) -> Result<Page, Problem> {
    explorer
        .page(|view| {
            let totals = view.index.totals()?;
            let latest = view.ask(|answers| answers.entries_page(None, Stretch::Latest, FEW_ROWS))?;
            let body = html! {
                h1 { "Ledger of " (view.inner.network) }
                p.lead {
                    "Receipts for bytes that workers served, and the credit that settlements move for them. Every line "
                    "below is a note that somebody signed."
                }
                dl.tiles {
                    div { dt { "Entries" } dd { (grouped(view.index.total())) } }
                    div { dt { "Wallets" } dd { a href="/wallets" { (grouped(totals.wallets)) } } }
                    div { dt { "Bytes in receipts" } dd { (metered(totals.metered)) } }
                    div { dt { "Credit, final" } dd { (amount(totals.posted)) } }
                    div { dt { "Credit, pending" } dd { (amount(totals.pending)) } }
                }
                (charts(view)?)
                section aria-labelledby="latest" {
                    h2 #latest { "Latest entries" }
                    (entry_table("latest", &latest))
                    p { a href="/entries" { "All entries" } }
                }
                section aria-labelledby="kinds" {
                    h2 #kinds { "By kind" }
                    ul.kinds {
                        @for (name, count) in &totals.kinds {
                            li { a href={ "/entries?kind=" (name) } { (kind(name)) } " " span.count { (grouped(*count)) } }
                        }
                    }
                }
            };
            Ok(view.page("Overview", body))
        })
        .await
}

fn charts(view: &View<'_>) -> Result<Markup, Problem> {
    let today = view.now / DAY;
    let first = chart::first_day(today);
    let days = view.index.days(None, first, 2 * u32::try_from(chart::DAYS).unwrap_or(60))?;
    let bytes: Vec<Value> = days.iter().map(|day| Value { day: day.day, value: day.bytes }).collect();
    let credit: Vec<Value> = days
        .iter()
        .map(|day| Value { day: day.day, value: u64::try_from(day.credit).unwrap_or(0) })
        .collect();
    let bytes_words =
        Words { title: "Bytes a day", value: "Bytes", write: |bytes| format!("{} bytes", grouped(bytes)) };
    let credit_words = Words { title: "Credited a day", value: "KVR", write: kvr };
    Ok(html! {
        div.charts {
            (chart::bars(&bytes_words, &bytes, today))
            (chart::bars(&credit_words, &credit, today))
        }
    })
}

/// An amount of nanoKVR for a chart.
pub(super) fn kvr(nanokvr: u64) -> String {
    format!("{} KVR", exact_kvr(i64::try_from(nanokvr).unwrap_or(i64::MAX)))
}
