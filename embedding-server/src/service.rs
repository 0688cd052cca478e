//! The embedding server without a socket: tables, placement, sequence windows of the writers.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use prometheus::Registry;
use tracing::warn;
use zagros_coordinator_client::Waits;
use zagros_job::{Job, Mode};
use zagros_plumbing::Deadline;
use zagros_plumbing::metrics::DiskSpace;
use zagros_protocol::control::{DescribeResponse, ServerLoad, TableStatus, WaitKind};
use zagros_protocol::packed::ValueBuffers;
use zagros_protocol::{BucketMap, Lineage, Refusal, RefusalKind, ServerIndex};
use zagros_rows::cold::{MemoryBudget, StoreContent};
use zagros_rows::snapshot::format::RUN_BYTES;
use zagros_table::{ColdStore, RequestBuffers, TableConfig, TableError, TableSet};
use zagros_zip::ZipEq;

use crate::ServerError;
use crate::datapath::{HintTurns, KnownWriters, OwnedBuckets, SequenceWindows};
use crate::durability::{self, LoadState, LogHost, LogKeeper, ServerLog};
use crate::metrics::ServerMetrics;
use crate::resharding::ServerMoves;
use crate::storage::{CheckpointFiles, LastLoad, SnapshotCaptures, StorageLock, with_cause};
use crate::tables::{make_tables, table_configs};
use crate::tier::{self, ColdTier, TableMaintenance};

/// How long a request waits for a map that its sender has and this server has not.
const NEWER_MAP: Duration = Duration::from_secs(2);

/// The rows of one embedding server, and everything that serves them.
pub struct EmbeddingService {
    pub(crate) index: ServerIndex,
    pub(crate) tables: Arc<TableSet>,
    pub(crate) names: Arc<[String]>,
    pub(crate) configs: Box<[TableConfig]>,
    pub(crate) storage: StorageLock,
    pub(crate) run_bytes: usize,
    /// Timeout of a request to an object store.
    pub(crate) timeout: Duration,
    pub(crate) captures: SnapshotCaptures,
    pub(crate) loads: LastLoad,
    pub(crate) checkpoints: CheckpointFiles,
    pub(crate) windows: SequenceWindows,
    pub(crate) writers: KnownWriters,
    pub(crate) hints: HintTurns,
    pub(crate) metrics: ServerMetrics,
    /// Reusable memory for rows and gradients.
    pub(crate) buffers: Arc<ValueBuffers>,
    placement: ArcSwapOption<OwnedBuckets>,
    pub(crate) moves: ServerMoves,
    /// Whether a move in the middle of a step must change no bit: in mode `sync`.
    pub(crate) keeps_steps: bool,
    /// Whether the job begins an epoch with new rows, so that a worker may have all rows removed.
    pub(crate) resets_rows: bool,
    scratches: Mutex<Vec<RequestBuffers>>,
    tier: Option<ColdTier>,
    cold_folder: Option<PathBuf>,
    /// Ends with the service.
    _maintenance: Option<TableMaintenance>,
    /// The log of its rows, if they are to survive the process.
    pub(crate) log: Option<Arc<ServerLog>>,
    /// Whether the tables hold a whole model, in a server without a log.
    unlogged_load: LoadState,
    /// Ends with the service.
    keeper: OnceLock<LogKeeper>,
    pub(crate) waits: Waits,
}

impl EmbeddingService {
    /// A server with empty tables. It serves nothing before [`Self::set_placement`]. Its metrics have the label
    /// `server`, so several servers may share a registry.
    pub fn new(job: &Job, index: ServerIndex, registry: &Registry) -> Result<Arc<Self>, ServerError> {
        let configs = table_configs(job);
        let tier = tier::open(job, index, &configs, StoreContent::Scratch, registry)?;
        Ok(Arc::new(Self::with_tables(job, index, registry, configs, tier, |_| Ok(None))?))
    }

    /// A server in a process of its own. It has the rows that its log has, if the job asks for one, and logs what changes.
    pub fn open(job: &Job, index: ServerIndex, registry: &Registry) -> Result<Arc<Self>, ServerError> {
        Self::open_on_host(job, index, registry, LogHost::default())
    }

