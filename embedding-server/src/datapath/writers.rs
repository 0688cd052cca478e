//! Who may push, and how far ahead: what the coordinator has reported of the workers.
//!
//! A push names its writer, an incarnation and two numbers, of which none can be believed: a forged incarnation would fence the real
//! writer, a forged number would void its window or end the time of rows that expire. So a server knows the incarnation of each
//! writer from the coordinator, and admits numbers that are at most [`AHEAD`] beyond the largest that it knows: of pushes
//! that it has admitted, of a checkpoint that it has loaded, and of any worker's heartbeat, which the coordinator forwards.
//!
//! A worker's first push may be faster than the news of it. It is refused for the moment, and the coordinator is asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use zagros_protocol::control::Writer;
use zagros_protocol::{Refusal, RefusalKind};

use super::sequence_window::PushId;

/// How far the number of a push may be beyond all that is known: minutes of the quickest training, which a server may be
/// without a row of a batch, or without a coordinator.
const AHEAD: u64 = 1 << 20;

/// What is known of the writers. Until the coordinator has reported them, every writer is admitted. A server that is called
/// within its process stays in that state.
#[derive(Debug, Default)]
pub(crate) struct KnownWriters {
    /// Incarnation of each writer's newest process.
    incarnations: ArcSwapOption<HashMap<u64, u32>>,
    /// The largest number of a step or push that is known.
    newest: AtomicU64,
    /// Somebody pushed of whom nothing is known yet.
    unknown: Notify,
}

impl KnownWriters {
    /// Takes over the writers that the coordinator reports.
    pub(crate) fn set(&self, writers: &[Writer]) {
        let incarnations = writers.iter().map(|writer| (writer.member, writer.incarnation)).collect();
        self.incarnations.store(Some(std::sync::Arc::new(incarnations)));
    }

    /// Training is known to have come to this number.
    pub(crate) fn reached(&self, number: u64) {
        self.newest.fetch_max(number, Ordering::AcqRel);
    }

    /// Resolves when somebody pushed of whom nothing is known yet.
    pub(crate) async fn unknown(&self) {
        self.unknown.notified().await;
    }

    /// Whether a push may be looked at.
    ///
    /// # Errors
    /// `Fenced` when the writer has been replaced (invariant MB-1), `Unavailable` when the coordinator has not yet reported the
    /// writer, or numbers near these.
    pub(crate) fn admit(&self, push: PushId, step: u64) -> Result<(), Refusal> {
        let Some(incarnations) = &*self.incarnations.load() else { return Ok(()) };
        let PushId { writer, incarnation, seq } = push;
        match incarnations.get(&writer).copied() {
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
                    "push {seq} of writer {writer} (incarnation {incarnation}): the coordinator has reported {known} of this writer so far; \
                     try again"
                );
                return Err(Refusal::new(RefusalKind::Unavailable, message));
            }
        }
        let (newest, number) = (self.newest.load(Ordering::Acquire), step.max(seq));
        if number.saturating_sub(newest) > AHEAD {
            let message = format!(
                "push {seq} of writer {writer} (incarnation {incarnation}) at step {step} is more than {AHEAD} beyond {newest}, which is \
                 as far as any worker is known to be; it is not applied"
            );
            return Err(Refusal::new(RefusalKind::Unavailable, message));
        }
        self.reached(number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn push(incarnation: u32, seq: u64) -> PushId {
        PushId { writer: 3, incarnation, seq }
    }

    fn known() -> KnownWriters {
        let writers = KnownWriters::default();
        writers.set(&[Writer { member: 3, incarnation: 2 }]);
        writers
    }

    fn kind(admitted: Result<(), Refusal>) -> Option<RefusalKind> {
        admitted.err().map(|refusal| refusal.kind)
    }

    #[test]
    fn within_a_process_everyone_is_admitted() {
        assert_eq!(KnownWriters::default().admit(push(u32::MAX, u64::MAX), u64::MAX), Ok(()));
    }

    /// Invariant MB-1, also against incarnations that nobody gave.
    #[test]
    fn an_incarnation_that_the_coordinator_did_not_give_is_not_admitted_and_fences_nobody() {
        let writers = known();
        for forged in [push(u32::MAX, 1), push(3, 1), PushId { writer: 4, ..push(2, 1) }] {
            assert_eq!(kind(writers.admit(forged, 1)), Some(RefusalKind::Unavailable));
            assert!(writers.unknown().now_or_never().is_some(), "the coordinator is not asked");
        }
        assert_eq!(writers.admit(push(2, 1), 1), Ok(()));
        assert_eq!(kind(writers.admit(push(1, 1), 1)), Some(RefusalKind::Fenced));
        writers.set(&[Writer { member: 3, incarnation: 3 }]);
        assert_eq!(
            (writers.admit(push(3, 1), 1), kind(writers.admit(push(2, 2), 2))),
            (Ok(()), Some(RefusalKind::Fenced))
        );
    }

    #[test]
    fn a_number_far_beyond_all_that_is_known_is_not_admitted() {
        let writers = known();
        for (seq, step) in [(u64::MAX, 1), (1, u64::MAX), (AHEAD + 1, 0)] {
            let refused = writers.admit(push(2, seq), step).unwrap_err();
            assert!(refused.kind.is_retryable() && refused.message.contains("beyond 0, which is"), "{refused}");
        }
        assert_eq!(writers.admit(push(2, AHEAD), 0), Ok(()));
        assert_eq!(writers.admit(push(2, AHEAD + 1), 2 * AHEAD), Ok(()));
        assert!(writers.admit(push(2, 3 * AHEAD + 1), 0).is_err());
        // As a run that goes on from a checkpoint, or a worker that is far ahead.
        writers.reached(1 << 40);
        assert_eq!(writers.admit(push(2, 1 << 40), 1 << 40), Ok(()));
    }
}
