//! The store: all tables of a server, and the thread that compacts them.
//!
//! A view: the content of a store at one moment. It has clones of the indices, which share what has not changed since, and
//! holds the files that they point into.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use zagros_table::{ColdError, ColdRead, ColdScan, ColdSize, ColdStore, ColdView};
use zagros_zip::number_from;

use super::counters::{LogCounters, LogCounts};
use super::folder::StoreFolder;
use super::pieces::{RecordRead, group_reads};
use super::read_queue::{ReadMethod, ReadQueue};
use super::segment::RecordFormat;
use super::shared::{CompactionWork, SharedLog};
use super::table_log::{TableLog, TableState};

/// Rows on disk, in a log. A folder belongs to one store at a time.
#[derive(Debug)]
pub struct LogStore {
    log: Arc<SharedLog>,
    /// Bytes of the index that [`ColdStore::memory`] does not count.
    uncounted: usize,
    compaction: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreContent {
    /// It begins empty, and its rows are deleted with it.
    Scratch,
    /// It begins empty, and its rows stay: those that [`ColdStore::flush`] has put on the disk, and perhaps some later ones.
    New,
    /// It begins with the rows that an earlier store left, and they stay.
    Kept,
}

#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// The most bytes of the index in memory, some 12 a row. A write that needs more is refused.
    pub index: usize,
    /// Bytes of the index that [`ColdStore::memory`] does not count.
    pub uncounted: usize,
    pub reads: ReadMethod,
    /// The smallest size of a whole segment in bytes. Segments of large tables are up to 256 MiB.
    pub segment: usize,
    /// How long the disk may answer no read. Then the reads that wait fail.
    pub patience: Duration,
}

/// The longest patience with a disk.
const PATIENCE: Duration = Duration::from_secs(10);

impl Default for LogOptions {
    fn default() -> Self {
        Self { index: usize::MAX, uncounted: 0, reads: ReadMethod::Ring, segment: 4 << 20, patience: PATIENCE }
    }
}

impl LogStore {
    /// Opens a store in `folder`, which is created if necessary. A row of table `t` has `widths[t]` words.
    pub fn open(
        content: StoreContent,
        folder: &Path,
        widths: &[usize],
        options: &LogOptions,
    ) -> Result<Self, ColdError> {
        let folder = StoreFolder::lock(folder)?;
        if content != StoreContent::Kept {
            folder.clear()?;
        }
        let is_kept = content != StoreContent::Scratch;
        let format = |(table, width): (usize, &usize)| RecordFormat { table: table as u32, width: *width };
        let formats: Vec<RecordFormat> = widths.iter().enumerate().map(format).collect();
        let table = |format: &RecordFormat| TableLog::new(folder.path(), *format, is_kept, options.segment);
        let longest = formats.iter().map(|format| format.record_bytes()).max().unwrap_or(0);
        let log = Arc::new(SharedLog {
            tables: formats.iter().map(table).collect(),
            queue: ReadQueue::new(options.reads, longest, options.patience),
            counters: LogCounters::default(),
            folder,
            is_scratch: AtomicBool::new(!is_kept),
            most_index: options.index,
            patience: options.patience,
            lost: Mutex::default(),
            removed: Mutex::default(),
            work: Mutex::new(CompactionWork::Look),
            wake: Condvar::new(),
        });
        match content {
            StoreContent::Scratch => {}
            StoreContent::New => log.flush()?,
            StoreContent::Kept => log.recover_tables()?,
        }
        let compacted = Arc::clone(&log);
        let thread = thread::Builder::new().name("cold log".to_owned()).spawn(move || compacted.run_compaction());
        let thread = thread
            .map_err(|error| ColdError { doing: "open", reason: format!("no thread for compaction: {error}") })?;
        Ok(Self { log, uncounted: options.uncounted, compaction: Some(thread) })
    }

    /// Its rows are deleted with it after all.
    pub fn delete_at_end(&self) {
        self.log.is_scratch.store(true, Ordering::Relaxed);
    }

    pub fn io_counts(&self) -> LogCounts {
        self.log.counters.log_counts(self.log.dead_bytes())
    }

