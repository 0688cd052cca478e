//! What a lookup may do, and what lookups and pushes report.

use std::ops::AddAssign;

/// Whether a lookup makes rows that do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupMode {
    /// It makes them.
    Train,
    /// It answers their first value and changes nothing.
    Read,
}

/// What a lookup found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupReport {
    /// Rows made now.
    pub created: u64,
    /// Rows that do not exist and were answered with their first value, or with zeros where not every id gets a row.
    pub missing: u64,
    /// Ids that are not admitted yet, or never will be, and were answered with zeros.
    pub refused: u64,
}

/// What a push did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PushReport {
    /// Rows that took a gradient.
    pub updated: u64,
    /// Those of them that did not exist before: never looked up for training, or lost with a restart since.
    pub created: u64,
    /// Gradients that were added to another of the same id first.
    pub repeated: u64,
    /// Gradients that were skipped because they are not finite or too large ([`crate::NonFinite::Skip`]).
    pub skipped: u64,
    /// Gradients that were dropped because their id has no row ([`crate::AdmissionPolicy`]).
    pub refused: u64,
}

impl AddAssign for LookupReport {
    fn add_assign(&mut self, other: Self) {
        self.created += other.created;
        self.missing += other.missing;
        self.refused += other.refused;
    }
}

impl AddAssign for PushReport {
    fn add_assign(&mut self, other: Self) {
        self.updated += other.updated;
        self.created += other.created;
        self.repeated += other.repeated;
        self.skipped += other.skipped;
        self.refused += other.refused;
    }
}
