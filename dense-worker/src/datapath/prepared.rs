//! A batch with its unique ids.

use zagros_embedding_client::{BatchRows, Deduplicator, FeatureIds, RoutedIds, TableIds, UniqueIds, WindowPermit};
use zagros_ingest::{Batch, CategoryIds};
use zagros_job::{Features, Job};
use zagros_model::{InputColumns, LabelledSamples, RowPositions};
use zagros_protocol::TableId;
use zagros_protocol::datapath::Access;
use zagros_zip::ZipEq;

use super::pooling;
use super::pooling::PoolPlan;
use crate::error::WorkerError;

/// A batch with its unique ids, and which of their rows are looked up.
#[derive(Debug)]
pub(crate) struct PreparedBatch {
    pub(crate) batch: Batch,
    pub(crate) unique: RoutedIds,
    /// Per feature and id: the position of the id among its table's unique ids.
    inverse: Vec<Vec<u32>>,
    /// Per feature, the position of its table in `unique`.
    slots: Vec<usize>,
    /// Per feature: the row of its table's answer with the first sample's sum; `None` if the feature's rows are looked up.
    sums: Vec<Option<u32>>,
}

#[derive(Debug)]
pub(crate) struct BatchPreparer {
    features: Features,
    columns: InputColumns,
    plan: PoolPlan,
    deduplicator: Deduplicator,
    beside: Option<TableIds>,
}

#[derive(Debug)]
pub(crate) struct FetchedBatch {
    /// Number of the batch and of its push. Counts from 0 over the life of the worker.
    pub(crate) seq: u64,
    pub(crate) prepared: PreparedBatch,
    pub(crate) rows: BatchRows,
    pub(crate) permit: WindowPermit,
}

impl BatchPreparer {
    /// `access` is that of the lookups.
    pub(crate) fn new(job: &Job, access: Access) -> Self {
        let (columns, plan, deduplicator) = (InputColumns::new(job), PoolPlan::new(job, access), Deduplicator::new());
        Self { features: job.features.clone(), columns, plan, deduplicator, beside: None }
    }

    /// Adds these rows after those of the features, in each batch with samples.
    pub(crate) fn with_extra_rows(self, rows: Option<TableIds>) -> Self {
        Self { beside: rows, ..self }
    }

    /// Finds the unique ids of a batch, and which of its bags the servers add up.
    ///
    /// # Errors
    /// A message, when the batch does not have the job's shape.
    pub(crate) fn prepare(&mut self, batch: Batch) -> Result<PreparedBatch, String> {
        batch.check_shape(&self.features)?;
        let (mut unique, inverse) = self.dedup(&batch.categorical);
        let slot = |table: usize| unique.tables.iter().position(|ids| ids.table.0 as usize == table);
        let slots: Option<Vec<usize>> = self.columns.features.iter().map(|column| slot(column.table)).collect();
        let slots = slots.ok_or("a feature's table has no unique ids")?;
        let columns = pooling::BatchColumns { ids: &batch.categorical, inverse: &inverse, slots: &slots };
        let sums = self.plan.assign_bags(&columns, &mut unique);
        unique.tables.extend(self.beside.clone().filter(|_| batch.size > 0));
        Ok(PreparedBatch { batch, unique: unique.into(), inverse, slots, sums })
    }

    fn dedup(&mut self, ids: &[CategoryIds]) -> (UniqueIds, Vec<Vec<u32>>) {
        let order = self.plan.feature_order(ids);
        let feature_ids = |feature: &usize| {
            let column = &self.columns.features[*feature];
            FeatureIds { table: TableId(column.table as u32), dim: column.dim as u32, ids: &ids[*feature].ids }
        };
        let features: Vec<FeatureIds<'_>> = order.iter().map(feature_ids).collect();
        let (unique, found) = self.deduplicator.dedup_batch(&features);
        let mut inverse = vec![Vec::new(); order.len()];
        // There is one list per feature.
        order.into_iter().zip_eq(found).for_each(|(feature, found)| inverse[feature] = found);
        (unique, inverse)
    }
}

impl PreparedBatch {
    pub(crate) fn labelled_samples<'a>(&'a self, embeddings: &'a [f32]) -> LabelledSamples<'a> {
        let Batch { numeric, labels, weights, .. } = &self.batch;
        LabelledSamples { numeric, embeddings, labels, weights }
    }

    /// The positions of feature `index` for the kernels, and its table's position in `unique`.
    pub(crate) fn feature_positions(&self, index: usize) -> (usize, RowPositions<'_>) {
        let ids = &self.batch.categorical[index];
        let positions = match (ids.offsets.as_deref(), self.sums[index]) {
            (Some(offsets), Some(first)) => RowPositions::Sums { first, offsets },
            (offsets, _) => RowPositions::new(&self.inverse[index], offsets, &ids.weights),
        };
        (self.slots[index], positions)
    }
}

