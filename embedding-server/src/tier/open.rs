//! Opens the cold store of a job.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus::Registry;
use zagros_cold::{RocksOptions, RocksStore, StoreContent};
use zagros_job::Job;
use zagros_protocol::ServerIndex;
use zagros_snapshot::format::RUN_BYTES;
use zagros_table::TableConfig;

use super::health::WatchedStore;
use crate::ServerError;
use crate::metrics::ColdMetrics;

/// The cold store of a server's tables.
pub(crate) type ColdTier = Arc<WatchedStore<RocksStore>>;

/// Bytes of the store's buffers and cache: an eighth of the server's memory, within this range.
const BUFFERS: std::ops::RangeInclusive<usize> = 4 << 20..=512 << 20;

/// Smallest number of bytes of rows that a save sorts and writes together.
const LEAST_RUN: usize = 1 << 20;

/// The parts of a server's memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    /// Bytes for rows and indexes.
    pub(crate) rows: usize,
    /// Bytes for the store's buffers and cache.
    pub(crate) store: usize,
    /// Bytes of buffers that are kept for the next request.
    pub(crate) kept: usize,
}

impl MemoryBudget {
    /// The memory budget of a job. The minimum of the store's buffers is added to the limit, like the memory of the
    /// program itself. Otherwise a small limit would leave no room for rows.
    pub(crate) fn of(job: &Job) -> Option<Self> {
        let all = usize::try_from(job.cluster.memory?).unwrap_or(usize::MAX);
        let store = (all / 8).clamp(*BUFFERS.start(), *BUFFERS.end());
        let kept = all / 32;
        Some(Self { rows: all - (store - BUFFERS.start()) - kept, store, kept })
    }

    /// Bytes of rows that a save sorts and writes together: as much as is kept for requests. With fewer bytes, a block
    /// would span many buckets, and a load of some buckets could not skip it.
    pub(crate) fn run(&self) -> usize {
        self.kept.clamp(LEAST_RUN, RUN_BYTES)
    }
}

/// Opens an empty store, if memory is limited and a table keeps evicted rows. Otherwise returns `None`.
///
/// # Errors
/// If the folder of the store cannot be used.
pub(crate) fn open(
    job: &Job,
    index: ServerIndex,
    configs: &[TableConfig],
    content: StoreContent,
    registry: &Registry,
) -> Result<Option<ColdTier>, ServerError> {
    let Some(memory) = MemoryBudget::of(job).filter(|_| is_needed(job, configs)) else { return Ok(None) };
    let widths: Vec<usize> = configs.iter().map(TableConfig::cold_words).collect();
    let options = RocksOptions { memory: memory.store, ..RocksOptions::default() };
    let store = RocksStore::open_as(content, &folder(job, index), &widths, &options);
    let store = store.map_err(|source| ServerError::Cold { index: index.0, source })?;
    let metrics = ColdMetrics::new(registry, index);
    let (reads, writes) = metrics.calls();
    let tier = Arc::new(WatchedStore::new(store, reads, writes));
    metrics.register(&tier, &folder(job, index));
    Ok(Some(tier))
}

/// Whether memory is limited and rows that leave it are kept.
pub(crate) fn is_needed(job: &Job, configs: &[TableConfig]) -> bool {
    job.cluster.memory.is_some() && configs.iter().any(|config| config.retention.keeps_evicted_rows())
}

/// The folder of this server's store. It is removed when the server ends.
pub(crate) fn folder(job: &Job, index: ServerIndex) -> PathBuf {
    match &job.cluster.cold_folder {
        Some(below) => below.join(format!("server-{index}")),
        None => job.output.folder.join(format!("cold-server-{index}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::job_with;

    #[test]
    fn all_parts_are_within_the_budget_but_for_the_least_that_a_store_needs() {
        let of = |memory: &str| MemoryBudget::of(&job_with(1, &format!("memory = \"{memory}\""))).unwrap();
        for (memory, bytes) in [("64KiB", 64 << 10), ("8MiB", 8 << 20), ("1GiB", 1 << 30), ("64GiB", 64 << 30)] {
            let MemoryBudget { rows, store, kept } = of(memory);
            assert_eq!(rows + store + kept, bytes + (4 << 20), "{memory}");
            assert!(rows >= bytes / 32 * 27, "{memory}: {rows} for rows");
        }
        assert_eq!(MemoryBudget::of(&job_with(1, "")), None);
    }
}
