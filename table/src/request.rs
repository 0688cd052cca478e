//! The path of a request over rows in memory: group ids by stripe, then process each stripe under its lock. This file has
//! what a request asks for, and what it reports.

pub(crate) mod batch;
pub(crate) mod group;
pub(crate) mod repeated_ids;
pub(crate) mod row_loops;
pub(crate) mod step_rows;
pub(crate) mod update;
mod walk;

use std::ops::AddAssign;

use bytemuck::{Pod, Zeroable};

use crate::counts::add_fields;

/// The time at which the sender of a request gives up, in nanoseconds of [`crate::TableResources::nanos`]. After it the
/// sender does not read the answer.
///
/// A request checks its deadline after each place where it may have waited: the gate, other pushes, the cold tier. A push
/// makes its last check right before its first change, so it is applied whole or not at all. After that check it continues
/// and waits no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDeadline(Option<u64>);

impl RequestDeadline {
    /// The sender never gives up. Without a clock, every request has this deadline.
    pub const NONE: Self = Self(None);

    pub fn new(nanos: u64) -> Self {
        Self(Some(nanos))
    }

    /// Nanoseconds from `now` to the deadline. `None` without a deadline.
    pub(crate) fn nanos_left(self, now: u64) -> Option<u64> {
        self.0.map(|end| end.saturating_sub(now))
    }
}

/// Whether a lookup makes rows that do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupMode {
    /// The lookup creates missing rows.
    Train,
    /// The lookup returns the first weights of a missing row and changes nothing.
    Read,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct LookupReport {
    pub created: u64,
    /// Rows that do not exist. The lookup returned their first weights, or zeros if the table has an admission policy.
    pub missing: u64,
    /// Ids that are not admitted. The lookup returned zeros for them.
    pub refused: u64,
    /// Rows that a lookup for training had to read from the cold tier.
    pub late: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PushReport {
    /// Rows that took a gradient.
    pub updated: u64,
    /// Updated rows that did not exist before: no training lookup created them, or a restart lost them.
    pub created: u64,
    /// Gradients that were added to another gradient of the same id first.
    pub repeated: u64,
    /// Gradients that were skipped because they are not finite or too large ([`crate::NonFinitePolicy::Skip`]).
    pub skipped: u64,
    /// Gradients that were dropped because their id has no row ([`crate::AdmissionPolicy`]).
    pub refused: u64,
}

impl AddAssign for LookupReport {
    fn add_assign(&mut self, other: Self) {
        add_fields(self, &other);
    }
}

impl AddAssign for PushReport {
    fn add_assign(&mut self, other: Self) {
        add_fields(self, &other);
    }
}

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
    pub tiles: TileUpdate,
}

/// What a push does with the gradients of rows that are tiles of a dense network. A table that stages gradients takes all three,
/// other tables take [`Self::AtOnce`] alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TileUpdate {
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
