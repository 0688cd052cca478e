//! Measures of a model: AUC, AUC by group, logloss, normalised entropy, calibration and its error of clicks, errors of
//! regression, accuracy of classes. Pure, mergeable, and exact for clicks. Beside them a logistic regression, for comparison.

pub mod binned;
pub mod calibrator;
mod class_logits;
#[cfg(test)]
mod fixture;
pub mod grouped;
pub mod importance;
pub mod logistic;
pub mod measure;
pub mod scores;
pub mod slices;
pub mod targets;

pub use binned::{BinnedScores, ClickSums};
pub use calibrator::{CalibrationMethod, Calibrator};
pub use grouped::{GroupAuc, GroupedScores};
pub use logistic::{LinearInput, LogisticRegression};
pub use scores::{ClickScores, Evaluation};
pub use slices::{ColumnSlices, SliceMeasures, SlicedScores};
pub use targets::{TargetForm, TargetScores};
