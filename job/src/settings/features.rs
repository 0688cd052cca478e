//! What a sample is made of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Sequence;
use super::targets::Target;

/// What a sample is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Features {
    /// What the model learns to predict: at least one target.
    pub targets: Vec<Target>,
    /// The column of sample weights.
    pub weight: Option<String>,
    /// Numeric columns, in order.
    pub numeric: Vec<Numeric>,
    /// Categorical columns, in order.
    pub categorical: Vec<Categorical>,
}

impl Features {
    /// The target that is measured while training, and that chooses the state that is kept: the first.
    ///
    /// # Panics
    /// When there is no target, which no job has.
    #[must_use]
    pub fn main(&self) -> &Target {
        &self.targets[0]
    }

    /// Outputs of the network, of all targets.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.targets.iter().map(Target::outputs).sum()
    }

    /// The columns that the model learns, and that of sample weights.
    pub fn learned_columns(&self) -> impl Iterator<Item = &String> {
        self.targets.iter().map(|target| &target.column).chain(&self.weight)
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
    /// Value in place of a missing one. It is not transformed. With `standardise`, 0 is the mean.
    #[serde(default)]
    #[schemars(range(min = -1e30, max = 1e30))]
    pub missing: f32,
}

/// A column without a transform.
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

/// The keys of a job file.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum StandardiseKeys {
    /// Measured, or off.
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
    /// Name of the column.
    pub column: String,
    /// Index into [`Job::tables`].
    pub table: usize,
    /// How many values a cell holds.
    pub values: Values,
}

/// How many values a cell of a categorical column holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Values {
    /// Exactly one. A missing value is a category of its own.
    One,
    /// Any number, split at a separator and pooled to one vector. The vector of no value is zero.
    Many {
        /// Text between two values. Empty: the column holds lists.
        separator: String,
        /// How rows become one vector.
        pooling: Pooling,
        /// Where the rows are added up.
        pool_at: PoolAt,
    },
    /// Up to a number of values, in order, which are not pooled.
    Sequence {
        /// Text between two values. Empty: the column holds lists.
        separator: String,
        /// How many, which, and where the padding is.
        sequence: Sequence,
    },
}

impl Values {
    /// Text between two values, empty for lists; `None` if a cell is one value.
    #[must_use]
    pub fn separator(&self) -> Option<&str> {
        match self {
            Self::One => None,
            Self::Many { separator, .. } | Self::Sequence { separator, .. } => Some(separator),
        }
    }

    /// The sequence, if the values are one.
    #[must_use]
    pub fn sequence(&self) -> Option<&Sequence> {
        match self {
            Self::Sequence { sequence, .. } => Some(sequence),
            Self::One | Self::Many { .. } => None,
        }
    }
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

/// Where the rows of a cell are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PoolAt {
    /// Wherever fewer bytes are sent, batch by batch. Always the worker if `train.staleness` is 0 or nothing is learned.
    Auto,
    /// At the embedding servers. The order of the additions depends on the number of servers, so results for different
    /// numbers are equal only up to rounding.
    Server,
    /// At the dense worker.
    Worker,
}
