//! The training step of a push, and the push's share of the step's samples.

/// The step of a push.
///
/// In a step of several workers, each worker pushes the gradients of its own samples, weighted by its share of all
/// samples. A share below 1 says that other pushes of the step may have gradients of the same rows. A row is then
/// updated with the sum of its gradients of the step, and its penalties count once. The penalties of a push that comes
/// after two later steps have begun count by its share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PushStep {
    /// Step number. It is equal on every server that gets a part of the push, because schedules and rounding depend on
    /// it.
    pub number: u64,
    /// The push's share of the step's samples, 0 to 1.
    pub share: f32,
    /// What becomes of the gradients of tiles.
    pub tiles: TileUpdate,
}

/// What a push does with the gradients of rows that are tiles of a dense network. A table that stages gradients takes all three,
/// other tables take [`Self::AtOnce`] alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TileUpdate {
    /// Updates the tiles.
    #[default]
    AtOnce,
    /// Keeps the gradients in their tiles until the step is committed. A gradient that is there already is replaced: its step was
    /// given up.
    Stage,
    /// Updates the tiles with the gradients that this step has staged, times the factor. A tile without such a gradient stays as it
    /// is, so a second commit changes nothing. The push has no gradients of its own.
    Commit {
        /// Factor of the gradients, above 0 and at most 1: that of clipping by the norm.
        factor: f32,
    },
}

impl From<u64> for PushStep {
    /// A push with all samples of a step.
    fn from(number: u64) -> Self {
        Self { number, share: 1.0, tiles: TileUpdate::AtOnce }
    }
}
