//! What is scored while training, and the model that the measures choose.

use zagros_eval::ColumnSlices;

use super::model_choice::ModelChoice;
use super::scorer::HeldOutParts;
use crate::control::save::ModelCalibrators;
use crate::event::Evaluation;
use crate::measures::TargetMeasures;

#[derive(Debug)]
pub(crate) struct ScoringState {
    pub(crate) held_out: HeldOutParts,
    /// The last evaluation while training, and after which step it was.
    pub(crate) evaluated: Option<(u64, Evaluation)>,
    pub(crate) of_epochs: Vec<Evaluation>,
    /// The slices and the targets of the part that was scored last.
    pub(crate) measured: MeasuredParts,
    pub(crate) calibrators: Option<ModelCalibrators>,
    /// Measures of the first target in the part that was scored last, after calibration.
    pub(crate) calibrated: Option<Evaluation>,
    pub(crate) model: ModelChoice,
}

#[derive(Debug, Default)]
pub(crate) struct MeasuredParts {
    /// Steps before that state.
    pub(crate) step: u64,
    pub(crate) slices: Vec<ColumnSlices>,
    pub(crate) targets: Vec<TargetMeasures>,
}
