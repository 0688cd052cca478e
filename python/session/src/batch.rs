//! A batch between its lookup and its push.
//!
//! ```text
//!            wait_for_rows()       push, release, drop
//!  Asked ───────────► Answered ───────────────────────► Over
//!    │                                                   ▲
//!    └───────────────────────────────────────────────────┘ release, drop: the lookup is given up
//! ```
//!
//! A batch for training holds a place in the staleness window from the moment its lookup is sent until its push is
//! acknowledged, or until the batch is over without a push.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::task::AbortOnDropHandle;
use zagros_embedding_client::{
    BatchRows, ClientError, Deduplicator, FeatureIds, RoutedIds, TableIds, UniqueIds, WindowPermit,
};
use zagros_zip::ZipEq;

use crate::SessionError;

/// A place in the window. The batches of a step that accumulates gradients share one.
pub(crate) type WindowPlace = Arc<WindowPermit>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchAccess {
    /// To train on them: rows that do not exist are created, and the batch takes a place in the window.
    Train,
    /// As [`Self::Train`], in the place of the step that is being accumulated; it takes one if there is no such step.
    Accumulate,
    /// To read them: for a row that does not exist, its first value is returned, and it is not created.
    Read,
}

/// The rows of a lookup, and the place in the window of a batch for training.
pub(crate) struct LookupAnswer {
    pub(crate) rows: BatchRows,
    pub(crate) place: Option<WindowPlace>,
}

pub(crate) type AskedLookup = AbortOnDropHandle<Result<LookupAnswer, ClientError>>;

pub struct LookupBatch {
    ids: Arc<RoutedIds>,
    inverse: Vec<Vec<u32>>,
    has_place: Arc<AtomicBool>,
    state: Mutex<BatchState>,
}

enum BatchState {
    Asked(AskedLookup),
    Answered(Option<WindowPlace>),
    Over,
}

impl LookupBatch {
    pub(crate) fn new(
        ids: Arc<RoutedIds>,
        inverse: Vec<Vec<u32>>,
        has_place: Arc<AtomicBool>,
        asked: AskedLookup,
    ) -> Self {
        Self { ids, inverse, has_place, state: Mutex::new(BatchState::Asked(asked)) }
    }

    pub fn unique_ids(&self) -> &Arc<RoutedIds> {
        &self.ids
    }

    /// For each feature and each of its ids, the position of the id in the distinct ids of the feature's table.
    pub fn id_positions(&self) -> &[Vec<u32>] {
        &self.inverse
    }

    pub(crate) fn has_place(&self) -> bool {
        self.has_place.load(Ordering::Acquire)
    }

    /// Gives the batch up: its lookup, its place, its push.
    pub fn give_up(&self) {
        self.exchange(BatchState::Over);
    }

    pub(crate) fn take_asked(&self) -> Result<AskedLookup, SessionError> {
        match self.exchange(BatchState::Over) {
            BatchState::Asked(asked) => Ok(asked),
            other => {
                self.exchange(other);
                Err(SessionError::Repeated("the rows of this batch were taken before; look its ids up again"))
            }
        }
    }

    pub(crate) fn set_answered(&self, place: Option<WindowPlace>) {
        self.exchange(BatchState::Answered(place));
    }

    /// A second push is refused, whatever came of the first (invariant DP-3).
    pub(crate) fn take_place(&self) -> Result<WindowPlace, SessionError> {
        const TWICE: &str = "the gradients of this batch were pushed or released before, and a push is never repeated; \
                             look its ids up again before another backward()";
        match self.exchange(BatchState::Over) {
            BatchState::Answered(Some(place)) => Ok(place),
            BatchState::Answered(None) => {
                Err(SessionError::Repeated("this batch was looked up to be read; look its ids up for training"))
            }
            BatchState::Asked(_) | BatchState::Over => Err(SessionError::Repeated(TWICE)),
        }
    }

    fn exchange(&self, state: BatchState) -> BatchState {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state)
    }
}

/// The gradients of several batches as those of one, so that an optimiser makes one update of a row in a step, however many batches the
/// step has (ADR 71).
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
