//! Columns that hold a time.

use std::collections::HashSet;

use zagros_ingest::{clock_seconds, is_iso_date};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeForm {
    /// Seconds or milliseconds since 1970.
    Epoch,
    /// `2026-11-23`, with or without a time of day.
    Iso,
    /// `YYYYMMDDHH`, or `YYMMDDHH` as Avazu writes it.
    DateHour,
}

impl TimeForm {
    /// The form in which every value is a time, if there is one. Numbers count as times only in a column whose name says so.
    pub(crate) fn infer<'a>(name: &str, values: impl Iterator<Item = &'a str> + Clone) -> Option<Self> {
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
        let is_epoch = all(|value| value.parse::<f64>().is_ok_and(|time| (3e8..4e9).contains(&time)))
            || all(|value| value.parse::<f64>().is_ok_and(|time| (3e11..4e12).contains(&time)));
        is_epoch.then_some(Self::Epoch)
    }
}

/// The parts of dates, as the trainer reads them, that can be features and differ between the values.
pub(crate) fn date_parts(values: &[&str]) -> Vec<&'static str> {
    let seconds: Option<Vec<i64>> = values.iter().map(|value| clock_seconds(value.as_bytes())).collect();
    let Some(seconds) = seconds else { return Vec::new() };
    let days: HashSet<i64> = seconds.iter().map(|seconds| seconds.div_euclid(86_400)).collect();
    let hours: HashSet<i64> = seconds.iter().map(|seconds| seconds.rem_euclid(86_400) / 3_600).collect();
    let parts = [("hour", hours.len() > 1), ("weekday", days.len() >= 7)];
    parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect()
}

fn is_iso(value: &str) -> bool {
    value.as_bytes().get(..10).is_some_and(is_iso_date)
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

    #[test]
    fn each_form_is_recognised_and_numbers_in_other_columns_are_no_times() {
        for (name, values, form) in [
            ("timestamp", &["964982224", "1537109082"][..], Some(TimeForm::Epoch)),
            ("event_time", &["1537109082123"], Some(TimeForm::Epoch)),
            ("x", &["2026-11-23", "2026-11-23T01:02:03Z"], Some(TimeForm::Iso)),
            ("hour", &["14102100", "14103023"], Some(TimeForm::DateHour)),
            ("hour", &["2014102100"], Some(TimeForm::DateHour)),
            ("price", &["964982224"], None),
            ("hours_per_week", &["40", "13"], None),
            // Month 13.
            ("hour", &["14132100"], None),
        ] {
            assert_eq!(TimeForm::infer(name, values.iter().copied()), form, "{name} {values:?}");
        }
    }

    #[test]
    fn parts_of_dates_that_differ_are_features() {
        let hours: Vec<String> = (0..10).map(|n| format!("2026-11-{:02}T0{n}:15:00Z", 10 + n)).collect();
        let hours: Vec<&str> = hours.iter().map(String::as_str).collect();
        assert_eq!(date_parts(&hours), ["hour", "weekday"]);
        assert_eq!(date_parts(&hours[..3]), ["hour"]);
        assert_eq!(date_parts(&["2026-11-23", "2026-11-24"]), [""; 0]);
        assert_eq!(date_parts(&["2026-11-23 00:00:00", "2026-11-23 01:00:00"]), ["hour"]);
        for bad in ["2026-13-23 01:00:00", "2026-11-23 25:00:00", "2026-11-23 morning", "2026-11-23x"] {
            assert_eq!(date_parts(&["2026-11-23 00:00:00", bad]), [""; 0], "{bad}");
        }
        let seconds: Vec<String> = (0..10).map(|n| (1_795_459_500 + n * 100_000).to_string()).collect();
        let seconds: Vec<&str> = seconds.iter().map(String::as_str).collect();
        assert_eq!(date_parts(&seconds), ["hour", "weekday"]);
        assert_eq!(date_parts(&["14102100"]), [""; 0]);
        assert_eq!(date_parts(&["14102100", "14102123"]), ["hour"]);
    }
}
