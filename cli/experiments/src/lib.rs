//! Which runs are next and what they tell: [`sweep`] searches for good settings, [`scaling`] fits laws of loss against size and samples.

pub mod scaling;
pub mod sweep;
