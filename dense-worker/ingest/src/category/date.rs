//! Parts of dates and times.
//!
//! ```text
//! 2026-11-25   2026-11-25 13:45:00   2026-11-25T13:45:00.250+01:00   the clock is that of the text
//! 20261125   2026112513   202611251345   20261125134500   26112513   without separators; the last with the hour
//! 1764078300   1764078300.25   1764078300000   1764078300000000      seconds, milliseconds, microseconds since 1970, UTC
//! ```
//!
//! Digits that are a date of 1970 to 2199 without separators are that date, and a number otherwise: ten digits are seconds since 1970
//! up to the year 2030, when both are possible.

use zagros_job::DatePart;

const DAY: i64 = 86_400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DateTime {
    year: i64,
    month: u32,
    day: u32,
    /// Since 1970.
    days: i64,
    /// Of the day.
    second: u32,
}

/// A part of the date or time of a text; `None` if the text is neither.
#[inline]
pub(crate) fn date_part(text: &[u8], part: DatePart) -> Option<u32> {
    let moment = parse_moment(text)?;
    // The first day of 1970 was a Thursday.
    let weekday = (moment.days + 3).rem_euclid(7) as u32;
    Some(match part {
        DatePart::Minute => moment.second / 60 % 60,
        DatePart::Hour => moment.second / 3600,
        DatePart::Weekday => weekday + 1,
        DatePart::HourOfWeek => 24 * weekday + moment.second / 3600,
        DatePart::Day => moment.day,
        DatePart::Month => moment.month,
        DatePart::Year => u32::try_from(moment.year).ok()?,
    })
}

/// The seconds from 1970 to a date or time, on the clock of its text; `None` if the text is neither.
pub fn clock_seconds(text: &[u8]) -> Option<i64> {
    let moment = parse_moment(text)?;
    Some(moment.days * DAY + i64::from(moment.second))
}

/// Whether a text has the form `2026-11-23`.
pub fn is_iso_date(text: &[u8]) -> bool {
    let is_part = |(at, byte): (usize, &u8)| if matches!(at, 4 | 7) { *byte == b'-' } else { byte.is_ascii_digit() };
    text.len() == 10 && text.iter().enumerate().all(is_part)
}

fn parse_moment(text: &[u8]) -> Option<DateTime> {
    if let Some(moment) = parse_compact(text) {
        return Some(moment);
    }
    let number = fraction_start(text).map_or(text, |point| &text[..point]);
    if let Some(seconds) = parse_whole(number) {
        return Some(since_1970(self::to_seconds(seconds, number)));
    }
    let (date, rest) = text.split_at_checked(10)?;
    let [y @ .., b'-', _, _, b'-', _, _] = date else { return None };
    let (year, month, day) = (digits(y)?, digits(&date[5..7])?, digits(&date[8..10])?);
    let days = days_of(i64::from(year), month, day)?;
    let second = match rest {
        [] => 0,
        [b' ' | b'T', clock @ ..] => clock_of(clock)?,
        _ => return None,
    };
    Some(DateTime { year: i64::from(year), month, day, days, second })
}

/// A date without separators, with two digits or more of the time behind it; also `YYMMDDHH`.
fn parse_compact(text: &[u8]) -> Option<DateTime> {
    let moment = |year: u32, rest: &[u8]| {
        let part = |at: usize| rest.get(at..at + 2).map_or(Some(0), digits);
        let (month, day, hour, minute, second) = (part(0)?, part(2)?, part(4)?, part(6)?, part(8)?);
        let days = days_of(i64::from(year), month, day)?;
        let is_time = (1970..2200).contains(&year) && hour < 24 && minute < 60 && second < 60;
        let second = 3600 * hour + 60 * minute + second;
        is_time.then_some(DateTime { year: i64::from(year), month, day, days, second })
    };
    let (year, rest) = match text.len() {
        8 | 10 | 12 | 14 => text.split_at(4),
        _ => return None,
    };
    let short = || if text.len() == 8 { moment(2000 + digits(&text[..2])?, &text[2..]) } else { None };
    moment(digits(year)?, rest).or_else(short)
}

fn fraction_start(text: &[u8]) -> Option<usize> {
    let point = memchr::memchr(b'.', text)?;
    let fraction = &text[point + 1..];
    (!fraction.is_empty() && fraction.iter().all(u8::is_ascii_digit)).then_some(point)
}

/// `13:45`, `13:45:00`, `13:45:00.25`, and any of them with `Z`, ` UTC` or an offset such as `+01:00`, and the
/// name of a zone in brackets behind it.
fn clock_of(text: &[u8]) -> Option<u32> {
    let (hour_minute, rest) = text.split_at_checked(5)?;
    let [h @ .., b':', _, _] = hour_minute else { return None };
    let (hour, minute) = (digits(h)?, digits(&hour_minute[3..5])?);
    let (second, rest) = match rest {
        [b':', a, b, rest @ ..] => (digits(&[*a, *b])?, rest),
        rest => (0, rest),
    };
    let rest = match rest {
        [b'.' | b',', rest @ ..] => {
            let fraction = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if fraction == 0 {
                return None;
            }
            &rest[fraction..]
        }
        rest => rest,
    };
    let rest = match memchr::memchr(b'[', rest) {
        Some(zone) if zone > 0 && rest.ends_with(b"]") => &rest[..zone],
        _ => rest,
    };
    let is_offset = match rest {
        [] | [b'Z' | b'z'] | b" UTC" => true,
        [b'+' | b'-', offset @ ..] => match offset {
            [_, _] | [_, _, _, _] => digits(offset).is_some(),
            [_, _, b':', _, _] => digits(&offset[..2]).and(digits(&offset[3..])).is_some(),
            _ => false,
        },
        _ => false,
    };
    // A leap second is the last one of its minute.
    let is_time = hour < 24 && minute < 60 && second <= 60 && is_offset;
    is_time.then_some(3600 * hour + 60 * minute + second.min(59))
}

