//! Compaction: the rows of a segment that is less than half rows are appended again, and its file is deleted.
//!
//! ```text
//! chunk by chunk:  read a chunk of the old segment        without a lock
//!                  writer locked: which records are rows still? append them; index: key → new address
//! at the end:      new records on the disk, if rows are kept;  old file deleted
//! ```
//!
//! A row that is written or removed meanwhile is no longer the index's record, so it is not copied. Reads go on: a reader that
//! has looked an address up holds the file, also after it is deleted. A segment is copied when more than half of it is dead, so
//! each byte of new rows causes at most about one byte of copies.
//!
//! The thread of the store compacts the tables in turn, part by part. If it is behind, writers help: see [`assistance`](super::assistance).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tracing::{info, warn};
use zagros_table::ColdError;
use zagros_zip::{ZipEq, number_from};

use super::counters::LogCounters;
use super::folder::{SyncedUpTo, sync_folder};
use super::segment::LogRecordKind;
use super::segment::RowSegment;
use super::segment_set::SegmentSet;
use super::table_log::{CompactionCursor, CompactionState, TableLog};

/// Bytes of an old segment that are read at a time.
const CHUNK: usize = 256 << 10;
/// Of a small segment a part in this many is read at a time.
const PARTS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompactionStep {
    Nothing,
    /// It went over so many records, or need not look at them.
    Records(u32),
}

impl TableLog {
    /// Compacts a part of a segment. The first failure in a row is logged.
    /// A failure loses nothing.
    pub(crate) fn compact(&self, counters: &LogCounters) -> Result<CompactionStep, ColdError> {
        self.compact_part(&mut self.compaction.lock(), counters)
    }

    /// As [`Self::compact`], for a caller that has locked the compaction.
    pub(crate) fn compact_part(
        &self,
        compaction: &mut CompactionState,
        counters: &LogCounters,
    ) -> Result<CompactionStep, ColdError> {
        let Some(cursor) = compaction.cursor.take().or_else(|| self.begin_compaction()) else {
            return Ok(CompactionStep::Nothing);
        };
        let mut reached = cursor.clone();
        let done = self.copy_part(&mut reached, &mut compaction.chunk, counters);
        match &done {
            Ok(()) if reached.next >= reached.rows => {
                let ended = self.drop_segment(reached.slot, &reached.segment);
                compaction.cursor =
                    ended.is_err().then_some(reached.clone()).filter(|reached| self.is_compactable(reached));
                self.note_compaction(ended.as_ref().err(), counters);
                ended?;
            }
            Ok(()) => compaction.cursor = Some(reached.clone()),
            Err(error) => {
                // Of a damaged segment, or one that cannot be read, the cursor is dropped: another one may be readable.
                compaction.cursor = Some(reached.clone()).filter(|reached| self.is_compactable(reached));
                self.note_compaction(Some(error), counters);
            }
        }
        done.map(|()| CompactionStep::Records(reached.next - cursor.next))
    }

    /// Counts failures, and logs the first of several and the first success after them.
    pub(crate) fn note_compaction(&self, failure: Option<&ColdError>, counters: &LogCounters) {
        let was_failing = self.is_compaction_failing.swap(failure.is_some(), Ordering::Relaxed);
        let table = self.layout.format.table;
        match failure {
            Some(reason) => {
                counters.update(|counts| counts.compaction_failures += 1);
                if !was_failing {
                    let reason = reason.to_string();
                    warn!(
                        table,
                        reason, "the cold tier cannot give space back; rows are still written, until the disk is full"
                    );
                }
            }
            None if was_failing => info!(table, "the cold tier gives space back again"),
            None => {}
        }
    }

    fn begin_compaction(&self) -> Option<CompactionCursor> {
        let active = self.writer.lock().active;
        let state = self.state.read();
        let is_large = state.segments.overhang() > self.allowance(&state);
        let slot = if is_large { state.segments.for_space(active) } else { state.segments.find_wasteful(active) }?;
        let (segment, rows) = state.segments.get(slot)?;
        Some(CompactionCursor { slot, segment, rows, next: 0 })
    }

    /// Whether the segment is still there, and no attempt to compact it failed.
    fn is_compactable(&self, at: &CompactionCursor) -> bool {
        let state = self.state.read();
        let counts = state.segments.segment_counts(at.slot);
        self.has_segment(&state.segments, at.slot, &at.segment) && !counts.is_damaged && counts.failures == 0
    }

    fn has_segment(&self, segments: &SegmentSet, slot: usize, segment: &RowSegment) -> bool {
        segments.get(slot).is_some_and(|(now, _)| now.number == segment.number)
    }

