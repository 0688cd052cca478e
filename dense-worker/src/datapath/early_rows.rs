//! Mode `sync`: rows that the step in flight does not change are looked up while it is made.
//!
//! ```text
//!  step t        ├── forward, backward ──┤ push ─► acknowledged by all
//!  batch t + 1   ├ ids that no batch of step t has ┤       ├ the other ids ┤ step t + 1
//! ```
//!
//! A row changes by pushes alone, and the pushes before those of step t are acknowledged. So a row of an id that no batch
//! of step t has is the same before and after it, and the result has the bits of one lookup after the step. The early
//! lookup only reads: a row that does not exist is made by its first push, with the first value that was read. Rows that
//! are not looked up early are those of step t, those of tables whose rows also leave or count lookups, and those of which
//! only sums are sent. (The idea of fetching early what no batch in flight changes is that of BagPipe, Agarwal et al. 2023.)

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;
use zagros_embedding_client::{BatchRows, ClientError, EmbeddingClient, RoutedIds, TableIds, UniqueIds};
use zagros_job::Job;
use zagros_protocol::TableId;
use zagros_protocol::datapath::Access;
use zagros_zip::ZipEq;

use super::id_filter::IdFilter;
use crate::error::WorkerError;

/// The step that is being made, while its pushes are not acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct StepInFlight {
    /// This worker's batch in the step.
    pub(crate) seq: u64,
    /// The ids of the step, one filter for each worker.
    pub(crate) ids: Arc<[IdFilter]>,
}

/// Whoever makes steps says here which one it makes.
pub(crate) type StepsInFlight = watch::Sender<Option<StepInFlight>>;

/// Looks up rows of the next batch early.
#[derive(Clone, Debug)]
pub(crate) struct EarlyRows {
    /// Whether the rows of a table change by pushes alone, by table.
    settled: Arc<[bool]>,
    steps: watch::Receiver<Option<StepInFlight>>,
}

/// The tables of a job whose rows change by pushes alone, by number.
pub(crate) fn settled_tables(job: &Job) -> Vec<bool> {
    job.tables.iter().map(|table| table.settings.changes_by_pushes_alone(job.cluster.memory)).collect()
}

/// A batch of which some rows are being looked up.
pub(crate) struct EarlyLookup {
    early: PartOfBatch,
    late: PartOfBatch,
    rows: AbortOnDropHandle<Result<BatchRows, ClientError>>,
}

/// Some of a batch's ids.
struct PartOfBatch {
    ids: Arc<RoutedIds>,
    places: Vec<RowPlaces>,
}

/// Where the rows of one table of a part belong.
struct RowPlaces {
    /// The table's position in the batch.
    table: usize,
    /// The position of each row; `None` for all rows and sums of the table.
    rows: Option<Vec<u32>>,
}

impl EarlyRows {
    /// Of tables that are `settled`, when the next step is known.
    pub(crate) fn new(settled: Vec<bool>) -> (StepsInFlight, Self) {
        let (send, steps) = watch::channel(None);
        (send, Self { settled: settled.into(), steps })
    }

    /// Waits until the step with batch `seq` of this worker is being made; for ever if it never is.
    pub(crate) async fn step_with(&mut self, seq: u64) -> Arc<[IdFilter]> {
        let is_made = |step: &Option<StepInFlight>| step.as_ref().is_some_and(|step| step.seq == seq);
        let ids = self.steps.wait_for(is_made).await.ok().and_then(|step| Some(Arc::clone(&step.as_ref()?.ids)));
        match ids {
            Some(ids) => ids,
            None => std::future::pending().await,
        }
    }

    /// Starts to look up those ids of a batch that no batch of the step in flight has.
    pub(crate) fn start(
        &self,
        client: &Arc<EmbeddingClient>,
        unique: &UniqueIds,
        in_flight: &[IdFilter],
    ) -> EarlyLookup {
        let (early, late) = self.divide(unique, in_flight);
        let (client, ids) = (Arc::clone(client), Arc::clone(&early.ids));
        let rows = tokio::spawn(async move { client.lookup(&ids, Access::Read).await });
        EarlyLookup { early, late, rows: AbortOnDropHandle::new(rows) }
    }

