//! Numeric features: columns of numbers, and how a number is transformed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A numeric feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Numeric {
    /// Name of the column.
    pub column: String,
    /// Name of the feature. No two numeric features have one name, so a column that is in several features needs it. Default: the
    /// column's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Least and greatest value, `[0, 1000]`: a value beyond them becomes the nearer one, before anything else. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(inner(range(min = -1e30, max = 1e30)))]
    pub clip: Option<[f64; 2]>,
    /// Whether x becomes ln(1 + x), or −ln(1 − x) when it is negative. This tames counts, keeps the sign and maps 0 to 0.
    #[serde(default)]
    pub log: bool,
    /// Whether the value, after `clip` and `log`, becomes (value − mean) / deviation. `true` measures both over the training rows before
    /// training; `{ mean, deviation }` gives them.
    #[serde(default)]
    pub standardise: Standardise,
    /// Whether the value, after `clip` and `log`, becomes (value − min) / (max − min), held between 0 and 1. `true` measures both over the
    /// training rows before training; `{ min, max }` gives them. Not together with `standardise`.
    #[serde(default)]
    pub min_max: MinMax,
    /// Value in place of a missing one. It is not transformed. With `standardise`, 0 is the mean.
    #[serde(default)]
    #[schemars(range(min = -1e30, max = 1e30))]
    pub missing: f32,
}

/// A column without a transform.
impl From<String> for Numeric {
    fn from(column: String) -> Self {
        let (standardise, min_max) = (Standardise::No, MinMax::No);
        Self { column, name: None, clip: None, log: false, standardise, min_max, missing: 0.0 }
    }
}

impl Numeric {
    /// The name of the feature.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.column)
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

/// Range of a numeric column that becomes 0…1: `(x − min) / (max − min)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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
}

/// The keys of a job file.
#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
enum MinMaxKeys {
    /// Measured, or off.
    Switch(bool),
    /// Given.
    Given {
        /// Value, after `clip` and `log`, that becomes 0.
        #[schemars(range(min = -1e30, max = 1e30))]
        min: f64,
        /// Value, after `clip` and `log`, that becomes 1.
        #[schemars(range(min = -1e30, max = 1e30))]
        max: f64,
    },
}

impl From<MinMaxKeys> for MinMax {
    fn from(keys: MinMaxKeys) -> Self {
        match keys {
            MinMaxKeys::Switch(false) => Self::No,
            MinMaxKeys::Switch(true) => Self::Fit,
            MinMaxKeys::Given { min, max } => Self::Given { min, max },
        }
    }
}

impl From<MinMax> for MinMaxKeys {
    fn from(min_max: MinMax) -> Self {
        match min_max {
            MinMax::No => Self::Switch(false),
            MinMax::Fit => Self::Switch(true),
            MinMax::Given { min, max } => Self::Given { min, max },
        }
    }
}
