//! The way into the tables: all that a request does under one guard is wholly in a snapshot or wholly after it.

use parking_lot::RwLockReadGuard;

use crate::{LookupMode, LookupReport, PushReport, PushStep, RequestPart, Scratch, TableError, TableSet};

/// Permission to look up and push. All that is done before it is dropped, on one thread or several, is on one side of
/// every [`crate::TableSnapshot`].
///
/// Do not hold two at a time on one thread: the second would wait for a snapshot that waits for the first.
#[derive(Debug)]
pub struct RequestGuard<'a> {
    set: &'a TableSet,
    _gate: RwLockReadGuard<'a, ()>,
}

impl TableSet {
    /// Starts a request. Waits while a snapshot is being taken, which is microseconds.
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
        scratch: &mut Scratch,
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
        scratch: &mut Scratch,
    ) -> Result<PushReport, TableError> {
        self.set.push_inside(parts, gradients, step.into(), scratch)
    }
}
