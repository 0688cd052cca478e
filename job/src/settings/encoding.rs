//! What is measured of categories over the training rows: vocabularies, and encodings, which put a number in place of a category.

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
#[serde(deny_unknown_fields)]
pub struct EncodingTable {
    /// Mean over the training rows, subtracted from a number.
    #[schemars(range(min = -1e30, max = 1e30))]
    pub mean: f64,
    /// Deviation over the training rows, which a number is then divided by.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub deviation: f64,
    /// The numbers of a category that is not listed: those for training rows of each fold, and that for all other rows. Each has 8 hexadecimal
    /// digits (IEEE 754).
    #[serde(with = "digits")]
    #[schemars(with = "String", extend("x-form" = "digits-8"))]
    pub rare: Vec<f32>,
    /// Ids of the categories, ascending, 16 hexadecimal digits each.
    #[serde(with = "digits")]
    #[schemars(with = "String", extend("x-form" = "digits-16"))]
    pub ids: Vec<u64>,
    /// The numbers of each category, as for `rare`.
    #[serde(with = "digits")]
    #[schemars(with = "String", extend("x-form" = "digits-8"))]
    pub values: Vec<f32>,
}

impl EncodingTable {
    /// Whether there are so many numbers of each category, all finite.
    pub fn fits_columns(&self, columns: usize) -> bool {
        self.rare.len() == columns
            && self.values.len() == self.ids.len() * columns
            && self.rare.iter().chain(&self.values).all(|value| value.is_finite())
            && self.deviation > 0.0
            && columns > 0
    }
}

impl CategoryEncoding {
    /// Training rows that the mean of all labels counts as.
    pub fn prior_rows(&self) -> f64 {
        self.smoothing.unwrap_or(10.0)
    }

    /// Parts of the training rows that have numbers of their own; 0 if all rows have the same.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Vocabulary {
    /// Times that a category must occur in the training rows.
    #[serde(default = "number::<10>")]
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub min_count: u32,
    /// Most categories; of more, the most frequent. Their ids travel in one message to the other workers, and are kept in the job file of each
    /// model.
    #[serde(default = "number::<65_536>")]
    #[schemars(range(min = 1, max = 262_144))]
    pub max_size: u32,
    /// The ids of the categories, ascending, 16 hexadecimal digits each, which a resolved job has. Default: measured over the training rows
    /// before training.
    #[serde(default, with = "digits_or_none", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("x-form" = "digits-16"))]
    pub ids: Option<Vec<u64>>,
}

/// A number as hexadecimal digits.
trait Hexadecimal: Copy {
    const DIGITS: usize;

    fn digits(self) -> u64;
    fn from_digits(bits: u64) -> Self;
}

impl Hexadecimal for u64 {
    const DIGITS: usize = 16;

    fn digits(self) -> u64 {
        self
    }

    fn from_digits(bits: u64) -> Self {
        bits
    }
}

impl Hexadecimal for f32 {
    const DIGITS: usize = 8;

    fn digits(self) -> u64 {
        u64::from(self.to_bits())
    }

    fn from_digits(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
}

/// Numbers as one text. The check of the file has seen that it has digits of whole numbers.
mod digits {
    use std::fmt::Write;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Hexadecimal;

    pub(super) fn serialize<T: Hexadecimal, S: Serializer>(numbers: &[T], to: S) -> Result<S::Ok, S::Error> {
        let mut text = String::new();
        for number in numbers {
            // A text takes every write.
            let _ = write!(text, "{:01$x}", number.digits(), T::DIGITS);
        }
        text.serialize(to)
    }

    pub(super) fn deserialize<'de, T: Hexadecimal, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        let text = String::deserialize(from)?;
        let number = |digits: &[u8]| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        let numbers = text.as_bytes().chunks(T::DIGITS).map(|digits| number(digits).map(T::from_digits));
        numbers.collect::<Option<_>>().ok_or_else(|| D::Error::custom("no hexadecimal digits"))
    }
}

mod digits_or_none {
    use serde::{Deserializer, Serializer};

    use super::digits;

    pub(super) fn serialize<S: Serializer>(ids: &Option<Vec<u64>>, to: S) -> Result<S::Ok, S::Error> {
        digits::serialize(ids.as_deref().unwrap_or_default(), to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u64>>, D::Error> {
        digits::deserialize(from).map(Some)
    }
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
        fn numbers_come_back_from_their_text(ids: Vec<u64>, values in prop::collection::vec(-1e30_f32..1e30, 0..9)) {
            let table = EncodingTable { mean: 0.5, deviation: 2.0, rare: vec![-0.0], ids, values };
            let written = serde_json::to_value(&table).unwrap();
            prop_assert_eq!(serde_json::from_value::<EncodingTable>(written).unwrap(), table);
        }
    }
}