    fn divide(&self, unique: &UniqueIds, in_flight: &[IdFilter]) -> (PartOfBatch, PartOfBatch) {
        let (mut early, mut late) = (CollectedIds::default(), CollectedIds::default());
        for (index, table) in unique.tables.iter().enumerate() {
            if table.bags.is_some() || !self.is_settled(table.table) {
                late.add(table.clone(), RowPlaces { table: index, rows: None });
                continue;
            }
            let changes = |id: u64| in_flight.iter().any(|ids| ids.may_hold(table.table, id));
            let (in_step, others): (Vec<u32>, Vec<u32>) =
                (0..table.ids.len() as u32).partition(|row| changes(table.ids[*row as usize]));
            for (part, rows) in [(&mut early, others), (&mut late, in_step)] {
                let ids = rows.iter().map(|row| table.ids[*row as usize]).collect();
                part.add(TableIds::rows(table.table, table.dim, ids), RowPlaces { table: index, rows: Some(rows) });
            }
        }
        (early.into(), late.into())
    }

    fn is_settled(&self, TableId(table): TableId) -> bool {
        self.settled.get(table as usize).copied().unwrap_or(false)
    }
}

impl EarlyLookup {
    /// Rows that are looked up early.
    pub(crate) fn early_rows(&self) -> usize {
        self.early.ids.rows()
    }

    /// Looks up the other rows of batch `seq`, whose ids are `unique`, and returns all of them. The pushes of the step in
    /// flight are acknowledged.
    pub(crate) async fn finish(
        self,
        client: &EmbeddingClient,
        seq: u64,
        unique: &UniqueIds,
    ) -> Result<BatchRows, WorkerError> {
        let Self { early, late, rows } = self;
        let failed = |source| WorkerError::Embedding { batch: seq, source };
        let others = match late.ids.rows() {
            0 => BatchRows::default(),
            _ => client.lookup(&late.ids, Access::Train).await.map_err(failed)?,
        };
        let ended = |error: JoinError| WorkerError::Thread { thread: "early lookup", reason: error.to_string() };
        let rows = rows.await.map_err(ended)?.map_err(failed)?;
        let mut all = BatchRows::zeroed(unique);
        early.write(unique, rows, &mut all);
        late.write(unique, others, &mut all);
        Ok(all)
    }
}

impl PartOfBatch {
    /// Writes the rows of this part to their places among those of the batch.
    fn write(&self, unique: &UniqueIds, rows: BatchRows, all: &mut BatchRows) {
        for (RowPlaces { table, rows: positions }, found) in self.places.iter().zip_eq(rows.tables) {
            let Some(positions) = positions else {
                all.tables[*table] = found;
                continue;
            };
            let dim = unique.tables[*table].dim as usize;
            for (position, row) in positions.iter().zip_eq(found.chunks_exact(dim)) {
                all.tables[*table][*position as usize * dim..][..dim].copy_from_slice(row);
            }
        }
    }
}

#[derive(Default)]
struct CollectedIds {
    ids: UniqueIds,
    places: Vec<RowPlaces>,
}

impl CollectedIds {
    fn add(&mut self, ids: TableIds, place: RowPlaces) {
        if !ids.ids.is_empty() {
            self.ids.tables.push(ids);
            self.places.push(place);
        }
    }
}

