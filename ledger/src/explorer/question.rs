//! What a visitor asks: paths and query parameters, each bounded, each refused in words where it cannot be read.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query};
use kvasir_merkle::Hash;
use kvasir_wire::id::parse_hex_32;
use maud::{Markup, html};
use serde::Deserialize;

use super::frame::Problem;
use crate::store::Stretch;

/// Longest search.
pub(super) const MAX_SEARCH_CHARACTERS: usize = 200;
/// Fewest hexadecimal digits that are searched for.
pub(super) const MIN_SEARCH_DIGITS: usize = 8;
/// Rows of one page.
pub(super) const PAGE_ROWS: u32 = 50;
/// Rows of a table that leads to a page of its own.
pub(super) const FEW_ROWS: u32 = 10;

/// Parameters of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    before: Option<u64>,
    after: Option<u64>,
    /// One kind of note.
    pub(super) kind: Option<String>,
    /// One wallet's.
    pub(super) wallet: Option<String>,
    /// One kind and field that name a digest: `receipt.worker`.
    #[serde(rename = "in")]
    pub(super) within: Option<String>,
    /// Page of a ranking, from 1.
    pub(super) page: Option<u32>,
}

/// The search's one parameter.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchQuery {
    /// What is searched for.
    pub(super) q: Option<String>,
}

/// Rows of one page, and where the neighbouring pages begin.
pub(super) struct Paged<T> {
    pub(super) rows: Vec<T>,
    newer: Option<u64>,
    older: Option<u64>,
}

/// The parameters, or why they cannot be read.
pub(super) fn parameters<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    let Query(query) = query.map_err(|_| {
        Problem::unreadable(
            "The address has parameters that this page does not take, or values that are no numbers.",
            "Follow the links of the pages, or see docs/ledger.md.",
        )
    })?;
    Ok(query)
}

/// A digest from a path.
pub(super) fn digest(path: &Path<String>) -> Result<Hash, Problem> {
    digest_text(&path.0)
}

/// A digest from text.
pub(super) fn digest_text(text: &str) -> Result<Hash, Problem> {
    parse_hex_32(text).map(Hash).map_err(|_| {
        Problem::unreadable(
            "The address does not hold a digest.",
            "A digest has 64 lower-case hexadecimal digits.",
        )
    })
}

/// An entry's number from a path.
pub(super) fn number(path: &Path<String>) -> Result<u64, Problem> {
    let digits = &path.0;
    let canonical =
        digits == "0" || (!digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit()));
    digits.parse().ok().filter(|_| canonical).ok_or_else(|| {
        Problem::unreadable("The address does not hold an entry's number.", "Numbers are decimal, from 0.")
    })
}

impl ListQuery {
    /// The stretch that is asked for.
    pub(super) fn stretch(&self) -> Result<Stretch, Problem> {
        match (self.before, self.after) {
            (None, None) => Ok(Stretch::Latest),
            (Some(before), None) => Ok(Stretch::Before(before)),
            (None, Some(after)) => Ok(Stretch::After(after)),
            (Some(_), Some(_)) => Err(Problem::unreadable(
                "A list continues before one number or after one number, not both.",
                "Leave one of `before` and `after` out.",
            )),
        }
    }
}

impl<T> Paged<T> {
    /// From at most [`PAGE_ROWS`] + 1 rows, highest first, the page and whether there are more on either side.
    pub(super) fn new(stretch: Stretch, mut rows: Vec<T>, number: impl Fn(&T) -> u64) -> Self {
        let more = rows.len() > PAGE_ROWS as usize;
        let newer = match stretch {
            Stretch::After(_) if more => {
                rows.remove(0);
                true
            }
            Stretch::After(_) | Stretch::Latest => false,
            Stretch::Before(_) => true,
        };
        let older = match stretch {
            Stretch::After(_) => true,
            Stretch::Latest | Stretch::Before(_) => more,
        };
        rows.truncate(PAGE_ROWS as usize);
        let (first, last) = (rows.first().map(&number), rows.last().map(&number));
        Self { rows, newer: first.filter(|_| newer), older: last.filter(|_| older) }
    }

    /// Links to the neighbouring pages. `list` is the list's address, ending in `?` or `&`.
    pub(super) fn links(&self, list: &str) -> Markup {
        let latest = list.trim_end_matches(['?', '&']);
        html! {
            @if self.newer.is_some() || self.older.is_some() {
                nav.pages aria-label="Pages of this list" {
                    @if let Some(newer) = self.newer {
                        a href=(latest) { "Latest" }
                        a rel="prev" href={ (list) "after=" (newer) } { "← Newer" }
                    }
                    @if let Some(older) = self.older {
                        a rel="next" href={ (list) "before=" (older) } { "Older →" }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(stretch: Stretch, numbers: impl Iterator<Item = u64>) -> (Vec<u64>, Option<u64>, Option<u64>) {
        let paged = Paged::new(stretch, numbers.collect(), |number| *number);
        (paged.rows, paged.newer, paged.older)
    }

    #[test]
    fn pages_lead_to_each_other_without_gap_or_overlap() {
        let (rows, newer, older) = page(Stretch::Latest, (50..=100).rev());
        assert_eq!((rows.len(), rows[49], newer, older), (50, 51, None, Some(51)));
        let (rows, newer, older) = page(Stretch::Before(51), (1..=50).rev());
        assert_eq!((rows.len(), newer, older), (50, Some(50), None));
        let (rows, newer, older) = page(Stretch::After(20), (21..=71).rev());
        assert_eq!((rows[0], rows[49], newer, older), (70, 21, Some(70), Some(21)));
        assert_eq!(page(Stretch::Latest, 0..0), (vec![], None, None));
        assert_eq!(page(Stretch::Before(0), 0..0), (vec![], None, None));
    }
}
