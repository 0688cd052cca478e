//! A batch with its unique ids, and where the rows of its multi-valued features are added up: at the worker, which then looks up the rows, or
//! at the embedding servers, which then answer one row per sample (ADR 16).

use zagros_embedding_client::{
    BatchRows, Deduplicator, FeatureIds, RoutedIds, TableBags, TableIds, UniqueIds, WindowPermit, bag_bytes,
};
use zagros_ingest::{Batch, CategoryIds};
use zagros_job::{Features, Job, PoolAt, Values, WireFormat};
use zagros_model::{InputColumns, LabelledSamples, RowPositions};
use zagros_protocol::TableId;
use zagros_protocol::datapath::Access;
use zagros_zip::ZipEq;

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
    pub(crate) fn prepare(&mut self, batch: Batch) -> Result<PreparedBatch, String> {
        batch.check_shape(&self.features)?;
        let (mut unique, inverse) = self.dedup(&batch.categorical);
        let slot = |table: usize| unique.tables.iter().position(|ids| ids.table.0 as usize == table);
        let slots: Option<Vec<usize>> = self.columns.features.iter().map(|column| slot(column.table)).collect();
        let slots = slots.ok_or("a feature's table has no unique ids")?;
        let columns = BatchColumns { ids: &batch.categorical, inverse: &inverse, slots: &slots };
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

/// The job's part of the choice. The rest depends on the batch.
#[derive(Clone, Debug)]
pub(crate) struct PoolPlan {
    /// Per feature; the worker for single-valued features.
    features: Vec<PoolAt>,
    value_bytes: usize,
    servers: u32,
}

/// The features of a batch. Their ids are positions in the unique ids of their tables.
pub(crate) struct BatchColumns<'a> {
    pub(crate) ids: &'a [CategoryIds],
    pub(crate) inverse: &'a [Vec<u32>],
    /// Per feature, the position of its table in the batch.
    pub(crate) slots: &'a [usize],
}

impl PoolPlan {
    /// The plan of a job. If the choice is free, it is the worker wherever results must not depend on the number of
    /// servers, because servers add in another order (invariant DP-5). That is without staleness, and where scores are
    /// read.
    pub(crate) fn new(job: &Job, access: Access) -> Self {
        let exact = job.train.staleness == 0 || access == Access::Read;
        let feature = |values: &Values| match values {
            // Servers add rows up unweighted.
            Values::Many { weights: Some(_), .. } => PoolAt::Worker,
            Values::Many { pool_at: PoolAt::Auto, .. } if exact => PoolAt::Worker,
            Values::Many { pool_at, .. } => *pool_at,
            // The rows of a sequence are not added up.
            Values::One | Values::Sequence { .. } => PoolAt::Worker,
        };
        Self {
            features: job.features.categorical.iter().map(|column| feature(&column.values)).collect(),
            value_bytes: match job.cluster.wire {
                WireFormat::F32 => size_of::<f32>(),
                WireFormat::F16 | WireFormat::Bf16 => size_of::<u16>(),
            },
            servers: job.cluster.servers,
        }
    }

    /// The order of a batch's features: first those whose rows are always looked up, last those whose sums are. Each choice
    /// then looks up the rows of the first ids of a table.
    pub(crate) fn feature_order(&self, ids: &[CategoryIds]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..ids.len()).collect();
        order.sort_by_key(|feature| match self.pool_at(*feature, ids) {
            PoolAt::Worker => 0,
            PoolAt::Auto => 1,
            PoolAt::Server => 2,
        });
        order
    }

    /// Gives each table the bags that its server adds up. Returns for each feature the row of its table's answer with the
    /// first sample's sum; `None` if the feature's rows are looked up. `unique` was found in [`Self::feature_order`].
    pub(crate) fn assign_bags(&self, columns: &BatchColumns<'_>, unique: &mut UniqueIds) -> Vec<Option<u32>> {
        let mut sums = vec![None; columns.ids.len()];
        for (slot, table) in unique.tables.iter_mut().enumerate() {
            let features_at = |wanted: PoolAt| {
                let is = move |feature: &usize| {
                    columns.slots[*feature] == slot && self.pool_at(*feature, columns.ids) == wanted
                };
                (0..columns.ids.len()).filter(is)
            };
            if features_at(PoolAt::Auto).chain(features_at(PoolAt::Server)).next().is_none() {
                continue;
            }
            let row_bytes = table.dim as usize * self.value_bytes;
            let certain = known(columns, features_at(PoolAt::Worker));
            let rows = known(columns, features_at(PoolAt::Auto)).max(certain);
            let bags = features_at(PoolAt::Auto).filter_map(|feature| columns.ids[feature].offsets.as_deref());
            let bags: u64 = bags.map(|offsets| bag_bytes(offsets, row_bytes, self.servers)).sum();
            let pays = bags < u64::from(rows - certain) * row_bytes as u64;
            let mut wanted = TableBags::new(if pays { certain } else { rows });
            for feature in features_at(PoolAt::Auto).filter(|_| pays).chain(features_at(PoolAt::Server)) {
                sums[feature] = Some(wanted.result_rows() as u32);
                wanted.add_bags(&columns.inverse[feature], columns.ids[feature].offsets.as_deref().unwrap_or(&[]));
            }
            table.bags = (wanted.bag_count() > 0).then_some(wanted);
        }
        sums
    }

    /// Where a feature is added up. A column without offsets has one row per sample, whatever the job says.
    fn pool_at(&self, feature: usize, ids: &[CategoryIds]) -> PoolAt {
        if ids[feature].offsets.is_some() { self.features[feature] } else { PoolAt::Worker }
    }
}

