//! Last stage: sends gradients to the embedding servers. A batch leaves the window when its gradients are acknowledged.

use std::sync::Arc;
use std::time::Instant;

use tokio::task::{JoinError, JoinSet};
use zagros_embedding_client::push_record::{StartedPush, TableRows};
use zagros_embedding_client::{BatchRows, EmbeddingClient, PushedBatch, RequestReach, RoutedIds, WindowPermit};

use super::ledger::BatchLedger;
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
        self.ledger = BatchLedger::numbered_from(seq);
    }

    pub(crate) fn start(&mut self, gradients: BatchGradients) {
        if let Some(audit) = self.observer.audit() {
            let BatchGradients { seq, step, unique, samples, ends, .. } = &gradients;
            let (seq, step, samples, splits) = (*seq, *step, *samples as u64, ends.clone());
            let rows = unique.tables.iter().map(|rows| TableRows { table: rows.table.0, ids: rows.ids.clone() });
            audit.note_start(StartedPush { seq, step, samples, splits, tables: rows.collect() });
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
                audit.note_end(seq);
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
