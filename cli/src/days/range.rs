//! The days of `--dates`: `2026-11-01..2026-11-07`, `2026-11-01..11-07`, `2026-11-01..07` or one day. Both ends are meant.

use std::str::FromStr;

use jiff::civil::Date;

/// What stands for the day in a path.
pub(crate) const PLACEHOLDER: &str = "{date}";
const MOST: usize = 3_660;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DateRange(Vec<Date>);

impl DateRange {
    /// The first day, the next …; at least one.
    pub(crate) fn days(&self) -> &[Date] {
        &self.0
    }
}

impl FromStr for DateRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let first: Date = parse(first)?;
        // What the last day leaves out is as in the first.
        let whole = first.to_string();
        let last = match last.len() {
            2 | 5 => parse(&format!("{}{last}", &whole[..whole.len() - last.len()]))?,
            _ => parse(last)?,
        };
        if last < first {
            return Err(format!("{last} is before {first}"));
        }
        let days: Vec<Date> =
            first.series(jiff::Span::new().days(1)).take_while(|day| *day <= last).take(MOST + 1).collect();
        if days.len() > MOST {
            return Err(format!("{first} to {last} are more than {MOST} days"));
        }
        Ok(Self(days))
    }
}

fn parse(text: &str) -> Result<Date, String> {
    text.parse().map_err(|_| format!("{text:?} is no day; write 2026-11-01, or 2026-11-01..2026-11-07"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(text: &str) -> Result<Vec<String>, String> {
        text.parse::<DateRange>().map(|range| range.days().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn both_ends_are_meant_and_the_last_may_be_short() {
        let expected = Ok(["2026-02-27", "2026-02-28", "2026-03-01"].map(str::to_owned).to_vec());
        assert_eq!(days("2026-02-27..2026-03-01"), expected);
        assert_eq!(days("2026-02-27..03-01"), expected);
        assert_eq!(days("2026-11-01..03").map(|days| days.len()), Ok(3));
        assert_eq!(days("2026-11-01"), Ok(vec!["2026-11-01".to_owned()]));
        assert_eq!(days("2028-02-28..2028-03-01").map(|days| days.len()), Ok(3), "a leap year");
    }

    #[test]
    fn what_is_no_range_is_refused_with_what_was_written() {
        assert_eq!(days("2026-11-07..2026-11-01"), Err("2026-11-01 is before 2026-11-07".to_owned()));
        for wrong in ["", "yesterday", "2026-13-01", "2026-11-01..x", "2026-11-01..31", "2026-11-01.."] {
            assert!(days(wrong).is_err_and(|error| error.contains("is no day")), "{wrong}");
        }
        assert!(days("1900-01-01..2026-01-01").is_err_and(|error| error.contains("more than 3660 days")));
    }
}
