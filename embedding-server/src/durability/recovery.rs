//! Recovery: the rows of the ended process, from the newest base and the tail of the log.
//!
//! ```text
//! 1. scan the tail       every record checked · commits ─► windows · pushes without a commit · the last clear
//! 2. base                each part on a thread of its own
//! 3. tail                segment after segment; each stripe's records on one thread, in their order
//! 4. gradients that waited for a row, and still do
//! ```
//!
//! After a clear nothing of what came before counts, base included: step 3 then starts at the clear. Frequency counts are
//! not images but additions: a record counts only if it lies behind the position at which the base read its stripe's counts.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tracing::{info, warn};
use zagros_log::{
    Base, BaseManifest, CheckedSegment, LogError, LogRecord, LogTail, LoggedGradient, LoggedRows, PartialImage,
    RecordHead, RecordKind,
};
use zagros_protocol::ServerIndex;
use zagros_table::{FrequencyCounts, PushOrigin, RequestBuffers, RowBatch, TableError, TableSet, TableTime};

use super::partial_pushes::{AppliedRows, PartialPushes};
use crate::ServerError;
use crate::datapath::{PushId, SequenceWindows};

/// What recovery found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    /// The lsn from which the tail was read.
    pub(super) start: u64,
    /// The lsn of the next record.
    pub(super) end: u64,
    /// The time of the tables.
    pub(super) time: TableTime,
    /// Bytes of the base.
    pub(super) base_bytes: u64,
    /// Whether a load did not end: the tables have a part of a model.
    pub(super) is_partial: bool,
}

/// What went wrong with one record.
enum RecordError {
    Log(LogError),
    Table(TableError),
}

impl From<LogError> for RecordError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

impl From<TableError> for RecordError {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

/// What the first pass over the tail finds.
#[derive(Debug, Default)]
struct TailSummary {
    /// The lsn behind the last clear.
    cleared: Option<u64>,
    time: TableTime,
    /// Pushes without a commit so far.
    open: HashSet<PushOrigin>,
    /// A load has started and not ended so far.
    loading: bool,
}

/// Puts the rows of a log into empty tables, its pushes into empty windows.
///
/// # Errors
/// If the log is damaged or cannot be read, or a row does not fit its table.
pub(super) fn recover(
    index: ServerIndex,
    folder: &Path,
    log: u64,
    tables: &Arc<TableSet>,
    windows: &SequenceWindows,
    partial: &PartialPushes,
) -> Result<Recovery, ServerError> {
    let replay = Replay { tables, threads: thread::available_parallelism().map_or(1, |count| count.get().min(8)) };
    replay.all(folder, log, windows, partial).map_err(|error| match error {
        RecordError::Log(source) => ServerError::Log { index: index.0, source },
        RecordError::Table(source) => ServerError::LoggedRow { index: index.0, source },
    })
}

struct Replay<'a> {
    tables: &'a Arc<TableSet>,
    threads: usize,
}

/// One thread's share of the tail.
#[derive(Default)]
struct TailWorker {
    buffers: RequestBuffers,
    /// Gradients that wait for a row, in the order of their records.
    waiting: HashMap<(u32, u64), Vec<LoggedGradient>>,
    /// Rows of pushes without a commit.
    applied: HashMap<PushOrigin, AppliedRows>,
}

/// Positions at which a base read the counts of stripes.
type CountPositions = HashMap<(u32, u32), u64>;

