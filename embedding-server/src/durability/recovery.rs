//! Recovery: the rows of the ended process, from the newest base and the tail of the log.
//!
//! ```text
//! 1. scan the tail       segments side by side, every record checked · then in order: commits ─► windows · pushes without a
//!                        commit · the last clear
//! 2. base                parts side by side, into indexes that have their size already
//! 3. tail                stripes side by side: each stripe's records on one thread, in their order
//! 4. gradients that waited for a row, and still do
//! ```
//!
//! After a clear nothing of what came before counts, base included: step 3 then starts at the clear. Frequency counts are
//! not images but additions: a record counts only if it lies behind the position at which the base read its stripe's counts.
//!
//! Step 3 puts in every image of a row and not only the last one: to know which one is the last costs the search in an index that
//! the copy costs as well, and a row that changes often is in the cache.

mod tail;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use tracing::{info, warn};
use zagros_protocol::ServerIndex;
use zagros_rows::log::{
    BaseManifest, LogBase, LogError, LogRecord, LogTail, PartialImage, RecordHead, RowsView, TailPlan,
};
use zagros_table::{FrequencyCounts, PushOrigin, RequestBuffers, TableError, TableSet, TableTime};

use self::tail::{CountPositions, SegmentEvents, TailReplay, TailSummary, TailWorker, damaged_at};
use super::partial_pushes::{AppliedRows, PartialPushes};
use crate::ServerError;
use crate::datapath::SequenceWindows;
use crate::errors::{LOG, LOGGED_ROW};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecoverySummary {
    /// The lsn from which the tail was read.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) time: TableTime,
    pub(super) base_bytes: u64,
    /// Whether a load did not end: the tables have a part of a model.
    pub(super) is_partial: bool,
}

#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Table(#[from] TableError),
}

/// Puts the rows of a log into empty tables, its pushes into empty windows.
pub(super) fn recover(
    index: ServerIndex,
    folder: &Path,
    log: u64,
    tables: &Arc<TableSet>,
    windows: &SequenceWindows,
    partial: &PartialPushes,
) -> Result<RecoverySummary, ServerError> {
    let replay = LogReplay { tables, threads: thread::available_parallelism().map_or(1, |count| count.get().min(8)) };
    replay.replay_log(folder, log, windows, partial).map_err(|error| match error {
        RecordError::Log(source) => ServerError::failed(index.0, LOG)(source),
        RecordError::Table(source) => ServerError::failed(index.0, LOGGED_ROW)(source),
    })
}

struct LogReplay<'a> {
    tables: &'a Arc<TableSet>,
    threads: usize,
}

