//! `strftime_now` for chat templates: a moment in UTC by the format letters that templates use.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `now` by `format`; an unknown letter is an error that names it.
pub(crate) fn format_time(format: &str, now: SystemTime) -> Result<String, Error> {
    // A clock before 1970 tells 1970.
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day, day_of_year) = date(days);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let weekday = DAYS[((days + 4) % 7) as usize]; // 1970 began on a Thursday
    let month_name = MONTHS[(month - 1) as usize];
    let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };

    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let mut padded = true;
        let mut directive = letters.next();
        if directive == Some('-') {
            padded = false;
            directive = letters.next();
        }
        let two = |value: u64| if padded { format!("{value:02}") } else { value.to_string() };
        text.push_str(&match directive {
            Some('Y') => year.to_string(),
            Some('y') => two(year % 100),
            Some('m') => two(month),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('j') if padded => format!("{day_of_year:03}"),
            Some('j') => day_of_year.to_string(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two(twelve),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_owned(),
            other => {
                let letter = other.map_or_else(String::new, String::from);
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now: %{letter} is not supported"),
                ));
            }
        });
    }
    Ok(text)
}

/// Year, month 1-12, day 1-31 and day of the year 1-366 of a day counted from 1 January 1970.
fn date(days: u64) -> (u64, u64, u64, u64) {
    // Count from 1 March of year 0, so that a leap day ends its year; 719,468 days lie between.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let before = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334][(month - 1) as usize];
    (year, month, day, before + day + u64::from(leap && month > 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn told(format: &str, seconds: u64) -> String {
        format_time(format, UNIX_EPOCH + Duration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn known_moments() {
        assert_eq!(told("%Y-%m-%d %H:%M:%S %A %j", 0), "1970-01-01 00:00:00 Thursday 001");
        assert_eq!(told("%d %B %Y, %I:%M %p", 951_827_696), "29 February 2000, 12:34 PM");
        assert_eq!(told("%F %T %a %b %e %-d %j", 1_709_251_199), "2024-02-29 23:59:59 Thu Feb 29 29 060");
        assert_eq!(told("%F %j %-m 100%%", 4_102_444_800), "2100-01-01 001 1 100%");
        assert_eq!(told("%F %j", 1_735_603_200), "2024-12-31 366");
    }

    #[test]
    fn unknown_letters_are_named() {
        assert!(format_time("%Q", UNIX_EPOCH).unwrap_err().to_string().contains("%Q"));
        assert!(format_time("%", UNIX_EPOCH).is_err());
    }
}
