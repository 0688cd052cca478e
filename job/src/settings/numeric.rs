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
    pub standardise: Standardise,
    /// Whether the value, after `clip` and `log`, becomes (value − min) / (max − min), held between 0 and 1. `true` measures both over the
    /// training rows before training; `{ min, max }` gives them, of a vector as two numbers or as two lists. Not together with `standardise`.
    #[serde(default)]
    pub min_max: MinMax,
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
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.column)
    }

    #[must_use]
    pub fn value_count(&self) -> usize {
        self.width.unwrap_or(1)
    }

    /// Inputs of the network: the numbers, and one for whether one is missing.
    #[must_use]
    pub fn input_count(&self) -> usize {
        self.value_count() + usize::from(self.missing_indicator)
    }
}

/// Shift and scale of a numeric column: `(x − mean) / deviation`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "StandardiseKeys", into = "StandardiseKeys")]
pub enum Standardise {
    /// The value stays as it is.
    #[default]
    No,
    /// Mean and deviation are measured over the training rows before training.
    Fit,
    /// Mean and deviation are given.
    Given {
        /// Subtracted.
        mean: f64,
        /// Divided by; positive.
        deviation: f64,
    },
    /// Both are given for each number of a vector.
    GivenEach {
        /// Subtracted.
        mean: Vec<f64>,
        /// Divided by; positive.
        deviation: Vec<f64>,
    },
}

/// The keys of a job file.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum StandardiseKeys {
    /// Measured, or off.
    Switch(bool),
    /// Given.
    Given {
        /// Mean of the column after `log`, or a list: that of each number of a vector.
        mean: MeanKeys,
        /// Standard deviation of the column after `log`, or a list: that of each number of a vector.
        deviation: DeviationKeys,
    },
}

/// A number, or one for each number of a vector.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Means")]
enum MeanKeys {
    One(f64),
    Each(Vec<f64>),
}

/// A positive number, or one for each number of a vector.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Deviations")]
enum DeviationKeys {
    One(#[schemars(extend("exclusiveMinimum" = 0.0))] f64),
    Each(Vec<f64>),
}

/// A number, or one for each number of a vector.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Limits")]
enum LimitKeys {
    One(#[schemars(range(min = -1e30, max = 1e30))] f64),
    Each(#[schemars(inner(range(min = -1e30, max = 1e30)))] Vec<f64>),
}

fn listed(number: f64, other: &[f64]) -> Vec<f64> {
    vec![number; other.len()]
}

impl From<StandardiseKeys> for Standardise {
    fn from(keys: StandardiseKeys) -> Self {
        match keys {
            StandardiseKeys::Switch(false) => Self::No,
            StandardiseKeys::Switch(true) => Self::Fit,
            StandardiseKeys::Given { mean, deviation } => match (mean, deviation) {
                (MeanKeys::One(mean), DeviationKeys::One(deviation)) => Self::Given { mean, deviation },
                (MeanKeys::Each(mean), DeviationKeys::Each(deviation)) => Self::GivenEach { mean, deviation },
                (MeanKeys::One(mean), DeviationKeys::Each(deviation)) => {
                    Self::GivenEach { mean: listed(mean, &deviation), deviation }
                }
                (MeanKeys::Each(mean), DeviationKeys::One(deviation)) => {
                    Self::GivenEach { deviation: listed(deviation, &mean), mean }
                }
            },
        }
    }
}

impl From<Standardise> for StandardiseKeys {
    fn from(standardise: Standardise) -> Self {
        match standardise {
            Standardise::No => Self::Switch(false),
            Standardise::Fit => Self::Switch(true),
            Standardise::Given { mean, deviation } => {
                Self::Given { mean: MeanKeys::One(mean), deviation: DeviationKeys::One(deviation) }
            }
            Standardise::GivenEach { mean, deviation } => {
                Self::Given { mean: MeanKeys::Each(mean), deviation: DeviationKeys::Each(deviation) }
            }
        }
    }
}

/// Range of a numeric column that becomes 0…1: `(x − min) / (max − min)`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "MinMaxKeys", into = "MinMaxKeys")]
pub enum MinMax {
    /// The value stays as it is.
    #[default]
    No,
    /// Both are measured over the training rows before training.
    Fit,
    /// Both are given.
    Given {
        /// Becomes 0.
        min: f64,
        /// Becomes 1; greater than `min`.
        max: f64,
    },
    /// Both are given for each number of a vector.
    GivenEach {
        /// Becomes 0.
        min: Vec<f64>,
        /// Becomes 1; greater than `min`.
        max: Vec<f64>,
    },
}

/// The keys of a job file.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum MinMaxKeys {
    /// Measured, or off.
    Switch(bool),
    /// Given.
    Given {
        /// Value, after `clip` and `log`, that becomes 0, or a list: that of each number of a vector.
        min: LimitKeys,
        /// Value, after `clip` and `log`, that becomes 1, or a list: that of each number of a vector.
        max: LimitKeys,
    },
}

impl From<MinMaxKeys> for MinMax {
    fn from(keys: MinMaxKeys) -> Self {
        match keys {
            MinMaxKeys::Switch(false) => Self::No,
            MinMaxKeys::Switch(true) => Self::Fit,
            MinMaxKeys::Given { min, max } => match (min, max) {
                (LimitKeys::One(min), LimitKeys::One(max)) => Self::Given { min, max },
                (LimitKeys::Each(min), LimitKeys::Each(max)) => Self::GivenEach { min, max },
                (LimitKeys::One(min), LimitKeys::Each(max)) => Self::GivenEach { min: listed(min, &max), max },
                (LimitKeys::Each(min), LimitKeys::One(max)) => Self::GivenEach { max: listed(max, &min), min },
            },
        }
    }
}

impl From<MinMax> for MinMaxKeys {
    fn from(min_max: MinMax) -> Self {
        match min_max {
            MinMax::No => Self::Switch(false),
            MinMax::Fit => Self::Switch(true),
            MinMax::Given { min, max } => Self::Given { min: LimitKeys::One(min), max: LimitKeys::One(max) },
            MinMax::GivenEach { min, max } => Self::Given { min: LimitKeys::Each(min), max: LimitKeys::Each(max) },
        }
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