    /// As [`Self::open`], on a disk and a machine that tests make up.
    pub(crate) fn open_on_host(
        job: &Job,
        index: ServerIndex,
        registry: &Registry,
        host: LogHost,
    ) -> Result<Arc<Self>, ServerError> {
        let configs = table_configs(job);
        let has_tier = job.reads_disk();
        let Some(mut opened) = durability::open(job, index, &configs, has_tier, host.boot.as_deref())? else {
            return Self::new(job, index, registry);
        };
        let tier = opened.open_tier(job, index, &configs, registry)?;
        let service = Self::with_tables(job, index, registry, configs, tier, |(tables, configs, windows)| {
            ServerLog::start(job, index, opened, host, registry, (tables, configs, windows)).map(Some)
        })?;
        let service = Arc::new(service);
        if let Some(log) = &service.log {
            let (weak, of) = (Arc::downgrade(&service), Arc::clone(log));
            let write_base = move || weak.upgrade().map(|service| of.write_base(&service.tables, &service.windows));
            let _ = service.keeper.set(LogKeeper::start(log, write_base)?);
        }
        Ok(service)
    }

    fn with_tables(
        job: &Job,
        index: ServerIndex,
        registry: &Registry,
        configs: Vec<TableConfig>,
        tier: Option<ColdTier>,
        open_log: impl FnOnce((&Arc<TableSet>, &[TableConfig], &SequenceWindows)) -> Result<Option<ServerLog>, ServerError>,
    ) -> Result<Self, ServerError> {
        let tables = Arc::new(make_tables(job, &configs, tier.clone())?);
        let names: Arc<[String]> = job.server_tables().into_iter().map(|table| table.name).collect();
        let metrics = ServerMetrics::new(registry, index, &tables, &names);
        let windows = SequenceWindows::default();
        let log = open_log((&tables, &configs, &windows))?.map(Arc::new);
        let seconds = log.as_ref().map_or(0, |log| log.seconds_before);
        let maintenance = TableMaintenance::start_if_needed(job, index, &configs, &tables, seconds)?;
        let memory = job.cluster.memory.map(MemoryBudget::new);
        let writers = KnownWriters::default();
        writers.note_reached(tables.table_time().steps.max(windows.newest_batch()));
        Ok(Self {
            index,
            tables,
            names,
            configs: configs.into(),
            storage: StorageLock::default(),
            run_bytes: memory.map_or(RUN_BYTES, |memory| memory.run_bytes()),
            timeout: job.cluster.timeout,
            captures: SnapshotCaptures::default(),
            loads: LastLoad::default(),
            checkpoints: CheckpointFiles::new(job.checkpoint.deltas, job.cluster.servers),
            windows,
            writers,
            hints: HintTurns::default(),
            metrics,
            buffers: Arc::new(memory.map_or_else(ValueBuffers::default, |all| ValueBuffers::with_capacity(all.kept))),
            placement: ArcSwapOption::empty(),
            moves: ServerMoves::default(),
            keeps_steps: job.train.mode == Mode::Sync,
            resets_rows: job.train.reset_embeddings,
            scratches: Mutex::default(),
            cold_folder: tier.as_ref().map(|_| job.cold_folder(index.0)),
            tier,
            _maintenance: maintenance,
            log,
            unlogged_load: LoadState::default(),
            keeper: OnceLock::new(),
            waits: Waits::default(),
        })
    }

    /// Serves the buckets that `map` assigns to this server. Requests of any other generation are refused.
    ///
    /// A request that was accepted earlier ends under the earlier map. Buckets with rows move only while no request is accepted.
    pub fn set_placement(&self, map: Arc<BucketMap>) {
        self.serve_buckets(OwnedBuckets::new(map, self.index));
    }

    /// Serves these buckets from now on, or nothing while they are frozen.
    pub(crate) fn serve_buckets(&self, buckets: OwnedBuckets) {
        self.placement.store(Some(Arc::new(buckets)));
        self.moves.note_change();
    }

