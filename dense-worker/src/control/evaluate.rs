//! Held-out parts are scored and measured, and the measures choose the state that becomes the model.

mod conclude;
mod held_out;
mod importance;
mod model_choice;
mod part_scores;
mod saved_scoring;
mod scorer;
mod while_training;

pub(super) use held_out::{HeldOutParts, look_at_files};
pub(super) use model_choice::{ChoiceState, ModelChoice, ScoringState, early_stop_rule};
pub use part_scores::{ImportanceOptions, ImportanceReport, PartMeasures, TargetImportance, target_form};
pub(super) use saved_scoring::SavedScoring;
pub use saved_scoring::ScoringCommand;
