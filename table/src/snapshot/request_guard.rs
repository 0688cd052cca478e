//! The guard of a request. A snapshot contains everything that a request does under one guard, or nothing of it.

use std::sync::atomic::Ordering;

use parking_lot::RwLockReadGuard;

use crate::{
    LookupMode, LookupReport, PushOrigin, PushReport, PushStep, RequestBuffers, RequestDeadline, RequestPart,
    TableError, TableSet,
};

/// Permission to look up and push, on one thread or several. A [`crate::TableSnapshot`] contains everything that is
/// done under one guard, or nothing of it.
///
/// One thread must not hold two guards. The second would wait for a snapshot that waits for the first.
#[derive(Debug)]
pub struct RequestGuard<'a> {
    pub(crate) set: &'a TableSet,
    pub(crate) deadline: RequestDeadline,
    _gate: RwLockReadGuard<'a, ()>,
}

/// What a request may have waited for before it starts, in the words of [`TableError::Late`].
const ITS_TURN: &str = "a thread of the server";
const SNAPSHOT: &str = "a snapshot of the tables, which waits for earlier requests to end";
const CLEAR: &str = "the removal of all rows of the tables";

impl TableSet {
    /// Starts a request without a deadline. Waits while a snapshot is being taken or the tables are being cleared. Both
    /// wait for the requests that started before.
    #[must_use]
    pub fn enter(&self) -> RequestGuard<'_> {
        RequestGuard { set: self, deadline: RequestDeadline::NONE, _gate: self.gate.read() }
    }

    /// As [`Self::enter`], for a request whose sender gives up at `deadline`. What is done under the guard waits no longer
    /// either.
    pub fn enter_before(&self, deadline: RequestDeadline) -> Result<RequestGuard<'_>, TableError> {
        self.shared.check_deadline(deadline, ITS_TURN)?;
        let gate = match (self.gate.try_read(), self.shared.time_left(deadline)) {
            (Some(gate), _) => Some(gate),
            (None, Some(left)) => self.gate.try_read_for(left),
            (None, None) => Some(self.gate.read()),
        };
        let gate = gate.ok_or_else(|| {
            let has_snapshot = self.has_snapshot.load(Ordering::Relaxed);
            TableError::Late { whom: if has_snapshot { SNAPSHOT } else { CLEAR } }
        })?;
        Ok(RequestGuard { set: self, deadline, _gate: gate })
    }
}

impl RequestGuard<'_> {
    pub fn lookup(
        &self,
        parts: &[RequestPart<'_>],
        access: LookupMode,
        out: &mut [f32],
        scratch: &mut RequestBuffers,
    ) -> Result<LookupReport, TableError> {
        scratch.deadline = self.deadline;
        if access == LookupMode::Train && self.set.iter().any(|table| table.is_managed) {
            self.await_copies()?;
        }
        self.set.lookup_inside(parts, access, out, scratch)
    }

    pub fn push(
        &self,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: impl Into<PushStep>,
        scratch: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        scratch.deadline = self.deadline;
        self.await_copies()?;
        self.set.push_inside(parts, gradients, step.into(), None, scratch)
    }

    /// As [`TableSet::push`], of a push that the log names.
    pub fn push_from(
        &self,
        origin: PushOrigin,
        parts: &[RequestPart<'_>],
        gradients: &[f32],
        step: PushStep,
        scratch: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        scratch.deadline = self.deadline;
        self.await_copies()?;
        self.set.push_inside(parts, gradients, step, Some(origin), scratch)
    }

    /// Waits for room for the copies that the request makes for a snapshot, before it changes anything. A snapshot that stands
    /// still is given up: training does not wait for a disk.
    #[inline]
    fn await_copies(&self) -> Result<(), TableError> {
        let shared = &self.set.shared;
        if shared.captures.is_full() && shared.await_copies(self.deadline)? {
            self.set.give_up_snapshot();
        }
        Ok(())
    }
}
