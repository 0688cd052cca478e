//! What is measured of categories over the training rows: vocabularies, and encodings, which put a number in place of a category.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number in place of a category.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Encoding")]
pub struct CategoryEncoding {
    /// What the number is.
    pub by: EncodeBy,
    /// Columns, or categorical features of one value, that make the category together with `column`, as in a `cross`. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<String>,
    /// Training rows that the mean of all labels counts as, in the mean of a category's labels. Default: 10; only with `by = "target"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1e9))]
    pub smoothing: Option<f64>,
    /// Parts of the training rows: the number of a training row is measured over the parts that it is not in. Default: 5; only with
    /// `by = "target"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16))]
    pub folds: Option<u32>,
    /// Most categories; of more, the most frequent. Others are encoded as one that never occurs. The numbers travel in one message to the
    /// other workers, and are kept in the job file of each model.
    #[serde(default = "number::<65_536>")]
    #[schemars(range(min = 1, max = 262_144))]
    pub max_size: u32,
    /// The numbers, which a resolved job has. Default: measured over the training rows before training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted: Option<EncodingTable>,
}

/// What the number of a category is, before it is standardised over the training rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodeBy {
    /// ln(1 + n), of n training rows with the category.
    Count,
    /// The smoothed mean of the first label over the training rows with the category (Micci-Barreca 2001): (sum + `smoothing` · mean of all
    /// labels) / (n + `smoothing`).
    Target,
}

/// The measured numbers of an encoding: of each category, one for each fold of the training rows and then the one for all other rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "EncodingTableKeys", into = "EncodingTableKeys")]
pub struct EncodingTable {
    /// Mean over the training rows.
    pub mean: f64,
    /// Deviation over the training rows, positive.
    pub deviation: f64,
    /// The numbers of a category that is not listed.
    pub rare: Vec<f32>,
    /// Ids of the categories, ascending.
    pub ids: Vec<u64>,
    /// The numbers of each category, one category after another.
    pub values: Vec<f32>,
}

impl EncodingTable {
    /// Whether there are so many numbers of each category.
    #[must_use]
    pub fn fits_columns(&self, columns: usize) -> bool {
        self.rare.len() == columns
            && self.values.len() == self.ids.len() * columns
            && self.deviation > 0.0
            && columns > 0
    }
}

/// The keys of a job file.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EncodingTableKeys {
    /// Subtracted from a number.
    mean: f64,
    /// Then divided by.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    deviation: f64,
    /// The numbers of a category that is not listed: those for training rows of each fold, and that for all other rows. Each has 8 hexadecimal
    /// digits (IEEE 754).
    rare: String,
    /// Ids of the categories, 16 hexadecimal digits each.
    ids: String,
    /// The numbers of each category, as for `rare`.
    values: String,
}

impl From<EncodingTable> for EncodingTableKeys {
    fn from(EncodingTable { mean, deviation, rare, ids, values }: EncodingTable) -> Self {
        Self { mean, deviation, rare: to_text(&rare), ids: ids_to_text(&ids), values: to_text(&values) }
    }
}

/// A table of texts that are no ids or no numbers is empty, and fits no encoding.
impl From<EncodingTableKeys> for EncodingTable {
    fn from(EncodingTableKeys { mean, deviation, rare, ids, values }: EncodingTableKeys) -> Self {
        let (ids, rare, values) = (ids_of_text(&ids), of_text(&rare), of_text(&values));
        let (Some(ids), Some(rare), Some(values)) = (ids, rare, values) else {
            return Self { mean, deviation, rare: Vec::new(), ids: Vec::new(), values: Vec::new() };
        };
        Self { mean, deviation, rare, ids, values }
    }
}

const VALUE_DIGITS: usize = 8;

fn to_text(values: &[f32]) -> String {
    to_digits(values.iter().map(|value| u64::from(value.to_bits())), VALUE_DIGITS)
}

/// The finite numbers of a text; `None` if it has others than digits of such.
fn of_text(text: &str) -> Option<Vec<f32>> {
    let values = of_digits(text, VALUE_DIGITS)?.into_iter().map(|bits| f32::from_bits(bits as u32));
    values.map(|value| value.is_finite().then_some(value)).collect()
}

impl CategoryEncoding {
    /// Training rows that the mean of all labels counts as.
    #[must_use]
    pub fn prior_rows(&self) -> f64 {
        self.smoothing.unwrap_or(10.0)
    }

    /// Parts of the training rows that have numbers of their own; 0 if all rows have the same.
    #[must_use]
    pub fn own_folds(&self) -> usize {
        if self.by == EncodeBy::Count { 0 } else { self.folds.unwrap_or(5) as usize }
    }

    /// Whether both measure the same number of a category.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let what = |of: &Self| (of.by, of.own_folds(), of.prior_rows(), of.max_size);
        what(self) == what(other)
    }
}

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

const ID_DIGITS: usize = 16;

pub(crate) fn ids_to_text(ids: &[u64]) -> String {
    to_digits(ids.iter().copied(), ID_DIGITS)
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
    let mut ids = of_digits(text, ID_DIGITS)?;
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

    proptest! {
        #[test]
        fn numbers_come_back_from_their_text(values in prop::collection::vec(-1e30_f32..1e30, 0..9)) {
            prop_assert_eq!(of_text(&to_text(&values)), Some(values));
        }
    }

    #[test]
    fn other_texts_are_no_numbers() {
        for text in ["3f80000", "3f80000g", "7fc00000", "7f800000", "+f800000"] {
            assert_eq!(of_text(text), None, "{text}");
        }
    }
}

#[cfg(test)]
mod vocabulary_tests {
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
