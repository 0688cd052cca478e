//! Makes the cold store that a job asks for.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus::Registry;
use zagros_cold::{RocksOptions, RocksStore};
use zagros_job::Job;
use zagros_protocol::ServerIndex;
use zagros_snapshot::format::RUN_BYTES;
use zagros_table::TableConfig;

use super::health::WatchedStore;
use crate::ServerError;
use crate::metrics::ColdMetrics;

/// The store behind the tables of a server.
pub(crate) type ColdTier = Arc<WatchedStore<RocksStore>>;

/// MemoryBudget that the store takes: an eighth of the server's, within these bytes.
const BUFFERS: std::ops::RangeInclusive<usize> = 4 << 20..=512 << 20;

/// Least bytes of rows that a save gathers.
const LEAST_RUN: usize = 1 << 20;

/// Where the memory of a server goes that has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryBudget {
    /// Bytes for rows and indexes.
    pub(crate) rows: usize,
    /// Bytes for the store's buffers and cache.
    pub(crate) store: usize,
    /// Bytes that are kept from request to request, for the next one not to take them again.
    pub(crate) kept: usize,
}

impl MemoryBudget {
    /// That of a job. The least that a store needs comes on top, like the program itself: a small budget would have no
    /// room for rows else.
    pub(crate) fn of(job: &Job) -> Option<Self> {
        let all = usize::try_from(job.cluster.memory?).unwrap_or(usize::MAX);
        let store = (all / 8).clamp(*BUFFERS.start(), *BUFFERS.end());
        let kept = all / 32;
        Some(Self { rows: all - (store - BUFFERS.start()) - kept, store, kept })
    }

    /// Bytes of rows that a save may gather before it writes them: as much as is kept between requests. Fewer would make
    /// blocks of many buckets, which a load of some of them cannot pass by.
    pub(crate) fn run(&self) -> usize {
        self.kept.clamp(LEAST_RUN, RUN_BYTES)
    }
}

/// An empty store, if memory is limited and there is a table whose rows are not to be lost when they leave it.
///
/// # Errors
/// When its folder cannot be used.
pub(crate) fn open(
    job: &Job,
    index: ServerIndex,
    configs: &[TableConfig],
    registry: &Registry,
) -> Result<Option<ColdTier>, ServerError> {
    let Some(memory) = MemoryBudget::of(job) else { return Ok(None) };
    if !configs.iter().any(|config| config.retention.keeps_evicted_rows()) {
        return Ok(None);
    }
    let widths: Vec<usize> = configs.iter().map(TableConfig::cold_words).collect();
    let options = RocksOptions { memory: memory.store, ..RocksOptions::default() };
    let store = RocksStore::open(&folder(job, index), &widths, &options);
    let store = store.map_err(|source| ServerError::Cold { index: index.0, source })?;
    let metrics = ColdMetrics::new(registry, index);
    let (reads, writes) = metrics.calls();
    let tier = Arc::new(WatchedStore::new(store, reads, writes));
    metrics.register(&tier, &folder(job, index));
    Ok(Some(tier))
}

/// A folder of this server's own, which goes when the server does; nothing else is left among the runs.
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
