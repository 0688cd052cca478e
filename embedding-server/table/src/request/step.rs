//! The training step of a push, and the push's share of the step's samples.

/// The step of a push.
///
/// In a step of several workers, each worker pushes the gradients of its own samples, weighted by its share of all
/// samples. Penalties need the same factor. Otherwise rows would decay once per worker. With the share, the
/// pushes of all workers together equal the gradient of the mean loss with penalties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushStep {
    /// Step number. It is equal on every server that gets a part of the push, because schedules and rounding depend on
    /// it.
    pub number: u64,
    /// The push's share of the step's samples, 0 to 1.
    pub share: f32,
}

impl From<u64> for PushStep {
    /// A push with all samples of a step.
    fn from(number: u64) -> Self {
        Self { number, share: 1.0 }
    }
}
