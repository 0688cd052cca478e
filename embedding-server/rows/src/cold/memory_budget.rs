//! A limit of memory for rows (`cluster.memory`), divided among what it is for.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use zagros_table::{ColdError, DEFAULT_STRIPES, TableConfig};

use super::store::{LogOptions, LogStore, StoreContent};
use crate::snapshot::format::RUN_BYTES;

/// So many bytes of the store's index are beside `cluster.memory`, like the memory of the program itself. Otherwise a small limit
/// would leave no room for rows.
const INDEX_BESIDE: usize = 4 << 20;

/// The smallest size of a whole segment of the store: a part of the memory for rows, within this range.
const SEGMENT: RangeInclusive<usize> = 64 << 10..=4 << 20;

/// The rows that stripes may hold whatever the budget take at most one part in this many of the budget.
const FLOOR_SHARE: usize = 4;

/// Smallest number of bytes of rows that a save sorts and writes together.
const LEAST_RUN: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Bytes for rows and indexes. The index of the rows on disk counts, too.
    pub rows: usize,
    /// The most bytes of the index of the rows on disk: the first ones are beside the limit, then it takes them from the rows.
    pub index: usize,
    /// Bytes of buffers that are kept for the next request.
    pub kept: usize,
}

impl MemoryBudget {
    /// Divides so many bytes. The store's buffers are beside them, like the memory of the program itself.
    pub fn new(memory: u64) -> Self {
        let all = usize::try_from(memory).unwrap_or(usize::MAX);
        let kept = all / 32;
        let rows = all - kept;
        Self { rows, index: rows / 4 * 3 + INDEX_BESIDE, kept }
    }

    /// Bytes of rows that a save sorts and writes together: as much as is kept for requests. With fewer bytes, a block
    /// would span many buckets, and a load of some buckets could not skip it.
    pub fn run_bytes(&self) -> usize {
        self.kept.clamp(LEAST_RUN, RUN_BYTES)
    }

    /// Gives the tables fewer stripes where the rows that stripes may hold whatever the budget would take too much of it.
    pub fn limit_stripes(&self, configs: &mut [TableConfig]) {
        let stripes = stripes_within(self.rows / FLOOR_SHARE, configs);
        configs.iter_mut().for_each(|config| config.stripes = config.stripes.min(stripes));
    }

    /// Opens the store of the rows of these tables that memory has no room for. `timeout` is that of requests.
    pub fn open_store(
        &self,
        content: StoreContent,
        folder: &Path,
        configs: &[TableConfig],
        timeout: Duration,
    ) -> Result<LogStore, ColdError> {
        let widths: Vec<usize> = configs.iter().map(TableConfig::cold_words).collect();
        let segment = (self.rows / 64).clamp(*SEGMENT.start(), *SEGMENT.end());
        let default = LogOptions::default();
        // After this patience a server still has time to send the error to the caller, and the caller to try again.
        let patience = default.patience.min(timeout / 3);
        let options = LogOptions { index: self.index, uncounted: INDEX_BESIDE, segment, patience, ..default };
        LogStore::open(content, folder, &widths, &options)
    }
}

/// The number of stripes per table. It is the default, unless the rows that the stripes may hold whatever the budget
/// would take more than `bytes`.
fn stripes_within(bytes: usize, configs: &[TableConfig]) -> usize {
    let floor: usize = configs.iter().map(TableConfig::stripe_floor).sum();
    let most = (bytes / floor.max(1)).clamp(1, DEFAULT_STRIPES);
    1 << most.ilog2()
}

#[cfg(test)]
mod tests {
    use zagros_table::Optimizer;

    use super::*;

    #[test]
    fn all_parts_are_within_the_budget() {
        for bytes in [64 << 10, 8 << 20, 1 << 30, 64_usize << 30] {
            let MemoryBudget { rows, index, kept } = MemoryBudget::new(bytes as u64);
            assert_eq!(rows + kept, bytes);
            assert!(rows >= bytes / 32 * 31 && index < rows + INDEX_BESIDE, "{bytes}: {rows} for rows");
        }
    }

    /// With the default number of stripes, 26 tables of dim 64 would hold 55 MiB whatever the budget.
    #[test]
    fn stripes_are_few_where_memory_is_short() {
        let optimizer = Optimizer::Adagrad { lr: 0.1, epsilon: 1e-8, initial_accumulator: 0.0, l2: 0.0 };
        let configs = [TableConfig { dim: 64, optimizer, ..TableConfig::default() }; 26];
        let floor = |stripes: usize| stripes * configs.iter().map(TableConfig::stripe_floor).sum::<usize>();
        assert!(floor(DEFAULT_STRIPES) > 50 << 20);
        for (bytes, stripes) in [(0, 1), (2 << 20, 2), (8 << 20, 8), (64 << 20, 64), (1 << 40, 64)] {
            assert_eq!(stripes_within(bytes, &configs), stripes, "{bytes}");
            assert!(stripes == 1 || floor(stripes) <= bytes);
        }
    }
}
