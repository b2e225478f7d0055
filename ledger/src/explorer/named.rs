//! What a digest names: search, the page about a digest, the page about a session.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use kvasir_merkle::Hash;
use kvasir_wire::id::{SessionId, parse_hex_32};
use kvasir_wire::key::PublicKey;
use maud::{Markup, html};

use super::frame::{Page, Problem};
use super::index::{Counted, Mention, Named};
use super::lists::{entry_table, is_word, named_entries, receipt_of, receipt_table, settlement_table};
use super::question::{
    FEW_ROWS, ListQuery, MAX_SEARCH_CHARACTERS, MIN_SEARCH_DIGITS, PAGE_ROWS, Paged, SearchQuery,
    digest_text, parameters,
};
use super::show::{entry_link, full_link, grouped, kind, link, metered, moment, page_of, short, stranger};
use super::{Explorer, View};
use crate::store::{Entry, Stretch};

/// Matches of one sort that a search shows.
const MAX_MATCHES: u32 = 20;

/// `/search`
pub(super) async fn search(
    State(explorer): State<Explorer>,
    query: Result<Query<SearchQuery>, QueryRejection>,
) -> Result<Page, Problem> {
    let asked = parameters(query)?.q.unwrap_or_default();
    let asked = asked.trim().to_owned();
    if asked.is_empty() {
        return Err(Problem::unreadable("Nothing was searched for.", ADVICE));
    }
    if asked.chars().count() > MAX_SEARCH_CHARACTERS {
        let what = format!("A search has at most {MAX_SEARCH_CHARACTERS} characters.");
        return Err(Problem::unreadable(what, ADVICE));
    }
    explorer.page(move |view| find(view, &asked)).await
}

const ADVICE: &str = "Search for an entry's number, for a digest or its first 8 or more hexadecimal digits, or for a key \
                      written ed25519:… Any digest that a note names is found: receipts, leaves, sessions, wallets, \
                      workers, settlements, plugins, models.";

fn find(view: &View<'_>, asked: &str) -> Result<Page, Problem> {
    let mut entry = None;
    if let Ok(number) = asked.replace(',', "").parse::<u64>() {
        entry = view.ask(|answers| answers.entry(number))?;
    }
    let digits = match asked.parse::<PublicKey>() {
        Ok(key) => key.digest().to_string(),
        Err(_) => asked.to_lowercase(),
    };
    let (mut by_id, mut by_leaf, mut names) = (Vec::new(), Vec::new(), Vec::new());
    if let Some((from, to)) = range(&digits) {
        (by_id, by_leaf) = view.ask(|answers| answers.entries_between(from, to, MAX_MATCHES))?;
        names = view.index.names_between(from, to, MAX_MATCHES)?;
    } else if entry.is_none() && !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::unreadable(format!("“{}” cannot be searched for.", stranger(asked)), ADVICE));
    }
    let mut places: Vec<String> = entry.iter().map(|entry| format!("/entry/{}", entry.number)).collect();
    places.extend(by_id.iter().chain(&by_leaf).map(|(number, _)| format!("/entry/{number}")));
    // What an entry is found by itself is named by others too; its page says where.
    let entries_found: Vec<Hash> = if by_id.is_empty() && by_leaf.is_empty() {
        Vec::new()
    } else {
        parse_hex_32(&digits).map(Hash).into_iter().collect()
    };
    names.retain(|name| !entries_found.contains(&name.digest));
    places.extend(names.iter().map(place));
    places.dedup();
    match &places[..] {
        [only] => return Err(Problem::Elsewhere(only.clone())),
        [] => {
            return Err(Problem::Question(
                axum::http::StatusCode::NOT_FOUND,
                format!("Nothing here is called “{}”.", stranger(asked)),
                ADVICE.to_owned(),
            ));
        }
        _ => {}
    }
    let body = html! {
        h1 { "Search" }
        p.lead { "Found for “" (stranger(asked)) "”:" }
        ul.found {
            @if let Some(entry) = &entry {
                li { "Entry " (entry_link(entry.number)) ": " (kind(&entry.kind)) }
            }
            @for (number, found) in &by_id {
                li { "Identity of entry " (entry_link(*number)) ": " (kind(found)) }
            }
            @for (number, found) in &by_leaf {
                li { "Leaf of entry " (entry_link(*number)) ": " (kind(found)) }
            }
            @for name in &names {
                li {
                    (link(page(name), &name.digest)) " "
                    span.muted { (fields(&name.fields)) }
                }
            }
        }
        p.muted { "At most " (MAX_MATCHES) " of each sort; more digits find fewer." }
    };
    Ok(view.page("Search", body))
}

