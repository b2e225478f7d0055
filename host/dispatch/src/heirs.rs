//! What becomes of experts that nobody holds any more: those who stay take them over, as far as they have room.
//!
//! Not at once: a worker whose link broke is mostly back before its weights would have travelled. So an expert has to be without
//! anybody for a while, whether it was its place's worker that left or one that had taken it over. Who comes back finds its place, with
//! what was dealt to that, and is asked first again; what it had taken over besides it is asked for again at once, if nobody else was
//! meanwhile, since it is likely to have it still. What others took over stays with them as copies: it is never given back, so that the
//! room is not there for the next place that empties. Nobody is sent what it holds, and who refused an expert is not asked for it again
//! in that session.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvasir_wire::key::PublicKey;

use crate::placement::{ExpertAddress, Placement};
use crate::serve_blobs::assignment;
use crate::session::Session;
use crate::swarm::{Seat, Shared};

/// How often places are looked at, at most and at least.
const TICK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Looks for experts that nobody has held for as long as `after`, until the swarm ends.
pub(crate) async fn run(shared: Arc<Shared>, after: Duration) {
    let mut tick = tokio::time::interval(after.clamp(TICK.0, TICK.1));
    let mut estates = Estates::default();
    loop {
        tick.tick().await;
        if shared.is_closing() {
            return;
        }
        shared.bequeath(&mut estates, Instant::now(), after);
    }
}

/// What is remembered of the experts of empty places.
#[derive(Debug, Default)]
struct Estates {
    /// Since when nobody holds an expert.
    unheld: HashMap<ExpertAddress, Instant>,
    /// Who took it over last.
    heirs: HashMap<ExpertAddress, PublicKey>,
}

/// Who may take an expert over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidates {
    /// Goes first: it had taken it over before.
    first: Option<usize>,
    /// Whether everybody may.
    all: bool,
}

impl Estates {
    /// Follows what became of the experts of `empty` places, of which nobody holds those in `unheld`.
    fn look(
        &mut self,
        now: Instant,
        empty: &BTreeMap<ExpertAddress, bool>,
        unheld: &BTreeSet<ExpertAddress>,
    ) {
        self.heirs.retain(|address, _| empty.contains_key(address));
        self.unheld.retain(|address, _| unheld.contains(address));
        for &address in unheld {
            self.unheld.entry(address).or_insert(now);
        }
    }

    /// Who of `takers` may take these over now, all of them.
    fn candidates(
        &self,
        estate: &[ExpertAddress],
        (now, after): (Instant, Duration),
        takers: &[PublicKey],
    ) -> Candidates {
        let heir = estate.first().and_then(|address| self.heirs.get(address));
        let heir = heir.filter(|heir| estate.iter().all(|address| self.heirs.get(address) == Some(*heir)));
        let is_long = |address: &ExpertAddress| {
            self.unheld.get(address).is_some_and(|since| now.saturating_duration_since(*since) >= after)
        };
        Candidates {
            first: heir.and_then(|heir| takers.iter().position(|taker| taker == heir)),
            all: estate.iter().all(is_long),
        }
    }

    /// A worker was asked to take these over.
    fn inherits(&mut self, heir: PublicKey, experts: &[ExpertAddress]) {
        self.heirs.extend(experts.iter().map(|address| (*address, heir)));
    }
}

/// What places that were left leave behind, and who is here.
#[derive(Default)]
struct Places {
    /// Their experts, and of each whether no pairing is under way for it.
    empty: BTreeMap<ExpertAddress, bool>,
    /// Sessions, with the memory that their workers offered.
    here: Vec<(Arc<Session>, u64)>,
}

/// Somebody who is here.
struct Taker {
    session: Arc<Session>,
    /// Bytes of memory that it offered.
    offered: u64,
    /// What it was asked to hold and did not refuse.
    asked_for: Vec<ExpertAddress>,
}

impl Taker {
    /// Bytes that it has left for more.
    fn room(&self, shared: &Shared) -> u64 {
        let bytes = self.asked_for.iter().map(|address| shared.blob_bytes(*address));
        self.offered.saturating_sub(bytes.fold(0, u64::saturating_add))
    }
}

impl Shared {
    /// Looks who sits where. Where nobody has left it is nobody's business who is here.
    fn places(&self) -> Places {
        let table = self.table();
        let left = table.slots.iter().enumerate().filter(|(_, slot)| slot.is_left());
        let left: Vec<(usize, bool)> = left.map(|(number, slot)| (number, slot.seat.is_none())).collect();
        if left.is_empty() {
            return Places::default();
        }
        let here = table.slots.iter().filter_map(|slot| match &slot.seat {
            Some(Seat::Taken(session)) => {
                let offered = table.offered.get(&session.id.0).copied().unwrap_or_default();
                Some((Arc::clone(session), offered))
            }
            _ => None,
        });
        let mut places = Places { empty: BTreeMap::new(), here: here.collect() };
        drop(table);
        for (number, is_vacant) in left {
            for &address in &self.shares[number] {
                *places.empty.entry(address).or_default() |= is_vacant;
            }
        }
        places
    }

