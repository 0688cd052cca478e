//! Which rows are the newest: the column that says when each row was, and the times that divide the parts.
//!
//! ```text
//! times of the sample, sorted:   80 % train │ 10 % validation │ 10 % test
//!                               validation_from            test_from
//! ```
//!
//! Rows of one time are never divided, so the shares differ where many rows have the same time.

use zagros_ingest::SampledColumn;
use zagros_job::TimeBound;

use crate::init::{Column, ColumnKind, TimeForm};

/// The share of the rows from which on they are test rows, and validation rows.
const TEST_FROM: f64 = 0.9;
const VALIDATION_FROM: f64 = 0.8;

/// Share of the rows that must be left to train on.
const MIN_TRAIN: f64 = 0.5;

/// Share of the rows that must have a time.
const MIN_PRESENT: f64 = 0.9;

/// Names of columns that say when a row was, the likelier first.
const NAMES: &str =
    "timestamp event_time event_timestamp ts time datetime event_date request_time click_time hour date day";

/// Parts of names of times that are not those of a row.
const OTHER_TIMES: [&str; 14] = [
    "birth", "born", "dob", "sign", "regist", "join", "expir", "releas", "publish", "start", "until", "valid", "first",
    "last",
];

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NewestParts {
    pub column: usize,
    pub validation_from: TimeBound,
    pub test_from: TimeBound,
    /// Shares of the sample's rows.
    pub validation_share: f64,
    pub test_share: f64,
    /// Whether the name of the column does not say that it is the time of a row.
    pub is_guess: bool,
    pub others: Vec<String>,
}

impl NewestParts {
    /// The parts by the likeliest column of times, if there is one with which rows can be divided.
    pub(crate) fn find(columns: &[Column], texts: &[SampledColumn], label: usize) -> Option<Self> {
        let mut candidates: Vec<usize> = (0..columns.len())
            .filter(|at| {
                *at != label && matches!(columns[*at].kind, ColumnKind::Time(_)) && !is_other_time(&columns[*at].name)
            })
            .collect();
        candidates.sort_by_key(|at| rank(&columns[*at].name));
        let parts = |at: &usize| Self::from_column(*at, &columns[*at], &texts[*at]);
        let found = candidates.iter().find_map(parts)?;
        let others = candidates.iter().filter(|at| **at != found.column).map(|at| columns[*at].name.clone()).collect();
        Some(Self { others, ..found })
    }

    fn from_column(at: usize, column: &Column, texts: &SampledColumn) -> Option<Self> {
        let ColumnKind::Time(form) = column.kind else { return None };
        let is_present = |text: &&str| !text.is_empty() && !column.missing.contains(text);
        let mut times: Vec<&str> = texts.texts.iter().map(String::as_str).filter(is_present).collect();
        if (times.len() as f64) < MIN_PRESENT * texts.texts.len() as f64 {
            return None;
        }
        let number = |time: &str| time.parse::<f64>().unwrap_or(f64::NEG_INFINITY);
        let is_text = form == TimeForm::Iso;
        if is_text {
            times.sort_unstable();
        } else {
            times.sort_by(|one, other| number(one).total_cmp(&number(other)));
        }
        let rows = times.len();
        let test = border(&times, TEST_FROM, rows)?;
        let validation = border(&times, VALIDATION_FROM / TEST_FROM, test)?;
        let share = |from: usize, to: usize| (to - from) as f64 / rows as f64;
        let bound = |row: usize| match is_text {
            true => TimeBound::Text(times[row].to_owned()),
            false => TimeBound::Number(number(times[row])),
        };
        (share(0, validation) >= MIN_TRAIN).then(|| Self {
            column: at,
            validation_from: bound(validation),
            test_from: bound(test),
            validation_share: share(validation, test),
            test_share: share(test, rows),
            is_guess: rank(&column.name).0 == UNKNOWN,
            others: Vec::new(),
        })
    }
}

