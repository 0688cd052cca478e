//! The log of a server as its requests use it.
//!
//! How long the tail may become. It bounds the disk that a log takes, and the time of a recovery.
//!
//! ```text
//! tail   0 ────────────► due ──────────────────────────► longest
//!                         │ the keeper writes a base       │ pushes are refused until a base is written
//!                         │ and the tail starts again      │ (the disk is slow, or bases fail)
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry};
use zagros_job::{DurabilityLevel, Job, Mode};
use zagros_plumbing::boot_id;
use zagros_plumbing::metrics::{Gauge, Histogram};
use zagros_protocol::{Lineage, Refusal, RefusalKind, ServerIndex};
use zagros_rows::log::{
    LineageFile, LogDisk, LogError, LogFolder, LogPlace, LogReservation, LogStopped, LogWriter, SEGMENT_BYTES,
    SyncMode, SystemDisk, WriterConfig,
};
use zagros_table::{
    PushOrigin, PushReport, PushStep, RequestBuffers, RequestGuard, RequestPart, TableConfig, TableError, TableSet,
    UpdateLog,
};

use super::load_state::{BeforeLoad, LoadState};
use super::open::{OpenedLog, new_lineage};
use super::partial_pushes::PartialPushes;
use super::recovery::{RecoverySummary, recover};
use crate::ServerError;
use crate::datapath::{KnownWriters, SequenceWindows};
use crate::errors::{LOG, WRITE};
use crate::metrics::ServerLabel;

/// Bytes of a record besides its rows, at most.
const RECORD_BYTES: u64 = 96;
/// A record has rows of one stripe. A managed table makes one for each so many rows at least.
const CHUNK: u64 = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PushedRows<'a> {
    pub(crate) parts: &'a [RequestPart<'a>],
    /// Part after part, `[rows * dim]`.
    pub(crate) gradients: &'a [f32],
    pub(crate) step: PushStep,
}

#[derive(Debug)]
pub(crate) struct ServerLog {
    pub(super) index: ServerIndex,
    pub(super) folder: LogFolder,
    pub(super) file: Mutex<LineageFile>,
    has_recovered: AtomicBool,
    pub(crate) writer: Arc<LogWriter>,
    pub(crate) partial: PartialPushes,
    pub(crate) load: LoadState,
    pub(super) metrics: LogMetrics,
    /// The lsn from which recovery would read.
    pub(super) tail_start: AtomicU64,
    pub(super) bound: TailBound,
    /// The time of the log before it is over: seconds that earlier processes have counted.
    pub(crate) seconds_before: u64,
    pub(super) base: Mutex<()>,
    /// The run is over, or another process goes on with the log: this one touches no file any more.
    is_over: AtomicBool,
    /// Bytes of a row in a record, and stripes, table by table.
    widths: Vec<(u64, u64)>,
}

impl ServerLog {
    /// Puts the rows of an opened log into empty tables, and logs what changes in them from now on.
    pub(crate) fn start(
        job: &Job,
        index: ServerIndex,
        opened: OpenedLog,
        LogHost { disk, sizes, .. }: LogHost,
        registry: &Registry,
        (tables, configs, windows): (&Arc<TableSet>, &[TableConfig], &SequenceWindows),
    ) -> Result<Self, ServerError> {
        let OpenedLog { folder, lineage, has_rows } = opened;
        let metrics = LogMetrics::new(registry, index);
        let timer = std::time::Instant::now();
        let partial = PartialPushes::default();
        let recovery = match has_rows {
            true => recover(index, folder.path(), lineage.log, tables, windows, &partial)?,
            false => RecoverySummary::default(),
        };
        metrics.recovery.set(timer.elapsed().as_secs_f64());
        metrics.recovered_rows.set(tables.iter().map(zagros_table::Table::row_count).sum::<usize>() as i64);
        let mode = match job.cluster.durability {
            DurabilityLevel::Machine => SyncMode::Machine,
            DurabilityLevel::Process | DurabilityLevel::Checkpoint => SyncMode::Process,
        };
        let config = WriterConfig { mode, lineage: lineage.log, segment_bytes: sizes.segment, next: recovery.end };
        let writer = LogWriter::open(folder.path(), disk, &config).map_err(ServerError::failed(index.0, LOG))?;
        // Only `sync` promises the same bits after a restart in the middle of a step.
        let keeps_steps = job.train.mode == Mode::Sync;
        let writer = Arc::new(writer.keeping_steps(keeps_steps));
        tables.set_log(Arc::clone(&writer) as Arc<dyn UpdateLog>);
        let bytes = |config: &TableConfig| {
            let (row, dim) = (8 + 4 * config.cold_words() as u64, config.dim as u64);
            // The row before the step, and the sum of its gradients.
            let of_step = if keeps_steps { row + 4 * dim } else { 0 };
            (row + of_step, config.stripes as u64)
        };
        Ok(Self {
            index,
            folder,
            file: Mutex::new(lineage),
            has_recovered: AtomicBool::new(has_rows),
            writer,
            partial,
            load: LoadState::from_recovery(recovery.is_partial),
            metrics,
            tail_start: AtomicU64::new(recovery.start),
            bound: TailBound::new(sizes, recovery.base_bytes),
            seconds_before: recovery.time.seconds,
            base: Mutex::default(),
            is_over: AtomicBool::new(false),
            widths: configs.iter().map(bytes).collect(),
        })
    }

