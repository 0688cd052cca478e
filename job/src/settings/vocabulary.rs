//! Vocabularies: the frequent categories of a feature, measured over the training rows.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which categories have a row of their own. All others share one row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Vocabulary {
    /// Times that a category must occur in the training rows.
    pub min_count: u32,
    pub max_size: u32,
    /// The ids of the categories, ascending; `None` until they are measured.
    pub ids: Option<Vec<u64>>,
}

/// Which categories have a row of their own.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Vocabulary")]
pub(crate) struct VocabularyKeys {
    /// Times that a category must occur in the training rows.
    #[serde(default = "number::<10>")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(crate) min_count: u32,
    /// Most categories; of more, the most frequent. Their ids travel in one message to the other workers, and are kept in the job file of each
    /// model.
    #[serde(default = "number::<65_536>")]
    #[schemars(range(min = 1, max = 262_144))]
    pub(crate) max_size: u32,
    /// The ids of the categories, 16 hexadecimal digits each, which a resolved job has. Default: measured over the training rows before
    /// training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ids: Option<String>,
}

const DIGITS: usize = 16;

pub(crate) fn ids_to_text(ids: &[u64]) -> String {
    to_digits(ids.iter().copied(), DIGITS)
}

/// Hexadecimal, `digits` of each number.
pub(super) fn to_digits(numbers: impl Iterator<Item = u64>, digits: usize) -> String {
    let mut text = String::new();
    for number in numbers {
        // A text takes every write.
        let _ = write!(text, "{number:0digits$x}");
    }
    text
}

/// The ids of a text, ascending; `None` if it has others than digits of ids.
pub(crate) fn ids_of_text(text: &str) -> Option<Vec<u64>> {
    let mut ids = of_digits(text, DIGITS)?;
    ids.sort_unstable();
    ids.dedup();
    Some(ids)
}

/// The numbers that [`to_digits`] wrote.
pub(super) fn of_digits(text: &str, digits: usize) -> Option<Vec<u64>> {
    if !text.len().is_multiple_of(digits) || text.bytes().any(|digit| !digit.is_ascii_hexdigit()) {
        return None;
    }
    let number = |digits: &[u8]| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    text.as_bytes().chunks(digits).map(number).collect()
}

pub(super) fn number<const N: u32>() -> u32 {
    N
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn other_texts_are_no_ids() {
        for text in ["0", "0123456789abcdeg", "+123456789abcdef", "é23456789abcdef"] {
            assert_eq!(ids_of_text(text), None, "{text}");
        }
        assert_eq!(ids_of_text(""), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn ids_come_back_from_their_text(ids: std::collections::BTreeSet<u64>) {
            let ids: Vec<u64> = ids.into_iter().collect();
            prop_assert_eq!(ids_of_text(&ids_to_text(&ids)), Some(ids));
        }
    }
}