    pub fn index_bytes(&self) -> usize {
        self.log.index_bytes()
    }

    /// Compacts until no segment has more than half dead records. The store does so by itself in the background, and bounds its files
    /// also where rows are written faster than one thread compacts.
    pub fn compact(&self) -> Result<(), ColdError> {
        self.log.compact_all()
    }
}

impl ColdStore for LogStore {
    fn read_all(&self, reads: &mut [ColdRead<'_>]) -> Result<(), ColdError> {
        self.log.read_rows(reads)
    }

    fn write(&self, table: u32, cold_keys: &[u64], rows: &[u32]) -> Result<(), ColdError> {
        let table_log = self.log.table("write", table)?;
        let format = table_log.layout.format;
        if cold_keys.len().checked_mul(format.width) != Some(rows.len()) {
            let reason = format!("{} words for {} rows of {} words", rows.len(), cold_keys.len(), format.width);
            return Err(ColdError { doing: "write", reason });
        }
        self.log.check_index(table_log, cold_keys)?;
        let has_waste = table_log.write(cold_keys, rows)?;
        self.log.counters.update(|counts| {
            counts.row_bytes += size_of_val(rows) as u64;
            counts.appended_bytes += (cold_keys.len() * format.record_bytes()) as u64;
        });
        self.log.finish_change(table_log, has_waste, cold_keys.len());
        Ok(())
    }

    fn remove(&self, table: u32, cold_keys: &[u64]) -> Result<(), ColdError> {
        let table_log = self.log.table("remove", table)?;
        let removed = table_log.remove(cold_keys)?;
        self.log.counters.update(|counts| counts.appended_bytes += removed.appended as u64);
        // A row less, and perhaps a record more.
        self.log.finish_change(table_log, removed.has_waste, 3 * cold_keys.len());
        Ok(())
    }

    /// Deletes the table's files. Views hold those that they need.
    fn remove_all(&self, table: u32) -> Result<(), ColdError> {
        let removed = self.log.table("remove", table)?.remove_all()?;
        self.log.removed.lock().push(removed);
        self.log.wake_for_waste(true);
        Ok(())
    }

    fn flush(&self) -> Result<(), ColdError> {
        // No later process reads scratch rows.
        if self.log.is_scratch.load(Ordering::Relaxed) { Ok(()) } else { self.log.flush() }
    }

    fn freeze(&self) -> Result<Box<dyn ColdView>, ColdError> {
        // All tables at one moment.
        let states: Vec<_> = self.log.tables.iter().map(|table| table.state.read()).collect();
        let tables = states.iter().map(|state| (*state).clone()).collect();
        drop(states);
        Ok(Box::new(LogView::new(Arc::clone(&self.log), tables)))
    }

    fn size(&self) -> ColdSize {
        let mut size = ColdSize::default();
        for table in &self.log.tables {
            let state = table.state.read();
            size.rows += state.index.row_count() as u64;
            size.bytes += state.segments.record_count() * table.layout.format.record_bytes() as u64;
        }
        size
    }

    /// The index. The buffers of reads do not grow with the rows.
    fn memory(&self) -> usize {
        self.index_bytes().saturating_sub(self.uncounted)
    }
}

impl Drop for LogStore {
    fn drop(&mut self) {
        *self.log.work.lock() = CompactionWork::End;
        self.log.wake.notify_all();
        if let Some(thread) = self.compaction.take() {
            let _ = thread.join();
        }
    }
}

impl SharedLog {
    pub(crate) fn read_rows(&self, parts: &mut [ColdRead<'_>]) -> Result<(), ColdError> {
        let (mut pieces, mut found) = (Vec::new(), Vec::with_capacity(parts.len()));
        for (number, part) in parts.iter_mut().enumerate() {
            let table = self.table("read", part.table)?;
            let (reads, files) = table.find(part.cold_keys, part.into);
            let first = pieces.len();
            pieces.extend(group_reads(&reads, table.layout, &files, self.queue.longest_piece)?);
            pieces[first..].iter_mut().for_each(|piece| piece.part = number);
            found.push((table, reads));
        }
        let _under_way = self.counters.count_reads(&pieces);
        self.queue.read(&pieces, &mut |piece, bytes| {
            let ((table, reads), part) = (&found[piece.part], &mut parts[piece.part]);
            let width = table.layout.format.width;
            let row_of = |read: &RecordRead| (part.cold_keys[read.position as usize], read.position as usize * width);
            table.take_rows(piece, bytes, reads, &row_of, &mut part.into.rows)
        })
    }
}

/// Bytes of rows that are read at a time when a scan goes on where the last one ended.
const AHEAD: usize = 4 << 20;

pub(crate) struct LogView {
    log: Arc<SharedLog>,
    tables: Vec<TableState>,
    ahead: ReadAhead,
}

/// Rows that were read ahead for a scan of many calls. Eviction writes the rows of a stripe together and in order, so a long
/// range of keys is read in longer pieces than a short one.
#[derive(Debug, Default)]
struct ReadAhead {
    table: u32,
    /// The last key of the scan.
    end: u64,
    /// Where the last call said to go on from.
    next: Option<u64>,
    rows: ColdScan,
    /// How many of the rows are answered.
    answered: usize,
    rest: Option<u64>,
}

impl LogView {
    pub(crate) fn new(log: Arc<SharedLog>, tables: Vec<TableState>) -> Self {
        Self { log, tables, ahead: ReadAhead::default() }
    }

