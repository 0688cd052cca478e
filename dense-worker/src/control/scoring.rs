//! What is scored while training, and the model that the measures choose.

use super::evaluate::HeldOutParts;
use super::model_choice::ModelChoice;
use crate::event::Evaluation;

/// Held-out parts and their measures.
#[derive(Debug)]
pub(crate) struct Scoring {
    pub(crate) held_out: HeldOutParts,
    /// The last evaluation while training, and after which step it was.
    pub(crate) evaluated: Option<(u64, Evaluation)>,
    /// Measures of the training rows of each epoch that is over.
    pub(crate) of_epochs: Vec<Evaluation>,
    /// Which state becomes the model, and when training ends early.
    pub(crate) model: ModelChoice,
}
