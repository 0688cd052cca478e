//! Last stage: sends gradients to the embedding servers. A batch leaves the window when its gradients are acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use tokio::task::{JoinError, JoinSet};
use zagros_embedding_client::push_record::{StartedPush, TableRows};
use zagros_embedding_client::{BatchRows, EmbeddingClient, PushedBatch, RequestReach, RoutedIds, WindowPermit};

use crate::error::WorkerError;
use crate::event::Observer;
use crate::metrics::{PipelineStage, WorkerMetrics};

#[derive(Debug)]
pub(crate) struct BatchGradients {
    pub(crate) seq: u64,
    /// Training steps before the batch's own.
    pub(crate) step: u64,
    pub(crate) unique: RoutedIds,
    pub(crate) values: BatchRows,
    pub(crate) samples: usize,
    /// Of the batch's samples in the step: penalties count by it.
    pub(crate) share: f32,
    pub(crate) ends: Vec<u64>,
    /// The batch's place in the staleness window. A holder of a clone keeps the place occupied, and so delays the next
    /// lookup, for longer than until the acknowledgement.
    pub(crate) permit: Arc<WindowPermit>,
    pub(crate) reach: RequestReach,
}

/// Dropping this ends the pushes in flight.
pub(crate) struct PendingPushes {
    client: Arc<EmbeddingClient>,
    metrics: WorkerMetrics,
    observer: Arc<dyn Observer>,
    under_way: JoinSet<Result<(u64, Vec<u64>), WorkerError>>,
    ledger: BatchLedger,
}

impl PendingPushes {
    pub(crate) fn new(client: Arc<EmbeddingClient>, metrics: WorkerMetrics, observer: Arc<dyn Observer>) -> Self {
        Self { client, metrics, observer, under_way: JoinSet::new(), ledger: BatchLedger::default() }
    }

    /// Sets the number of the next batch. No push may be in flight.
    pub(crate) fn count_from(&mut self, seq: u64) {
        self.ledger = BatchLedger { frontier: seq, ..BatchLedger::default() };
    }

    pub(crate) fn start(&mut self, gradients: BatchGradients) {
        if let Some(audit) = self.observer.audit() {
            let BatchGradients { seq, step, unique, samples, ends, .. } = &gradients;
            let (seq, step, samples, splits) = (*seq, *step, *samples as u64, ends.clone());
            let rows = unique.tables.iter().map(|rows| TableRows { table: rows.table.0, ids: rows.ids.clone() });
            audit.report_started_push(StartedPush { seq, step, samples, splits, tables: rows.collect() });
        }
        let (client, metrics, observer) = (Arc::clone(&self.client), self.metrics.clone(), Arc::clone(&self.observer));
        self.under_way.spawn(async move {
            let BatchGradients { seq, step, unique, values, share, ends, permit, reach, .. } = gradients;
            let staleness = u32::try_from(permit.staleness()).unwrap_or(u32::MAX);
            let started = Instant::now();
            let pushed =
                client.push(PushedBatch { step, staleness, share, reach, ..seq.into() }, &unique, &values).await;
            metrics.add_stage_time(PipelineStage::Push, started.elapsed());
            pushed.map_err(|source| WorkerError::Embedding { batch: seq, source })?;
            if let Some(audit) = observer.audit() {
                audit.report_finished_push(seq);
            }
            // Only now may another batch be looked up (invariant DP-4).
            drop(permit);
            Ok((seq, ends))
        });
    }

    /// Notes a batch without a push. Returns the splits that are now complete.
    pub(crate) fn skip_batch(&mut self, seq: u64, ends: Vec<u64>) -> Vec<u64> {
        self.ledger.acknowledge(seq, ends)
    }

    /// Waits for the next acknowledgement. Returns the splits that it completes. Waits for ever if no push is in flight, so
    /// use it beside other events.
    pub(crate) async fn next_acknowledged(&mut self) -> Result<Vec<u64>, WorkerError> {
        match self.under_way.join_next().await {
            Some(done) => self.account(done),
            None => std::future::pending().await,
        }
    }

    /// Waits for all acknowledgements. Each has the client's timeout. Returns the splits that they complete.
    pub(crate) async fn drain(&mut self) -> Result<Vec<u64>, WorkerError> {
        let mut complete = Vec::new();
        while let Some(done) = self.under_way.join_next().await {
            complete.extend(self.account(done)?);
        }
        Ok(complete)
    }

    fn account(
        &mut self,
        done: Result<Result<(u64, Vec<u64>), WorkerError>, JoinError>,
    ) -> Result<Vec<u64>, WorkerError> {
        let ended = |error: JoinError| WorkerError::Thread { thread: "push", reason: error.to_string() };
        let (seq, ends) = done.map_err(ended)??;
        Ok(self.ledger.acknowledge(seq, ends))
    }
}

/// Acknowledgements arrive in any order. A split is complete once its last batch and every batch before it are
/// acknowledged, because a split's rows may be in any of them (invariant SP-2).
#[derive(Clone, Debug, Default)]
pub(crate) struct BatchLedger {
    /// Every batch below is acknowledged.
    frontier: u64,
    /// Acknowledged batches beyond the frontier.
    early: BTreeSet<u64>,
    /// Splits by the batch that holds their last row.
    ends: BTreeMap<u64, Vec<u64>>,
}

impl BatchLedger {
    /// Notes that batch `seq` is acknowledged, and that it holds the last rows of the splits `ends`. Returns the splits
    /// that are now complete, in the order of their last rows.
    pub(crate) fn acknowledge(&mut self, seq: u64, ends: Vec<u64>) -> Vec<u64> {
        self.early.insert(seq);
        if !ends.is_empty() {
            self.ends.insert(seq, ends);
        }
        while self.early.remove(&self.frontier) {
            self.frontier += 1;
        }
        let open = self.ends.split_off(&self.frontier);
        std::mem::replace(&mut self.ends, open).into_values().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_split_waits_for_every_batch_before_its_end() {
        let mut ledger = BatchLedger::default();
        assert!(ledger.acknowledge(1, vec![10]).is_empty());
        assert!(ledger.acknowledge(2, vec![]).is_empty());
        assert_eq!(ledger.acknowledge(0, vec![9]), [9, 10]);
        assert_eq!(ledger.acknowledge(3, vec![11, 12]), [11, 12]);
    }

    proptest! {
        #[test]
        fn in_any_order_splits_complete_once_and_never_early(
            order in (1_usize..40).prop_flat_map(|count| Just((0..count as u64).collect::<Vec<_>>()).prop_shuffle()),
        ) {
            let mut ledger = BatchLedger::default();
            let mut acknowledged = BTreeSet::new();
            let mut complete = Vec::new();
            for seq in &order {
                acknowledged.insert(*seq);
                // Every third batch ends the split with its own number.
                let ends = if seq % 3 == 0 { vec![*seq] } else { vec![] };
                for split in ledger.acknowledge(*seq, ends) {
                    prop_assert!((0..=split).all(|before| acknowledged.contains(&before)));
                    complete.push(split);
                }
            }
            let expected: Vec<u64> = (0..order.len() as u64).filter(|seq| seq % 3 == 0).collect();
            prop_assert_eq!(complete, expected);
            prop_assert!(ledger.early.is_empty() && ledger.ends.is_empty());
        }
    }
}
