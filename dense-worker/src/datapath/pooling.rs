//! Where the rows of a multi-valued feature are added up: at the worker, which then looks up the rows, or at the embedding
//! servers, which then answer one row per sample (ADR 16).

use zagros_embedding_client::{TableBags, UniqueIds, bag_bytes};
use zagros_ingest::CategoryIds;
use zagros_job::{Job, PoolAt, Values, WireFormat};
use zagros_protocol::datapath::Access;

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
