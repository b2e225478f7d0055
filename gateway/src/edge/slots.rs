//! Who may have a connection: caps on all connections, on those that have shown no ticket yet, and on one address.
//!
//! A connection takes a [`Slot`] at accept and gives it back by dropping it. Where one of the two caps on connections without
//! a ticket is met, a newcomer gets in all the same, and the address with most of them loses its oldest one: who holds
//! connections open and shows nothing shuts nobody out for longer than that. The other two caps are told to the peer after
//! its request head, so a person can see which limit it met.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// Caps on connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// All connections, those in handshake included.
    pub connections: usize,
    /// Connections that have not shown a ticket yet.
    pub unauthenticated: usize,
    /// All connections of one address (an IPv6 address counts by its /64).
    pub per_address: usize,
    /// Connections of one address that have not shown a ticket yet.
    pub unauthenticated_per_address: usize,
}

impl Default for SlotLimits {
    fn default() -> Self {
        // Two descriptors a session: 4,000 sessions fit into the 20,000 of a common hard limit with room to spare.
        SlotLimits {
            connections: 4_000,
            unauthenticated: 512,
            per_address: 256,
            unauthenticated_per_address: 64,
        }
    }
}

/// Which cap a connection met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// All connections.
    Connections,
    /// Connections of its address.
    PerAddress,
}

/// The counters, shared by the accept loop and every connection.
#[derive(Debug)]
pub struct Gate {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    limits: SlotLimits,
    all: Count,
    by_address: HashMap<IpAddr, Count>,
    /// Connections that have shown no ticket yet, oldest first.
    waiting: BTreeMap<u64, Waiting>,
    next_number: u64,
}

#[derive(Debug)]
struct Waiting {
    address: IpAddr,
    evicted: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    connections: usize,
    unauthenticated: usize,
}

impl Gate {
    /// A gate with no connections.
    pub fn new(limits: SlotLimits) -> Arc<Self> {
        Arc::new(Gate { counts: Mutex::new(Counts { limits, ..Counts::default() }) })
    }

    /// The caps that hold now.
    pub fn limits(&self) -> SlotLimits {
        self.lock().limits
    }

    /// From the next connection on, these caps hold. What is beyond them already stays.
    pub fn change(&self, limits: SlotLimits) {
        self.lock().limits = limits;
    }

    /// Takes a place for a connection that has shown nothing yet. Where a cap on such connections is met, the oldest of them of the
    /// address that has most makes room; it learns it by [`Slot::evicted`].
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Slot {
        let address = counted_address(address);
        let mut counts = self.lock();
        let here = counts.by_address.get(&address).copied().unwrap_or_default();
        if counts.all.unauthenticated >= counts.limits.unauthenticated {
            counts.evict(None);
        } else if here.unauthenticated >= counts.limits.unauthenticated_per_address {
            counts.evict(Some(address));
        }
        self.admit(counts, address)
    }

    /// Takes a place for a connection of a proxy that is trusted, whose client is not known yet: what holds for one address
    /// does not hold before [`Slot::belongs_to`] has named it.
    pub fn enter_behind(self: &Arc<Self>, proxy: IpAddr) -> Slot {
        let mut counts = self.lock();
        if counts.all.unauthenticated >= counts.limits.unauthenticated {
            counts.evict(None);
        }
        let mut slot = self.admit(counts, counted_address(proxy));
        slot.over = slot.over.filter(|cap| *cap != Cap::PerAddress);
        slot
    }

    fn admit(self: &Arc<Self>, mut counts: MutexGuard<'_, Counts>, address: IpAddr) -> Slot {
        let here = counts.by_address.get(&address).copied().unwrap_or_default();
        let over = if counts.all.connections >= counts.limits.connections {
            Some(Cap::Connections)
        } else if here.connections >= counts.limits.per_address {
            Some(Cap::PerAddress)
        } else {
            None
        };
        counts.add(address);
        let number = counts.next_number;
        counts.next_number += 1;
        let evicted = Arc::new(Notify::new());
        counts.waiting.insert(number, Waiting { address, evicted: evicted.clone() });
        Slot { gate: self.clone(), address, number, evicted, over }
    }

    /// Connections now, and how many of them have shown no ticket yet.
    pub fn counts(&self) -> (usize, usize) {
        let all = self.lock().all;
        (all.connections, all.unauthenticated)
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // The counters are whole after every statement that could panic, so a poisoned lock is as good as another.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn add(&mut self, address: IpAddr) {
        for count in [&mut self.all, self.by_address.entry(address).or_default()] {
            count.connections += 1;
            count.unauthenticated += 1;
        }
    }