    /// Appends what still counts of the next records of a segment, and moves the cursor.
    fn copy_part(
        &self,
        at: &mut CompactionCursor,
        chunk: &mut Vec<u8>,
        counters: &LogCounters,
    ) -> Result<(), ColdError> {
        let bytes = self.layout.format.record_bytes();
        let has_records = {
            let state = self.state.read();
            let counts = state.segments.segment_counts(at.slot);
            self.has_segment(&state.segments, at.slot, &at.segment) && (counts.live > 0 || counts.removals > 0)
        };
        let count = (at.rows - at.next).min(self.records_at_once());
        if !has_records || count == 0 {
            at.next = at.rows;
            return Ok(());
        }
        chunk.resize(count as usize * bytes, 0);
        let read = at.segment.read(self.layout.record_offset(at.next), chunk);
        read.inspect_err(|_| self.state.write().segments.note_failure(at.slot))?;
        self.copy_kept(at.slot, at.next, &at.segment, chunk, counters)?;
        at.next += count;
        Ok(())
    }

    pub(crate) fn records_at_once(&self) -> u32 {
        ((CHUNK / self.layout.format.record_bytes()) as u32).min(self.segment_rows() / PARTS).max(1)
    }

    fn copy_kept(
        &self,
        slot: usize,
        first: u32,
        segment: &RowSegment,
        chunk: &[u8],
        counters: &LogCounters,
    ) -> Result<(), ColdError> {
        let bytes = self.layout.format.record_bytes();
        let mut writer = self.writer.lock();
        // A call to remove all rows has taken the segment.
        if !self.has_segment(&self.state.read().segments, slot, segment) {
            return Ok(());
        }
        let (mut kept, mut records) = (Vec::new(), std::mem::take(&mut writer.records));
        records.clear();
        for (row, record) in number_from(first, chunk.chunks_exact(bytes)) {
            match self.kept(slot, row, record) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    kept.push(found);
                    records.extend_from_slice(record);
                }
                Err(()) => {
                    self.state.write().segments.note_damage(slot);
                    return Err(segment.damage_error("compact", self.layout, row));
                }
            }
        }
        writer.records = records;
        let appended = self.append(&mut writer)?;
        counters.update(|counts| counts.moved_bytes += (kept.len() * bytes) as u64);
        let mut state = self.state.write();
        for ((kind, cold_key), address) in kept.iter().zip_eq(self.record_addresses(&appended)) {
            match kind {
                LogRecordKind::Row => state.set_address(self.layout, *cold_key, address),
                LogRecordKind::Removal => state.segments.note_removals(self.layout.split_address(address).0, 1),
            }
        }
        Ok(())
    }

    /// Kind and key of the record, if it still counts. An error if it does and is damaged.
    fn kept(&self, slot: usize, row: u32, record: &[u8]) -> Result<Option<(LogRecordKind, u64)>, ()> {
        let format = self.layout.format;
        let (state, address, cold_key) = (self.state.read(), self.layout.address(slot, row), format.read_key(record));
        let is_whole = |kind| format.read(record) == Some((kind, cold_key));
        match state.index.get(cold_key) {
            Some(now) if now == address => {
                is_whole(LogRecordKind::Row).then_some(Some((LogRecordKind::Row, cold_key))).ok_or(())
            }
            None if self.is_kept && state.segments.has_older(slot) => {
                Ok(is_whole(LogRecordKind::Removal).then_some((LogRecordKind::Removal, cold_key)))
            }
            _ => Ok(None),
        }
    }

    fn drop_segment(&self, slot: usize, segment: &Arc<RowSegment>) -> Result<(), ColdError> {
        if self.is_kept {
            // Else a loss of power could lose the copies after their originals are deleted.
            self.sync()?;
            sync_folder(&self.folder)?;
        }
        let _writer = self.writer.lock();
        let mut state = self.state.write();
        if !self.has_segment(&state.segments, slot, segment) {
            return Ok(());
        }
        if state.segments.segment_counts(slot).live > 0 {
            state.segments.note_damage(slot);
            let reason =
                format!("{} is damaged: the keys of some of its rows are not what was written", segment.path.display());
            return Err(ColdError { doing: "compact", reason });
        }
        state.segments.take(slot);
        drop(state);
        self.delete_segment(segment)
    }

    /// Waits until all present records are on the disk. Answers up to where. Appending goes on meanwhile. Once that has failed it
    /// fails for ever, also where only compaction has seen the failure.
    pub(crate) fn sync(&self) -> Result<SyncedUpTo, ColdError> {
        let mut lost = self.lost.lock();
        match &*lost {
            Some(error) => Err(error.clone()),
            None => self.sync_segments().map_err(|error| lost.insert(error).clone()),
        }
    }

    fn sync_segments(&self) -> Result<SyncedUpTo, ColdError> {
        let (segments, up_to) = {
            let writer = self.writer.lock();
            let active = writer.active.and_then(|slot| self.state.read().segments.get(slot));
            let up_to = active.map_or((writer.next, 0), |(segment, rows)| (segment.number, rows));
            (writer.unsynced.clone(), SyncedUpTo { table: self.layout.format.table, number: up_to.0, rows: up_to.1 })
        };
        segments.iter().try_for_each(|segment| segment.sync())?;
        // The segment that was active may have more records by now.
        self.writer.lock().unsynced.retain(|segment| segment.number >= up_to.number);
        Ok(up_to)
    }
}
