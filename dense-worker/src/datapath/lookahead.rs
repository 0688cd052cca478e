//! Lookahead: hints of the rows of the next batches, between the first stage and the second, and in mode `sync`
//! a lookup that is under way before the step ahead of it is over.
//!
//! ```text
//! reader ─► prepared batch ─► hint its ids ─► a few batches wait here ─► lookup, in the staleness window
//!                                 └─► servers bring its rows to memory meanwhile
//! ```
//!
//! Hints carry no values, so the staleness of a lookup is that of its own time (invariant DP-4).
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

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use zagros_embedding_client::{AfterPushes, EmbeddingClient, UniqueIds};
use zagros_job::Job;

use super::process_group::RankTurn;
use super::read::IncomingBatches;

/// Hints without an answer, for each batch of lookahead. Further batches are not hinted.
const OPEN_PER_BATCH: usize = 2;

/// Hints each batch `batches` batches before it is looked up. 0 hints nothing.
pub(crate) fn send_hints(
    client: &Arc<EmbeddingClient>,
    mut incoming: IncomingBatches,
    batches: usize,
) -> IncomingBatches {
    if batches == 0 {
        return incoming;
    }
    let (ready, hinted) = mpsc::channel(batches);
    let client = Arc::clone(client);
    // Ends with the reader, or when the receiver takes no more batches. The hints that are open end with it.
    tokio::spawn(async move {
        let mut open = JoinSet::new();
        // A place first: a batch is hinted when so many are before it, not earlier.
        while let Ok(place) = ready.reserve().await {
            let received = tokio::select! {
                received = incoming.recv() => received,
                () = ready.closed() => return,
            };
            let Some(prepared) = received else { break };
            while open.try_join_next().is_some() {}
            if let Ok(prepared) = &prepared
                && open.len() < batches * OPEN_PER_BATCH
                && let Some(hint) = client.hint(&prepared.unique)
            {
                open.spawn(hint);
            }
            place.send(prepared);
        }
        drop(ready);
        while open.join_next().await.is_some() {}
    });
    hinted
}

#[derive(Clone, Debug)]
pub(crate) struct PushedStep {
    pub(crate) seq: u64,
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
    use std::time::Duration;

    use zagros_fakes::FakeShard;
    use zagros_protocol::datapath::Access;

    use super::*;
    use crate::datapath::prepared::BatchPreparer;
    use crate::error::WorkerError;
    use crate::testing::{WorkerShard, batch, client, small_job};

    /// Batch `n` has the ids 2n and 2n + 1.
    fn send(count: u64) -> IncomingBatches {
        let (send, incoming) = mpsc::channel(count as usize + 1);
        let mut preparer = BatchPreparer::new(&small_job(), Access::Train);
        for number in 0..count {
            let prepared = preparer.prepare(batch(2, &[&[2 * number, 2 * number + 1]])).unwrap();
            send.try_send(Ok(prepared)).unwrap();
        }
        send.try_send(Err(WorkerError::Thread { thread: "reader", reason: "it ends".to_owned() })).unwrap();
        incoming
    }

    fn hinted(shard: &WorkerShard) -> Vec<Vec<u64>> {
        shard.hinted.lock().unwrap().clone()
    }

    async fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn batches_are_hinted_ahead_and_come_in_order() {
        let (client, shard) = client(FakeShard::default()).await;
        let mut incoming = send_hints(&client, send(10), 3);
        until(|| hinted(&shard).len() >= 3).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(hinted(&shard), [[0, 1], [2, 3], [4, 5]], "three batches ahead and no more");
        for number in 0..10 {
            let prepared = incoming.recv().await.unwrap().unwrap();
            assert_eq!(prepared.unique.tables[0].ids, [2 * number, 2 * number + 1]);
        }
        assert!(incoming.recv().await.unwrap().is_err() && incoming.recv().await.is_none());
        until(|| client.lookahead_counts().hinted == 20).await;
        assert_eq!(hinted(&shard).len(), 10);
    }

    #[tokio::test]
    async fn servers_that_do_not_answer_hold_nothing_up() {
        let (client, _) = client(FakeShard::default().hanging()).await;
        let mut incoming = send_hints(&client, send(50), 2);
        for _ in 0..50 {
            assert!(incoming.recv().await.unwrap().is_ok());
        }
        assert!(incoming.recv().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn without_lookahead_nothing_is_hinted() {
        let (client, shard) = client(FakeShard::default()).await;
        let mut incoming = send_hints(&client, send(2), 0);
        while incoming.recv().await.unwrap().is_ok() {}
        assert!(hinted(&shard).is_empty());
    }

    #[tokio::test]
    async fn who_takes_no_more_batches_ends_the_hints() {
        let (client, shard) = client(FakeShard::default()).await;
        let (send, incoming) = mpsc::channel(1);
        let hinted_batches = send_hints(&client, incoming, 3);
        drop(hinted_batches);
        tokio::time::timeout(Duration::from_secs(60), send.closed()).await.expect("it reads on");
        assert!(hinted(&shard).is_empty());
    }
}

#[cfg(test)]
mod next_lookup_tests {
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
