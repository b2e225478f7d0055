//! Whom the edge itself refused, and what it told them, so that the operator reads the same words. What the hub refuses behind it
//! the edge does not read; that is on the hub's page.
//!
//! Addresses stand here whole, as on the hub's page and in the log: an operator has to find the one who asks for help.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

use kvasir_link::unix_now;
use maud::{Markup, html};

use super::slots::counted_address;
use crate::{http_refusal::HttpRefusal, hub::RefusalReport, page::refusals};

/// Refusals that are remembered.
const REMEMBERED: usize = 20;

/// The latest refusals.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<VecDeque<Refused>>);

#[derive(Debug)]
struct Refused {
    /// As the caps count it: an IPv6 address by its /64.
    of: IpAddr,
    report: RefusalReport,
}

impl Refusals {
    /// Remembers what somebody was told. An address stands here once for each code, with the latest: who comes again and again
    /// does not push the others off the list.
    pub(super) fn note(&self, from: IpAddr, refusal: &HttpRefusal) {
        let told = refusal.body().clone();
        let report = RefusalReport {
            at: unix_now(),
            whom: from.to_canonical().to_string(),
            code: told.code,
            message: told.message,
            what_to_do: told.what_to_do,
        };
        let of = counted_address(from);
        // Whoever panicked left a list that is whole.
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.retain(|earlier| earlier.of != of || earlier.report.code != report.code);
        latest.push_front(Refused { of, report });
        latest.truncate(REMEMBERED);
    }

    /// Those that are remembered, the newest first.
    pub(super) fn latest(&self) -> Vec<RefusalReport> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.iter().map(|refused| refused.report.clone()).collect()
    }
}

/// The list on the page, addresses whole. `now` in unix seconds.
pub(super) fn list(latest: &[RefusalReport], now: u64) -> Markup {
    html! {
        (refusals(latest, now, |address| html! { code { (address) } }))
        p.soft {
            "A refusal stands here in the words that the one who was refused was told, the latest for each address and code."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn who_comes_again_and_again_pushes_nobody_off_the_list() {
        let refusals = Refusals::default();
        refusals.note(address("203.0.113.7"), &HttpRefusal::no_ticket());
        for number in 0..2 * REMEMBERED {
            // Of one subscriber, whatever the last 64 bits say.
            let from = address(&format!("2001:db8::{number:x}"));
            refusals.note(from, &HttpRefusal::no_such_path(&format!("/{number}"), &["/v1/worker"]));
        }
        let latest = refusals.latest();
        let whom: Vec<_> = latest.iter().map(|refusal| refusal.whom.as_str()).collect();
        assert_eq!(whom, ["2001:db8::27", "203.0.113.7"]);
        assert_eq!(latest[0].message, "nothing is served at /39");
        refusals.note(address("203.0.113.7"), &HttpRefusal::head_too_large());
        assert_eq!(refusals.latest().len(), 3, "another code is another refusal");
    }

    #[test]
    fn of_more_addresses_than_are_remembered_the_newest_stand() {
        let refusals = Refusals::default();
        for last in 0..=REMEMBERED {
            refusals.note(address(&format!("203.0.113.{last}")), &HttpRefusal::no_ticket());
        }
        let latest = refusals.latest();
        assert_eq!(latest.len(), REMEMBERED);
        assert_eq!(
            (latest[0].whom.as_str(), latest[REMEMBERED - 1].whom.as_str()),
            ("203.0.113.20", "203.0.113.1")
        );
    }

    #[test]
    fn what_comes_from_outside_is_escaped_and_an_address_is_whole() {
        let refusals = Refusals::default();
        let path = "/<script>alert(1)</script>";
        refusals.note(address("::ffff:255.255.255.254"), &HttpRefusal::no_such_path(path, &["/v1/worker"]));
        let text = list(&refusals.latest(), u64::MAX).into_string();
        assert!(!text.contains("<script"), "{text}");
        for part in ["<code>255.255.255.254</code>", "no_such_path", "To do: served here: /v1/worker"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
