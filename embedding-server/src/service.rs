//! The embedding server without a socket: tables, placement, writers' windows.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use prometheus::Registry;
use zagros_job::Job;
use zagros_plumbing::metrics::Space;
use zagros_protocol::control::{DescribeResponse, ServerLoad, TableStatus};
use zagros_protocol::packed::Buffers;
use zagros_protocol::{BucketMap, Lineage, Refusal, RefusalKind, ServerIndex};
use zagros_snapshot::format::RUN_BYTES;
use zagros_table::{Scratch, TableConfig, TableError, TableSet};
use zagros_zip::ZipEq;

use crate::ServerError;
use crate::datapath::{KnownWriters, OwnedBuckets, SequenceWindows};
use crate::metrics::ServerMetrics;
use crate::storage::{SnapshotCaptures, StorageLock};
use crate::tables::{make_tables, table_configs};
use crate::tier::{self, ColdTier, MemoryBudget, TableMaintenance};

/// One embedding server's rows and everything needed to serve them.
pub struct EmbeddingService {
    pub(crate) index: ServerIndex,
    /// Servers of the run.
    pub(crate) servers: u32,
    pub(crate) tables: Arc<TableSet>,
    /// Names in the order of the tables.
    pub(crate) names: Arc<[String]>,
    /// What each table was made from, in their order.
    pub(crate) configs: Box<[TableConfig]>,
    pub(crate) storage: StorageLock,
    /// Bytes of rows that a save sorts and writes together.
    pub(crate) run_bytes: usize,
    /// How long a request to an object store may take.
    pub(crate) timeout: Duration,
    pub(crate) captures: SnapshotCaptures,
    pub(crate) windows: SequenceWindows,
    pub(crate) writers: KnownWriters,
    pub(crate) metrics: ServerMetrics,
    /// Memory for rows and gradients.
    pub(crate) buffers: Arc<Buffers>,
    placement: ArcSwapOption<OwnedBuckets>,
    /// Working memory that earlier requests left behind.
    scratches: Mutex<Vec<Scratch>>,
    /// Where rows are that memory has no room for.
    tier: Option<ColdTier>,
    /// Its folder, where there is a tier.
    cold_folder: Option<PathBuf>,
    /// Ends with the service.
    _maintenance: Option<TableMaintenance>,
}

impl EmbeddingService {
    /// A server with empty tables, which serves nothing until [`Self::set_placement`]. Its metrics carry the label
    /// `server`, so that several servers may share a registry.
    ///
    /// # Errors
    /// [`ServerError::Table`] when a setting of a table is out of range, [`ServerError::Cold`] when rows are to go to a
    /// folder that cannot be used.
    pub fn new(job: &Job, index: ServerIndex, registry: &Registry) -> Result<Arc<Self>, ServerError> {
        let configs = table_configs(job);
        let tier = tier::open(job, index, &configs, registry)?;
        let tables = Arc::new(make_tables(job, &configs, tier.clone())?);
        let names: Arc<[String]> = job.server_tables().into_iter().map(|table| table.name).collect();
        let metrics = ServerMetrics::new(registry, index, &tables, &names);
        let maintenance = TableMaintenance::start_if_needed(job, index, &configs, &tables)?;
        Ok(Arc::new(Self {
            index,
            servers: job.cluster.servers,
            tables,
            names,
            configs: configs.into(),
            storage: StorageLock::default(),
            run_bytes: MemoryBudget::of(job).map_or(RUN_BYTES, |memory| memory.run()),
            timeout: job.cluster.timeout,
            captures: SnapshotCaptures::default(),
            windows: SequenceWindows::default(),
            writers: KnownWriters::default(),
            metrics,
            buffers: Arc::new(
                MemoryBudget::of(job).map_or_else(Buffers::default, |memory| Buffers::keeping(memory.kept)),
            ),
            placement: ArcSwapOption::empty(),
            scratches: Mutex::default(),
            cold_folder: tier.as_ref().map(|_| tier::folder(job, index)),
            tier,
            _maintenance: maintenance,
        }))
    }

    /// Serves the buckets that `map` gives to this server, and refuses requests of any other generation.
    ///
    /// A request that was admitted before ends under the map it was admitted with: no bucket changes hands with rows
    /// in it.
    pub fn set_placement(&self, map: Arc<BucketMap>) {
        self.placement.store(Some(Arc::new(OwnedBuckets::new(map, self.index))));
    }

