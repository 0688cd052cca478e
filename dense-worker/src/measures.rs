//! Measures of one of several targets, as they are reported.

use serde::{Deserialize, Serialize};
use zagros_eval::Evaluation;

/// Measures of one of several targets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetMeasures {
    /// Its name.
    pub target: String,
    /// Of the rows that have a label.
    #[serde(flatten)]
    pub evaluation: Evaluation,
}