    pub(crate) fn lineage(&self) -> Lineage {
        Lineage(self.file.lock().lineage)
    }

    pub(crate) fn has_recovered(&self) -> bool {
        self.has_recovered.load(Ordering::Acquire)
    }

    /// Refused as `Disk` if the log is stopped or the disk is full, as `Unavailable` if the log is too long.
    pub(crate) fn reserve_room(&self, parts: &[RequestPart<'_>]) -> Result<LogReservation<'_>, Refusal> {
        let too_long = |why| Refusal::new(RefusalKind::Unavailable, format!("embedding server {}: {why}", self.index));
        self.bound.check_tail(self.tail_bytes()).map_err(too_long)?;
        let bytes = |part: &RequestPart<'_>| {
            let (width, stripes) = self.widths.get(part.table as usize).copied().unwrap_or_default();
            let rows = part.ids.len() as u64;
            rows * width + 2 * RECORD_BYTES * (rows.min(stripes) + rows / CHUNK + 1)
        };
        let wanted: u64 = parts.iter().map(bytes).sum();
        self.writer.reserve_room(wanted + RECORD_BYTES).map_err(|stopped| self.refusal(&stopped))
    }

    /// Applies a push, or what is left of it if an earlier process applied a part.
    pub(crate) fn apply_push(
        &self,
        entry: &RequestGuard<'_>,
        origin: PushOrigin,
        rows: PushedRows<'_>,
        buffers: &mut RequestBuffers,
    ) -> Result<PushReport, TableError> {
        let PushedRows { parts, gradients, step } = rows;
        match self.partial.remaining_rows(&origin, parts, gradients) {
            None => entry.push_from(origin, parts, gradients, step, buffers),
            Some(rest) => entry.push_from(origin, &rest.request_parts(), &rest.gradients, step, buffers),
        }
    }

    /// A push has changed all its rows of these window groups.
    pub(crate) fn commit_push(&self, origin: &PushOrigin, step: u64, tables: &TableSet, groups: &[u32]) {
        let groups = if groups == [0] { &[] } else { groups };
        self.writer.append_commit(origin, step, tables.table_time(), groups);
        self.partial.forget_push(origin);
    }

    /// Waits until all that was appended is durable (invariant DU-1).
    /// If the disk fails, what was appended is kept, and written later.
    pub(crate) fn flush(&self) -> Result<(), Refusal> {
        let timer = self.metrics.flushes.start_timer();
        let flushed = self.writer.flush_appended();
        timer.observe_duration();
        flushed.map_err(|stopped| self.refusal(&stopped))
    }

    /// A push, in words, of which a part was applied by an earlier process and whose retry may still come.
    pub(crate) fn partial_push(&self, writers: &KnownWriters) -> Option<String> {
        let waiting = self.partial.find_push(|origin| writers.may_push(origin.writer, origin.incarnation))?;
        let PushOrigin { writer, incarnation, seq } = waiting;
        Some(format!("push {seq} of writer {writer} (incarnation {incarnation})"))
    }

    /// Whether pushes are accepted, as long as the run is not over.
    pub(crate) fn check_health(&self) -> Result<(), String> {
        if self.is_over() {
            return Ok(());
        }
        self.writer.check_running().map_err(|stopped| stopped.to_string())?;
        self.bound.check_tail(self.tail_bytes())
    }

    /// A load of saved rows starts. Until [`Self::end_load`], a process that ends leaves a part of a model.
    /// Refused as `Disk` if the log is stopped. Nothing is changed.
    pub(crate) fn start_load(&self) -> Result<BeforeLoad, Refusal> {
        self.writer.check_running().map_err(|stopped| self.refusal(&stopped))?;
        let before_load = self.load.start_load(|| self.writer.start_load());
        match self.flush() {
            Ok(()) => Ok(before_load),
            Err(refusal) => {
                self.undo_load(before_load);
                Err(refusal)
            }
        }
    }

    /// The load ended before it changed anything.
    pub(crate) fn undo_load(&self, before: BeforeLoad) {
        self.load.undo_load(before, || self.writer.complete_load());
    }

    /// All rows are in. If the log is stopped, a process that recovers the tables finds a part of a model.
    pub(crate) fn end_load(&self) -> Result<(), Refusal> {
        self.flush().inspect_err(|_| self.load.fail_load())?;
        self.load.complete_load(|| self.writer.complete_load());
        self.flush()?;
        self.bound.load_ended(self.tail_bytes());
        Ok(())
    }

    /// The rows are another run's: forgets them. What is put in from now on has a lineage of its own.
    /// After an error the rows may still be there, and no run takes them for its own.
    pub(crate) fn start_empty(&self, tables: &Arc<TableSet>, windows: &SequenceWindows) -> Result<(), ServerError> {
        {
            // First: rows of the old lineage are all there, or none is.
            let mut file = self.file.lock();
            file.lineage = new_lineage();
            self.folder.set_lineage(&file).map_err(|source| self.log_error(source))?;
        }
        tables.clear().map_err(ServerError::failed(self.index.0, "empty its tables"))?;
        windows.clear();
        self.partial.clear();
        // A base without a window: the pushes of the other run are no part of the log any more.
        self.load.complete_load(|| self.writer.complete_load());
        self.write_base(tables, windows)?;
        self.has_recovered.store(false, Ordering::Release);
        Ok(())
    }

    /// The run is over, and its model is saved elsewhere: deletes the log's files. Pushes are refused afterwards.
    pub(crate) fn delete_files(&self) -> Result<(), LogError> {
        let _only = self.base.lock();
        self.is_over.store(true, Ordering::Release);
        // First: once the lock is gone, the files of these names may be those of the next server.
        self.writer.end_writing();
        self.folder.wipe()
    }

    /// The process ends in order, and the next one may run on another machine: every acknowledged push is on the disk. Pushes are
    /// refused from now on. If the disk fails, only this machine, as long as it runs, has all of the log.
    pub(crate) fn hand_over(&self, tables: &TableSet) -> Result<(), ServerError> {
        self.writer.flush_appended().map_err(ServerError::failed(self.index.0, WRITE))?;
        self.is_over.store(true, Ordering::Release);
        self.writer.end_writing();
        tables.flush_cold().map_err(|source| ServerError::Cold { index: self.index.0, source })?;
        self.folder.sync().map_err(|source| self.log_error(source))?;
        let mut file = self.file.lock();
        file.place = LogPlace::Disk;
        self.folder.set_lineage(&file).map_err(|source| self.log_error(source))
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(super) fn log_error(&self, source: LogError) -> ServerError {
        ServerError::failed(self.index.0, LOG)(source)
    }

    fn refusal(&self, stopped: &LogStopped) -> Refusal {
        let kind = match stopped {
            LogStopped::Disk { .. } => RefusalKind::Disk,
            LogStopped::Ended => RefusalKind::Unavailable,
        };
        Refusal::new(kind, format!("embedding server {}: {stopped}", self.index))
    }
}

/// The disk and the machine of a log. Tests have a disk that fails, small sizes, and machines that start again.
#[derive(Clone, Debug)]
pub(crate) struct LogHost {
    pub(crate) disk: Arc<dyn LogDisk>,
    pub(crate) sizes: LogSizes,
    /// This start of the machine. `None` where the system does not say it.
    pub(crate) boot: Option<String>,
}

impl Default for LogHost {
    fn default() -> Self {
        Self { disk: Arc::new(SystemDisk), sizes: LogSizes::default(), boot: boot_id() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LogMetrics {
    pub(crate) appended: IntCounter,
    pub(crate) tail: IntGauge,
    pub(crate) segments: IntGauge,
    pub(crate) flushes: Histogram,
    pub(crate) stopped: IntGauge,
    pub(crate) bases: IntCounter,
    pub(crate) recovery: Gauge,
    pub(crate) recovered_rows: IntGauge,
}

impl LogMetrics {
    pub(crate) fn new(registry: &Registry, index: ServerIndex) -> Self {
        let label = ServerLabel::new(registry, index);
        let flushes = "Seconds for which a push waits until it is durable.";
        let stopped = "1 while the log cannot be written, so that pushes are refused; 0 otherwise.";
        let recovery = "Seconds that recovery took at the start of this process.";
        let recovered_rows = "Rows in memory after recovery at the start of this process.";
        Self {
            appended: label.counter("log_bytes_total", "Bytes that were appended to the log and are durable."),
            tail: label.gauge("log_tail_bytes", "Bytes of the log that recovery would read besides the base."),
            segments: label.gauge("log_segments", "Files of the log's tail."),
            flushes: label.seconds("log_flush_seconds", flushes, &[]).with_label_values::<&str>(&[]),
            stopped: label.gauge("log_stopped", stopped),
            bases: label.counter("log_bases_total", "Bases that were written."),
            recovery: label.seconds_gauge("log_recovery_seconds", recovery),
            recovered_rows: label.gauge("log_recovered_rows", recovered_rows),
        }
    }
}

/// Sizes in bytes. Tests have small ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSizes {
    pub(crate) segment: u64,
    /// The shortest tail that leads to a base.
    pub(crate) tail: u64,
}

impl Default for LogSizes {
    fn default() -> Self {
        Self { segment: SEGMENT_BYTES, tail: 256 << 20 }
    }
}

/// A tail may be so many times as long as one that leads to a base.
const LONGEST: u64 = 4;

#[derive(Debug)]
pub(super) struct TailBound {
    shortest: u64,
    /// Bytes of the newest base.
    base: AtomicU64,
    /// Bytes of the tail when the last load of a model ended, if no base was written since: all of its rows are in the tail.
    loaded: AtomicU64,
    /// Why the last base could not be written.
    failure: Mutex<Option<String>>,
}

impl TailBound {
    pub(super) fn new(sizes: LogSizes, base: u64) -> Self {
        let (base, loaded) = (AtomicU64::new(base), AtomicU64::new(0));
        Self { shortest: sizes.tail, base, loaded, failure: Mutex::default() }
    }

    pub(super) fn base_written(&self, bytes: u64) {
        self.base.store(bytes, Ordering::Release);
        self.loaded.store(0, Ordering::Release);
        *self.failure.lock() = None;
    }

    pub(super) fn base_failed(&self, why: String) {
        *self.failure.lock() = Some(why);
    }

    /// A load has ended, with a tail of so many bytes.
    pub(super) fn load_ended(&self, tail: u64) {
        self.loaded.store(tail, Ordering::Release);
    }

    pub(super) fn is_due(&self, tail: u64) -> bool {
        tail > self.due()
    }

    /// Whether a push may make the tail longer.
    pub(super) fn check_tail(&self, tail: u64) -> Result<(), String> {
        let longest = self.longest();
        if tail < longest {
            return Ok(());
        }
        let why = self.failure.lock().clone().unwrap_or_else(|| "a base is being written".to_owned());
        Err(format!("the log has {tail} bytes since its newest base, and may have {longest}: {why}"))
    }

    /// A load does not count against pushes: the server cannot refuse a part of it.
    fn longest(&self) -> u64 {
        (LONGEST * self.due()).max(2 * self.loaded.load(Ordering::Acquire))
    }

    fn due(&self) -> u64 {
        self.shortest.max(self.base.load(Ordering::Acquire) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_grows_with_its_base_and_not_without_end() {
        let bound = TailBound::new(LogSizes { segment: 1, tail: 100 }, 0);
        assert!(!bound.is_due(100) && bound.is_due(101) && bound.check_tail(399).is_ok());
        assert!(bound.check_tail(400).unwrap_err().ends_with("may have 400: a base is being written"));
        bound.base_failed("no space".to_owned());
        assert!(bound.check_tail(400).unwrap_err().ends_with("no space"));
        bound.load_ended(5000);
        assert!(bound.is_due(5000) && bound.check_tail(9999).is_ok() && bound.check_tail(10_000).is_err());
        bound.base_written(1000);
        assert!(!bound.is_due(500) && bound.is_due(501));
        assert!(bound.check_tail(1999).is_ok());
        assert!(bound.check_tail(2000).unwrap_err().ends_with("a base is being written"));
    }
}