    /// Rows of the cold tier, about; with copies that are void.
    pub(crate) fn cold_rows(&self) -> u64 {
        self.tier.as_ref().map_or(0, |tier| tier.size().rows)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        self.placement.load().as_ref().is_some_and(|placement| placement.frozen_move.is_some())
    }

    pub(crate) fn owns_nothing(&self) -> bool {
        self.placement.load().as_ref().is_some_and(|placement| placement.owned_ranges().is_empty())
    }

    /// Waits while a request of this generation cannot be served yet: while the server is frozen, until `deadline`, and while it does
    /// not have so new a map, for [`NEWER_MAP`] at most. Whether it can be served is checked afterwards.
    pub(crate) async fn await_placement(&self, generation: u64, deadline: Deadline) {
        let is_ahead = |placement: &OwnedBuckets| generation > placement.generation().0;
        let may_serve = |placement: Option<&Arc<OwnedBuckets>>| {
            placement.is_none_or(|now| now.frozen_move.is_none() && !is_ahead(now))
        };
        if may_serve(self.placement.load().as_ref()) {
            return;
        }
        let mut changes = self.moves.subscribe_changes();
        let newer = Deadline::from_now(NEWER_MAP);
        loop {
            let Some(now) = self.placement.load_full() else { return };
            let until = match (now.frozen_move, is_ahead(&now)) {
                (None, false) => return,
                (Some(_), _) => deadline,
                (None, true) if newer.is_past() => return,
                (None, true) => newer,
            };
            self.moves.request_placement();
            let changed = until.bound(changes.changed()).await;
            if changed.is_err() || deadline.is_past() {
                return;
            }
        }
    }

    pub fn server_index(&self) -> ServerIndex {
        self.index
    }

    /// The lineage of the server's rows. `None` if the server keeps no log, so that the rows are lost with its process.
    pub fn lineage(&self) -> Option<Lineage> {
        self.log.as_ref().map(|log| log.lineage())
    }

