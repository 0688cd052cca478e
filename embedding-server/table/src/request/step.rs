//! Which step of training a push belongs to, and how much of it.

/// The step of a push.
///
/// In a step of several workers each pushes the gradients of its own samples, weighed by their share of the step's. What
/// an update does besides, penalties on weights, has to be weighed alike: else rows would decay once for each
/// worker. A worker's push is then what the gradient of its own batch, penalties included, counts in the mean over all
/// samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushStep {
    /// Its number, the same on every server that has a part of the push: schedules and rounding follow it.
    pub number: u64,
    /// The part of the step's samples that the push is of, 0 to 1.
    pub share: f32,
}

impl From<u64> for PushStep {
    /// All of a step.
    fn from(number: u64) -> Self {
        Self { number, share: 1.0 }
    }
}
