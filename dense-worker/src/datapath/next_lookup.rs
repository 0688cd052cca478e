//! Mode `sync`: the next batch is known, and its lookup under way, before the step ahead of it is over.
//!
//! ```text
//!  worker       forward, backward ─┬─ push t ───────┬─ acknowledged by all ─ step t + 1
//!                                  └─ lookup t + 1 ─┘
//!  its servers                         apply all pushes of step t, then answer the lookup
//! ```
//!
//! A server answers the lookup once it has applied every worker's push of the step, so the rows are those of a lookup after the
//! step. Before that, the worker needs of its next batch only how many samples it has: all workers agree on the next step
//! while they sum the gradients of this one.
//!
//! The lookup only reads: a row that does not exist is made by its first push, with the first value that was read. A table whose
//! rows also leave, or count lookups, and features of which servers add up rows, are looked up after the step.

use tokio::sync::watch;
use zagros_embedding_client::{AfterPushes, UniqueIds};
use zagros_job::Job;

use super::process_group::RankTurn;

#[derive(Clone, Debug)]
pub(crate) struct PushedStep {
    pub(crate) seq: u64,
    /// The pushes of all workers.
    pub(crate) after: AfterPushes,
}

/// A batch that is read and not looked up yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NextBatch {
    pub(crate) seq: u64,
    /// What its worker brings to its step, without a vote. It has no samples if it only carries the ends of splits.
    pub(crate) turn: RankTurn,
}

#[derive(Debug)]
pub(crate) struct StepSide {
    pushed: watch::Sender<Option<PushedStep>>,
    next: watch::Receiver<Option<NextBatch>>,
}

#[derive(Clone, Debug)]
pub(crate) struct LookupSide {
    pushed: watch::Receiver<Option<PushedStep>>,
    next: watch::Sender<Option<NextBatch>>,
}

pub(crate) fn step_and_lookup_sides() -> (StepSide, LookupSide) {
    let ((pushing, pushed), (next, known)) = (watch::channel(None), watch::channel(None));
    (StepSide { pushed: pushing, next: known }, LookupSide { pushed, next })
}

pub(crate) fn rows_change_by_pushes_alone(job: &Job) -> bool {
    job.tables.iter().all(|table| table.settings.changes_by_pushes_alone(job.cluster.memory))
}

/// Whether a lookup of these ids may be sent before the step is over.
pub(crate) fn may_be_read(unique: &UniqueIds) -> bool {
    unique.tables.iter().all(|table| table.bags.is_none())
}

impl StepSide {
    pub(crate) fn push_started(&self, step: PushedStep) {
        self.pushed.send_replace(Some(step));
    }

    /// Waits for the batch after batch `seq`. `None` if there is no such batch.
    pub(crate) fn batch_after(&self, seq: u64) -> impl Future<Output = Option<NextBatch>> + use<> {
        let mut next = self.next.clone();
        async move { *next.wait_for(|next| next.is_some_and(|next| next.seq > seq)).await.ok()? }
    }
}

impl LookupSide {
    pub(crate) fn announce_next(&self, next: NextBatch) {
        self.next.send_replace(Some(next));
    }

    /// Waits until the push of this worker's batch `seq` is on its way; for ever if it is never sent.
    pub(crate) async fn wait_for_push(&mut self, seq: u64) -> AfterPushes {
        let is_pushed = |step: &Option<PushedStep>| step.as_ref().is_some_and(|step| step.seq == seq);
        let step = self.pushed.wait_for(is_pushed).await.ok().and_then(|step| Some(step.as_ref()?.after.clone()));
        match step {
            Some(after) => after,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use zagros_embedding_client::{TableBags, TableIds};
    use zagros_protocol::TableId;

    use super::*;

    #[test]
    fn a_lookup_waits_for_the_push_of_the_batch_before_and_of_no_other() {
        let (steps, mut lookups) = step_and_lookup_sides();
        let say = |seq| steps.push_started(PushedStep { seq, after: AfterPushes::new(10 + seq, 1, 2) });
        assert!(lookups.wait_for_push(4).now_or_never().is_none());
        say(3);
        assert!(lookups.wait_for_push(4).now_or_never().is_none());
        say(4);
        let after_pushes = lookups.wait_for_push(4).now_or_never().expect("its push is on its way");
        assert_eq!((after_pushes.step, after_pushes.pushes), (14, 2));
        drop(steps);
        assert!(lookups.wait_for_push(5).now_or_never().is_none(), "it is not pushed any more");
    }

    #[test]
    fn the_next_batch_is_the_one_after_and_none_comes_after_the_last() {
        let (steps, lookups) = step_and_lookup_sides();
        let batch = |seq, samples| NextBatch { seq, turn: RankTurn { samples, ..RankTurn::default() } };
        lookups.announce_next(batch(4, 7));
        assert!(steps.batch_after(4).now_or_never().is_none(), "it is the one in the step");
        assert_eq!(steps.batch_after(3).now_or_never(), Some(Some(batch(4, 7))));
        lookups.announce_next(batch(5, 8));
        assert_eq!(steps.batch_after(4).now_or_never(), Some(Some(batch(5, 8))));
        drop(lookups);
        assert_eq!(steps.batch_after(5).now_or_never(), Some(None));
    }

    #[test]
    fn sums_of_rows_are_looked_up_after_the_step() {
        let mut unique = UniqueIds { tables: vec![TableIds::new(TableId(0), 2, vec![1])] };
        assert!(may_be_read(&unique) && may_be_read(&UniqueIds::default()));
        unique.tables[0].bags = Some(TableBags::default());
        assert!(!may_be_read(&unique));
    }
}
