//! The page of one entry: the note as it is, what it says, who signed it, what this page has checked; and the note alone.

use axum::extract::{Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use kvasir_merkle::{Hash, leaf_hash};
use kvasir_wire::account::{Price, Settlement, Statement};
use kvasir_wire::id::{parse_hex_32, sha256};
use kvasir_wire::key::PublicKey;
use kvasir_wire::note::Note;
use kvasir_wire::receipt::Receipt;
use maud::{Markup, html};

use super::frame::{Page, Problem, strict_headers};
use super::lists::state;
use super::named::named_by;
use super::published::place_of;
use super::question::number;
use super::show::{
    amount, entry_link, full_link, grouped, kind, link, meaning, metered, moment, page_of, stranger,
};
use super::signers::{Signer, Verdict, signers};
use super::{Explorer, View};
use crate::plain_text::printable;
use crate::store::Entry;

/// Conflicting receipts that one page shows.
const MAX_CONFLICTS: u32 = 8;
/// Lines of a note that are shown as fields; the note itself shows all.
const MAX_FIELDS: usize = 128;

/// `/entry/<number>`
pub(super) async fn entry(State(explorer): State<Explorer>, path: Path<String>) -> Result<Page, Problem> {
    let asked = number(&path)?;
    explorer.page(move |view| entry_page(view, &find(view, asked)?)).await
}

/// `/entry/<number>/note`: exactly the bytes that were signed and logged.
pub(super) async fn note(State(explorer): State<Explorer>, path: Path<String>) -> Result<Response, Problem> {
    let asked = number(&path)?;
    let note = explorer.page(move |view| Ok(find(view, asked)?.note)).await?;
    let disposition = HeaderValue::from_str(&format!("attachment; filename=\"entry-{asked}.note\""));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (header::CONTENT_DISPOSITION, disposition.unwrap_or(HeaderValue::from_static("attachment"))),
    ];
    Ok((strict_headers(), headers, note).into_response())
}

/// The entry, or that there is none.
pub(super) fn find(view: &View<'_>, asked: u64) -> Result<Entry, Problem> {
    view.ask(|answers| answers.entry(asked))?
        .ok_or_else(|| Problem::unknown(format!("There is no entry {} yet.", grouped(asked))))
}

fn entry_page(view: &View<'_>, entry: &Entry) -> Result<Page, Problem> {
    let note = Note::parse(entry.note.as_bytes()).ok();
    let signed_by = match &note {
        Some(note) => signers(view, note)?,
        None => Vec::new(),
    };
    let mut names = vec![entry.leaf, entry.id];
    let told = match &note {
        Some(note) => told(view, entry, note, &mut names)?,
        None => html! {},
    };
    let body = html! {
        p.eyebrow { "Entry " (grouped(entry.number)) }
        h1 { (kind(&entry.kind)) }
        p.lead { (meaning(&entry.kind)) }
        (told)
        @if let Some(note) = &note { (fields(note.text())) }
        section aria-labelledby="signed" {
            h2 #signed { "Who signed" }
            (signer_table(&signed_by))
        }
        section aria-labelledby="checked" {
            h2 #checked { "Checked for this page" }
            (checks(entry, note.as_ref(), &signed_by))
        }
        section aria-labelledby="place" {
            h2 #place { "Place in the log" }
            dl.fields {
                div { dt { "Entry" } dd { (entry.number) } }
                div { dt { "Received" } dd { (moment(entry.received)) } }
                div { dt { "Identity" } dd { code.full { (entry.id) } } }
                div { dt { "Leaf hash" } dd { code.full { (entry.leaf) } } }
                div { dt { "Root after it" } dd { code.full { (entry.root) } } }
                (place_of(view, entry.number))
            }
        }
        section aria-labelledby="note" {
            h2 #note { "The note, as it is" }
            pre.note tabindex="0" aria-labelledby="note" { (printable(&entry.note)) }
            p { a href={ "/entry/" (entry.number) "/note" } { "Download the note" } }
        }
        (conflicts(view, entry)?)
        (named_by(view, &names)?)
        nav.pages aria-label="Neighbouring entries" {
            @if let Some(before) = entry.number.checked_sub(1) { a rel="prev" href={ "/entry/" (before) } { "← Entry " (before) } }
            @if entry.number + 1 < view.index.total() {
                a rel="next" href={ "/entry/" (entry.number + 1) } { "Entry " (entry.number + 1) " →" }
            }
        }
    };
    Ok(view.page(format!("{} {}", kind(&entry.kind), entry.number), body))
}

/// What the note means beside what it says: sums, neighbours, what became of it.
fn told(view: &View<'_>, entry: &Entry, note: &Note, names: &mut Vec<Hash>) -> Result<Markup, Problem> {
    if let Ok(receipt) = Receipt::parse(note.text()) {
        let terms = &receipt.terms;
        let price = view.ask(|answers| answers.note(&terms.price)).ok();
        let price = price.and_then(|price| Note::parse(price.note.as_bytes()).ok());
        let worth = price
            .and_then(|price| Price::parse(price.text()).ok())
            .and_then(|price| price.per_byte.credit(receipt.billed()).ok());
        let (before, after) = view.ask(|answers| answers.neighbours(terms.session, receipt.seq))?;
        let settled = view.ask(|answers| answers.settled_by(terms.session, receipt.seq))?;
        return Ok(html! {
            dl.tiles {
                div { dt { "Session's bytes so far" } dd { (metered(receipt.billed().get())) } }
                @if let Some(worth) = worth { div { dt { "Worth" } dd { (amount(worth.get())) } } }
                div {
                    dt { "Settled" }
                    dd { @match settled { Some(entry) => { "by entry " (entry_link(entry)) }, None => "not yet" } }
                }
                div {
                    dt { "In its session" }
                    dd {
                        a href={ "/session/" (terms.session) } { "Receipt " (grouped(receipt.seq)) }
                        @if let Some(before) = before { " · before: " (entry_link(before)) }
                        @if let Some(after) = after { " · after: " (entry_link(after)) }
                    }
                }
            }
        });
    }
    if let Ok(settlement) = Settlement::parse(note.text()) {
        names.push(Hash(settlement.id().0));
        let row = view.index.settlements(&[entry.number])?;
        return Ok(html! {
            dl.tiles {
                div { dt { "Credited" } dd { (amount(settlement.amount.get())) } }
                div { dt { "For" } dd { (metered(settlement.bytes.get())) } }
                @if let Some(row) = row.first() { div { dt { "State" } dd { (state(row)) } } }
            }
        });
    }
    Ok(html! {})
}

