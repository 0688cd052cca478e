//! What the store, its views and its compaction share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use zagros_table::ColdError;

use super::counters::Counters;
use super::flushed::{self, SyncedUpTo, sync_folder};
use super::folder::StoreFolder;
use super::read_queue::ReadQueue;
use super::table_log::{TableLog, TableState};

/// How long compaction waits after a failure, and the longest that it sleeps.
const PAUSE: Duration = Duration::from_secs(1);

/// The tables of a store, and its folder.
#[derive(Debug)]
pub(crate) struct SharedLog {
    pub(crate) tables: Box<[TableLog]>,
    pub(crate) queue: ReadQueue,
    pub(crate) counters: Counters,
    pub(crate) folder: StoreFolder,
    pub(crate) is_scratch: AtomicBool,
    /// The most bytes of the indices.
    pub(crate) most_index: usize,
    /// The first failure to put rows on the disk.
    pub(crate) lost: Mutex<Option<ColdError>>,
    /// Content of tables that were emptied. The compaction drops it: that takes time.
    pub(crate) removed: Mutex<Vec<TableState>>,
    pub(crate) work: Mutex<CompactionWork>,
    pub(crate) wake: Condvar,
}

/// What the thread of the compaction is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionWork {
    /// Nothing since it last looked.
    None,
    /// Look for segments with many dead records.
    Look,
    /// End.
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
        self.tables.iter().map(|table| table.state.read().index.bytes()).sum()
    }

    /// Refuses new keys while the index is at its limit.
    pub(crate) fn check_index(&self, table: &TableLog, cold_keys: &[u64]) -> Result<(), ColdError> {
        let bytes = self.index_bytes();
        if bytes < self.most_index || table.present(cold_keys).len() == cold_keys.len() {
            return Ok(());
        }
        let rows: usize = self.tables.iter().map(|table| table.state.read().index.rows()).sum();
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
        let synced: Result<Vec<SyncedUpTo>, ColdError> = self.tables.iter().map(TableLog::sync).collect();
        let up_to = synced.map_err(|ColdError { doing, reason }| {
            let next = "rows may be lost with the process; check the disk and restart the server, which recovers them from its log";
            lost.insert(ColdError { doing, reason: format!("{reason}; {next}") }).clone()
        })?;
        sync_folder(self.folder.path())?;
        flushed::write(self.folder.path(), &up_to)
    }

    pub(crate) fn recover(&self) -> Result<(), ColdError> {
        let flushed = flushed::read(self.folder.path())?;
        let mut files = self.folder.segments()?;
        for table in &self.tables {
            let number = table.layout.format.table;
            let nothing = SyncedUpTo { table: number, number: 0, rows: 0 };
            let up_to = flushed.get(&number).copied().unwrap_or(nothing);
            table.recover(files.remove(&number).unwrap_or_default(), up_to)?;
        }
        Ok(())
    }

    pub(crate) fn compact_all(&self) -> Result<(), ColdError> {
        for table in &self.tables {
            while *self.work.lock() != CompactionWork::End && table.compact(&self.counters)? {}
        }
        Ok(())
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
            // A full disk also refuses writes, which say so. A damaged record is named to who reads it.
            if self.compact_all().is_err() {
                self.ask(CompactionWork::Look);
                self.pause();
            }
        }
    }

    /// Wakes the compaction if there is something to do.
    pub(crate) fn note(&self, has_waste: bool) {
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
