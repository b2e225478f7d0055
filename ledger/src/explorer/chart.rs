//! Charts as SVG that the server draws: bars for what came each day, a line for what has grown. Beside each stands the
//! same as a table, so that nothing is told by a picture alone. Labels are HTML around the picture, which may be any
//! width.

use maud::{Markup, html};

use super::show;

/// Days that a chart shows.
pub(super) const DAYS: u64 = 30;
/// Width of one day in the picture's own units.
const STEP: u64 = 10;
/// Height of the picture in its own units.
const HEIGHT: u64 = 100;

/// One day's value.
pub(super) struct Value {
    /// Days since 1970.
    pub(super) day: u64,
    /// What is drawn, zero or more.
    pub(super) value: u64,
}

/// What a chart shows, in words.
pub(super) struct Words<'a> {
    /// Heading.
    pub(super) title: &'a str,
    /// Name of the value's column.
    pub(super) value: &'a str,
    /// Writes a value for people.
    pub(super) write: fn(u64) -> String,
}

/// One bar a day, over the [`DAYS`] days that end with `last`.
pub(super) fn bars(words: &Words<'_>, values: &[Value], last: u64) -> Markup {
    let first = first_day(last);
    let most = values.iter().map(|value| value.value).max().unwrap_or(0);
    let picture = html! {
        @for value in values.iter().filter(|value| (first..=last).contains(&value.day) && value.value > 0) {
            @let tall = height(value.value, most).max(1);
            rect.bar x=((value.day - first) * STEP + 1) y=(HEIGHT - tall) width=(STEP - 2) height=(tall) {
                title { (show::day(value.day)) ": " ((words.write)(value.value)) }
            }
        }
    };
    figure(words, values, (first, last), most, &picture)
}

/// A line through what there was at the end of each of the [`DAYS`] days that end with `last`. `values` has every day
/// with a change, ascending; `before` is what there was before the first of the days.
pub(super) fn line(words: &Words<'_>, before: u64, values: &[Value], last: u64) -> Markup {
    let first = first_day(last);
    let most = values.iter().map(|value| value.value).max().unwrap_or(0).max(before);
    let mut at = HEIGHT - height(before, most);
    let mut path = format!("M0 {at}");
    for value in values.iter().filter(|value| (first..=last).contains(&value.day)) {
        at = HEIGHT - height(value.value, most);
        // Credit comes in steps: a slanted line would tell of credit that was not there yet.
        path.push_str(&format!("H{} V{at}", (value.day - first) * STEP + STEP / 2));
    }
    let end = DAYS * STEP;
    path.push_str(&format!("H{end}"));
    let picture = html! {
        path.area d={ (path) "V" (HEIGHT) "H0Z" } {}
        path.line d=(path) {}
    };
    figure(words, values, (first, last), most, &picture)
}

fn figure(
    words: &Words<'_>,
    values: &[Value],
    (first, last): (u64, u64),
    most: u64,
    picture: &Markup,
) -> Markup {
    let label = format!(
        "{}, {} to {}, at most {}",
        words.title,
        show::day(first),
        show::day(last),
        (words.write)(most)
    );
    html! {
        figure.chart {
            figcaption { h2 { (words.title) } span.most { "to " ((words.write)(most)) } }
            svg viewBox={ "0 0 " (DAYS * STEP) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(label) {
                (picture)
            }
            div.days { span { (show::day(first)) } span { (show::day(last)) } }
            @if !values.is_empty() {
                details {
                    summary { "The same as a table" }
                    div.scroll role="region" aria-label=(words.title) tabindex="0" {
                        table {
                            thead { tr { th scope="col" { "Day (UTC)" } th.number scope="col" { (words.value) } } }
                            tbody {
                                @for value in values.iter().rev() {
                                    tr { td { (show::day(value.day)) } td.number { ((words.write)(value.value)) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// First of the [`DAYS`] days that end with `last`.
pub(super) fn first_day(last: u64) -> u64 {
    last.saturating_sub(DAYS - 1)
}

fn height(value: u64, most: u64) -> u64 {
    // At most 95 of 100, so that the highest value does not touch the frame.
    let scaled = u128::from(value) * 95 / u128::from(most.max(1));
    u64::try_from(scaled).unwrap_or(HEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: Words<'_> = Words { title: "Bytes a day", value: "Bytes", write: |value| value.to_string() };

    #[test]
    fn the_largest_numbers_and_no_numbers_can_be_drawn() {
        let largest = [Value { day: 100, value: u64::MAX }, Value { day: 101, value: 1 }];
        let drawn = bars(&WORDS, &largest, 101).into_string();
        assert_eq!(drawn.matches("<rect").count(), 2);
        assert!(drawn.contains("height=\"95\"") && drawn.contains("height=\"1\""), "{drawn}");
        assert!(!bars(&WORDS, &[], 0).into_string().contains("<details"));
        assert!(line(&WORDS, 0, &[], 5).into_string().contains("M0 100H300"));
        assert!(line(&WORDS, u64::MAX, &largest, 101).into_string().contains("M0 5H"));
    }
}
