//! Measures of a click model: AUC, AUC by group, logloss, normalised entropy, calibration and its error. Pure, exact, mergeable.

pub mod binned;
mod bytes;
pub mod calibration_error;
pub mod calibrator;
pub mod grouped;
pub mod importance;
pub mod measure;
pub mod scores;
mod slice_bytes;
pub mod slices;
pub mod sums;

pub use binned::BinnedScores;
pub use calibrator::{CalibrationMethod, Calibrator};
pub use grouped::{Gauc, GroupedScores};
pub use scores::{Evaluation, LengthsDiffer, Scores};
pub use slices::{ColumnSlices, Slice, SlicedScores};
pub use sums::Sums;
