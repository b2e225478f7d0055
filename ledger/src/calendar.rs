//! Unix seconds as people write and read them: UTC, in the calendar of everyday use.

use std::str::FromStr;

use time::{Date, Month, OffsetDateTime};

/// The day and the time of day, `2026-09-21` and `14:13:29`; none for times that no calendar names.
pub(crate) fn day_and_time(seconds: u64) -> Option<(String, String)> {
    let time = OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()?;
    let (hour, minute, second) = time.to_hms();
    let day = format!("{:04}-{:02}-{:02}", time.year(), u8::from(time.month()), time.day());
    Some((day, format!("{hour:02}:{minute:02}:{second:02}")))
}

/// A point in time that an operator names: Unix seconds, or a day, which stands for its beginning in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) u64);

impl FromStr for Moment {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let seconds = text.parse().ok().filter(|_| all_digits(text));
        let day = || {
            let [year, month, day]: [&str; 3] = text.split('-').collect::<Vec<_>>().try_into().ok()?;
            let lengths = (year.len(), month.len(), day.len()) == (4, 2, 2);
            if !lengths || ![year, month, day].into_iter().all(all_digits) {
                return None;
            }
            let month = Month::try_from(month.parse::<u8>().ok()?).ok()?;
            let date = Date::from_calendar_date(year.parse().ok()?, month, day.parse().ok()?).ok()?;
            u64::try_from(date.midnight().assume_utc().unix_timestamp()).ok()
        };
        seconds.or_else(day).map(Self).ok_or("neither Unix seconds nor a day such as 2026-11-30")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_seconds_or_days_and_nothing_else() {
        assert_eq!("1790000009".parse(), Ok(Moment(1_790_000_009)));
        assert_eq!("1970-01-01".parse(), Ok(Moment(0)));
        assert_eq!("2026-09-21".parse(), Ok(Moment(1_789_948_800)));
        assert_eq!("2024-02-29".parse(), Ok(Moment(1_709_164_800)));
        for bad in [
            "",
            "-1",
            "+1",
            "1e3",
            "2026-9-21",
            "2025-02-29",
            "2026-13-01",
            "1969-12-31",
            "2026-09-21T00:00",
            "18446744073709551616",
        ] {
            assert!(bad.parse::<Moment>().is_err(), "{bad}");
        }
    }

    #[test]
    fn absurd_times_have_no_day() {
        let day = ("2026-09-21".to_owned(), "14:13:29".to_owned());
        assert_eq!(day_and_time(1_790_000_009), Some(day));
        assert_eq!(day_and_time(u64::MAX), None);
        assert_eq!(day_and_time(i64::MAX as u64), None);
    }
}
