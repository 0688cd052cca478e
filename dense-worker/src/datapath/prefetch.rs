//! Second stage: looks up the rows of the next batches, as many as the window allows. Delivers them in order. In mode `sync`
//! a lookup is sent with the push of the step before it (`lookahead.rs`).

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use zagros_coordinator_client::Waiting;
use zagros_embedding_client::{BatchRows, ClientError, EmbeddingClient, StalenessWindow, WindowPermit};
use zagros_protocol::control::WaitKind;
use zagros_protocol::datapath::Access;

use super::lookahead::{LookupSide, NextBatch, may_be_read};
use super::prepared::{FetchedBatch, PreparedBatch, inconsistent_batch, rows_fit};
use super::process_group::RankTurn;
use super::read::IncomingBatches;
use crate::error::WorkerError;
use crate::metrics::{PipelineStage, WorkerMetrics};

#[derive(Clone)]
pub(crate) struct LookupStage {
    pub(crate) client: Arc<EmbeddingClient>,
    pub(crate) access: Access,
    pub(crate) window: StalenessWindow,
    pub(crate) metrics: WorkerMetrics,
    /// What is known of the step ahead of a batch, in mode `sync`.
    pub(crate) steps: Option<LookupSide>,
}

/// Batches that are looked up before they are asked for, if the window allows. More would only make rows older.
pub(crate) const AHEAD: usize = 2;

type LookedUp = Result<BatchRows, ClientError>;

#[derive(Debug)]
struct PendingLookup {
    fetched: AbortOnDropHandle<Result<FetchedBatch, WorkerError>>,
    /// Its place among those [`AHEAD`]; `None` once its batch is asked for.
    place: Option<OwnedSemaphorePermit>,
}

/// Oldest first. Dropping this ends the lookups.
#[derive(Debug)]
pub(crate) struct RowPrefetch {
    under_way: mpsc::Receiver<PendingLookup>,
    oldest: Option<PendingLookup>,
    /// The answer of the oldest, until it is taken.
    seen: Option<Result<FetchedBatch, WorkerError>>,
    _feeder: AbortOnDropHandle<()>,
}

impl RowPrefetch {
    /// Takes at most `limit` batches, and numbers them from `first`.
    pub(crate) fn start(mut lookups: LookupStage, mut incoming: IncomingBatches, first: u64, limit: u64) -> Self {
        let (send, under_way) = mpsc::channel(AHEAD);
        let places = Arc::new(Semaphore::new(AHEAD));
        let feeder = tokio::spawn(async move {
            let (mut seq, mut taken, mut step_before) = (first, 0, None);
            while taken < limit {
                let Some(prepared) = incoming.recv().await else { return };
                // An empty batch only carries the ends of splits, so it is not a step.
                let is_step = !prepared.as_ref().is_ok_and(|prepared| prepared.batch.size == 0);
                taken += u64::from(is_step);
                let place = Arc::clone(&places).acquire_owned().await.ok();
                let full = Waiting::new("lookups", WaitKind::Window, "a place for batch").with_number(seq);
                let waiting = lookups.metrics.waits.begin_wait(full);
                let (permit, rows) = lookups.enter(seq, step_before, &prepared).await;
                drop(waiting);
                let fetching = lookups.clone().fetch(seq, prepared, permit, rows);
                let fetched = AbortOnDropHandle::new(tokio::spawn(fetching));
                if send.send(PendingLookup { fetched, place }).await.is_err() {
                    return;
                }
                step_before = if is_step { Some(seq) } else { step_before };
                seq += 1;
            }
        });
        Self { under_way, oldest: None, seen: None, _feeder: AbortOnDropHandle::new(feeder) }
    }

    /// The next batch with its rows; `None` after the last. A call that is dropped while it waits loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Result<FetchedBatch, WorkerError>> {
        self.receive().await?.place = None;
        self.arrive().await;
        self.oldest = None;
        self.seen.take()
    }

    /// The batch that [`Self::next`] will return; `None` after the last, or before an error. A call that is dropped while
    /// it waits loses nothing.
    pub(crate) async fn peek(&mut self) -> Option<&FetchedBatch> {
        self.receive().await?;
        self.arrive().await.as_ref()?.as_ref().ok()
    }

    async fn receive(&mut self) -> Option<&mut PendingLookup> {
        if self.oldest.is_none() {
            self.oldest = self.under_way.recv().await;
        }
        self.oldest.as_mut()
    }

    async fn arrive(&mut self) -> &Option<Result<FetchedBatch, WorkerError>> {
        if let (Some(oldest), None) = (&mut self.oldest, &self.seen) {
            let thread = |error: JoinError| WorkerError::Thread { thread: "lookup", reason: error.to_string() };
            self.seen = Some((&mut oldest.fetched).await.unwrap_or_else(|error| Err(thread(error))));
        }
        &self.seen
    }
}

