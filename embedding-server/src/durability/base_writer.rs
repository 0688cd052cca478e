//! Writes a base: all rows in memory, while requests go on.
//!
//! ```text
//! 1. no request is under way    position of the log, windows, time          an instant
//! 2. stripe by stripe           ids ─► rows, some hundred at a time         a row may be newer than 1: its image is in the log
//! 3. cold tier flushed          rows that have left memory are on the disk
//! 4. log flushed up to here     no row of the base is newer than the log
//! 5. manifest                   the base counts; older bases and segments are deleted
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use tracing::info;
use zagros_plumbing::Deadline;
use zagros_rows::log::{BaseDraft, BaseManifest, BasePartDraft, LogBase, LogError, PartSize};
use zagros_table::{FrequencyCounts, RowBatch, Table, TableSet};

use super::server_log::ServerLog;
use crate::ServerError;
use crate::datapath::SequenceWindows;
use crate::errors::{LOGGED_ROW, WRITE};

/// Files of a base. Each has every stripe in so many, so that as many threads can read them.
pub(super) const PARTS: u32 = 8;
/// Rows that are copied under one lock.
const ROWS_AT_ONCE: usize = 256;
/// The longest wait for a moment without requests, how long others wait for one try, and the pause after it.
const WAIT: Duration = Duration::from_secs(10);
const TRY: Duration = Duration::from_millis(20);
const BETWEEN_TRIES: Duration = Duration::from_millis(100);

impl ServerLog {
    /// Deletes what the base stands for. After an error, the earlier base and the whole log are still there.
    pub(crate) fn write_base(&self, tables: &Arc<TableSet>, windows: &SequenceWindows) -> Result<(), ServerError> {
        let _only = self.base.lock();
        if self.is_over() {
            return Ok(());
        }
        let index = self.index.0;
        let manifest = self.instant_of_base(tables, windows).ok_or(ServerError::LogBusy { index, waited: WAIT })?;
        tables.apply_pending_gradients().map_err(ServerError::failed(index, LOGGED_ROW))?;
        let base = self.write_parts(tables, manifest)?;
        self.adopt_base(&base).map_err(|source| self.log_error(source))
    }

    /// The moment of a base, between two requests. `None` if those under way do not end in time.
    fn instant_of_base(&self, tables: &TableSet, windows: &SequenceWindows) -> Option<BaseManifest> {
        let deadline = Deadline::from_now(WAIT);
        let manifest = |loading| {
            let start = self.writer.next_lsn();
            // What is kept of a step under way is in no row.
            tables.log_steps();
            BaseManifest {
                start,
                parts: PARTS,
                time: [tables.table_time().steps, tables.table_time().seconds],
                groups: windows.group_images(),
                partial: self.partial.push_images(),
                loading,
                ..BaseManifest::default()
            }
        };
        loop {
            // Requests that come meanwhile wait as well, so each try is short. One that takes long is waited for between tries.
            let tried = tables.while_quiet(TRY, || self.load.with_open_load(manifest));
            if tried.is_some() || deadline.is_past() {
                return tried;
            }
            thread::sleep(BETWEEN_TRIES);
        }
    }

    fn write_parts(&self, tables: &TableSet, manifest: BaseManifest) -> Result<LogBase, ServerError> {
        let failed = |source| self.log_error(source);
        let log = self.file.lock().log;
        let draft = BaseDraft::new(self.folder.path(), manifest.start, log).map_err(failed)?;
        match self.fill_base(&draft, tables, manifest) {
            Ok(manifest) => draft.finish(manifest).map_err(failed),
            Err(error) => {
                draft.discard();
                Err(error)
            }
        }
    }

    fn fill_base(
        &self,
        draft: &BaseDraft,
        tables: &TableSet,
        manifest: BaseManifest,
    ) -> Result<BaseManifest, ServerError> {
        let failed = |source| self.log_error(source);
        let mut manifest = manifest;
        for number in 0..PARTS {
            let PartSize { rows, bytes } =
                write_part(draft, number, tables, &mut manifest.table_rows).map_err(failed)?;
            (manifest.rows, manifest.bytes) = (manifest.rows + rows, manifest.bytes + bytes);
        }
        tables.flush_cold().map_err(|source| ServerError::Cold { index: self.index.0, source })?;
        manifest.end = self.writer.next_lsn();
        self.writer.flush_to(manifest.end).map_err(ServerError::failed(self.index.0, WRITE))?;
        Ok(manifest)
    }

    /// The base counts: what it stands for goes.
    fn adopt_base(&self, base: &LogBase) -> Result<(), LogError> {
        let BaseManifest { start, rows, bytes, .. } = base.manifest;
        self.tail_start.store(start, Ordering::Release);
        self.bound.base_written(bytes);
        self.metrics.bases.inc();
        LogBase::delete_others(Some(base), self.folder.path())?;
        let segments = self.writer.delete_before(start)?;
        self.metrics.segments.set(segments as i64);
        info!(server = %self.index, rows, bytes, segments, "a base of the log was written");
        Ok(())
    }
}

/// Writes a part, and adds its rows to those of each table.
fn write_part(
    draft: &BaseDraft,
    number: u32,
    tables: &TableSet,
    table_rows: &mut Vec<u64>,
) -> Result<PartSize, LogError> {
    let mut part = draft.create_part(number)?;
    let mut rows = RowBatch::default();
    table_rows.resize(tables.iter().count(), 0);
    for (position, table) in tables.iter().enumerate() {
        for stripe in (number as usize..table.stripes()).step_by(PARTS as usize) {
            table_rows[position] += write_stripe(&mut part, [position as u32, stripe as u32], table, &mut rows)?;
        }
    }
    part.finish()
}

/// Answers how many rows it has written.
fn write_stripe(
    part: &mut BasePartDraft,
    place: [u32; 2],
    table: &Table,
    rows: &mut RowBatch,
) -> Result<u64, LogError> {
    let (stripe, mut written) = (place[1] as usize, 0);
    if table.counter_layout().is_some() {
        let mut counts = FrequencyCounts::default();
        let lsn = table.counts_with_position(stripe, &mut counts);
        part.append_stripe_counts(place, lsn, &counts)?;
    }
    // A row that leaves memory after its id was read goes to the cold tier, which is flushed later, or is gone.
    for ids in table.ids_in_memory(stripe).chunks(ROWS_AT_ONCE) {
        rows.clear();
        table.read_rows(stripe, ids, rows);
        if !rows.ids.is_empty() {
            part.append_rows(place, &rows.ids, &rows.slots, &rows.access)?;
            written += rows.ids.len() as u64;
        }
    }
    Ok(written)
}
