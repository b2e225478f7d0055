//! What the pages of edge and hub have in common: what is around them, and how figures are written.
//!
//! HTML from the server, one stylesheet, no script. Every value is escaped by the macro that writes it.

use maud::{DOCTYPE, Markup, html};

use crate::{
    hub::RefusalReport,
    operations::{METRICS_PATH, STATUS_PATH, STYLE_PATH},
};

/// Seconds after which a page asks for itself again.
const REFRESH_SECONDS: u32 = 5;
/// Rows of each list on a page; the JSON report has them all.
pub const MAX_ROWS: usize = 100;

const REFUSAL: [&str; 4] = ["Ago", "Whom", "Code", "Why"];

/// A whole page.
pub fn page(what: &str, network: &str, ready: &Result<(), String>, body: Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="refresh" content=(REFRESH_SECONDS);
                title { (what) " · " (network) }
                link rel="stylesheet" href=(STYLE_PATH);
            }
            body {
                header {
                    h1 { (network) " " (what) }
                    @match ready {
                        Ok(()) => span .state .good { "ready" },
                        Err(why) => span .state .bad { "not ready: " (why) },
                    }
                }
                main { (body) }
                footer {
                    p {
                        "This page asks for itself every " (REFRESH_SECONDS) " s. The same as "
                        a href=(STATUS_PATH) { "JSON" } ", figures for "
                        a href=(METRICS_PATH) { "Prometheus" } "."
                    }
                }
            }
        }
    };
    page.into_string()
}

/// One figure with its name.
#[derive(Clone, Debug)]
pub struct Tile {
    name: &'static str,
    value: String,
}

impl Tile {
    /// A number of things.
    pub fn count(name: &'static str, count: u64) -> Self {
        Tile { name, value: grouped(count) }
    }

    /// A number of bytes.
    pub fn bytes(name: &'static str, count: u64) -> Self {
        Tile { name, value: bytes(count) }
    }
}

/// A row of figures.
pub fn tiles(tiles: &[Tile]) -> Markup {
    html! {
        dl.tiles {
            @for tile in tiles {
                div { dt { (tile.name) } dd { (tile.value) } }
            }
        }
    }
}

/// One list: heading, and a table or the word that there is nothing.
pub fn list<T>(
    heading: &str,
    rows: &[T],
    none: &str,
    columns: &[&str],
    cells: impl Fn(&T) -> Markup,
) -> Markup {
    html! {
        h2 { (heading) " " span.count { (grouped(rows.len() as u64)) } }
        @if rows.is_empty() {
            p.soft { (none) }
        } @else {
            div.scroll {
                table {
                    thead { tr { @for column in columns { th scope="col" { (column) } } } }
                    tbody { @for row in rows.iter().take(MAX_ROWS) { tr { (cells(row)) } } }
                }
            }
        }
        @if rows.len() > MAX_ROWS {
            p.soft { "and " (grouped((rows.len() - MAX_ROWS) as u64)) " more, in the report as JSON" }
        }
    }
}

/// Whom a program refused lately. `now` in unix seconds; `whom` writes the one who was refused.
pub fn refusals(rows: &[RefusalReport], now: u64, whom: impl Fn(&str) -> Markup) -> Markup {
    list("Latest refusals", rows, "Nobody was refused.", &REFUSAL, |row| {
        html! {
            td data-name=(REFUSAL[0]) { (span(now.saturating_sub(row.at))) }
            td data-name=(REFUSAL[1]) { (whom(&row.whom)) }
            td data-name=(REFUSAL[2]) { code { (row.code) } }
            td.words data-name=(REFUSAL[3]) {
                (row.message)
                @if !row.what_to_do.is_empty() { " " span.soft { "To do: " (row.what_to_do) } }
            }
        }
    })
}

/// A number with its thousands apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of bytes in the largest unit in which it is at least one.
pub fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 5] = [
        ("PB", 1_000_000_000_000_000),
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("kB", 1_000),
    ];
    match UNITS.into_iter().find(|(_, size)| count >= *size) {
        Some((unit, size)) => format!("{}.{} {unit}", count / size, count % size * 10 / size),
        None => format!("{count} B"),
    }
}

/// A stretch of time in its two largest units.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// The beginning of a key or digest, enough to tell a few apart.
pub fn short(key: &str) -> &str {
    let text = key.strip_prefix("ed25519:").unwrap_or(key);
    text.get(..12).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_for_people() {
        assert_eq!([grouped(0), grouped(999), grouped(1_234_567)], ["0", "999", "1,234,567"]);
        assert_eq!([bytes(999), bytes(1_000), bytes(5_349_999)], ["999 B", "1.0 kB", "5.3 MB"]);
        assert_eq!(bytes(u64::MAX), "18446.7 PB");
        assert_eq!(
            [span(59), span(61), span(7_260), span(90_000)],
            ["59 s", "1 min 1 s", "2 h 1 min", "1 d 1 h"]
        );
        assert_eq!([short("ed25519:0123456789abcdef"), short("10.0.0.1:5")], ["0123456789ab", "10.0.0.1:5"]);
    }

    #[test]
    fn what_comes_from_outside_is_escaped() {
        let ready = Err("<script>alert(1)</script>".to_owned());
        let text = page("hub", "<b>", &ready, html! {});
        assert!(!text.contains("<script") && !text.contains("<b>"), "{text}");
        assert!(text.contains("&lt;script&gt;"));
    }
}