impl From<CollectedIds> for PartOfBatch {
    fn from(CollectedIds { ids, places }: CollectedIds) -> Self {
        Self { ids: Arc::new(ids.into()), places }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use proptest::prelude::*;
    use zagros_embedding_client::{ClientConfig, Shard, TableBags};
    use zagros_fakes::{FakeControlPlane, FakeShard, row_value};
    use zagros_protocol::RowKey;
    use zagros_protocol::datapath::Encoding;

    use super::*;
    use crate::testing::WorkerShard;

    fn client() -> Arc<EmbeddingClient> {
        let shard: Arc<dyn Shard> = Arc::new(WorkerShard::from(FakeShard::default()));
        let config = ClientConfig { writer: 1, incarnation: 1, wire: Encoding::F32, timeout: Duration::from_secs(60) };
        let connect = Arc::new(move |_: &_| Ok(Arc::clone(&shard)));
        Arc::new(EmbeddingClient::new(config, Arc::new(FakeControlPlane::default()), connect))
    }

    fn tables(ids: &[&[u64]]) -> UniqueIds {
        let table =
            |(index, ids): (usize, &&[u64])| TableIds::rows(TableId(index as u32), 2 + index as u32, ids.to_vec());
        UniqueIds { tables: ids.iter().enumerate().map(table).collect() }
    }

    fn ids(part: &PartOfBatch) -> Vec<(u32, Vec<u64>)> {
        part.ids.tables.iter().map(|table| (table.table.0, table.ids.clone())).collect()
    }

    #[test]
    fn ids_of_any_worker_in_the_step_wait_for_it_and_so_do_tables_that_are_not_settled() {
        let (_steps, early) = EarlyRows::new(vec![true, false, true]);
        let in_flight = [tables(&[&[1], &[], &[9]]), tables(&[&[2, 7], &[5], &[]])].map(|ids| IdFilter::of(&ids));
        let mut batch = tables(&[&[3, 1, 4, 2], &[5, 6], &[1, 9]]);
        let (first, rest) = early.divide(&batch, &in_flight);
        assert_eq!(ids(&first), [(0, vec![3, 4]), (2, vec![1])]);
        assert_eq!(ids(&rest), [(0, vec![1, 2]), (1, vec![5, 6]), (2, vec![9])]);
        // Sums are made of rows that the step may change.
        batch.tables[0].bags = Some(TableBags::default());
        assert_eq!(ids(&early.divide(&batch, &in_flight).0), [(2, vec![1])]);
        assert_eq!(ids(&early.divide(&tables(&[&[], &[5]]), &[]).0), []);
    }

    #[tokio::test]
    async fn a_batch_waits_for_the_step_of_the_one_before_and_for_no_other() {
        let (steps, mut early) = EarlyRows::new(vec![true]);
        let say = |seq| steps.send_replace(Some(StepInFlight { seq, ids: Arc::new([]) }));
        assert!(early.step_with(4).now_or_never().is_none());
        say(3);
        assert!(early.step_with(4).now_or_never().is_none());
        say(4);
        assert!(early.step_with(4).now_or_never().is_some());
        drop(steps);
        assert!(early.step_with(5).now_or_never().is_none(), "nobody makes it any more");
    }

    proptest! {
        #[test]
        fn rows_come_to_their_places(
            batch in prop::collection::vec(prop::collection::btree_set(0_u64..60, 0..40), 1..4),
            in_step in prop::collection::vec(0_u64..60, 0..40),
            settled in prop::collection::vec(any::<bool>(), 3),
        ) {
            let batch: Vec<Vec<u64>> = batch.into_iter().map(|ids| ids.into_iter().rev().collect()).collect();
            let batch = tables(&batch.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let filter = IdFilter::of(&tables(&[&in_step, &in_step, &in_step]));
            let row = |table: &TableIds, id: u64| {
                let key = RowKey { table: table.table, id };
                (0..table.dim as usize).map(|column| row_value(key, column)).collect::<Vec<_>>()
            };
            let rows = batch.tables.iter().map(|table| table.ids.iter().flat_map(|id| row(table, *id)).collect());
            let expected = BatchRows { tables: rows.collect() };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let found = runtime.block_on(async {
                let (_steps, early) = EarlyRows::new(settled);
                let client = client();
                early.start(&client, &batch, &[filter]).finish(&client, 7, &batch).await.unwrap()
            });
            prop_assert_eq!(found, expected);
        }
    }
}