/// The digests that begin with these hexadecimal digits.
fn range(digits: &str) -> Option<([u8; 32], [u8; 32])> {
    let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if !hexadecimal || !(MIN_SEARCH_DIGITS..=64).contains(&digits.len()) {
        return None;
    }
    let filled = |with: &str| parse_hex_32(&format!("{digits}{}", with.repeat(64 - digits.len()))).ok();
    Some((filled("0")?, filled("f")?))
}

fn place(name: &Named) -> String {
    format!("/{}/{}", page(name), name.digest)
}

/// The page that tells most about a name: one of its own where all fields agree on it.
fn page(name: &Named) -> &'static str {
    let mut pages = name.fields.iter().map(|(_, field)| page_of(field));
    let first = pages.next().unwrap_or("digest");
    if pages.all(|page| page == first) { first } else { "digest" }
}

fn fields(fields: &[(String, String)]) -> String {
    let words: Vec<String> =
        fields.iter().map(|(of, field)| format!("{field} of a {}", kind(of).to_lowercase())).collect();
    words.join(", ")
}

/// `/digest/<64 hex>`
pub(super) async fn digest(
    State(explorer): State<Explorer>,
    path: Path<String>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Page, Problem> {
    let (digest, query) = (digest_text(&path.0)?, parameters(query)?);
    let stretch = query.stretch()?;
    let within = match query.within.as_deref() {
        None => None,
        Some(text) => match text.split_once('.') {
            Some((kind, field)) if is_word(kind) && is_word(field) => {
                Some((kind.to_owned(), field.to_owned()))
            }
            _ => {
                let advice = "`in` is a kind of note and a field, with a point between.";
                return Err(Problem::unreadable("There is no such list.", advice));
            }
        },
    };
    explorer
        .page(move |view| match &within {
            Some((of, field)) => naming(view, digest, (of, field), stretch),
            None => about(view, digest),
        })
        .await
}

fn naming(view: &View<'_>, digest: Hash, field: (&str, &str), stretch: Stretch) -> Result<Page, Problem> {
    let rows = named_entries(view, digest, field, stretch, PAGE_ROWS + 1)?;
    let paged = Paged::new(stretch, rows, |entry: &Entry| entry.number);
    let body = html! {
        h1 #title { (kind(field.0)) ": " (field.1) " " code { (short(&digest)) } }
        p.lead { "Entries of this kind that name " (full_link(page_of(field.1), &digest)) " as " (field.1) "." }
        @if field.0 == "receipt" { (receipt_table("title", &paged.rows, false)) } @else { (entry_table("title", &paged.rows)) }
        (paged.links(&format!("/digest/{digest}?in={}.{}&", field.0, field.1)))
    };
    Ok(view.page("Digest", body))
}

fn about(view: &View<'_>, digest: Hash) -> Result<Page, Problem> {
    let (by_id, by_leaf) = view.ask(|answers| answers.entries_between(digest.0, digest.0, 1))?;
    if let Some((number, _)) = by_id.first().or(by_leaf.first()) {
        return Err(Problem::Elsewhere(format!("/entry/{number}")));
    }
    let mentions = view.index.mentions(digest)?;
    if mentions.is_empty() {
        return Err(Problem::unknown(format!("No entry names {digest}.")));
    }
    if mentions.iter().any(|mention| (mention.kind.as_str(), mention.field.as_str()) == ("settle", "id"))
        && let [entry] = view.index.entries_naming(digest, ("settle", "id"), Stretch::Latest, 1)?[..]
    {
        return Err(Problem::Elsewhere(format!("/entry/{entry}")));
    }
    let key = view.index.key(digest)?;
    let body = html! {
        h1 { "Digest " code { (short(&digest)) } }
        p.digest-line { code.full { (digest) } }
        @if let Some(key) = key { p { "Digest of the key " code.full { (key) } } }
        ul.links {
            @for page in ["wallet", "account", "session"] {
                @if mentions.iter().any(|mention| page_of(&mention.field) == page) {
                    li { a href={ "/" (page) "/" (digest) } { "Its page as " (page) } }
                }
            }
        }
        @for mention in &mentions { (mentioned(view, digest, mention)?) }
    };
    Ok(view.page("Digest", body))
}

fn mentioned(view: &View<'_>, digest: Hash, mention: &Mention) -> Result<Markup, Problem> {
    let Mention { kind: of, field, count } = mention;
    let rows = named_entries(view, digest, (of, field), Stretch::Latest, FEW_ROWS)?;
    let heading = format!("in-{of}-{field}");
    Ok(html! {
        section aria-labelledby=(heading) {
            h2 id=(heading) { (kind(of)) ": " (field) " " span.count { (counted(*count)) } }
            @if of == "receipt" { (receipt_table(&heading, &rows, false)) } @else { (entry_table(&heading, &rows)) }
            @if *count != Counted::Exactly(rows.len() as u64) {
                p { a href={ "/digest/" (digest) "?in=" (of) "." (field) } { "All of them" } }
            }
        }
    })
}

/// Where a digest is named, for the foot of another page.
pub(super) fn named_by(view: &View<'_>, digests: &[Hash]) -> Result<Markup, Problem> {
    let mut found = Vec::new();
    for digest in digests {
        for mention in view.index.mentions(*digest)? {
            found.push((*digest, mention));
        }
    }
    Ok(html! {
        @if !found.is_empty() {
            section aria-labelledby="named-by" {
                h2 #named-by { "Named by" }
                ul.found {
                    @for (digest, mention) in &found {
                        li {
                            a href={ "/digest/" (digest) "?in=" (mention.kind) "." (mention.field) } {
                                (kind(&mention.kind)) ": " (mention.field)
                            }
                            " " span.count { (counted(mention.count)) }
                        }
                    }
                }
            }
        }
    })
}

fn counted(count: Counted) -> String {
    match count {
        Counted::Exactly(count) => grouped(count),
        Counted::MoreThan(count) => format!("more than {}", grouped(count)),
    }
}

/// `/session/<64 hex>`
pub(super) async fn session(
    State(explorer): State<Explorer>,
    path: Path<String>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Page, Problem> {
    let (asked, query) = (digest_text(&path.0)?, parameters(query)?);
    let stretch = query.stretch()?;
    explorer.page(move |view| session_page(view, asked, stretch)).await
}

fn session_page(view: &View<'_>, asked: Hash, stretch: Stretch) -> Result<Page, Problem> {
    let sums = view.index.session(asked)?;
    let session = SessionId(asked.0);
    let rows = view.ask(|answers| answers.session_page(session, stretch, PAGE_ROWS + 1))?;
    let latest = view.ask(|answers| answers.session_page(session, Stretch::Latest, 1))?;
    let Some(latest) = latest.first().and_then(receipt_of) else {
        // A grant may name a session that has no receipt yet.
        return if view.index.mentions(asked)?.is_empty() {
            Err(Problem::unknown(format!("No receipt of session {asked} is kept here.")))
        } else {
            Err(Problem::Elsewhere(format!("/digest/{asked}")))
        };
    };
    let rows =
        rows.into_iter().filter_map(|entry| receipt_of(&entry).map(|receipt| (entry, receipt))).collect();
    let paged = Paged::new(stretch, rows, |(_, receipt)| receipt.seq);
    let settled = view.index.entries_naming(asked, ("settle", "session"), Stretch::Latest, FEW_ROWS)?;
    let settled = view.index.settlements(&settled)?;
    let terms = &latest.terms;
    let body = html! {
        h1 { "Session " code { (short(&asked)) } }
        p.digest-line { code.full { (asked) } }
        dl.tiles {
            div { dt { "Bytes billed" } dd { (metered(latest.billed().get())) } }
            @if let Some(sums) = &sums {
                div { dt { "Settled" } dd { (metered(sums.settled)) } }
                div { dt { "Receipts kept" } dd { (grouped(sums.receipts)) } }
            }
            div { dt { "Calls" } dd { (grouped(latest.counters.calls)) } }
            div { dt { "State" } dd { @if latest.is_final { "Ended" } @else { "Open, or ended without a last receipt" } } }
        }
        section aria-labelledby="terms" {
            h2 #terms { "Terms" }
            dl.fields {
                div { dt { "Wallet" } dd { (full_link("wallet", &Hash(terms.payee.0))) } }
                div { dt { "Worker" } dd { (full_link("digest", &Hash(terms.worker.0))) } }
                div { dt { "Backbone, pays" } dd { (full_link("account", &Hash(terms.backbone.0))) } }
                div { dt { "Hub" } dd { (full_link("digest", &Hash(terms.hub.0))) } }
                div { dt { "Model" } dd { (full_link("digest", &Hash(terms.model.0))) } }
                div { dt { "Plugin" } dd { (full_link("digest", &Hash(terms.plugin.0))) } }
                div { dt { "Answers" } dd { (terms.class.name()) } }
                div { dt { "Grant" } dd { (full_link("digest", &terms.grant)) } }
                div { dt { "Price" } dd { (full_link("digest", &terms.price)) } }
                div { dt { "From" } dd { (moment(terms.from)) } }
                div { dt { "To" } dd { (moment(latest.to)) } }
            }
        }
        section aria-labelledby="receipts" {
            h2 #receipts { "Receipts" }
            div.scroll role="region" aria-labelledby="receipts" tabindex="0" {
                table {
                    thead {
                        tr {
                            th.number scope="col" { "Seq" }
                            th.number scope="col" { "Entry" }
                            th.number scope="col" { "Bytes so far" }
                            th scope="col" { "Cut (UTC)" }
                            th.number scope="col" { "Up" }
                            th.number scope="col" { "Down" }
                            th.number scope="col" { "Calls" }
                            th.number scope="col" { "Rows" }
                        }
                    }
                    tbody {
                        @for (entry, receipt) in &paged.rows {
                            tr {
                                th.number scope="row" { (grouped(receipt.seq)) @if receipt.is_final { " (last)" } }
                                td.number { (entry_link(entry.number)) }
                                td.number { (grouped(receipt.billed().get())) }
                                td { (moment(receipt.to)) }
                                td.number { (grouped(receipt.counters.up.get())) }
                                td.number { (grouped(receipt.counters.down.get())) }
                                td.number { (grouped(receipt.counters.calls)) }
                                td.number { (grouped(receipt.counters.rows)) }
                            }
                        }
                    }
                }
            }
            (paged.links(&format!("/session/{asked}?")))
        }
        section aria-labelledby="settlements" {
            h2 #settlements { "Settlements" }
            (settlement_table("settlements", &settled, true))
            @if settled.len() == FEW_ROWS as usize {
                p { a href={ "/digest/" (asked) "?in=settle.session" } { "All of them" } }
            }
        }
        (named_by(view, &[asked])?)
    };
    Ok(view.page("Session", body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_digest_is_a_range_and_less_is_nothing() {
        let (from, to) = range("abcdef01").unwrap();
        assert_eq!((from[..4].to_vec(), from[4..].to_vec()), (vec![0xab, 0xcd, 0xef, 1], vec![0; 28]));
        assert_eq!((to[..4].to_vec(), to[4..].to_vec()), (vec![0xab, 0xcd, 0xef, 1], vec![255; 28]));
        let whole = "0f".repeat(32);
        assert_eq!(range(&whole), Some(([0x0f; 32], [0x0f; 32])));
        for unreadable in
            ["", "abcdef0", "abcdefg0", "ABCDEF01", &format!("{whole}0"), "ab cdef01", "é1234567"]
        {
            assert_eq!(range(unreadable), None, "{unreadable}");
        }
    }
}