    /// Takes a connection out of those without a ticket, if it still is one of them.
    fn end_waiting(&mut self, number: u64) {
        if let Some(Waiting { address, .. }) = self.waiting.remove(&number)
            && let Some(here) = self.by_address.get_mut(&address)
        {
            here.unauthenticated -= 1;
            self.all.unauthenticated -= 1;
        }
    }

    /// Counts a connection for another address than before.
    fn rename(&mut self, number: u64, from: IpAddr, to: IpAddr) {
        let waiting = self.waiting.get_mut(&number).map(|waiting| waiting.address = to).is_some();
        let target = self.by_address.entry(to).or_default();
        target.connections += 1;
        target.unauthenticated += usize::from(waiting);
        if let Some(before) = self.by_address.get_mut(&from) {
            before.connections -= 1;
            before.unauthenticated -= usize::from(waiting);
            if before.connections == 0 {
                self.by_address.remove(&from);
            }
        }
    }

    fn remove(&mut self, address: IpAddr, number: u64) {
        self.end_waiting(number);
        if let Some(here) = self.by_address.get_mut(&address) {
            here.connections -= 1;
            self.all.connections -= 1;
            if here.connections == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    /// Tells the oldest connection without a ticket, of one address or else of the one that has most, to go.
    fn evict(&mut self, of: Option<IpAddr>) {
        let has = |address: &IpAddr| self.by_address.get(address).map_or(0, |count| count.unauthenticated);
        let candidates = self.waiting.iter().filter(|(_, waiting)| of.is_none_or(|of| of == waiting.address));
        // Of equals the first: the oldest.
        let oldest = candidates.min_by_key(|(_, waiting)| std::cmp::Reverse(has(&waiting.address)));
        if let Some((number, waiting)) = oldest.map(|(number, waiting)| (*number, waiting)) {
            waiting.evicted.notify_one();
            self.end_waiting(number);
        }
    }
}

/// One connection's slot; dropping it gives it back.
#[derive(Debug)]
pub struct Slot {
    gate: Arc<Gate>,
    address: IpAddr,
    number: u64,
    evicted: Arc<Notify>,
    over: Option<Cap>,
}

impl Slot {
    /// The cap that this connection is beyond and must be told of, if any.
    pub fn over(&self) -> Option<Cap> {
        self.over
    }

    /// The connection is this address's, as a trusted peer says. Where the address has as many without a ticket as it may,
    /// its oldest makes room, as if the connection had come from it.
    pub fn belongs_to(&mut self, address: IpAddr) {
        let address = counted_address(address);
        if address == self.address {
            return;
        }
        let mut counts = self.gate.lock();
        let limits = counts.limits;
        let here = counts.by_address.get(&address).copied().unwrap_or_default();
        if counts.waiting.contains_key(&self.number)
            && here.unauthenticated >= limits.unauthenticated_per_address
        {
            counts.evict(Some(address));
        }
        if self.over != Some(Cap::Connections) {
            self.over = (here.connections >= limits.per_address).then_some(Cap::PerAddress);
        }
        counts.rename(self.number, self.address, address);
        drop(counts);
        self.address = address;
    }

    /// The connection has shown a good ticket: it no longer counts as unauthenticated.
    pub fn authenticated(&mut self) {
        self.gate.lock().end_waiting(self.number);
    }

    /// Completes when this connection must make room for a newer one; never once it has shown a ticket.
    pub fn evicted(&self) -> impl Future<Output = ()> + use<> {
        let evicted = self.evicted.clone();
        async move { evicted.notified().await }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gate.lock().remove(self.address, self.number);
    }
}

/// One subscriber commonly holds a whole IPv6 /64, so the last 64 bits say nothing about who it is.
pub(crate) fn counted_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & !u128::from(u64::MAX)).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_caps_that_are_told_are_met_and_given_back() {
        let limits = SlotLimits { connections: 4, per_address: 3, ..SlotLimits::default() };
        let gate = Gate::new(limits);
        let mut a = gate.enter(address("10.0.0.1"));
        let b = gate.enter(address("::ffff:10.0.0.1"));
        let mut c = gate.enter(address("10.0.0.2"));
        a.authenticated();
        a.authenticated();
        c.authenticated();
        assert_eq!(gate.counts(), (3, 1));
        let mut d = gate.enter(address("10.0.0.1"));
        assert_eq!(d.over(), None);
        d.authenticated();
        let e = gate.enter(address("10.0.0.9"));
        assert_eq!(e.over(), Some(Cap::Connections));
        drop(c);
        drop(e);
        let f = gate.enter(address("10.0.0.1"));
        assert_eq!(f.over(), Some(Cap::PerAddress));
        drop((a, b, d, f));
        assert_eq!(gate.counts(), (0, 0));
        assert!(gate.lock().by_address.is_empty());
    }

