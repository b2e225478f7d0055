//! What becomes of a place that nobody takes: those who stay take its experts over, as far as they have room.
//!
//! Not at once: a worker whose link broke is mostly back before its weights would have travelled. Who comes back finds its place and
//! what it holds, and is asked first again; what others took over stays with them as copies. Nobody is sent what it holds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::placement::{ExpertAddress, Placement};
use crate::serve_blobs::assignment;
use crate::session::Session;
use crate::swarm::{Seat, Shared, Slot};

/// How often places are looked at, at most and at least.
const TICK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// Looks for places that nobody has taken for as long as `after`, until the swarm ends.
pub(crate) async fn run(shared: Arc<Shared>, after: Duration) {
    let mut tick = tokio::time::interval(after.clamp(TICK.0, TICK.1));
    loop {
        tick.tick().await;
        if shared.is_closing() {
            return;
        }
        shared.bequeath(Instant::now(), after);
    }
}

impl Shared {
    /// The experts of places that have been empty for as long as `after`, ascending, without those that somebody else was asked to
    /// hold and did not refuse; and who is here, with the bytes that it has room for.
    fn estates(&self, now: Instant, after: Duration) -> (Vec<ExpertAddress>, Vec<(Arc<Session>, u64)>) {
        let table = self.table();
        let is_empty = |slot: &Slot| {
            let since = slot.empty_since.filter(|_| slot.seat.is_none());
            since.is_some_and(|since| now.saturating_duration_since(since) >= after)
        };
        let left = table.slots.iter().zip(&self.shares).filter(|(slot, _)| is_empty(slot));
        let mut left: BTreeSet<ExpertAddress> = left.flat_map(|(_, share)| share.iter().copied()).collect();
        if left.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let seats = table.slots.iter().filter_map(|slot| slot.seat.as_ref());
        let here: Vec<(Arc<Session>, u64)> = seats
            .filter_map(|seat| match seat {
                Seat::Taken(session) => {
                    let offered = table.offered.get(&session.id.0).copied().unwrap_or_default();
                    Some((Arc::clone(session), offered))
                }
                Seat::Reserved(_) => None,
            })
            .collect();
        drop(table);
        let mut takers = Vec::with_capacity(here.len());
        for (session, offered) in here {
            let taken = {
                let state = session.state();
                if state.draining || state.ended.is_some() {
                    continue;
                }
                let holds = |address: &&ExpertAddress| !state.not_held.contains_key(*address);
                let held: Vec<ExpertAddress> = state.assigned.iter().filter(holds).copied().collect();
                held.iter().for_each(|address| {
                    left.remove(address);
                });
                held.into_iter().map(|address| self.blob_bytes(address)).fold(0, u64::saturating_add)
            };
            takers.push((session, offered.saturating_sub(taken)));
        }
        (left.into_iter().collect(), takers)
    }

    /// Asks those who are here to hold what nobody holds any more.
    fn bequeath(&self, now: Instant, after: Duration) {
        let (experts, mut takers) = self.estates(now, after);
        let count = takers.len();
        let dealt = inherit(self.options.placement, &experts, count, |taker, estate| {
            let (session, room) = &mut takers[taker];
            let bytes = estate.iter().map(|address| self.blob_bytes(*address)).fold(0, u64::saturating_add);
            let state = session.state();
            let takes = bytes <= *room && !estate.iter().any(|address| state.not_held.contains_key(address));
            if takes {
                *room -= bytes;
            }
            takes
        });
        for ((session, _), share) in takers.iter().zip(dealt).filter(|(_, share)| !share.is_empty()) {
            match assignment(&self.model, &share) {
                Ok(assigned) => {
                    tracing::info!(
                        session = %session.id.short(), worker = %session.worker, experts = share.len(),
                        "takes over what nobody holds any more"
                    );
                    session.assign(assigned);
                }
                Err(error) => tracing::warn!(%error, "experts that nobody holds any more stay here"),
            }
        }
    }
}

/// Deals experts (ascending) over so many who could take them, in turn: whole layers where layers are placed whole, else one by one. What
/// `takes` says of nobody is dealt to nobody.
fn inherit(
    placement: Placement,
    experts: &[ExpertAddress],
    takers: usize,
    mut takes: impl FnMut(usize, &[ExpertAddress]) -> bool,
) -> Vec<Vec<ExpertAddress>> {
    let mut dealt = vec![Vec::new(); takers];
    let mut turn = 0;
    for estate in experts.chunk_by(|one, next| placement == Placement::WholeLayers && one.0 == next.0) {
        let mut in_turn = (0..takers).map(move |next| (turn + next) % takers);
        if let Some(taker) = in_turn.find(|taker| takes(*taker, estate)) {
            dealt[taker].extend_from_slice(estate);
            turn = taker + 1;
        }
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: [ExpertAddress; 5] = [(0, 0), (0, 1), (2, 0), (2, 1), (3, 0)];

    #[test]
    fn layers_stay_whole_where_they_were_and_go_in_turn() {
        let dealt = inherit(Placement::WholeLayers, &LEFT, 2, |_, _| true);
        assert_eq!(dealt, [vec![(0, 0), (0, 1), (3, 0)], vec![(2, 0), (2, 1)]]);
        let dealt = inherit(Placement::Experts, &LEFT, 2, |_, _| true);
        assert_eq!(dealt, [vec![(0, 0), (2, 0), (3, 0)], vec![(0, 1), (2, 1)]]);
    }

    #[test]
    fn who_has_no_room_is_passed_over_and_what_nobody_takes_stays() {
        let mut room = [1, 3];
        let dealt = inherit(Placement::WholeLayers, &LEFT, 2, |taker, estate| {
            let takes = estate.len() <= room[taker];
            room[taker] -= if takes { estate.len() } else { 0 };
            takes
        });
        assert_eq!(dealt, [vec![(3, 0)], vec![(0, 0), (0, 1)]], "nobody has room for layer 2 by then");
        assert!(inherit(Placement::Experts, &LEFT, 0, |_, _| true).is_empty());
        assert!(inherit(Placement::Experts, &[], 2, |_, _| true).iter().all(Vec::is_empty));
    }
}
