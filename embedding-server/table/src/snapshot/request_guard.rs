//! The guard of a request. A snapshot contains everything that a request does under one guard, or nothing of it.

use parking_lot::RwLockReadGuard;

use crate::{LookupMode, LookupReport, PushReport, PushStep, RequestBuffers, RequestPart, TableError, TableSet};

/// Permission to look up and push, on one thread or several. A [`crate::TableSnapshot`] contains everything that is
/// done under one guard, or nothing of it.
///
/// One thread must not hold two guards. The second would wait for a snapshot that waits for the first.
#[derive(Debug)]
pub struct RequestGuard<'a> {
    set: &'a TableSet,
    _gate: RwLockReadGuard<'a, ()>,
}

impl TableSet {
    /// Starts a request. Waits for some microseconds if a snapshot is being taken.
    #[must_use]
    pub fn enter(&self) -> RequestGuard<'_> {
        RequestGuard { set: self, _gate: self.gate().read() }
    }
}

impl RequestGuard<'_> {
    /// As [`TableSet::lookup`].
    ///
    /// # Errors
    /// As [`TableSet::lookup`].
    pub fn lookup(
        &self,
        parts: &[RequestPart<'_>],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        self.set.lookup_inside(parts, access, out, scratch)
    }

    /// As [`TableSet::push`].
    ///
    /// # Errors
    /// As [`TableSet::push`].
    pub fn push(
        &self,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: impl Into<PushStep>,
        scratch: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        self.set.push_inside(parts, gradients, step.into(), scratch)
    }
}
