//! Columns that hold a time.

/// How a column writes times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeForm {
    /// Seconds since 1970.
    EpochSeconds,
    /// Milliseconds since 1970.
    EpochMillis,
    /// `2026-11-23`, with or without a time of day.
    Iso,
    /// `YYYYMMDDHH`, or `YYMMDDHH` as Avazu writes it.
    DateHour,
}

impl TimeForm {
    /// The form in which every value is a time, if there is one. Numbers count as times only in a column whose name says so.
    pub(crate) fn of<'a>(name: &str, values: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
        let all = |form: fn(&str) -> bool| values.clone().next().is_some() && values.clone().all(form);
        if all(is_iso) {
            return Some(Self::Iso);
        }
        let name = name.to_ascii_lowercase();
        let words = ["time", "date", "hour", "day"];
        if !(words.iter().any(|word| name.contains(word)) || name == "ts" || name.ends_with("_at")) {
            return None;
        }
        if all(is_date_hour) {
            return Some(Self::DateHour);
        }
        if all(|value| value.parse::<f64>().is_ok_and(|time| (3e8..4e9).contains(&time))) {
            return Some(Self::EpochSeconds);
        }
        all(|value| value.parse::<f64>().is_ok_and(|time| (3e11..4e12).contains(&time))).then_some(Self::EpochMillis)
    }
}

fn is_iso(value: &str) -> bool {
    let bytes = value.as_bytes();
    bytes.len() >= 10
        && bytes[..10].iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => *byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

fn is_date_hour(value: &str) -> bool {
    if !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let rest = match value.len() {
        10 if value.starts_with("19") || value.starts_with("20") => &value[4..],
        8 => &value[2..],
        _ => return false,
    };
    let part = |at: usize| rest[at..at + 2].parse::<u32>().unwrap_or(99);
    (1..=12).contains(&part(0)) && (1..=31).contains(&part(2)) && part(4) < 24
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, values: &[&str]) -> Option<TimeForm> {
        TimeForm::of(name, values.iter().copied())
    }

    #[test]
    fn each_form_is_recognised() {
        assert_eq!(of("timestamp", &["964982224", "1537109082"]), Some(TimeForm::EpochSeconds));
        assert_eq!(of("event_time", &["1537109082123"]), Some(TimeForm::EpochMillis));
        assert_eq!(of("x", &["2026-11-23", "2026-11-23T01:02:03Z"]), Some(TimeForm::Iso));
        assert_eq!(of("hour", &["14102100", "14103023"]), Some(TimeForm::DateHour));
        assert_eq!(of("hour", &["2014102100"]), Some(TimeForm::DateHour));
    }

    #[test]
    fn numbers_in_other_columns_are_no_times() {
        assert_eq!(of("price", &["964982224"]), None);
        assert_eq!(of("hours_per_week", &["40", "13"]), None);
        assert_eq!(of("hour", &["14132100"]), None, "month 13");
    }
}