/// How many of a table's ids, in order of first appearance, are known after these features.
fn known(columns: &BatchColumns<'_>, features: impl Iterator<Item = usize>) -> u32 {
    let last = features.filter_map(|feature| columns.inverse[feature].iter().max()).max();
    last.map_or(0, |last| last + 1)
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

#[cfg(test)]
mod pooling_tests {
    use zagros_embedding_client::{Deduplicator, FeatureIds};
    use zagros_job::Pooling;
    use zagros_protocol::TableId;
    use zagros_zip::ZipEq;

    use super::*;
    use crate::testing::{ffnn, job, pool_at};

    const DIM: usize = 8;

    /// Every feature reads the same table.
    fn choose(plan: &[PoolAt], servers: u32, ids: &[CategoryIds]) -> (UniqueIds, Vec<Option<u32>>) {
        let plan = PoolPlan { features: plan.to_vec(), value_bytes: 4, servers };
        let order = plan.feature_order(ids);
        let feature_ids = |feature: &usize| FeatureIds { table: TableId(0), dim: DIM as u32, ids: &ids[*feature].ids };
        let (mut unique, found) = Deduplicator::new().dedup_batch(&order.iter().map(feature_ids).collect::<Vec<_>>());
        let mut inverse = vec![Vec::new(); ids.len()];
        order.into_iter().zip_eq(found).for_each(|(feature, found)| inverse[feature] = found);
        let columns = BatchColumns { ids, inverse: &inverse, slots: &vec![0; ids.len()] };
        let sums = plan.assign_bags(&columns, &mut unique);
        (unique, sums)
    }

    fn bags(list: &[&[u64]]) -> CategoryIds {
        let ends = list.iter().scan(0, |end, bag| {
            *end += bag.len() as u32;
            Some(*end)
        });
        CategoryIds {
            ids: list.concat(),
            offsets: Some(std::iter::once(0).chain(ends).collect()),
            ..CategoryIds::default()
        }
    }

    #[test]
    fn long_bags_of_rare_ids_are_summed_and_bags_of_common_ones_are_not() {
        let rare = bags(&[&[1, 2, 3, 4], &[5, 6, 7, 8]]);
        let (unique, sums) = choose(&[PoolAt::Auto], 1, std::slice::from_ref(&rare));
        assert_eq!((sums, unique.tables[0].result_rows()), (vec![Some(0)], 2));
        // Eight rows. Two servers would answer nearly two sums per bag; eight servers would answer nearly four.
        assert!(choose(&[PoolAt::Auto], 2, std::slice::from_ref(&rare)).1[0].is_some());
        assert!(choose(&[PoolAt::Auto], 8, &[rare]).1[0].is_none());
        let common = bags(&[&[1, 2], &[1, 2], &[2, 1], &[1]]);
        let (unique, sums) = choose(&[PoolAt::Auto], 1, &[common]);
        assert_eq!((sums, unique.tables[0].result_rows(), unique.tables[0].bags.clone()), (vec![None], 2, None));
    }

    #[test]
    fn features_of_one_table_are_chosen_separately() {
        let one = CategoryIds { ids: vec![9, 1], ..CategoryIds::default() };
        let reported = bags(&[&[1, 9], &[20]]);
        let history = bags(&[&[1, 2, 3, 4, 5, 6], &[9, 10, 11, 12, 13, 14]]);
        let plan = [PoolAt::Server, PoolAt::Auto, PoolAt::Worker];
        let (unique, sums) = choose(&plan, 1, &[reported.clone(), history, one.clone()]);
        // First the ids 9 and 1 themselves, then the sums of both features.
        assert_eq!(unique.tables[0].ids[..3], [9, 1, 2]);
        assert_eq!(sums, [Some(4), Some(2), None]);
        assert_eq!((unique.tables[0].ids.len(), unique.tables[0].result_rows()), (13, 6));
        let short = bags(&[&[1], &[9]]);
        let (unique, sums) = choose(&plan, 1, &[reported, short, one]);
        assert_eq!((sums, unique.tables[0].result_rows()), (vec![Some(2), None, None], 4));
    }

    #[test]
    fn a_free_choice_is_the_worker_if_results_must_be_exact() {
        let mut job = job(1, &[4, 4, 4, 4], ffnn(&[]));
        for (feature, at) in [PoolAt::Auto, PoolAt::Server, PoolAt::Worker].into_iter().enumerate() {
            pool_at(&mut job, feature, Pooling::Sum, at);
        }
        let plan = |job: &Job, access| PoolPlan::new(job, access).features;
        let (auto, server, worker) = (PoolAt::Auto, PoolAt::Server, PoolAt::Worker);
        assert_eq!(plan(&job, Access::Train), [auto, server, worker, worker]);
        assert_eq!(plan(&job, Access::Read), [worker, server, worker, worker]);
        job.train.staleness = 0;
        assert_eq!(plan(&job, Access::Train), [worker, server, worker, worker]);
    }

    #[test]
    fn a_column_without_offsets_has_rows() {
        let (unique, sums) = choose(&[PoolAt::Server], 1, &[CategoryIds { ids: vec![3, 4], ..CategoryIds::default() }]);
        assert_eq!((sums, unique.tables[0].result_rows()), (vec![None], 2));
    }
}