    /// Whether the server recovered rows of an earlier process from its log.
    pub fn has_recovered(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.has_recovered())
    }

    /// The rows that it recovered are of another run: forgets them, and has another lineage from then on. Meanwhile it serves nothing.
    /// After an error the server must not join.
    pub fn start_empty(&self) -> Result<(), ServerError> {
        self.log.as_ref().map_or(Ok(()), |log| log.start_empty(&self.tables, &self.windows))
    }

    /// The run is over and its model is saved: deletes the log and the cold tier.
    pub(crate) fn delete_log(&self) {
        if let Some(log) = &self.log {
            if let Err(error) = log.delete_files() {
                warn!(server = %self.index, %error, "the log of a run that is over could not be deleted");
            }
            self.tier.iter().for_each(|tier| tier.store.delete_at_end());
        }
    }

    /// The next process may run on another machine: every acknowledged push is on the disk. Later pushes are refused.
    pub(crate) fn hand_over(&self) {
        if let Some(log) = &self.log
            && let Err(error) = log.hand_over(&self.tables)
        {
            warn!(server = %self.index, %error, "the log is not on the disk: only this machine can go on with it");
        }
    }

    /// Notes which disk takes nothing, if one does not.
    pub(crate) fn note_disks(&self) {
        let log = self.log.as_ref().and_then(|log| log.check_health().err());
        let tier = self.tier.as_ref().and_then(|tier| tier.check_health().err());
        self.waits.note_wait("log", WaitKind::Disk, log);
        self.waits.note_wait("cold tier", WaitKind::Disk, tier);
    }

    /// Whether every request can be served. With a failed cold tier the server still serves rows in memory.
    pub fn check_ready(&self) -> Result<(), String> {
        self.placement().map_err(|refusal| refusal.message)?;
        self.check_whole().map_err(|refusal| refusal.message)?;
        if let Some(log) = &self.log {
            log.check_health()
                .map_err(|reason| format!("embedding server {} accepts no pushes: {reason}", self.index))?;
        }
        let health = self.tier.as_ref().map_or(Ok(()), |tier| tier.check_health());
        health.map_err(|reason| format!("embedding server {} serves from memory alone: {reason}", self.index))
    }

    /// Whether a lookup may wait for a disk.
    pub(crate) fn reads_disk(&self) -> bool {
        self.tier.is_some()
    }

    /// Whether a push may wait for a disk: also a write to the cache of the operating system can.
    pub(crate) fn writes_disk(&self) -> bool {
        self.tier.is_some() || self.log.is_some()
    }

    pub(crate) fn check_whole(&self) -> Result<(), Refusal> {
        self.load_state().check_whole(self.index)
    }

    /// Without a log, the state is the service's own.
    pub(crate) fn load_state(&self) -> &LoadState {
        self.log.as_ref().map_or(&self.unlogged_load, |log| &log.load)
    }

    pub fn describe_tables(&self) -> DescribeResponse {
        let status = |(table, name): (&zagros_table::Table, &String)| TableStatus {
            name: name.clone(),
            rows: table.row_count() as u64,
            bytes: table.memory_bytes() as u64,
        };
        // The service has one name per table.
        DescribeResponse { tables: self.tables.iter().zip_eq(self.names.iter()).map(status).collect() }
    }

    pub fn current_load(&self) -> ServerLoad {
        let sum = |of: fn(&zagros_table::Table) -> usize| self.tables.iter().map(of).sum::<usize>() as u64;
        let (rows, bytes) = (sum(zagros_table::Table::row_count), sum(zagros_table::Table::memory_bytes));
        ServerLoad { rows, bytes, ..ServerLoad::default() }
    }

    pub(crate) fn disk_space(&self) -> Option<DiskSpace> {
        self.cold_folder.as_deref().and_then(|folder| DiskSpace::measure(folder).ok())
    }

    pub(crate) fn placement(&self) -> Result<Arc<OwnedBuckets>, Refusal> {
        self.placement.load_full().ok_or_else(|| {
            let message = format!("embedding server {} has no placement yet; it waits for the coordinator", self.index);
            Refusal::new(RefusalKind::Unavailable, message)
        })
    }

    /// Whether the placement under which a request was checked still holds. The request has entered the tables, so that it holds
    /// until the request ends.
    /// Refused as `Moved` if the map is another one since, as `Unavailable` if the server is frozen since.
    pub(crate) fn check_still(&self, placement: &Arc<OwnedBuckets>, generation: u64) -> Result<(), Refusal> {
        let now = self.placement()?;
        if Arc::ptr_eq(&now, placement) { Ok(()) } else { now.check_request(generation) }
    }

    /// Runs `work` on a thread that may block. `what` names it where it ends without an answer.
    pub(crate) async fn run_blocking<T: Send + 'static>(
        self: &Arc<Self>,
        what: &str,
        work: impl FnOnce(&Self) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let service = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&service)).await;
        done.unwrap_or_else(|error| Err(Refusal::new(RefusalKind::Internal, format!("{what}: {error}"))))
    }

    pub(crate) fn with_scratch<T>(&self, work: impl FnOnce(&mut RequestBuffers) -> T) -> T {
        let mut scratch = self.scratches.lock().pop().unwrap_or_default();
        let done = work(&mut scratch);
        self.scratches.lock().push(scratch);
        done
    }

    /// Turns a table's error into a refusal that names the table.
    pub(crate) fn table_refusal(&self, error: &TableError) -> Refusal {
        let name = error.table_number().and_then(|table| self.names.get(table as usize));
        let message = name.map_or_else(|| error.to_string(), |name| format!("table `{name}`: {error}"));
        let kind = match error {
            TableError::Full { .. } => RefusalKind::Disk,
            error if error.is_retryable() => RefusalKind::Unavailable,
            _ => RefusalKind::Invalid,
        };
        Refusal::new(kind, with_cause(message, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::job;

    #[test]
    fn a_table_that_cannot_be_made_is_named() {
        let mut job = job(1);
        job.tables[1].dim = 0;
        let error = EmbeddingService::new(&job, ServerIndex(0), &Registry::new()).err().unwrap();
        assert_eq!(error.to_string(), "table `item` cannot be made");
    }
}
