//! What a sample is made of.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::categorical::Categorical;
use super::numeric::Numeric;

/// What a sample is made of.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Features {
    /// The column that the model learns to predict.
    pub label: Label,
    /// Numeric features, in order.
    pub numeric: Vec<Numeric>,
    /// Categorical features, in order.
    pub categorical: Vec<Categorical>,
}

/// The column that the model learns to predict.
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

fn positive() -> Vec<String> {
    vec!["1".to_owned()]
}

fn negative() -> Vec<String> {
    vec!["0".to_owned()]
}
