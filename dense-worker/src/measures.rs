//! Measures of a held-out part, as they are reported.

use serde::{Deserialize, Serialize};
use zagros_eval::{ColumnSlices, Evaluation};

/// Measures of a held-out part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measures {
    /// Of all its rows; with several targets, of the first.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Of each target, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetMeasures>,
    /// By the columns of `eval.slices`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<ColumnSlices>,
}

/// Measures of one of several targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetMeasures {
    /// Its name.
    pub target: String,
    /// Of the rows that have a label.
    #[serde(flatten)]
    pub evaluation: Evaluation,
}
