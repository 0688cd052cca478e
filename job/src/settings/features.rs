//! What a sample is made of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a sample is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Features {
    /// The column that is learned.
    pub label: Label,
    /// Numeric columns, in order.
    pub numeric: Vec<Numeric>,
    /// Categorical columns, in order.
    pub categorical: Vec<Categorical>,
}

/// The column that is learned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// Name of the column.
    pub column: String,
    /// Texts that mean a positive sample.
    #[serde(default = "positive")]
    #[schemars(length(min = 1))]
    pub positive: Vec<String>,
    /// Texts that mean a negative sample. A text in neither list is a malformed row.
    #[serde(default = "negative")]
    #[schemars(length(min = 1))]
    pub negative: Vec<String>,
}

/// A column of `1` and `0`.
impl From<String> for Label {
    fn from(column: String) -> Self {
        Self { column, positive: positive(), negative: negative() }
    }
}

/// A numeric column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Numeric {
    /// Name of the column.
    pub column: String,
    /// Whether x becomes ln(1 + x), or −ln(1 − x) when it is negative. This tames counts, keeps the sign and maps 0 to 0.
    #[serde(default)]
    pub log: bool,
    /// Whether the value, after `log`, becomes (value − mean) / deviation. `true` measures both over the training rows before
    /// training; `{ mean, deviation }` gives them.
    #[serde(default)]
    pub standardise: Standardise,
    /// Value that stands for a missing one. It is not transformed. With `standardise` 0 is the mean.
    #[serde(default)]
    #[schemars(range(min = -1e30, max = 1e30))]
    pub missing: f32,
}

/// A column that is taken as it is.
impl From<String> for Numeric {
    fn from(column: String) -> Self {
        Self { column, log: false, standardise: Standardise::No, missing: 0.0 }
    }
}

/// Shift and scale of a numeric column: `(x − mean) / deviation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
}

/// As a job file says it.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum StandardiseKeys {
    /// Measured, or not done at all.
    Switch(bool),
    /// Given.
    Given {
        /// Mean of the column after `log`.
        mean: f64,
        /// Standard deviation of the column after `log`.
        #[schemars(extend("exclusiveMinimum" = 0.0))]
        deviation: f64,
    },
}

impl From<StandardiseKeys> for Standardise {
    fn from(keys: StandardiseKeys) -> Self {
        match keys {
            StandardiseKeys::Switch(false) => Self::No,
            StandardiseKeys::Switch(true) => Self::Fit,
            StandardiseKeys::Given { mean, deviation } => Self::Given { mean, deviation },
        }
    }
}

impl From<Standardise> for StandardiseKeys {
    fn from(standardise: Standardise) -> Self {
        match standardise {
            Standardise::No => Self::Switch(false),
            Standardise::Fit => Self::Switch(true),
            Standardise::Given { mean, deviation } => Self::Given { mean, deviation },
        }
    }
}

/// A categorical column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Categorical {
    /// Column name.
    pub column: String,
    /// Index into [`Job::tables`].
    pub table: usize,
    /// How many values a cell holds.
    pub values: Values,
}

/// How many values a cell of a categorical column holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Values {
    /// Exactly one; a missing value is a category of its own.
    One,
    /// Any number, split at a separator, pooled to one vector; none is the zero vector.
    Many {
        /// Text between two values.
        separator: String,
        /// How rows become one vector.
        pooling: Pooling,
        /// Who adds them up.
        pool_at: PoolAt,
    },
}

/// How the rows of a multi-valued feature become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// Their sum divided by the square root of their number.
    SqrtN,
}

/// Who adds up the rows of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PoolAt {
    /// Whichever sends fewer bytes, batch by batch. It is the worker where `train.staleness` is 0 or nothing is learned.
    Auto,
    /// The embedding servers. The order in which rows are added depends on the number of servers: results are equal for any number
    /// of them only up to rounding.
    Server,
    /// The dense worker.
    Worker,
}

fn positive() -> Vec<String> {
    vec!["1".to_owned()]
}

fn negative() -> Vec<String> {
    vec!["0".to_owned()]
}