    /// Asks those who are here to hold what nobody holds any more.
    fn bequeath(&self, estates: &mut Estates, now: Instant, after: Duration) {
        let Places { empty, here } = self.places();
        let mut unheld: BTreeSet<ExpertAddress> = empty.keys().copied().collect();
        let mut takers = Vec::with_capacity(here.len());
        for (session, offered) in here {
            let is_whole = session.link.is_whole();
            let (asked_for, takes_over) = {
                let state = session.state();
                if state.draining || state.ended.is_some() {
                    continue;
                }
                (state.asked_for(), state.takes_over(is_whole))
            };
            // Also of one that is away: it is mostly back soon, and holds it still.
            for address in &asked_for {
                unheld.remove(address);
            }
            if takes_over {
                takers.push(Taker { session, offered, asked_for });
            }
        }
        estates.look(now, &empty, &unheld);
        // Where a pairing is under way its worker will be asked.
        unheld.retain(|address| empty.get(address) == Some(&true));
        if unheld.is_empty() || takers.is_empty() {
            return;
        }
        let experts: Vec<ExpertAddress> = unheld.into_iter().collect();
        let workers: Vec<PublicKey> = takers.iter().map(|taker| taker.session.worker).collect();
        let mut room: Vec<Option<u64>> = vec![None; takers.len()];
        let candidates = |estate: &[ExpertAddress]| estates.candidates(estate, (now, after), &workers);
        let dealt = inherit(self.options.placement, &experts, takers.len(), candidates, |taker, estate| {
            let bytes = estate.iter().map(|address| self.blob_bytes(*address)).fold(0, u64::saturating_add);
            let room = room[taker].get_or_insert_with(|| takers[taker].room(self));
            let state = takers[taker].session.state();
            let takes = bytes <= *room && !estate.iter().any(|address| state.not_held.contains_key(address));
            if takes {
                *room -= bytes;
            }
            takes
        });
        for (Taker { session, .. }, share) in takers.iter().zip(dealt).filter(|(_, share)| !share.is_empty())
        {
            match assignment(&self.model, &share) {
                Ok(assigned) => {
                    tracing::info!(
                        session = %session.id.short(), worker = %session.worker, experts = share.len(),
                        "takes over what nobody holds any more"
                    );
                    session.assign(assigned);
                    estates.inherits(session.worker, &share);
                }
                Err(error) => tracing::warn!(%error, "experts that nobody holds any more stay here"),
            }
        }
    }
}

/// Deals experts (ascending) over so many who could take them, in turn: whole layers where layers are placed whole, else one by one. What
/// `takes` says of nobody who may take it is dealt to nobody.
fn inherit(
    placement: Placement,
    experts: &[ExpertAddress],
    takers: usize,
    candidates: impl Fn(&[ExpertAddress]) -> Candidates,
    mut takes: impl FnMut(usize, &[ExpertAddress]) -> bool,
) -> Vec<Vec<ExpertAddress>> {
    let mut dealt = vec![Vec::new(); takers];
    let mut turn = 0;
    for estate in experts.chunk_by(|one, next| placement == Placement::WholeLayers && one.0 == next.0) {
        let Candidates { first, all } = candidates(estate);
        let others = if all { takers } else { 0 };
        let mut in_turn = first.into_iter().chain((0..others).map(move |next| (turn + next) % takers));
        if let Some(taker) = in_turn.find(|taker| takes(*taker, estate)) {
            dealt[taker].extend_from_slice(estate);
            turn = taker + 1;
        }
    }
    dealt
}

#[cfg(test)]
mod tests {
    use kvasir_wire::key::SecretKey;

    use super::*;

    const LEFT: [ExpertAddress; 5] = [(0, 0), (0, 1), (2, 0), (2, 1), (3, 0)];
    const AFTER: Duration = Duration::from_secs(30);

    fn anybody(_: &[ExpertAddress]) -> Candidates {
        Candidates { first: None, all: true }
    }

    fn worker(seed: u8) -> PublicKey {
        SecretKey::from_seed([seed; 32]).public()
    }