    /// Position among the servers.
    #[must_use]
    pub fn index(&self) -> ServerIndex {
        self.index
    }

    /// The lineage of its rows, if it keeps a log of them. `None` if they are lost with this process.
    #[must_use]
    pub fn lineage(&self) -> Option<Lineage> {
        None
    }

    /// Whether it recovered rows of an earlier process from its log.
    #[must_use]
    pub fn has_recovered(&self) -> bool {
        false
    }

    /// Whether requests can be served, all of them: with a cold tier that fails, rows in memory are served still.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn ready(&self) -> Result<(), String> {
        self.placement().map_err(|refusal| refusal.message)?;
        let health = self.tier.as_ref().map_or(Ok(()), |tier| tier.health());
        health.map_err(|reason| format!("embedding server {} serves from memory alone: {reason}", self.index))
    }

    /// Whether a request may have to wait for a disk.
    pub(crate) fn may_block(&self) -> bool {
        self.tier.is_some()
    }

    /// Rows and bytes per table.
    #[must_use]
    pub fn describe(&self) -> DescribeResponse {
        let status = |(table, name): (&zagros_table::Table, &String)| TableStatus {
            name: name.clone(),
            rows: table.rows() as u64,
            bytes: table.bytes() as u64,
        };
        // One name per table, by construction.
        DescribeResponse { tables: self.tables.iter().zip_eq(self.names.iter()).map(status).collect() }
    }

    /// Rows and bytes of all tables.
    #[must_use]
    pub fn held(&self) -> ServerLoad {
        let sum = |of: fn(&zagros_table::Table) -> usize| self.tables.iter().map(of).sum::<usize>() as u64;
        let (rows, bytes) = (sum(zagros_table::Table::rows), sum(zagros_table::Table::bytes));
        ServerLoad { rows, bytes, ..ServerLoad::default() }
    }

    /// Room on the disk of the cold tier, where there is one.
    pub(crate) fn disk(&self) -> Option<Space> {
        self.cold_folder.as_deref().and_then(|folder| Space::at(folder).ok())
    }

    pub(crate) fn placement(&self) -> Result<Arc<OwnedBuckets>, Refusal> {
        self.placement.load_full().ok_or_else(|| {
            let message = format!("embedding server {} has no placement yet; it waits for the coordinator", self.index);
            Refusal::new(RefusalKind::Unavailable, message)
        })
    }

    /// Lends working memory for the length of a request.
    pub(crate) fn with_scratch<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let mut scratch = self.scratches.lock().pop().unwrap_or_default();
        let done = work(&mut scratch);
        self.scratches.lock().push(scratch);
        done
    }

    /// What a table refused, with its name for a person.
    pub(crate) fn refuse(&self, error: &TableError) -> Refusal {
        let name = error.table().and_then(|table| self.names.get(table as usize));
        let message = name.map_or_else(|| error.to_string(), |name| format!("table `{name}`: {error}"));
        let kind = if error.is_retryable() { RefusalKind::Unavailable } else { RefusalKind::Invalid };
        Refusal::new(kind, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{job, service};

    #[test]
    fn a_table_is_made_as_the_job_says() {
        let service = service(1, 0);
        assert_eq!(service.names[..], ["user", "item"]);
        let shapes: Vec<_> = service.tables.iter().map(|table| (table.dim(), table.stride())).collect();
        assert_eq!(shapes, [(4, 8), (4, 4)]);
    }

    #[test]
    fn a_table_that_cannot_be_made_is_named() {
        let mut job = job(1);
        job.tables[1].dim = 0;
        let error = EmbeddingService::new(&job, ServerIndex(0), &Registry::new()).err().unwrap();
        assert_eq!(error.to_string(), "table `item` cannot be made");
    }

    #[test]
    fn it_is_ready_once_it_has_a_placement() {
        let service = service(1, 0);
        assert!(service.ready().unwrap_err().contains("waits for the coordinator"));
        service.set_placement(Arc::new(BucketMap::even(zagros_protocol::Generation(1), 8, 1)));
        assert_eq!(service.ready(), Ok(()));
    }
}