/// Whether `rows` has a full row for each row and sum that was looked up.
pub(crate) fn rows_fit(rows: &BatchRows, unique: &UniqueIds) -> bool {
    rows.tables.len() == unique.tables.len()
        && (rows.tables.iter().zip_eq(&unique.tables))
            .all(|(rows, ids)| rows.len() == ids.result_rows() * ids.dim as usize)
}

pub(crate) fn inconsistent_batch(batch: u64, reason: impl Into<String>) -> WorkerError {
    WorkerError::Inconsistent { batch, reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use zagros_job::{PadSide, PoolAt, Pooling};

    use super::*;
    use crate::testing::{ffnn, job, pool_at, pool_feature, sequence};

    fn job_of_two() -> Job {
        let mut job = job(1, &[4, 2], ffnn(&[]));
        pool_feature(&mut job, 1, Pooling::Mean);
        // Both features read the second table.
        job.features.categorical[0].table = 1;
        job
    }

    fn batch() -> Batch {
        Batch {
            size: 2,
            labels: vec![0.0, 1.0],
            numeric: vec![0.5, 0.5],
            categorical: vec![
                CategoryIds { ids: vec![7, 8], ..CategoryIds::default() },
                CategoryIds { ids: vec![8, 9, 7], offsets: Some(vec![0, 3, 3]), ..CategoryIds::default() },
            ],
            ..Batch::default()
        }
    }

    fn prepare(batch: Batch) -> Result<PreparedBatch, String> {
        BatchPreparer::new(&job_of_two(), Access::Train).prepare(batch)
    }

    #[test]
    fn features_of_one_table_share_its_unique_rows() {
        let prepared = prepare(batch()).unwrap();
        assert_eq!(prepared.unique.tables.len(), 1);
        assert_eq!(prepared.unique.tables[0].table, TableId(1));
        assert_eq!(prepared.unique.tables[0].ids, [7, 8, 9]);
        let (slot, positions) = prepared.feature_positions(1);
        assert_eq!((slot, positions), (0, RowPositions::Bags { inverse: &[1, 2, 0], offsets: &[0, 3, 3] }));
        assert!(rows_fit(&BatchRows { tables: vec![vec![0.0; 6]] }, &prepared.unique));
        assert!(!rows_fit(&BatchRows { tables: vec![vec![0.0; 5]] }, &prepared.unique));
        assert!(!rows_fit(&BatchRows { tables: vec![] }, &prepared.unique));
    }

    #[test]
    fn a_feature_that_servers_sum_reads_a_row_a_sample() {
        let mut job = job_of_two();
        pool_at(&mut job, 1, Pooling::Mean, PoolAt::Server);
        let prepared = BatchPreparer::new(&job, Access::Train).prepare(batch()).unwrap();
        assert_eq!(prepared.feature_positions(0), (0, RowPositions::One(&[0, 1])));
        assert_eq!(prepared.feature_positions(1), (0, RowPositions::Sums { first: 2, offsets: &[0, 3, 3] }));
        // Two rows, the sum of three rows, and the sum of none.
        assert!(rows_fit(&BatchRows { tables: vec![vec![0.0; 8]] }, &prepared.unique));
    }

    #[test]
    fn a_sequence_with_more_ids_than_positions_is_refused() {
        let mut job = job_of_two();
        let prepare = |job: &Job| BatchPreparer::new(job, Access::Train).prepare(batch()).map(|_| ());
        sequence(&mut job, 1, 3, PadSide::Left);
        assert_eq!(prepare(&job), Ok(()));
        sequence(&mut job, 1, 2, PadSide::Left);
        assert_eq!(prepare(&job).unwrap_err(), "a sequence of 2 positions has 3 ids");
    }

    #[test]
    fn a_batch_of_another_shape_is_refused() {
        let broken: [fn(&mut Batch); 10] = [
            |batch| batch.categorical[1].weights = vec![1.0, 2.0],
            |batch| batch.weights = vec![1.0],
            |batch| batch.groups = vec![1],
            |batch| batch.labels.truncate(1),
            |batch| batch.numeric.truncate(1),
            |batch| batch.categorical.truncate(1),
            |batch| batch.categorical[0].ids.truncate(1),
            |batch| batch.categorical[1].offsets = Some(vec![0, 3]),
            |batch| batch.categorical[1].offsets = Some(vec![0, 3, 2]),
            |batch| batch.categorical[1].offsets = Some(vec![0, 4, 3]),
        ];
        for (index, breaks) in broken.into_iter().enumerate() {
            let mut batch = batch();
            breaks(&mut batch);
            assert!(prepare(batch).is_err(), "case {index}");
        }
    }
}
