//! Which writers may push, and up to which number, as the coordinator has reported.
//!
//! A push names its writer, an incarnation, a sequence number and a step. A server must not trust them: a forged
//! incarnation would fence the real writer, and a forged number would empty its window or expire rows. The server
//! therefore gets the incarnation of each writer from the coordinator. It accepts numbers that are ahead of the largest number
//! that it knows by no more than training can make ([`NumberPace`]). It knows the numbers of pushes that it has admitted, of a checkpoint that it has
//! loaded, and of the workers' heartbeats, which the coordinator forwards.
//!
//! The first push of a worker may arrive before the coordinator has reported the worker. The server refuses it for the
//! moment and asks the coordinator.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::Notify;
use zagros_protocol::control::Writer;
use zagros_protocol::{NumberPace, Refusal, RefusalKind, counts_batches, member_of_writer};
use zagros_table::PushOrigin;

use crate::tables::monotonic_nanos;

/// The known writers. Until the coordinator has reported writers, every writer is admitted. A server that is called
/// inside its process stays in that state.
#[derive(Debug, Default)]
pub(crate) struct KnownWriters {
    incarnations: ArcSwapOption<HashMap<u64, u32>>,
    /// The largest known number of a step or push. Read without the lock of `pace`.
    newest: AtomicU64,
    /// How far pushes may advance it. Locked for a new largest number alone.
    pace: Mutex<NumberPace>,
    /// Notified when an unknown writer pushes.
    unknown: Notify,
}

impl KnownWriters {
    pub(crate) fn set_writers(&self, writers: &[Writer]) {
        let incarnations = writers.iter().map(|writer| (writer.member, writer.incarnation)).collect();
        self.incarnations.store(Some(std::sync::Arc::new(incarnations)));
    }

    /// Whether a push of this process may still come: no newer process of its writer is known.
    pub(crate) fn may_push(&self, writer: u64, incarnation: u32) -> bool {
        let incarnations = self.incarnations.load();
        let newest = incarnations.as_ref().and_then(|known| known.get(&member_of_writer(writer)).copied());
        newest.is_none_or(|newest| newest <= incarnation)
    }

    /// Records that training has reached this number.
    pub(crate) fn note_reached(&self, number: u64) {
        if number > self.newest.load(Ordering::Acquire) {
            let mut pace = self.pace.lock();
            pace.note_reached(number);
            self.newest.store(pace.newest_number(), Ordering::Release);
        }
    }

    /// Takes note of a number that a push claims. Returns whether it is possible.
    fn may_reach(&self, number: u64, now: Duration) -> bool {
        if number <= self.newest.load(Ordering::Acquire) {
            return true;
        }
        let mut pace = self.pace.lock();
        let is_possible = pace.admit_claim(now, number);
        self.newest.store(pace.newest_number(), Ordering::Release);
        is_possible
    }

    /// Takes note of a step that another server claims to have reached. Returns whether it is possible.
    pub(crate) fn admit_step(&self, step: u64) -> bool {
        self.may_reach(step, Duration::from_nanos(monotonic_nanos()))
    }

    #[cfg(test)]
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Waits until an unknown writer pushes.
    pub(crate) async fn wait_for_unknown(&self) {
        self.unknown.notified().await;
    }

    /// Checks whether a push may be applied.
    /// Refused as `Fenced` if the writer has been replaced (invariant MB-1), as `Unavailable` if the coordinator has not
    /// reported the writer yet, or if the number is too far above all known numbers for the time since.
    pub(crate) fn admit_push(&self, push: PushOrigin, step: u64) -> Result<(), Refusal> {
        let Some(incarnations) = &*self.incarnations.load() else { return Ok(()) };
        let PushOrigin { writer, incarnation, seq } = push;
        match incarnations.get(&member_of_writer(writer)).copied() {
            Some(current) if current == incarnation => {}
            Some(current) if current > incarnation => {
                let message = format!(
                    "push {seq} of writer {writer} (incarnation {incarnation}) is fenced: a newer process of this writer has joined \
                     with incarnation {current}"
                );
                return Err(Refusal::new(RefusalKind::Fenced, message));
            }
            known => {
                self.unknown.notify_one();
                let known = known.map_or("nothing".to_owned(), |known| format!("incarnation {known}"));
                let message = format!(
                    "push {seq} of writer {writer} (incarnation {incarnation}) is not applied: the coordinator has reported {known} of \
                     this writer so far; try again"
                );
                return Err(Refusal::new(RefusalKind::Unavailable, message));
            }
        }
        let number = if counts_batches(writer) { step.max(seq) } else { step };
        if !self.may_reach(number, Duration::from_nanos(monotonic_nanos())) {
            let newest = self.newest.load(Ordering::Acquire);
            let message = format!(
                "push {seq} of writer {writer} (incarnation {incarnation}) at step {step} is not applied: it is further beyond \
                 {newest}, the largest number known of any worker, than training can be; try again"
            );
            return Err(Refusal::new(RefusalKind::Unavailable, message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use zagros_protocol::pace::MOST_AT_ONCE;

    use super::*;

    fn push(seq: u64) -> PushOrigin {
        PushOrigin { writer: 3, incarnation: 2, seq }
    }

    #[test]
    fn a_number_far_above_the_largest_known_one_is_refused() {
        let writers = KnownWriters::default();
        assert_eq!(writers.admit_push(push(u64::MAX), u64::MAX), Ok(()), "no coordinator knows the writers");
        writers.set_writers(&[Writer { member: 3, incarnation: 2 }]);
        for (seq, step) in [(u64::MAX, 1), (1, u64::MAX), (MOST_AT_ONCE + 1, 0)] {
            let refused = writers.admit_push(push(seq), step).unwrap_err();
            assert!(refused.kind.is_retryable() && refused.message.contains("beyond 0, the largest"), "{refused}");
        }
        assert_eq!(writers.admit_push(push(MOST_AT_ONCE), 0), Ok(()));
        assert_eq!(writers.admit_push(push(7), 7), Ok(()));
        // Again and again: no number is reached that takes longer than the machine has run.
        assert!((2..9).all(|times| writers.admit_push(push(times << 40), 0).is_err()));
        // As after a load from a checkpoint, or after a report of a worker far ahead.
        writers.note_reached(1 << 40);
        assert_eq!(writers.admit_push(push(1 << 40), 1 << 40), Ok(()));
    }
}