impl LookupStage {
    /// Waits for a place in the window for batch `seq`. Once the push of batch `step_before` is on its way, the rows are looked up
    /// meanwhile, as they are after the step.
    async fn enter(
        &mut self,
        seq: u64,
        step_before: Option<u64>,
        prepared: &Result<PreparedBatch, WorkerError>,
    ) -> (WindowPermit, Option<LookedUp>) {
        let (Some(steps), Ok(prepared)) = (&mut self.steps, prepared) else {
            return (self.window.acquire_permit().await, None);
        };
        steps.announce_next(NextBatch { seq, turn: RankTurn::default().with_batch(&prepared.batch) });
        let Some(before) = step_before.filter(|_| may_be_read(&prepared.unique)) else {
            return (self.window.acquire_permit().await, None);
        };
        let after_pushes = tokio::select! {
            biased;
            permit = self.window.acquire_permit() => return (permit, None),
            after = steps.wait_for_push(before) => after,
        };
        self.metrics.lookups_with_push.inc();
        let started = Instant::now();
        let acknowledged = async {
            let permit = self.window.acquire_permit().await;
            after_pushes.mark_acknowledged();
            permit
        };
        let lookup = self.client.lookup_after(&prepared.unique, Access::Read, &after_pushes);
        let (permit, rows) = tokio::join!(acknowledged, lookup);
        self.metrics.add_stage_time(PipelineStage::Lookup, started.elapsed());
        (permit, Some(rows))
    }

    async fn fetch(
        self,
        seq: u64,
        prepared: Result<PreparedBatch, WorkerError>,
        permit: WindowPermit,
        rows: Option<LookedUp>,
    ) -> Result<FetchedBatch, WorkerError> {
        let prepared = prepared?;
        let rows = match rows {
            Some(rows) => rows,
            None => self.look_up(&prepared).await,
        };
        let rows = rows.map_err(|source| WorkerError::Embedding { batch: seq, source })?;
        if !rows_fit(&rows, &prepared.unique) {
            return Err(inconsistent_batch(seq, "the rows looked up are not those of its ids"));
        }
        Ok(FetchedBatch { seq, prepared, rows, permit })
    }

    async fn look_up(&self, prepared: &PreparedBatch) -> LookedUp {
        let started = Instant::now();
        self.metrics.lookups_in_flight.inc();
        let rows = self.client.lookup(&prepared.unique, self.access).await;
        self.metrics.lookups_in_flight.dec();
        self.metrics.add_stage_time(PipelineStage::Lookup, started.elapsed());
        rows
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use zagros_fakes::FakeShard;

    use super::*;
    use crate::datapath::prepared::BatchPreparer;
    use crate::datapath::read::{OpenSource, ReaderThread};
    use crate::testing::{ScriptedBatches, batch, client, metrics, small_job};

    /// Batches that are held in the stages and between them.
    const BETWEEN: usize = 5;

    /// How many batches leave an endless source before a server has answered any lookup.
    async fn read_ahead(staleness: usize) -> usize {
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let open: OpenSource = Box::new(move |_| {
            let batches = std::iter::repeat_with(move || {
                count.fetch_add(1, Ordering::AcqRel);
                Ok(batch(2, &[&[1, 2]]))
            });
            Ok(Box::new(ScriptedBatches::new(batches)))
        });
        let (client, _) = client(FakeShard::default().hanging()).await;
        let window = StalenessWindow::new(staleness);
        let preparer = BatchPreparer::new(&small_job(), Access::Train);
        let (_reader, incoming) = ReaderThread::start(open, preparer, metrics()).unwrap();
        let (access, steps) = (Access::Train, None);
        let lookups =
            LookupStage { client: Arc::clone(&client), access, window: window.clone(), metrics: metrics(), steps };
        let mut prefetch = RowPrefetch::start(lookups, incoming, 0, u64::MAX);
        let waits = async {
            while client.unanswered_requests().first().is_none_or(|waiting| waiting.lookups <= staleness) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            _ = prefetch.next() => panic!("a batch came without its rows"),
            () = waits => {}
        }
        // A source that nothing stops would read on in this time.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!((window.batch_count(), client.unanswered_requests()[0].lookups), (staleness + 1, staleness + 1));
        read.load(Ordering::Acquire)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_slow_server_makes_the_source_wait_and_takes_no_more_memory() {
        // As many batches as are looked up at once. More are in the step or being pushed.
        for staleness in [0, 2] {
            let read = tokio::time::timeout(Duration::from_secs(60), read_ahead(staleness)).await.expect("it hangs");
            assert!((staleness + 1..=staleness + 1 + BETWEEN).contains(&read), "τ = {staleness}: {read} batches");
        }
    }
}
