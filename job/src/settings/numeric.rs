//! Numeric features: columns of numbers or of vectors of numbers, and how a number is transformed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::encoding::CategoryEncoding;

/// A numeric feature.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Numeric {
    /// Name of the column. With `encode`, the name of a categorical feature of one value stands for that feature's categories.
    pub column: String,
    /// Name of the feature. No two numeric features have one name, so a column that is in several features needs it. Default: the
    /// column's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Numbers of a cell: a vector of always so many numbers, such as an embedding that was made elsewhere, in a column of lists or a text with
    /// a `separator`. Each is an input of the network, and is transformed alone. An empty cell is a vector of missing numbers. Default: none, a
    /// cell is one number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub width: Option<usize>,
    /// Text between the numbers of a cell. Default: none, a cell is one number or a list; needs `width`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub separator: Option<String>,
    /// Least and greatest value, `[0, 1000]`: a value beyond them becomes the nearer one, before anything else. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(inner(range(min = -1e30, max = 1e30)))]
    pub clip: Option<[f64; 2]>,
    /// Whether x becomes ln(1 + x), or −ln(1 − x) when it is negative. This tames counts, keeps the sign and maps 0 to 0.
    #[serde(default)]
    pub log: bool,
    /// Whether the value, after `clip` and `log`, becomes (value − mean) / deviation. `true` measures both over the training rows before
    /// training; `{ mean, deviation }` gives them, of a vector as two numbers or as two lists.
    #[serde(default)]
    pub standardise: Scaling<ColumnMoments>,
    /// Whether the value, after `clip` and `log`, becomes (value − min) / (max − min), held between 0 and 1. `true` measures both over the
    /// training rows before training; `{ min, max }` gives them, of a vector as two numbers or as two lists. Not together with `standardise`.
    #[serde(default)]
    pub min_max: Scaling<ColumnRange>,
    /// Value in place of a missing one. It is not transformed. With `standardise`, 0 is the mean.
    #[serde(default)]
    #[schemars(range(min = -1e30, max = 1e30))]
    pub missing: f32,
    /// Whether the feature has one more input: 1 where its value, or a number of its vector, is missing, otherwise 0.
    #[serde(default)]
    pub missing_indicator: bool,
    /// Makes the input a number that stands for the category of the cell, measured over the training rows before training: how often the category
    /// occurs, or the mean label of its rows. It is standardised, and excludes the other keys except `name`. Default: none, the cell is a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encode: Option<CategoryEncoding>,
}

/// A column without a transform.
impl From<String> for Numeric {
    fn from(column: String) -> Self {
        Self { column, ..Self::default() }
    }
}

impl Numeric {
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.column)
    }

    pub fn value_count(&self) -> usize {
        self.width.unwrap_or(1)
    }

    /// Inputs of the network: the numbers, and one for whether one is missing.
    pub fn input_count(&self) -> usize {
        self.value_count() + usize::from(self.missing_indicator)
    }
}

/// Whether a numeric column is scaled by two numbers, and by which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scaling<P> {
    /// Measured, or off.
    Switch(bool),
    /// Given.
    Given(P),
}

impl<P> Scaling<P> {
    /// The value stays as it is.
    pub const NO: Self = Self::Switch(false);
    /// Both are measured over the training rows before training.
    pub const FIT: Self = Self::Switch(true);
}

impl<P> Default for Scaling<P> {
    fn default() -> Self {
        Self::NO
    }
}

/// A number becomes (x − mean) / deviation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ColumnMoments {
    /// Mean of the column after `log`, or a list: that of each number of a vector.
    #[serde(with = "one_or_each")]
    #[schemars(with = "OneOrEach")]
    pub mean: Vec<f64>,
    /// Standard deviation of the column after `log`, above 0, or a list: that of each number of a vector.
    #[serde(with = "one_or_each")]
    #[schemars(with = "OneOrEach")]
    pub deviation: Vec<f64>,
}

/// A number becomes (x − min) / (max − min), held between 0 and 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ColumnRange {
    /// Value, after `clip` and `log`, that becomes 0, or a list: that of each number of a vector.
    #[serde(with = "one_or_each")]
    #[schemars(with = "OneOrEach")]
    pub min: Vec<f64>,
    /// Value, after `clip` and `log`, that becomes 1, or a list: that of each number of a vector.
    #[serde(with = "one_or_each")]
    #[schemars(with = "OneOrEach")]
    pub max: Vec<f64>,
}

impl ColumnMoments {
    /// Mean and deviation of a number of the cell.
    pub fn number_pair(&self, index: usize) -> [f64; 2] {
        [&self.mean, &self.deviation].map(|list| own_or_common(list, index))
    }
}

impl ColumnRange {
    /// Least and greatest value of a number of the cell.
    pub fn number_pair(&self, index: usize) -> [f64; 2] {
        [&self.min, &self.max].map(|list| own_or_common(list, index))
    }
}

/// A list of one number is for all numbers of a vector.
fn own_or_common(list: &[f64], index: usize) -> f64 {
    list.get(index).or(list.first()).copied().unwrap_or_default()
}

/// A number, or one for each number of a vector.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum OneOrEach {
    One(#[schemars(range(min = -1e30, max = 1e30))] f64),
    Each(#[schemars(inner(range(min = -1e30, max = 1e30)))] Vec<f64>),
}

mod one_or_each {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::OneOrEach;

    pub(super) fn serialize<S: Serializer>(list: &[f64], to: S) -> Result<S::Ok, S::Error> {
        if let [one] = list { one.serialize(to) } else { list.serialize(to) }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        Ok(match OneOrEach::deserialize(from)? {
            OneOrEach::One(number) => vec![number],
            OneOrEach::Each(list) => list,
        })
    }
}

section! {
    /// Each single number becomes a vector before the network reads it: sines and cosines of learned frequencies, a linear layer of the
    /// feature's own, and a ReLU: the PLR embedding of Gorishniy et al. 2022 ("On Embeddings for Numerical Features in Tabular Deep Learning").
    #[derive(Copy)]
    pub struct NumericEmbedding {
        /// Learned frequencies of a feature, each with a sine and a cosine.
        #[schemars(range(min = 1, max = 1024))]
        pub frequencies: usize = 16,
        /// Standard deviation of the first frequencies. A small one makes smooth functions of the number, a large one steps. It is for numbers of
        /// unit scale: give the features `standardise` or `min_max`.
        #[schemars(range(min = 1e-4, max = 1000.0))]
        pub sigma: f64 = 0.1,
        /// Values of a feature's vector.
        #[schemars(range(min = 1, max = 1024))]
        pub dim: usize = 8,
    }
}
