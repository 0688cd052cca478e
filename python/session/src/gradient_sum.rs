//! The gradients of several batches as those of one, so that an optimiser makes one update of a row in a step, however
//! many batches the step has (ADR 71).

use zagros_embedding_client::{BatchRows, Deduplicator, FeatureIds, TableIds, UniqueIds};
use zagros_zip::ZipEq;

pub(crate) fn sum_gradients(batches: &[(&UniqueIds, BatchRows)]) -> (UniqueIds, BatchRows) {
    // A table whose rows get no gradient has none, and is not in the sum.
    let has_gradients = |(_, gradients): &(&TableIds, &Vec<f32>)| !gradients.is_empty();
    let tables: Vec<(&TableIds, &Vec<f32>)> =
        batches.iter().flat_map(|(ids, rows)| ids.tables.iter().zip_eq(&rows.tables)).filter(has_gradients).collect();
    let features: Vec<FeatureIds<'_>> =
        tables.iter().map(|(table, _)| FeatureIds { table: table.table, dim: table.dim, ids: &table.ids }).collect();
    let (unique, inverse) = Deduplicator::new().dedup_batch(&features);
    let mut sums = BatchRows::zeros_like(&unique);
    for ((table, gradients), positions) in tables.iter().zip_eq(&inverse) {
        let slot = unique.tables.iter().position(|other| other.table == table.table).unwrap_or_default();
        let dim = table.dim as usize;
        for (gradient, position) in gradients.chunks_exact(dim).zip_eq(positions) {
            let row = &mut sums.tables[slot][*position as usize * dim..][..dim];
            row.iter_mut().zip_eq(gradient).for_each(|(sum, value)| *sum += value);
        }
    }
    (unique, sums)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use zagros_protocol::TableId;

    use super::*;

    /// By table and id.
    fn by_id(ids: &UniqueIds, rows: &BatchRows) -> BTreeMap<(u32, u64), i64> {
        let mut found = BTreeMap::new();
        for (table, values) in ids.tables.iter().zip_eq(&rows.tables) {
            for (id, row) in table.ids.iter().zip_eq(values.chunks_exact(table.dim as usize)) {
                assert!(row.iter().all(|value| *value == row[0]), "values of another row are in this one");
                *found.entry((table.table.0, *id)).or_default() += row[0] as i64;
            }
        }
        found
    }

    proptest! {
        #[test]
        fn each_id_has_the_sum_of_its_gradients(
            batches in prop::collection::vec(
                prop::collection::btree_map(0_u32..3, prop::collection::btree_map(0_u64..20, 1_u32..100, 0..12), 0..3),
                0..5,
            )
        ) {
            let batches: Vec<(UniqueIds, BatchRows)> = batches.into_iter().map(|batch| {
                let dim = |table: u32| table + 1;
                let ids = |(table, rows): (&u32, &BTreeMap<u64, u32>)| {
                    TableIds::new(TableId(*table), dim(*table), rows.keys().copied().collect())
                };
                let values = |(table, rows): (&u32, &BTreeMap<u64, u32>)| {
                    rows.values().flat_map(|value| vec![*value as f32; dim(*table) as usize]).collect()
                };
                (UniqueIds { tables: batch.iter().map(ids).collect() }, BatchRows { tables: batch.iter().map(values).collect() })
            }).collect();
            let mut expected = BTreeMap::new();
            for (key, value) in batches.iter().flat_map(|(ids, rows)| by_id(ids, rows)) {
                *expected.entry(key).or_default() += value;
            }
            let (ids, sums) = sum_gradients(&batches.iter().map(|(ids, rows)| (ids, rows.clone())).collect::<Vec<_>>());
            prop_assert_eq!(by_id(&ids, &sums), expected);
        }
    }
}