fn digits(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0_u32, |number, byte| byte.is_ascii_digit().then(|| 10 * number + u32::from(byte - b'0')))
}

/// A whole number of up to 17 digits.
fn parse_whole(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() || digits.len() > 17 {
        return None;
    }
    let number = digits
        .iter()
        .try_fold(0_i64, |number, byte| byte.is_ascii_digit().then(|| 10 * number + i64::from(byte - b'0')));
    number.map(|number| sign * number)
}

/// Eleven digits of seconds reach to the year 5138, and fourteen of milliseconds too.
fn to_seconds(number: i64, text: &[u8]) -> i64 {
    match text.len() - usize::from(text[0] == b'-') {
        ..=11 => number,
        12..=14 => number.div_euclid(1_000),
        _ => number.div_euclid(1_000_000),
    }
}

fn since_1970(seconds: i64) -> DateTime {
    let (days, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY) as u32);
    let (year, month, day) = date_of(days);
    DateTime { year, month, day, days, second }
}

/// Year, month and day in the Gregorian calendar, of a day since 1970. Years are counted from March, so that a leap day is
/// the last day of a year; 400 years have 146,097 days.
pub(crate) fn date_of(days: i64) -> (i64, u32, u32) {
    // Days since 0000-03-01.
    let days = days.saturating_add(719_468);
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month + 2) / 5 + 1) as u32;
    let month = (if month < 10 { month + 3 } else { month - 9 }) as u32;
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// Days since 1970; `None` for a day that no calendar has.
fn days_of(year: i64, month: u32, day: u32) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u32::from(leap),
        _ => return None,
    };
    if day == 0 || day > length {
        return None;
    }
    let year = year - i64::from(month <= 2);
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let month = i64::from(if month > 2 { month - 3 } else { month + 9 });
    let day = (153 * month + 2) / 5 + i64::from(day) - 1;
    Some(era * 146_097 + 365 * year + year / 4 - year / 100 + day - 719_468)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(text: &str) -> Option<[u32; 7]> {
        use DatePart::*;
        let found = [Minute, Hour, Weekday, HourOfWeek, Day, Month, Year].map(|part| date_part(text.as_bytes(), part));
        found[0].map(|_| found.map(Option::unwrap))
    }

    #[test]
    fn every_form_of_one_moment_has_the_same_parts() {
        // A Wednesday.
        let expected = Some([45, 13, 3, 61, 25, 11, 2026]);
        let forms = "2026-11-25 13:45 | 2026-11-25 13:45:00 | 2026-11-25T13:45:59.999 | 2026-11-25T13:45:00Z | \
                     2026-11-25T13:45:00.250+01:00 | 2026-11-25 13:45:00-0800 | 2026-11-25 13:45:00 UTC | \
                     2026-11-25T13:45:00+01:00[Europe/Berlin] | 202611251345 | 20261125134500 | \
                     1795614300 | 1795614300.25 | 1795614300000 | 1795614300999999";
        for text in forms.split(" | ") {
            assert_eq!(parts(text), expected, "{text}");
        }
        for text in ["2026-11-25", "20261125", "2026112500", "26112500"] {
            assert_eq!(parts(text), Some([0, 0, 3, 48, 25, 11, 2026]), "{text}");
        }
        // Avazu's, and digits that are no date.
        assert_eq!(parts("14102113"), Some([0, 13, 2, 37, 21, 10, 2014]));
        assert_eq!(parts("14132113").map(|parts| parts[6]), Some(1970));
        assert_eq!(parts("-1"), Some([59, 23, 3, 71, 31, 12, 1969]));
    }

    #[test]
    fn what_no_calendar_has_is_refused() {
        let refused = "soon | 2026-13-01 | 2026-02-29 | 2026-00-10 | 2026-11-25 24:00 | 2026-11-25 13 | 2026/11/25 | \
                       2026-11-25x | 2026-11-25 13:45:00+1 | 12. | 12.x | 2026-11-25 13:45:00 [Europe/Berlin | \
                       20261125134500000000 | 2026-11-25 13:45:00. | é026-11-2";
        for text in refused.split(" | ").chain([""]) {
            assert_eq!(parts(text), None, "{text}");
        }
        assert!(parts("2024-02-29").is_some());
    }

    proptest! {
        #[test]
        fn days_and_dates_are_inverse(days in -700_000_i64..2_900_000) {
            let (year, month, day) = date_of(days);
            prop_assert_eq!(days_of(year, month, day), Some(days));
            prop_assume!((1000..10_000).contains(&year));
            let text = format!("{year}-{month:02}-{day:02}");
            prop_assert_eq!(parse_moment(text.as_bytes()), Some(since_1970(days * DAY)));
        }

        #[test]
        fn any_bytes_are_a_date_or_refused(text: Vec<u8>) {
            let _ = date_part(&text, DatePart::HourOfWeek);
        }
    }
}
