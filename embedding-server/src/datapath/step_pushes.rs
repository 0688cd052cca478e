//! Lookups that wait for the pushes of a step.
//!
//! In mode `sync` a worker sends its push of step t and the lookup of its next batch together. The lookup is answered once every
//! worker's push of step t is applied here, so that its rows are those after the step:
//!
//! ```text
//! worker 0 ── push t ──┐  lookup (after 2 pushes of t) ──┐             ┌─► rows
//! worker 1 ── push t ──┼──────────────► applied ─────────┴─ both there ┘
//! ```
//!
//! A push counts if it has all ids that its bucket map gives to this server, and only for lookups of the same map and of the same process
//! group: a step that is lost with a worker is made again by another group, and waits for the pushes of that one. If buckets move,
//! or the server starts again, some pushes of the step are never counted. The lookup is then refused after [`LONGEST`], and its
//! sender tries again without the wait once it knows by another way that all pushes are acknowledged.

use std::time::Duration;

use tokio::sync::watch;
use zagros_plumbing::Deadline;
use zagros_protocol::datapath::{LookupRequest, PushRequest};
use zagros_protocol::{Refusal, RefusalKind};

/// How long a lookup waits. Workers push within the time of an all-reduce.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct StepPushes {
    newest: watch::Sender<AppliedStep>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AppliedStep {
    key: StepKey,
    writers: Vec<(u64, u32)>,
}

/// Number of a step, generation of the process group that makes it, and generation of the bucket map that routed its pushes.
type StepKey = (u64, u64, u64);

impl StepPushes {
    /// Notes a push that is applied. The caller holds the tables, so that the map of the push is still the server's.
    pub(crate) fn note_push(&self, push: &PushRequest) {
        if !push.whole {
            return;
        }
        let (key, writer) = ((push.step, push.group, push.generation), (push.writer, push.incarnation));
        self.newest.send_modify(|newest| {
            if newest.key != key {
                *newest = AppliedStep { key, writers: Vec::new() };
            }
            if !newest.writers.contains(&writer) {
                newest.writers.push(writer);
            }
        });
    }

    /// Forgets the step: the rows are those of another moment now.
    pub(crate) fn clear(&self) {
        self.newest.send_replace(AppliedStep::default());
    }

    /// If the pushes that the lookup asks for are not applied in time, the refusal `Unavailable` says whose are.
    pub(crate) async fn await_pushes(&self, lookup: &LookupRequest, deadline: Deadline) -> Result<(), Refusal> {
        let LookupRequest { after_pushes, after_step, after_group, generation, .. } = *lookup;
        let awaited = (after_step, after_group, generation);
        if after_pushes == 0 {
            return Ok(());
        }
        let mut changes = self.newest.subscribe();
        let wait = Deadline::from_now(deadline.time_left().min(LONGEST));
        let are_applied = |now: &AppliedStep| now.key == awaited && now.writers.len() >= after_pushes as usize;
        let applied = wait.bound(changes.wait_for(are_applied)).await;
        if matches!(applied, Ok(Ok(_))) {
            return Ok(());
        }
        let now = self.newest.borrow();
        let applied = if now.key == awaited { &now.writers[..] } else { &[] };
        let writers: Vec<u64> = applied.iter().map(|(writer, _)| *writer).collect();
        let message = format!(
            "the lookup waited {:.1?} for {after_pushes} whole pushes of step {after_step} under bucket map generation {generation}; \
             applied are those of the writers {writers:?}; try again",
            wait.time_waited()
        );
        Err(Refusal::new(RefusalKind::Unavailable, message))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn push(writer: u64, step: u64, generation: u64) -> PushRequest {
        PushRequest { writer, step, generation, whole: true, ..PushRequest::default() }
    }

    fn lookup(after_pushes: u32, after_step: u64, generation: u64) -> LookupRequest {
        LookupRequest { after_pushes, after_step, generation, ..LookupRequest::default() }
    }

    fn later() -> Deadline {
        Deadline::from_now(Duration::from_secs(60))
    }

    fn is_ready(pushes: &StepPushes, lookup: &LookupRequest) -> bool {
        pushes.await_pushes(lookup, later()).now_or_never().is_some_and(|waited| waited.is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_waits_for_each_writer_of_its_step_and_of_its_map() {
        let pushes = StepPushes::default();
        assert!(is_ready(&pushes, &lookup(0, 7, 1)), "it waits for no push");
        pushes.note_push(&push(1, 7, 1));
        pushes.note_push(&push(1, 7, 1));
        assert!(is_ready(&pushes, &lookup(1, 7, 1)));
        assert!(!is_ready(&pushes, &lookup(2, 7, 1)), "a repeated push counts once");
        pushes.note_push(&PushRequest { whole: false, ..push(2, 7, 1) });
        assert!(!is_ready(&pushes, &lookup(2, 7, 1)), "a part of a push may leave rows out");
        pushes.note_push(&push(2, 7, 1));
        assert!(is_ready(&pushes, &lookup(2, 7, 1)));
        let of_another_group = LookupRequest { after_group: 1, ..lookup(2, 7, 1) };
        for other in [lookup(2, 8, 1), lookup(2, 6, 1), lookup(2, 7, 2), of_another_group] {
            assert!(!is_ready(&pushes, &other), "{other:?}");
        }
        pushes.note_push(&push(1, 7, 2));
        assert!(!is_ready(&pushes, &lookup(2, 7, 2)), "pushes under two maps may leave out what moved between");
        pushes.note_push(&push(2, 7, 2));
        assert!(is_ready(&pushes, &lookup(2, 7, 2)));
        pushes.note_push(&PushRequest { group: 1, ..push(3, 7, 2) });
        let again = LookupRequest { after_group: 1, ..lookup(2, 7, 2) };
        assert!(!is_ready(&pushes, &again), "a step that is made again waits for its own pushes");
        pushes.note_push(&PushRequest { group: 1, ..push(1, 7, 2) });
        assert!(is_ready(&pushes, &again));
        pushes.clear();
        assert!(!is_ready(&pushes, &again));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_waits_is_woken_and_an_error_names_those_that_one_does_not_wait_for() {
        let pushes = std::sync::Arc::new(StepPushes::default());
        pushes.note_push(&push(1, 7, 1));
        let waiting = tokio::spawn({
            let pushes = std::sync::Arc::clone(&pushes);
            async move { pushes.await_pushes(&lookup(2, 7, 1), later()).await }
        });
        tokio::time::sleep(LONGEST / 2).await;
        pushes.note_push(&push(2, 7, 1));
        assert_eq!(waiting.await.unwrap(), Ok(()));
        let refused = pushes.await_pushes(&lookup(3, 7, 1), later()).await.unwrap_err();
        assert!(refused.kind == RefusalKind::Unavailable && refused.kind.is_retryable(), "{refused}");
        let message = &refused.message;
        assert!(message.contains("3 whole pushes of step 7") && message.contains("[1, 2]"), "{refused}");
        let soon = Deadline::from_now(LONGEST / 4);
        let started = tokio::time::Instant::now();
        assert!(pushes.await_pushes(&lookup(3, 7, 1), soon).await.is_err() && started.elapsed() < LONGEST / 2);
    }
}