    #[test]
    fn layers_stay_whole_where_they_were_and_go_in_turn() {
        let dealt = inherit(Placement::WholeLayers, &LEFT, 2, anybody, |_, _| true);
        assert_eq!(dealt, [vec![(0, 0), (0, 1), (3, 0)], vec![(2, 0), (2, 1)]]);
        let dealt = inherit(Placement::Experts, &LEFT, 2, anybody, |_, _| true);
        assert_eq!(dealt, [vec![(0, 0), (2, 0), (3, 0)], vec![(0, 1), (2, 1)]]);
    }

    #[test]
    fn who_has_no_room_is_passed_over_and_what_nobody_takes_stays() {
        let mut room = [1, 3];
        let dealt = inherit(Placement::WholeLayers, &LEFT, 2, anybody, |taker, estate| {
            let takes = estate.len() <= room[taker];
            room[taker] -= if takes { estate.len() } else { 0 };
            takes
        });
        assert_eq!(dealt, [vec![(3, 0)], vec![(0, 0), (0, 1)]], "nobody has room for layer 2 by then");
        assert!(inherit(Placement::Experts, &LEFT, 0, anybody, |_, _| true).is_empty());
        assert!(inherit(Placement::Experts, &[], 2, anybody, |_, _| true).iter().all(Vec::is_empty));
    }

    #[test]
    fn who_had_it_goes_first_and_others_only_once_it_is_time() {
        let candidates = |estate: &[ExpertAddress]| match estate[0].0 {
            0 => Candidates { first: Some(1), all: false },
            2 => Candidates { first: Some(1), all: true },
            _ => Candidates { first: None, all: false },
        };
        let dealt = inherit(Placement::WholeLayers, &LEFT, 2, candidates, |_, _| true);
        assert_eq!(dealt, [vec![], vec![(0, 0), (0, 1), (2, 0), (2, 1)]]);
        let dealt = inherit(Placement::WholeLayers, &LEFT, 2, candidates, |taker, _| taker == 0);
        assert_eq!(dealt, [vec![(2, 0), (2, 1)], vec![]], "it is not time for the others of layer 0");
    }

    #[test]
    fn an_expert_is_without_anybody_since_its_last_holder_left_whoever_that_was() {
        let (mut estates, begun) = (Estates::default(), Instant::now());
        let empty = BTreeMap::from([((0, 0), true), ((0, 1), true)]);
        let all: BTreeSet<ExpertAddress> = empty.keys().copied().collect();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let everybody = |estates: &Estates, seconds, estate: &[ExpertAddress]| {
            estates.candidates(estate, (at(seconds), AFTER), &[worker(1)]).all
        };
        estates.look(begun, &empty, &all);
        assert!(!everybody(&estates, 29, &[(0, 0)]) && everybody(&estates, 30, &[(0, 0), (0, 1)]));
        // Somebody takes the first one over and leaves again: for that one the time begins anew.
        estates.look(at(40), &empty, &BTreeSet::from([(0, 1)]));
        estates.look(at(50), &empty, &all);
        assert!(!everybody(&estates, 79, &[(0, 0)]) && everybody(&estates, 80, &[(0, 0)]));
        assert!(!everybody(&estates, 79, &[(0, 0), (0, 1)]) && everybody(&estates, 79, &[(0, 1)]));
    }

    #[test]
    fn an_heir_that_comes_back_is_asked_at_once_until_the_place_is_taken() {
        let (mut estates, now) = (Estates::default(), Instant::now());
        let empty = BTreeMap::from([((0, 0), true), ((0, 1), true)]);
        let all: BTreeSet<ExpertAddress> = empty.keys().copied().collect();
        estates.inherits(worker(2), &[(0, 0)]);
        estates.look(now, &empty, &all);
        let candidates = |estates: &Estates, estate: &[ExpertAddress], takers: &[PublicKey]| {
            estates.candidates(estate, (now, AFTER), takers)
        };
        let takers = [worker(1), worker(2)];
        let at_once = Candidates { first: Some(1), all: false };
        assert_eq!(candidates(&estates, &[(0, 0)], &takers), at_once);
        let nobody = Candidates { first: None, all: false };
        assert_eq!(candidates(&estates, &[(0, 0)], &takers[..1]), nobody, "it is not back");
        assert_eq!(candidates(&estates, &[(0, 0), (0, 1)], &takers), nobody, "it had one of the two");
        estates.inherits(worker(1), &[(0, 1)]);
        assert_eq!(candidates(&estates, &[(0, 0), (0, 1)], &takers), nobody, "they had one each");
        // Somebody takes the place and leaves it again.
        estates.look(now, &BTreeMap::new(), &BTreeSet::new());
        estates.look(now, &empty, &all);
        assert_eq!(candidates(&estates, &[(0, 0)], &takers), nobody);
    }
}
