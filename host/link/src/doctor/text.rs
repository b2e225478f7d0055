//! Text from outside as it may be shown: on one line, of bounded length, without what moves a cursor or turns a line
//! around, and without a ticket that somebody sent back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Characters of one text from outside that are shown.
const SHOWN_CHARACTERS: usize = 300;
/// How a ticket begins.
const TICKET_PREFIX: &str = "kvasir-ticket-";
/// The first second that a four-digit year cannot name.
const YEAR_10000: u64 = 253_402_300_800;

/// `text` cut to 300 characters, with control characters as escapes, runs of white space as one space, and what follows
/// the beginning of a ticket left out.
pub fn shown(text: &str) -> String {
    let mut clean = String::new();
    let mut count = 0;
    for word in without_tickets(text).split_whitespace() {
        if !clean.is_empty() {
            clean.push(' ');
        }
        for character in word.chars() {
            count += 1;
            if count > SHOWN_CHARACTERS {
                clean.push_str("...");
                return clean;
            }
            if is_unwelcome(character) {
                clean.extend(character.escape_default());
            } else {
                clean.push(character);
            }
        }
    }
    clean
}

/// The text of an HTML page's title, or the page's beginning.
pub(super) fn title_or_beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    // ASCII letters alone change, so that places are the same in both.
    let lower = text.to_ascii_lowercase();
    let title = lower.find("<title").and_then(|start| {
        let begin = start + lower[start..].find('>')? + 1;
        let end = begin + lower[begin..].find("</title")?;
        text.get(begin..end)
    });
    match title {
        Some(title) => format!("a page with the title \"{}\"", shown(title)),
        None if text.trim().is_empty() => "nothing more".to_owned(),
        None => format!("\"{}\"", shown(&text)),
    }
}

/// Unix seconds as a date.
pub(super) fn date(seconds: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(YEAR_10000 - 1));
    httpdate::fmt_http_date(time)
}

/// By how many seconds a date of HTTP is ahead of `now` in unix seconds.
pub(super) fn ahead(http_date: &str, now: u64) -> Option<i64> {
    let time: SystemTime = httpdate::parse_http_date(http_date).ok()?;
    difference(time.duration_since(UNIX_EPOCH).ok()?.as_secs(), now)
}

/// By how many seconds `there` is ahead of `here`.
pub(super) fn difference(there: u64, here: u64) -> Option<i64> {
    i64::try_from(there).ok()?.checked_sub(i64::try_from(here).ok()?)
}

/// A control character, or one that changes the direction of what stands around it.
fn is_unwelcome(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A page that shows what was asked of it shows the ticket too.
fn without_tickets(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(TICKET_PREFIX) {
        let (before, ticket) = rest.split_at(at);
        clean.push_str(before);
        clean.push_str("[ticket]");
        let belongs = |character: char| character.is_ascii_alphanumeric() || "-_.%=".contains(character);
        rest = ticket.trim_start_matches(belongs);
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_short_on_one_line_and_moves_no_cursor() {
        assert_eq!(shown("a\x1b[2J\n\t b\u{202e}c\u{9b}"), "a\\u{1b}[2J b\\u{202e}c\\u{9b}");
        let long = shown(&"\u{7f}x".repeat(5000));
        assert!(long.len() < 10 * SHOWN_CHARACTERS && long.ends_with("..."), "{}", long.len());
        assert_eq!(shown(""), "");
    }

    #[test]
    fn a_ticket_that_comes_back_is_not_shown() {
        let page = "Authorization: Bearer kvasir-ticket-v1.QUJD-_9\r\nX: kvasir-ticket-v1.ZZ";
        assert_eq!(shown(page), "Authorization: Bearer [ticket] X: [ticket]");
    }

    #[test]
    fn a_page_is_known_by_its_title() {
        let page = b"<html><TITLE lang=en>Sign\x1b[31m in\n</Title><body>x";
        assert_eq!(title_or_beginning(page), "a page with the title \"Sign\\u{1b}[31m in\"");
        assert_eq!(title_or_beginning(b"<title>never ends"), "\"<title>never ends\"");
        assert_eq!(title_or_beginning(b" \n"), "nothing more");
        assert!(title_or_beginning(b"\xff\xfe").starts_with('"'));
    }

    #[test]
    fn dates_are_read_and_written_without_a_panic() {
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert!(date(u64::MAX).contains("9999"));
        assert_eq!(ahead("Thu, 01 Jan 1970 00:02:00 GMT", 100), Some(20));
        assert_eq!(ahead("yesterday", 100), None);
        assert_eq!(difference(u64::MAX, 0), None);
        assert_eq!(difference(1, 4), Some(-3));
    }
}
