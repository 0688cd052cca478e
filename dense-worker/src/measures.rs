//! Measures of one of several targets, as they are reported.

use serde::{Deserialize, Serialize};
use zagros_eval::Evaluation;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetMeasures {
    pub target: String,
    /// Of the rows that have a label.
    #[serde(flatten)]
    pub evaluation: Evaluation,
    /// Of the same rows after calibration, where the model has one of this target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated: Option<Evaluation>,
}