    /// Reads rows of a range, at most `limit`, and appends them.
    fn read(
        &self,
        table: u32,
        range: RangeInclusive<u64>,
        limit: usize,
        into: &mut ColdScan,
    ) -> Result<Option<u64>, ColdError> {
        let (log, state) = (&self.log.tables[table as usize], &self.tables[table as usize]);
        let mut found = Vec::new();
        let next = state.index.scan(range, limit, &mut found);
        let (width, start) = (log.layout.format.width, into.rows.len());
        into.cold_keys.extend(found.iter().map(|(cold_key, _)| *cold_key));
        into.rows.resize(start + found.len() * width, 0);
        let read = |(position, (_, address)): (u32, &(u64, u32))| RecordRead { address: *address, position };
        let mut reads: Vec<RecordRead> = number_from(0, &found).map(read).collect();
        reads.sort_unstable_by_key(|read| read.address);
        let pieces = group_reads(&reads, log.layout, &state.segments.files(), self.log.queue.longest_piece)?;
        let row_of = |read: &RecordRead| (found[read.position as usize].0, read.position as usize * width);
        let _under_way = self.log.counters.count_reads(&pieces);
        self.log
            .queue
            .read(&pieces, &mut |piece, bytes| log.take_rows(piece, bytes, &reads, &row_of, &mut into.rows[start..]))?;
        Ok(next)
    }
}

impl ColdView for LogView {
    fn scan(
        &mut self,
        table: u32,
        range: RangeInclusive<u64>,
        limit: usize,
        into: &mut ColdScan,
    ) -> Result<Option<u64>, ColdError> {
        self.log.table("scan", table)?;
        let end = *range.end();
        let goes_on = self.ahead.table == table && self.ahead.end == end && self.ahead.next == Some(*range.start());
        if !goes_on {
            let next = self.read(table, range, limit, into)?;
            self.ahead = ReadAhead { table, end, next, rest: next, ..ReadAhead::default() };
            return Ok(next);
        }
        let width = self.log.tables[table as usize].layout.format.width;
        if self.ahead.answered == self.ahead.rows.cold_keys.len() {
            let (mut rows, at_once) = (ColdScan::default(), (AHEAD / size_of::<u32>() / width.max(1)).max(limit));
            let rest = self.read(table, range, at_once, &mut rows)?;
            self.ahead = ReadAhead { table, end, next: None, rows, answered: 0, rest };
        }
        let ReadAhead { rows, answered, rest, .. } = &mut self.ahead;
        let (from, to) = (*answered, rows.cold_keys.len().min(*answered + limit));
        into.cold_keys.extend_from_slice(&rows.cold_keys[from..to]);
        into.rows.extend_from_slice(&rows.rows[from * width..to * width]);
        *answered = to;
        self.ahead.next = rows.cold_keys.get(to).copied().or(*rest);
        Ok(self.ahead.next)
    }
}
