//! Measures of a click model: AUC, AUC by group, logloss, normalised entropy, calibration. Pure, exact, mergeable.

mod bytes;
pub mod grouped;
pub mod measure;
pub mod scores;
pub mod sums;

pub use grouped::{Gauc, GroupedScores};
pub use scores::{Evaluation, LengthsDiffer, Scores};
pub use sums::Sums;
