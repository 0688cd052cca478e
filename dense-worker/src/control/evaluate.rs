//! Held-out parts are scored and measured, and the measures choose the state that becomes the model.

mod conclude;
mod importance;
mod model_choice;
mod part_scores;
mod scorer;
mod while_training;

pub(super) use model_choice::{ChoiceState, ModelChoice, ScoringState, early_stop_rule};
pub use part_scores::{ImportanceOptions, ImportanceReport, PartMeasures, TargetImportance, target_form};
pub use scorer::{EvaluateCommand, ScoringParts};
pub(super) use scorer::{
    HeldOut, HeldOutParts, PartScorer, compare_types, find_held_out, look_at_files, rows_to_score,
};