impl Replay<'_> {
    fn all(
        &self,
        folder: &Path,
        log: u64,
        windows: &SequenceWindows,
        partial: &PartialPushes,
    ) -> Result<Recovery, RecordError> {
        let base = Base::newest(folder)?;
        let manifest = base.as_ref().map(|base| base.manifest.clone()).unwrap_or_default();
        manifest.groups.iter().for_each(|group| windows.restore(group));
        let open = manifest.partial.iter().map(PartialImage::origin).collect();
        let mut found = TailSummary { time: manifest.time(), open, loading: manifest.loading, cleared: None };
        let needed = manifest.start..manifest.end;
        let tail = LogTail::scan(folder, needed, Some(log), |head, payload| found.note(head, payload, windows))?;
        if tail.torn > 0 {
            warn!(bytes = tail.torn, "the last record was not written whole; no push of it was acknowledged");
        }
        tail.cut()?;
        if found.cleared.is_some() {
            // What the cold tier has of before the clear.
            self.tables.clear().map_err(|error| LogError::Damaged {
                path: folder.to_owned(),
                offset: 0,
                problem: error.to_string(),
            })?;
        }
        // Rows are put in at the time at which the process ended: at an earlier one, they would seem to be of the future.
        self.tables.tick(found.time.steps, found.time.seconds);
        let positions = match &base {
            Some(base) => self.put_base(base, found.cleared)?,
            None => CountPositions::new(),
        };
        let mut workers: Vec<TailWorker> = (0..self.threads).map(|_| TailWorker::default()).collect();
        let from = found.cleared.unwrap_or(manifest.start);
        let mut buffer = Vec::new();
        for segment in &tail.segments {
            let segment = CheckedSegment::read(segment, buffer)?;
            self.put_segment(&segment, from, &positions, &found.open, &mut workers)?;
            buffer = segment.into_buffer();
        }
        if found.cleared.is_none() {
            let is_open = |(origin, _): &(PushOrigin, AppliedRows)| found.open.contains(origin);
            partial.restore(manifest.partial.iter().map(applied_rows).filter(is_open).collect());
        }
        for worker in workers {
            partial.restore(worker.applied);
            self.defer(&worker.waiting)?;
        }
        Base::delete_others(base.as_ref(), folder)?;
        self.report(&manifest, &tail, found.open.len());
        let (start, end, base_bytes) = (manifest.start, tail.end, manifest.bytes);
        Ok(Recovery { start, end, time: found.time, base_bytes, is_partial: found.loading })
    }

    fn report(&self, manifest: &BaseManifest, tail: &LogTail, partial: usize) {
        let (base_rows, tail_bytes) = (manifest.rows, tail.end - manifest.start);
        let rows = self.tables.iter().map(zagros_table::Table::rows).sum::<usize>();
        info!(rows, base_rows, tail_bytes, partial, "rows recovered from the log");
    }

    /// Puts the rows of a base in, unless they were cleared later, and its counts.
    fn put_base(&self, base: &Base, cleared: Option<u64>) -> Result<CountPositions, RecordError> {
        let positions = Mutex::new(CountPositions::new());
        let parts: Vec<u32> = (0..base.manifest.parts).collect();
        let share = parts.len().div_ceil(self.threads).max(1);
        self.on_threads(parts.chunks(share), |parts| {
            let mut buffers = RequestBuffers::new();
            parts.iter().try_for_each(|part| {
                let mut failed = None;
                let read = base.read_part(*part, |head, record| {
                    failed = self.put_base_record(head, record, cleared, &positions, &mut buffers).err();
                    failed.as_ref().map_or(Ok(()), |_| Err(stop()))
                });
                failed.map_or_else(|| read.map_err(RecordError::Log), Err)
            })
        })?;
        Ok(positions.into_inner())
    }

    fn put_base_record(
        &self,
        head: &RecordHead,
        record: LogRecord,
        cleared: Option<u64>,
        positions: &Mutex<CountPositions>,
        buffers: &mut RequestBuffers,
    ) -> Result<(), RecordError> {
        let table = self.tables.table(head.table)?;
        match record {
            LogRecord::Rows(_, rows) if cleared.is_none() => {
                table.insert(&batch(rows), buffers)?;
            }
            LogRecord::StripeCounts { lsn, counts } if cleared.is_none_or(|cleared| lsn >= cleared) => {
                let FrequencyCounts { ids, counts, cells } = counts;
                table.add_counts_again(&ids, &counts);
                if !cells.is_empty() {
                    table.merge_sketch(head.stripe as usize, &cells)?;
                }
                positions.lock().insert((head.table, head.stripe), lsn);
            }
            _ => {}
        }
        Ok(())
    }

    /// Each thread takes the records of its stripes.
    fn put_segment(
        &self,
        segment: &CheckedSegment,
        from: u64,
        positions: &CountPositions,
        open: &HashSet<PushOrigin>,
        workers: &mut [TailWorker],
    ) -> Result<(), RecordError> {
        let threads = workers.len() as u32;
        self.on_threads(workers.iter_mut().enumerate(), |(number, worker)| {
            let is_mine =
                |head: &RecordHead| head.kind.has_stripe() && (head.stripe + head.table) % threads == number as u32;
            let mut failed = None;
            let read = segment.for_each(from, is_mine, |head, record| {
                failed = self.put(worker, head, record, positions, open).err();
                failed.as_ref().map_or(Ok(()), |_| Err(stop()))
            });
            failed.map_or_else(|| read.map_err(RecordError::Log), Err)
        })
    }

    fn put(
        &self,
        worker: &mut TailWorker,
        head: &RecordHead,
        record: LogRecord,
        positions: &CountPositions,
        open: &HashSet<PushOrigin>,
    ) -> Result<(), RecordError> {
        let (number, table) = (head.table, self.tables.table(head.table)?);
        let is_counted = positions.get(&(number, head.stripe)).is_some_and(|lsn| head.lsn < *lsn);
        match record {
            LogRecord::Rows(origin, rows) => {
                worker.forget(number, &rows.ids);
                if let Some(origin) = origin.filter(|origin| open.contains(origin)) {
                    worker.applied.entry(origin).or_default().extend(rows.ids.iter().map(|id| (number, *id)));
                }
                table.insert(&batch(rows), &mut worker.buffers)?;
            }
            LogRecord::Removed(ids) => {
                worker.forget(number, &ids);
                table.remove_again(&ids);
            }
            LogRecord::Pending(gradient) => {
                if open.contains(&gradient.origin) {
                    worker.applied.entry(gradient.origin).or_default().insert((number, gradient.id));
                }
                worker.waiting.entry((number, gradient.id)).or_default().push(gradient);
            }
            LogRecord::Seen(ids) if !is_counted => table.observe_again(&ids),
            LogRecord::CountsAdded(ids, counts) if !is_counted => table.add_counts_again(&ids, &counts),
            LogRecord::SketchAdded(cells) if !is_counted => table.merge_sketch(head.stripe as usize, &cells)?,
            _ => {}
        }
        Ok(())
    }

    fn defer(&self, waiting: &HashMap<(u32, u64), Vec<LoggedGradient>>) -> Result<(), RecordError> {
        for ((number, id), gradients) in waiting {
            let table = self.tables.table(*number)?;
            gradients.iter().for_each(|logged| table.defer_again(*id, &logged.gradient, logged.step));
        }
        Ok(())
    }

    /// Does each piece of work on a thread of its own. The first failure counts.
    fn on_threads<T: Send>(
        &self,
        pieces: impl Iterator<Item = T>,
        work: impl Fn(T) -> Result<(), RecordError> + Sync,
    ) -> Result<(), RecordError> {
        let failure = Mutex::new(None);
        thread::scope(|scope| {
            for piece in pieces {
                let (failure, work) = (&failure, &work);
                scope.spawn(move || {
                    if let Err(error) = work(piece) {
                        failure.lock().get_or_insert(error);
                    }
                });
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }
}

impl TailSummary {
    fn note(&mut self, head: &RecordHead, payload: &[u8], windows: &SequenceWindows) -> Result<(), LogError> {
        match head.kind {
            RecordKind::Cleared => {
                self.cleared = Some(head.end());
                self.open.clear();
                // Steps count from 0 again after a clear.
                self.time.steps = 0;
            }
            RecordKind::LoadStarted => self.loading = true,
            RecordKind::LoadComplete => self.loading = false,
            RecordKind::PushedRows | RecordKind::Pending => {
                self.open.extend(LogRecord::origin(payload));
            }
            RecordKind::Commit => {
                if let Ok(LogRecord::Commit { origin, time, groups, .. }) = LogRecord::decode(head, payload) {
                    self.open.remove(&origin);
                    self.time = time;
                    let groups = if groups.is_empty() { &[0][..] } else { &groups };
                    groups.iter().for_each(|group| windows.restore_applied(*group, PushId::of(origin)));
                }
            }
            RecordKind::WindowGroup => {
                if let Ok(LogRecord::WindowGroup(group)) = LogRecord::decode(head, payload) {
                    windows.restore(&group);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl TailWorker {
    /// The gradients that waited for these rows are in them.
    fn forget(&mut self, table: u32, ids: &[u64]) {
        if !self.waiting.is_empty() {
            ids.iter().for_each(|id| _ = self.waiting.remove(&(table, *id)));
        }
    }
}

fn applied_rows(image: &PartialImage) -> (PushOrigin, AppliedRows) {
    (image.origin(), image.rows.iter().copied().collect())
}

fn batch(rows: LoggedRows) -> RowBatch {
    let LoggedRows { ids, slots, access } = rows;
    RowBatch { ids, slots, access }
}

/// Ends a reading early: its caller knows why.
fn stop() -> LogError {
    LogError::Damaged { path: std::path::PathBuf::new(), offset: 0, problem: String::new() }
}
