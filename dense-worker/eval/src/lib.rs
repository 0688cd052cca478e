//! Measures of a click model: AUC, logloss, normalised entropy, calibration. Pure, exact, mergeable.

pub mod measure;
pub mod scores;

pub use scores::{Evaluation, LengthsDiffer, Scores};