    #[tokio::test]
    async fn the_oldest_without_a_ticket_of_the_address_that_has_most_makes_room() {
        let limits =
            SlotLimits { unauthenticated: 3, unauthenticated_per_address: 2, ..SlotLimits::default() };
        let gate = Gate::new(limits);
        let honest = gate.enter(address("10.0.0.1"));
        let mut admitted = gate.enter(address("10.0.0.2"));
        admitted.authenticated();
        let oldest = gate.enter(address("10.0.0.2"));
        let second = gate.enter(address("10.0.0.2"));
        assert_eq!(gate.counts(), (4, 3));
        // All places: the address that has most loses its oldest.
        let third = gate.enter(address("10.0.0.3"));
        oldest.evicted().await;
        assert_eq!(gate.counts(), (5, 3), "it still holds a connection until it is gone");
        drop(oldest);
        assert_eq!(gate.counts(), (4, 3));
        // Those of one address: its own oldest.
        drop(honest);
        let fourth = gate.enter(address("10.0.0.2"));
        let fifth = gate.enter(address("10.0.0.2"));
        second.evicted().await;
        drop((admitted, second, third, fourth, fifth));
        assert_eq!(gate.counts(), (0, 0));
        let counts = gate.lock();
        assert!(counts.by_address.is_empty() && counts.waiting.is_empty());
    }

    #[tokio::test]
    async fn a_proxy_s_connections_count_for_the_clients_that_it_names() {
        let limits = SlotLimits {
            connections: 100,
            unauthenticated: 5,
            per_address: 2,
            unauthenticated_per_address: 1,
        };
        let gate = Gate::new(limits);
        let proxy = address("10.0.0.1");
        let mut slots: Vec<Slot> = (0..5).map(|_| gate.enter_behind(proxy)).collect();
        assert!(slots.iter().all(|slot| slot.over().is_none()), "the proxy's own address has no cap");
        assert_eq!(gate.counts(), (5, 5));
        let client = address("203.0.113.7");
        slots[0].belongs_to(client);
        slots[1].belongs_to(client);
        slots[0].evicted().await;
        assert_eq!(gate.counts(), (5, 4), "the client's older one made room, none of the proxy's");
        slots[1].authenticated();
        slots[2].belongs_to(client);
        assert_eq!(slots[2].over(), Some(Cap::PerAddress));
        // Another hop names another one: the cap that was met is met no more.
        slots[2].belongs_to(address("203.0.113.8"));
        assert_eq!(slots[2].over(), None);
        assert_eq!(gate.counts(), (5, 3));
        // All places: of the two that nobody has been named for, the oldest.
        let others = [gate.enter(address("10.0.0.8")), gate.enter(address("10.0.0.9"))];
        let sixth = gate.enter_behind(proxy);
        slots[3].evicted().await;
        assert_eq!(gate.counts(), (8, 5));
        drop((slots, others, sixth));
        let counts = gate.lock();
        assert!(counts.by_address.is_empty() && counts.waiting.is_empty());
    }

    #[tokio::test]
    async fn changed_caps_hold_for_newcomers_and_end_nothing() {
        let gate = Gate::new(SlotLimits::default());
        let mut old: Vec<Slot> = (0..4).map(|_| gate.enter(address("10.0.0.1"))).collect();
        old[0].authenticated();
        gate.change(SlotLimits { per_address: 2, unauthenticated_per_address: 3, ..SlotLimits::default() });
        assert_eq!((gate.limits().per_address, gate.counts()), (2, (4, 3)));
        assert!(old.iter().all(|slot| slot.over().is_none()));
        let newer = gate.enter(address("10.0.0.1"));
        assert_eq!(newer.over(), Some(Cap::PerAddress));
        old[1].evicted().await;
        drop((old, newer));
        assert_eq!(gate.counts(), (0, 0));
    }

    #[tokio::test]
    async fn an_ipv6_subscriber_counts_once() {
        let gate = Gate::new(SlotLimits { unauthenticated_per_address: 1, ..SlotLimits::default() });
        let one = gate.enter(address("2001:db8:1:2::1"));
        let _neighbour = gate.enter(address("2001:db8:1:3::1"));
        assert_eq!(gate.counts(), (2, 2));
        let _same = gate.enter(address("2001:db8:1:2:ffff::9"));
        one.evicted().await;
        assert_eq!(gate.counts(), (3, 2));
    }
}
