//! Makes the cold store that a job asks for.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus::Registry;
use zagros_cold::{RocksOptions, RocksStore};
use zagros_job::Job;
use zagros_protocol::ServerIndex;
use zagros_table::{TableConfig, Victims};

use super::health::Watched;
use crate::ServerError;
use crate::metrics::ColdMetrics;

/// The store behind the tables of a server.
pub(crate) type Tier = Arc<Watched<RocksStore>>;

/// Memory that the store takes beside the rows' own: an eighth of it, within these bytes.
const BUFFERS: std::ops::RangeInclusive<usize> = 4 << 20..=512 << 20;

/// An empty store, if memory is limited and there is a table whose rows are not to be lost when they leave it.
///
/// # Errors
/// When its folder cannot be used.
pub(crate) fn open(
    job: &Job,
    index: ServerIndex,
    configs: &[TableConfig],
    registry: &Registry,
) -> Result<Option<Tier>, ServerError> {
    let Some(memory) = job.cluster.memory else { return Ok(None) };
    if configs.iter().all(|config| config.retention.victims == Victims::Drop) {
        return Ok(None);
    }
    let widths: Vec<usize> = configs.iter().map(TableConfig::cold_words).collect();
    let memory = (memory / 8).clamp(*BUFFERS.start() as u64, *BUFFERS.end() as u64) as usize;
    let options = RocksOptions { memory, ..RocksOptions::default() };
    let store = RocksStore::open(&folder(job, index), &widths, &options);
    let store = store.map_err(|source| ServerError::Cold { index: index.0, source })?;
    let metrics = ColdMetrics::new(registry, index);
    let (reads, writes) = metrics.calls();
    let tier = Arc::new(Watched::new(store, reads, writes));
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
