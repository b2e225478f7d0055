//! How single values look: digests, amounts, times, text from strangers. Every function gives escaped HTML.

use kvasir_merkle::Hash;
use kvasir_wire::money::{MeteredBytes, NanoKvr};
use maud::{Markup, html};

use crate::calendar::day_and_time;
use crate::plain_text::one_line;

/// Longest value of an unknown field that a table shows whole; the note itself follows below it.
const MAX_SHOWN: usize = 600;

/// Text from a note: escaped by the template, and no character of it may turn the reading direction around or break
/// the line.
pub(super) fn stranger(text: &str) -> String {
    let mut shown: String = one_line(text).chars().take(MAX_SHOWN).collect();
    if shown.len() < text.len() && text.chars().count() > MAX_SHOWN {
        shown.push('…');
    }
    shown
}

/// 1,277,952.
pub(super) fn grouped(number: impl Into<i128>) -> String {
    let number: i128 = number.into();
    let digits = number.unsigned_abs().to_string();
    let mut shown = String::with_capacity(digits.len() * 4 / 3 + 1);
    if number < 0 {
        shown.push('−');
    }
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// An amount, exact to its last digit: 0.008945664.
pub(super) fn exact_kvr(nanokvr: i64) -> String {
    let (whole, rest) = (nanokvr.unsigned_abs() / 1_000_000_000, nanokvr.unsigned_abs() % 1_000_000_000);
    let sign = if nanokvr < 0 { "−" } else { "" };
    format!("{sign}{}.{rest:09}", grouped(whole))
}

/// An amount as people read it, with the exact one below it.
pub(super) fn amount(nanokvr: i64) -> Markup {
    html! {
        span.amount { (NanoKvr::new(nanokvr).kvr()) }
        " " small.exact { (grouped(nanokvr)) " nanoKVR" }
    }
}

/// Metered bytes, with the units that are paid for.
pub(super) fn metered(bytes: u64) -> Markup {
    html! {
        (grouped(bytes)) " "
        small.exact { "bytes" @if let Ok(bytes) = MeteredBytes::new(bytes) { ", " (bytes.units()) " units" } }
    }
}

/// A point in time: UTC for people, the same for programs.
pub(super) fn moment(seconds: u64) -> Markup {
    let Some((day, time)) = day_and_time(seconds) else { return html! { (seconds) } };
    html! { time datetime={ (day) "T" (time) "Z" } { (day) " " (time) } }
}

/// The date of a day that is counted from 1970: `2026-09-21`.
pub(super) fn day(day: u64) -> String {
    day_and_time(day.saturating_mul(super::index::DAY)).map_or_else(|| day.to_string(), |(day, _)| day)
}

/// The beginning and the end of a digest: enough to know it again.
pub(super) fn short(digest: &Hash) -> String {
    let text = digest.to_string();
    let (head, tail) = (text.get(..8).unwrap_or(&text), text.get(60..).unwrap_or_default());
    format!("{head}…{tail}")
}

/// A digest that leads to its page.
pub(super) fn link(page: &str, digest: &Hash) -> Markup {
    html! { a.digest href={ "/" (page) "/" (digest) } title=(digest) { (short(digest)) } }
}

/// A digest in full that leads to its page.
pub(super) fn full_link(page: &str, digest: &Hash) -> Markup {
    html! { a.digest.full href={ "/" (page) "/" (digest) } { (digest) } }
}

/// An entry's number that leads to its page.
pub(super) fn entry_link(number: u64) -> Markup {
    html! { a href={ "/entry/" (number) } { (grouped(number)) } }
}

/// The page that tells most about what a field names.
pub(super) fn page_of(field: &str) -> &'static str {
    match field {
        "session" => "session",
        "payee" | "wallet" => "wallet",
        "payer" | "backbone" | "account" => "account",
        _ => "digest",
    }
}

/// A kind of note in one word for people.
pub(super) fn kind(kind: &str) -> &str {
    match kind {
        "receipt" => "Receipt",
        "settle" => "Settlement",
        "price" => "Price",
        "grant" => "Grant",
        "fund" => "Funding",
        "delegate" => "Delegation",
        "correct" => "Correction",
        "key" => "Key",
        "origin" => "Origin",
        "audit" => "Audit verdict",
        "penalty" => "Penalty",
        "appeal" => "Appeal",
        other => other,
    }
}

/// What a kind of note says, and who signs it.
pub(super) fn meaning(kind: &str) -> &'static str {
    match kind {
        "receipt" => "What a session has served so far. Signed by hub, worker and backbone.",
        "settle" => "Receipts are credited to a wallet. Signed by a settler.",
        "price" => "What a metered byte costs from a time on. Signed by the treasury.",
        "grant" => "Sessions may be billed to a backbone's account. Signed by the backbone.",
        "fund" => "Credit for a paying account. Signed by the treasury.",
        "delegate" => "A worker's key earns for a wallet. Signed by the wallet.",
        "correct" => "A pending settlement is reversed, and why. Signed by the treasury.",
        "key" => "A key that the ledger believes from here on, or no longer. Signed by the ledger.",
        "origin" => "The log that this one continues after a restore. Signed by the ledger.",
        "audit" => "What an auditor found when work was computed again. Signed by the auditor.",
        "penalty" => "A measure against a worker, its reason and its evidence. Signed by the treasury.",
        "appeal" => "A worker's answer to a penalty. Signed by the worker.",
        _ => "A signed note.",
    }
}

/// What a posting did, for people.
pub(super) fn step(step: &str) -> &str {
    match step {
        "fund" => "Funded",
        "settle" => "Settled, pending",
        "post" => "Posted, final",
        "reverse" => "Reversed",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_and_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_277_952), "1,277,952");
        assert_eq!(grouped(i64::MIN), "−9,223,372,036,854,775,808");
        assert_eq!(exact_kvr(8_945_664), "0.008945664");
        assert_eq!(exact_kvr(-1_000_000_001), "−1.000000001");
        assert_eq!(exact_kvr(i64::MAX), "9,223,372,036.854775807");
    }

    #[test]
    fn times_are_utc_and_absurd_ones_are_shown_as_numbers() {
        assert_eq!(
            moment(1_790_000_009).into_string(),
            "<time datetime=\"2026-09-21T14:13:29Z\">2026-09-21 14:13:29</time>"
        );
        assert_eq!(
            moment(0).into_string(),
            "<time datetime=\"1970-01-01T00:00:00Z\">1970-01-01 00:00:00</time>"
        );
        assert_eq!(moment(u64::MAX).into_string(), u64::MAX.to_string());
        assert_eq!(moment(i64::MAX as u64).into_string(), i64::MAX.to_string());
        assert_eq!(day(20_717), "2026-09-21");
    }

    #[test]
    fn text_of_strangers_is_bounded_and_keeps_its_direction() {
        assert_eq!(stranger("a\u{202e}b\u{2066}"), "a\\u{202e}b\\u{2066}");
        assert_eq!(stranger(&"x".repeat(5_000)).chars().count(), MAX_SHOWN + 1);
        let shown = html! { (stranger("<script>alert(1)</script>&\"'")) }.into_string();
        assert!(!shown.contains('<') && shown.contains("&lt;script&gt;"), "{shown}");
    }
}