impl LogReplay<'_> {
    fn replay_log(
        &self,
        folder: &Path,
        log: u64,
        windows: &SequenceWindows,
        partial: &PartialPushes,
    ) -> Result<RecoverySummary, RecordError> {
        let base = LogBase::find_newest(folder)?;
        let manifest = base.as_ref().map(|base| base.manifest.clone()).unwrap_or_default();
        manifest.groups.iter().for_each(|group| windows.restore_group(group));
        let open = manifest.partial.iter().map(|image| image.origin).collect();
        let mut found = TailSummary { time: manifest.table_time(), open, loading: manifest.loading, cleared: None };
        let needed = manifest.start..manifest.end;
        let tail = self.scan(&TailPlan::new(folder, needed, Some(log))?, windows, &mut found)?;
        if tail.torn > 0 {
            warn!(bytes = tail.torn, "the last record was not written whole; no push of it was acknowledged");
        }
        tail.cut_torn_end()?;
        if found.cleared.is_some() {
            // What the cold tier has of before the clear.
            let damaged = |problem: String| LogError::Damaged { path: folder.to_owned(), offset: 0, problem };
            self.tables.clear().map_err(|error| damaged(error.to_string()))?;
        }
        // Rows are put in at the time at which the process ended: at an earlier one, they would seem to be of the future.
        self.tables.advance_clock(found.time.steps, found.time.seconds);
        let positions = match &base {
            Some(base) => self.put_base(base, found.cleared)?,
            None => CountPositions::new(),
        };
        let replay = TailReplay {
            tables: self.tables,
            tail: &tail,
            from: found.cleared.unwrap_or(manifest.start),
            positions: &positions,
            open: &found.open,
        };
        let workers = self.put_tail(&replay)?;
        if found.cleared.is_none() {
            let is_open = |(origin, _): &(PushOrigin, AppliedRows)| found.open.contains(origin);
            let applied = |image: &PartialImage| (image.origin, image.rows.iter().copied().collect());
            partial.restore_rows(manifest.partial.iter().map(applied).filter(is_open).collect());
        }
        workers.into_iter().try_for_each(|worker| worker.finish(self.tables, partial))?;
        LogBase::delete_others(base.as_ref(), folder)?;
        self.report_recovery(&manifest, &tail, found.open.len());
        let (start, end, base_bytes) = (manifest.start, tail.end, manifest.bytes);
        Ok(RecoverySummary { start, end, time: found.time, base_bytes, is_partial: found.loading })
    }

    fn report_recovery(&self, manifest: &BaseManifest, tail: &LogTail, partial: usize) {
        let (base_rows, tail_bytes) = (manifest.rows, tail.end - manifest.start);
        let rows = self.tables.iter().map(zagros_table::Table::row_count).sum::<usize>();
        info!(rows, base_rows, tail_bytes, partial, "rows recovered from the log");
    }

    /// Checks all segments, as many at a time as there are threads, and puts together what they say.
    fn scan(
        &self,
        plan: &TailPlan,
        windows: &SequenceWindows,
        found: &mut TailSummary,
    ) -> Result<LogTail, RecordError> {
        let numbers: Vec<usize> = (0..plan.segment_count()).collect();
        let mut ends = Vec::with_capacity(numbers.len());
        for some in numbers.chunks(self.threads) {
            let mut checked: Vec<_> = some.iter().map(|number| (*number, None)).collect();
            self.on_threads(checked.iter_mut(), |(number, slot)| {
                let mut events = SegmentEvents::default();
                let end = plan.check_segment(*number, |head, payload| events.note_record(head, payload));
                *slot = Some(end.map(|end| (end, events)));
                Ok(())
            })?;
            // The first failure of the log counts, and not the first one in time.
            for (end, events) in checked.into_iter().filter_map(|(_, slot)| slot).collect::<Result<Vec<_>, _>>()? {
                ends.push(end);
                found.add_segment(events, windows);
            }
        }
        Ok(plan.clone().finish(&ends)?)
    }

    /// Puts the rows of a base in, unless they were cleared later, and its counts.
    fn put_base(&self, base: &LogBase, cleared: Option<u64>) -> Result<CountPositions, RecordError> {
        if cleared.is_none() {
            self.make_room(base)?;
        }
        let (positions, next) = (Mutex::new(CountPositions::new()), AtomicUsize::new(0));
        let workers = self.threads.min(base.manifest.parts as usize);
        self.on_threads(0..workers, |_| {
            let mut buffers = RequestBuffers::new();
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed) as u32;
                if part >= base.manifest.parts {
                    return Ok(());
                }
                let path = base.part_path(part);
                base.read_part(part, |head, payload| {
                    self.put_base_record(&path, (head, payload), cleared, &positions, &mut buffers)
                })?;
            }
        })?;
        Ok(positions.into_inner())
    }

    /// The rows of a base come in the order of an index, which would fill a small one unevenly. There is no room for more rows than
    /// its files have bytes for, whatever the manifest says.
    fn make_room(&self, base: &LogBase) -> Result<(), RecordError> {
        let bytes = base.file_bytes()?;
        for (number, table) in self.tables.iter().enumerate() {
            let rows = base.manifest.table_rows.get(number).copied().unwrap_or_default();
            table.reserve_rows(rows.min(bytes / (8 + 4 * table.stride() as u64)) as usize);
        }
        Ok(())
    }

    fn put_base_record(
        &self,
        path: &Path,
        (head, payload): (&RecordHead, &[u8]),
        cleared: Option<u64>,
        positions: &Mutex<CountPositions>,
        buffers: &mut RequestBuffers,
    ) -> Result<(), RecordError> {
        let table = self.tables.table(head.table)?;
        if let Some(rows) = RowsView::from_record(head, payload) {
            let rows = rows.map_err(damaged_at(path, head.lsn))?;
            return match cleared {
                None => Ok(table.restore_rows(head.stripe as usize, &rows.as_slices(), buffers)?),
                Some(_) => Ok(()),
            };
        }
        match LogRecord::decode(head, payload).map_err(damaged_at(path, head.lsn))? {
            LogRecord::StripeCounts { lsn, counts } if cleared.is_none_or(|cleared| lsn >= cleared) => {
                let FrequencyCounts { ids, counts, cells } = counts;
                table.add_counts_again(&ids, &counts);
                if !cells.is_empty() {
                    table.add_sketch_again(head.stripe as usize, 0, &cells)?;
                }
                positions.lock().insert((head.table, head.stripe), lsn);
            }
            _ => {}
        }
        Ok(())
    }

    fn put_tail(&self, replay: &TailReplay<'_>) -> Result<Vec<TailWorker>, RecordError> {
        let threads = self.threads as u32;
        let mut workers: Vec<(u32, TailWorker)> = (0..threads).map(|number| (number, TailWorker::default())).collect();
        self.on_threads(workers.iter_mut(), |(number, worker)| worker.run(replay, *number, threads))?;
        Ok(workers.into_iter().map(|(_, worker)| worker).collect())
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
