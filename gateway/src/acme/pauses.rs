//! When a certificate is renewed, and how long a failure is waited out. Pure: time and randomness are passed in.

use std::time::Duration;

use super::options::Pauses;
use crate::served_certificate::Validity;

/// How long until a certificate is to be renewed: when a third of its lifetime is left.
pub(super) fn until_due(validity: Validity, now: u64) -> Duration {
    let lifetime = validity.until.saturating_sub(validity.from).max(0);
    let left = validity.seconds_left(now).saturating_sub(lifetime / 3);
    Duration::from_secs(u64::try_from(left).unwrap_or(0))
}

/// The pause after so many failures in a row: full jitter between the floor and twice as much each time, up to the ceiling.
/// `random` is any evenly spread number. `asked` is what the server asked for, which is kept to.
pub(super) fn pause(pauses: Pauses, failures: u32, random: u64, asked: Duration) -> Duration {
    let Pauses { floor, ceiling } = pauses;
    let most = floor.saturating_mul(2_u32.saturating_pow(failures.min(16))).min(ceiling).max(floor);
    let span = u64::try_from((most - floor).as_millis()).unwrap_or(u64::MAX);
    let jitter = Duration::from_millis(random % span.saturating_add(1));
    floor.saturating_add(jitter).max(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_due_when_a_third_of_its_lifetime_is_left() {
        let validity = Validity { from: 1_000, until: 1_000 + 90 * 86_400 };
        let due = 1_000 + 60 * 86_400;
        assert_eq!(until_due(validity, 1_000), Duration::from_secs(60 * 86_400));
        assert_eq!(until_due(validity, due - 1), Duration::from_secs(1));
        for late in [due, due + 1, 1_000 + 91 * 86_400, u64::MAX] {
            assert_eq!(until_due(validity, late), Duration::ZERO, "{late}");
        }
        assert_eq!(until_due(Validity { from: 5, until: 4 }, 4), Duration::ZERO);
        let odd = Validity { from: i64::MIN, until: i64::MAX };
        assert!(until_due(odd, 0) > Duration::ZERO);
    }

    #[test]
    fn pauses_grow_from_the_floor_to_the_ceiling_and_are_spread() {
        let pauses = Pauses::default();
        let of = |failures, random| pause(pauses, failures, random, Duration::ZERO);
        for failures in [0, 1, 2, 3, 10, u32::MAX] {
            assert_eq!(of(failures, 0), pauses.floor);
            for random in [1, 123_456_789, u64::MAX / 2, u64::MAX] {
                let pause = of(failures, random);
                assert!(pauses.floor <= pause && pause <= pauses.ceiling, "{failures} {random} {pause:?}");
            }
        }
        // The whole of what there is to add: 60 s after the first failure.
        assert_eq!(of(1, 60_000), pauses.floor * 2);
        assert_eq!(of(1, 60_001), pauses.floor);
        assert_eq!(of(u32::MAX, 59 * 60_000), pauses.ceiling);
        let asked = Duration::from_secs(7_200);
        assert_eq!(pause(pauses, 1, 0, asked), asked);
        let none = Pauses { floor: Duration::from_secs(9), ceiling: Duration::from_secs(3) };
        assert_eq!(pause(none, 5, u64::MAX, Duration::ZERO), none.floor, "a ceiling below the floor is none");
    }
}
