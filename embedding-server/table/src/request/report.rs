//! What a lookup may do, and what lookups and pushes report.

use std::ops::AddAssign;

/// Whether a lookup makes rows that do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupMode {
    /// The lookup creates missing rows.
    Train,
    /// The lookup returns the first weights of a missing row and changes nothing.
    Read,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupReport {
    pub created: u64,
    /// Rows that do not exist. The lookup returned their first weights, or zeros if the table has an admission policy.
    pub missing: u64,
    /// Ids that are not admitted. The lookup returned zeros for them.
    pub refused: u64,
    /// Rows that a lookup for training had to read from the cold tier.
    pub late: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        self.created += other.created;
        self.missing += other.missing;
        self.refused += other.refused;
        self.late += other.late;
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
