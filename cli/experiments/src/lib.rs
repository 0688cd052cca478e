//! Which runs are next and what they tell: [`sweep`] searches for good settings, [`scaling`] fits laws of loss against size and samples.

pub mod scaling;
pub mod sweep;

/// What is wrong with a search, or with a family, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExperimentError(String);
