//! What the store, its views and its compaction share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use zagros_table::ColdError;
use zagros_zip::ZipEq;

use super::compaction::CompactionStep;
use super::counters::LogCounters;
use super::folder::{FlushedTable, StoreFolder, SyncedUpTo, read_mark, sync_folder, write_mark};
use super::read_queue::ReadQueue;
use super::table_log::{TableLog, TableState};

/// How long compaction waits after a failure, and the longest that it sleeps.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct SharedLog {
    pub(crate) tables: Box<[TableLog]>,
    pub(crate) queue: ReadQueue,
    pub(crate) counters: LogCounters,
    pub(crate) folder: StoreFolder,
    pub(crate) is_scratch: AtomicBool,
    pub(crate) most_index: usize,
    /// How long a writer waits to help with the compaction.
    pub(crate) patience: Duration,
    /// The first failure to put rows on the disk.
    pub(crate) lost: Mutex<Option<ColdError>>,
    /// Content of tables that were emptied. The compaction drops it: that takes time.
    pub(crate) removed: Mutex<Vec<TableState>>,
    pub(crate) work: Mutex<CompactionWork>,
    pub(crate) wake: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionWork {
    None,
    /// Look for segments with many dead records.
    Look,
    End,
}

impl SharedLog {
    pub(crate) fn table(&self, doing: &'static str, table: u32) -> Result<&TableLog, ColdError> {
        let tables = self.tables.len();
        self.tables
            .get(table as usize)
            .ok_or_else(|| ColdError { doing, reason: format!("no table {table} of {tables}") })
    }

    pub(crate) fn index_bytes(&self) -> usize {
        self.tables.iter().map(|table| table.state.read().index.memory_bytes()).sum()
    }

    /// Refuses new keys while the index is at its limit.
    pub(crate) fn check_index(&self, table: &TableLog, cold_keys: &[u64]) -> Result<(), ColdError> {
        let bytes = self.index_bytes();
        if bytes < self.most_index || table.present_keys(cold_keys).len() == cold_keys.len() {
            return Ok(());
        }
        let rows: usize = self.tables.iter().map(|table| table.state.read().index.row_count()).sum();
        let (bytes, most) = (bytes >> 20, self.most_index >> 20);
        let what = "raise `cluster.memory`, use more servers, or give rare ids no row (`embedding.admission`)";
        let reason =
            format!("the index of {rows} rows on disk takes {bytes} MiB of memory, of {most} that it may; {what}");
        Err(ColdError { doing: "write", reason })
    }

    /// Puts all rows on the disk. Once that has failed it fails for ever: the system may have dropped what it could not write, and
    /// would say nothing the next time.
    pub(crate) fn flush(&self) -> Result<(), ColdError> {
        let mut lost = self.lost.lock();
        if let Some(error) = &*lost {
            return Err(error.clone());
        }
        // What failed appends have left: the log of the server is cut after this, and would not overrule it any more.
        self.tables.iter().try_for_each(|table| table.writer.lock().cut_dirty())?;
        // Of segments that the mark will not name any more.
        let gone = self.folder.gone_files()?;
        let synced: Result<Vec<SyncedUpTo>, ColdError> = self.tables.iter().map(TableLog::sync).collect();
        let up_to = synced.map_err(|ColdError { doing, reason }| {
            let next = "rows may be lost with the process; check the disk and restart the server, which recovers them from its log";
            lost.insert(ColdError { doing, reason: format!("{reason}; {next}") }).clone()
        })?;
        sync_folder(self.folder.path())?;
        let tables: Vec<_> =
            self.tables.iter().zip_eq(up_to).map(|(table, up_to)| table.flushed_table(up_to)).collect();
        write_mark(self.folder.path(), &tables)?;
        // Those that stay do no harm.
        gone.into_iter().for_each(|path| _ = std::fs::remove_file(path));
        Ok(())
    }

    pub(crate) fn recover_tables(&self) -> Result<(), ColdError> {
        let flushed = read_mark(self.folder.path())?;
        let mut files = self.folder.list_segments()?;
        for table in &self.tables {
            let number = table.layout.format.table;
            let up_to = SyncedUpTo { table: number, number: 0, rows: 0 };
            let nothing = FlushedTable { up_to, segments: Vec::new() };
            let flushed = flushed.get(&number).unwrap_or(&nothing);
            table.recover(files.remove(&number).unwrap_or_default(), flushed)?;
        }
        Ok(())
    }

    /// Compacts a part of each table in turn until nothing is to be compacted, so that a large table does not keep a small one waiting.
    /// A table whose compaction fails is not tried again for a second.
    /// If one table cannot be compacted, the others are.
    pub(crate) fn compact_all(&self) -> Result<(), ColdError> {
        let mut failures: Vec<Option<(Instant, ColdError)>> = vec![None; self.tables.len()];
        let mut is_done = false;
        while !is_done {
            is_done = true;
            for (table, failure) in self.tables.iter().zip_eq(&mut failures) {
                if *self.work.lock() == CompactionWork::End {
                    return Ok(());
                }
                if failure.as_ref().is_some_and(|(since, _)| since.elapsed() < PAUSE) {
                    continue;
                }
                match table.compact(&self.counters) {
                    Ok(step) => {
                        *failure = None;
                        is_done &= step == CompactionStep::Nothing;
                    }
                    Err(error) => *failure = Some((Instant::now(), error)),
                }
            }
        }
        failures.into_iter().flatten().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    pub(crate) fn run_compaction(&self) {
        loop {
            {
                let mut work = self.work.lock();
                if *work == CompactionWork::None {
                    self.wake.wait_for(&mut work, PAUSE);
                }
                match *work {
                    CompactionWork::End => return,
                    CompactionWork::None => continue,
                    CompactionWork::Look => *work = CompactionWork::None,
                }
            }
            drop(std::mem::take(&mut *self.removed.lock()));
            // The table has logged why.
            if self.compact_all().is_err() {
                self.ask(CompactionWork::Look);
                self.pause();
            }
        }
    }

    /// Ends a call that raised `records − 2 × rows` of a table by at most `raised`: wakes the compaction if there is something to do, and helps it if it
    /// is behind.
    pub(crate) fn finish_change(&self, table: &TableLog, has_waste: bool, raised: usize) {
        self.wake_for_waste(has_waste);
        table.assist(raised, self.patience, &self.counters);
    }

    pub(crate) fn dead_bytes(&self) -> u64 {
        let table_dead_bytes =
            |table: &TableLog| table.state.read().segments.dead_records() * table.layout.format.record_bytes() as u64;
        self.tables.iter().map(table_dead_bytes).sum()
    }

    pub(crate) fn wake_for_waste(&self, has_waste: bool) {
        if has_waste {
            self.ask(CompactionWork::Look);
            self.wake.notify_all();
        }
    }

    /// Waits until there may be something new, but not for ever after a failure.
    fn pause(&self) {
        let mut work = self.work.lock();
        if *work != CompactionWork::End {
            self.wake.wait_for(&mut work, PAUSE);
        }
    }

    fn ask(&self, what: CompactionWork) {
        let mut work = self.work.lock();
        if *work != CompactionWork::End {
            *work = what;
        }
    }
}

impl Drop for SharedLog {
    fn drop(&mut self) {
        if self.is_scratch.load(Ordering::Relaxed) {
            self.folder.delete();
        }
    }
}