/// The note's lines, each name and digest leading to its page.
fn fields(text: &str) -> Markup {
    html! {
        section aria-labelledby="says" {
            h2 #says { "What it says" }
            dl.fields {
                @for line in text.lines().skip(1).take(MAX_FIELDS) {
                    @let (field, value) = line.split_once(' ').unwrap_or((line, ""));
                    div { dt { (stranger(field)) } dd { (value_of(field, value)) } }
                }
            }
        }
    }
}

fn value_of(field: &str, value: &str) -> Markup {
    if let Ok(digest) = parse_hex_32(value) {
        return html! {
            @if digest == [0; 32] { "none" }
            @else if field == "nonce" || field == "work" { code.full { (value) } }
            @else { (full_link(page_of(field), &Hash(digest))) }
        };
    }
    if let Ok(key) = value.parse::<PublicKey>() {
        let digest = Hash(key.digest().0);
        return html! { code.full { (key) } " " small { (link(page_of(field), &digest)) } };
    }
    let mut words = value.split(' ');
    if field == "session"
        && let (Some(session), Some(from), Some(to), Some(bytes)) =
            (words.next(), words.next(), words.next(), words.next())
        && let Ok(session) = parse_hex_32(session)
    {
        return html! {
            (full_link("session", &Hash(session)))
            " receipts " (stranger(from)) " to " (stranger(to)) ", " (stranger(bytes)) " bytes"
        };
    }
    let number: Option<u64> = value.parse().ok().filter(|number: &u64| number.to_string() == value);
    match (field, number) {
        ("at" | "from" | "to" | "until" | "pending-until", Some(number)) => {
            html! { (moment(number)) " " small.exact { (number) } }
        }
        ("bytes" | "up" | "down", Some(number)) => metered(number),
        ("nanokvr" | "before" | "after", Some(number)) => amount(i64::try_from(number).unwrap_or(i64::MAX)),
        (_, Some(number)) => html! { (grouped(number)) },
        _ => html! { span.words { (stranger(value)) } },
    }
}

fn signer_table(signers: &[Signer]) -> Markup {
    html! {
        div.scroll role="region" aria-labelledby="signed" tabindex="0" {
            table {
                thead { tr { th scope="col" { "Name" } th scope="col" { "Key" } th scope="col" { "Signature" } } }
                tbody {
                    @for signer in signers {
                        tr {
                            th scope="row" { (stranger(&signer.name)) }
                            td {
                                @match &signer.verdict {
                                    Verdict::Holds(key) => (link("digest", key)),
                                    _ => { code { (signer.id) } " (id)" }
                                }
                            }
                            td {
                                @match signer.verdict {
                                    Verdict::Holds(_) => span.state.posted { "Verified" },
                                    Verdict::Fails => span.state.reversed { "Does not verify" },
                                    Verdict::KeyUnknown => "Key is in no entry; checked when it was accepted",
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn checks(entry: &Entry, note: Option<&Note>, signers: &[Signer]) -> Markup {
    let leaf = leaf_hash(entry.note.as_bytes()) == entry.leaf;
    let id = note.is_some_and(|note| sha256(&[note.text().as_bytes()]) == entry.id.0);
    let verified = signers.iter().filter(|signer| matches!(signer.verdict, Verdict::Holds(_))).count();
    let failed = signers.iter().filter(|signer| signer.verdict == Verdict::Fails).count();
    html! {
        ul.checks {
            (check(leaf, "The leaf hash is that of the note's bytes."))
            (check(id, "The identity is SHA-256 of the note's text."))
            (check(failed == 0 && verified == signers.len(), &format!(
                "{verified} of {} signatures were verified again with keys that the log holds.", signers.len()
            )))
        }
    }
}

fn check(holds: bool, words: &str) -> Markup {
    html! { li class=(if holds { "holds" } else { "open" }) { span.mark { @if holds { "Yes" } @else { "Not shown" } } " " (words) } }
}

fn conflicts(view: &View<'_>, entry: &Entry) -> Result<Markup, Problem> {
    let found = view.index.conflicts(entry.number, MAX_CONFLICTS)?;
    let mut notes = Vec::new();
    for (id, received) in found {
        if let Some(note) = view.ask(|answers| answers.conflict(id))? {
            notes.push((id, received, note));
        }
    }
    Ok(html! {
        @if !notes.is_empty() {
            section.conflicts aria-labelledby="conflicts" {
                h2 #conflicts { "Receipts that contradict this one" }
                p {
                    "They name the same session and the same place in it, bear three signatures, and say something else. This "
                    "entry stands; they are kept as evidence."
                }
                @for (id, received, note) in &notes {
                    details {
                        summary { code { (id) } ", received " (moment(*received)) }
                        pre.note tabindex="0" { (printable(note)) }
                    }
                }
            }
        }
    })
}
