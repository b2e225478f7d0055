//! Each address's share of the connections that are accepted, in memory that does not grow with the addresses.

use std::{
    collections::hash_map::RandomState, hash::BuildHasher as _, net::IpAddr, num::NonZeroU32, time::Duration,
};

use super::{AcceptLimits, TokenBucket};
use crate::edge::counted_address;

/// Addresses fall into so many buckets; those in the same one have one share. Which do nobody knows outside of this process.
const BUCKETS: u64 = 256;
/// An address has one of so many parts at least, or a low cap on its connections would slow down who only dials again.
const MOST_PARTS: u32 = 8;

/// What addresses have left of their shares.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// Rate and burst of one address; none where an address may take all there is.
    share: Option<(NonZeroU32, NonZeroU32)>,
    buckets: Vec<TokenBucket>,
    hasher: RandomState,
}

impl Shares {
    /// Takes one connection of an address that may have `most`, if its share of `limits` has one. `now` is as for
    /// [`TokenBucket::take`].
    pub(super) fn take(
        &mut self,
        limits: &AcceptLimits,
        (address, most): (IpAddr, usize),
        now: Duration,
    ) -> bool {
        let share = share_of(limits, most);
        if share != self.share {
            self.share = share;
            // All begin anew with full buckets: settings change seldom, and the common bucket is still there.
            self.buckets = match share {
                Some((per_second, burst)) => vec![TokenBucket::new(per_second, burst); BUCKETS as usize],
                None => Vec::new(),
            };
        }
        let place = self.hasher.hash_one(counted_address(address)) % BUCKETS;
        self.buckets.get_mut(place as usize).is_none_or(|bucket| bucket.take(now))
    }
}

/// The part of rate and burst that `most` connections are of the burst.
fn share_of(limits: &AcceptLimits, most: usize) -> Option<(NonZeroU32, NonZeroU32)> {
    let whole = limits.burst;
    let least = whole.get().div_ceil(MOST_PARTS);
    let burst =
        NonZeroU32::new(u32::try_from(most).unwrap_or(u32::MAX).max(least)).filter(|burst| *burst < whole)?;
    let per_second = u64::from(limits.per_second.get()) * u64::from(burst.get()) / u64::from(whole.get());
    // Below the common rate, which fits.
    let per_second = u32::try_from(per_second).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
    Some((per_second, burst))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::accept::ACCEPTS_PER_SECOND;

    const NOW: Duration = Duration::from_secs(1);

    /// How many of so many at once an address is granted.
    fn granted(shares: &mut Shares, address: &str, most: usize, count: usize) -> usize {
        let limits = AcceptLimits::per_second(ACCEPTS_PER_SECOND);
        let address = address.parse().unwrap();
        (0..count).filter(|_| shares.take(&limits, (address, most), NOW)).count()
    }

    #[test]
    fn one_address_that_floods_leaves_the_others_theirs() {
        let mut shares = Shares::default();
        assert_eq!(granted(&mut shares, "203.0.113.7", 256, 1_000), 256, "as many as it may have");
        // Some fall into the same bucket as the flood, by chance; ten of a hundred never do.
        let others: usize =
            (0..100).map(|last| granted(&mut shares, &format!("198.51.100.{last}"), 256, 1)).sum();
        assert!(others > 90, "{others}");
    }

    #[test]
    fn an_ipv6_subscriber_has_one_share() {
        let mut shares = Shares::default();
        assert_eq!(granted(&mut shares, "2001:db8::1", 256, 1_000), 256);
        assert_eq!(granted(&mut shares, "2001:db8::ffff:2", 256, 1), 0);
    }

    #[test]
    fn a_share_is_the_part_that_the_cap_of_an_address_is_of_the_burst() {
        let limits = AcceptLimits::per_second(ACCEPTS_PER_SECOND);
        let share = |most| share_of(&limits, most).map(|(per_second, burst)| (per_second.get(), burst.get()));
        assert_eq!(share(256), Some((64, 256)));
        assert_eq!(share(1), Some((62, 250)), "an eighth at least");
        assert_eq!(share(1_000), Some((250, 1_000)));
        assert_eq!(share(2_000), None, "all there is");
        assert_eq!(share(usize::MAX), None);
        let one = AcceptLimits { burst: NonZeroU32::MIN, ..limits };
        assert_eq!(share_of(&one, 0), None);
    }
}
