//! What a step needs besides a network: losses, the exchange of gradients, regularisation, the optimiser. Scoring is here too: it is
//! the forward half of a step.

mod loss;
mod loss_scale;
mod optimizer;
mod regularisation;
mod scoring;
mod shared;

pub(super) use loss::MeanLoss;
pub use loss::{LabelledSamples, TargetLosses, mean_over};
pub(super) use loss_scale::LossScale;
pub use optimizer::RateRange;
pub(super) use optimizer::{SlotState, WeightUpdater};
pub(super) use regularisation::StepRegularisation;
pub(super) use scoring::WeightAverage;
pub use shared::{FinalGradients, seed_of_rank};