/// The first row of the times from about `share` of the rows `0..rows` on: a row whose time the row before it has not.
fn border(times: &[&str], share: f64, rows: usize) -> Option<usize> {
    let wanted = ((share * rows as f64).round() as usize).min(rows.checked_sub(1)?);
    let is_border = |row: &usize| *row > 0 && times[row - 1] != times[*row];
    let earlier = (1..=wanted).rev().find(is_border);
    let later = (wanted + 1..rows).find(is_border);
    match (earlier, later) {
        (Some(earlier), Some(later)) => Some(if wanted - earlier <= later - wanted { earlier } else { later }),
        (earlier, later) => earlier.or(later),
    }
}

/// The place of a name that is not among those that are known.
const UNKNOWN: usize = usize::MAX;

/// The place of a name among those that are known; those that sound like one come next.
fn rank(name: &str) -> (usize, bool) {
    let name = name.to_ascii_lowercase();
    let last = name.rsplit('.').next().unwrap_or_default();
    let sounds = ["time", "date", "hour"].iter().any(|word| last.contains(word))
        || last.ends_with("_at")
        || last.ends_with("_ts");
    (NAMES.split(' ').position(|known| known == last).unwrap_or(UNKNOWN), !sounds)
}

fn is_other_time(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    OTHER_TIMES.iter().any(|other| name.contains(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::column::tests::infer_columns;

    fn newest_parts(columns: &[(&str, Vec<String>)]) -> Option<NewestParts> {
        let (texts, columns) = infer_columns(columns);
        NewestParts::find(&columns, &texts, usize::MAX)
    }

    /// Seconds in an order that is not theirs.
    fn seconds() -> Vec<String> {
        (0..1_000).map(|row| (1_700_000_000 + row * 387 % 1_000).to_string()).collect()
    }

    #[test]
    fn the_newest_tenth_is_the_test_part() {
        let parts = newest_parts(&[("timestamp", seconds())]).unwrap();
        assert_eq!(parts.test_from, TimeBound::Number(1_700_000_900.0));
        assert_eq!(parts.validation_from, TimeBound::Number(1_700_000_800.0));
        assert!((parts.test_share - 0.1).abs() < 1e-9 && (parts.validation_share - 0.1).abs() < 1e-9);
        assert!(!parts.is_guess);
    }

    #[test]
    fn rows_of_one_day_stay_together() {
        let days = |days: u64| (0..1_000).map(move |row| format!("2026-11-{:02}", 1 + row * 5 % days)).collect();
        let parts = newest_parts(&[("date", days(7))]).unwrap();
        assert_eq!(parts.test_from, TimeBound::Text("2026-11-07".into()));
        assert_eq!(parts.validation_from, TimeBound::Text("2026-11-06".into()));
        assert!(parts.test_share > 0.13 && parts.test_share < 0.15, "{parts:?}");
        assert_eq!(newest_parts(&[("date", days(2))]), None, "nothing is left to train on");
    }

    #[test]
    fn a_birthday_divides_no_rows_and_a_vague_name_is_a_guess() {
        let days: Vec<String> =
            (0..1_000).map(|row| format!("19{:02}-05-{:02}", row % 90 + 10, row % 28 + 1)).collect();
        assert_eq!(newest_parts(&[("birth_date", days.clone())]), None);
        let parts = newest_parts(&[("when", days), ("ts", seconds())]).unwrap();
        assert_eq!((parts.column, parts.others.as_slice(), parts.is_guess), (1, &["when".to_owned()][..], false));
        let days = (0..100).map(|row| format!("2026-11-{:02}", row % 30 + 1)).collect();
        assert!(newest_parts(&[("when", days)]).unwrap().is_guess);
    }

    #[test]
    fn a_column_with_many_gaps_divides_no_rows() {
        let mut gaps = seconds();
        gaps.iter_mut().step_by(5).for_each(String::clear);
        assert_eq!(newest_parts(&[("timestamp", gaps)]), None);
    }
}
