//! What a step needs besides a network: losses, gradients by autograd and their exchange, regularisation, the optimiser.
//! Scoring is here too: it is the forward half of a step.

mod autograd;
mod loss;
mod optimizer;
mod regularisation;
mod scoring;
mod shared;

pub(super) use autograd::LossScale;
pub use loss::LabelledSamples;
pub(super) use loss::{MeanLoss, TargetLosses, mean_over};
pub(crate) use optimizer::RateRange;
pub(super) use optimizer::{SlotState, WeightUpdater};
pub(super) use regularisation::StepRegularisation;
pub(crate) use scoring::batch_of_blocks;
pub(super) use scoring::{BLOCK, WeightAverage};
pub use shared::FinalGradients;
