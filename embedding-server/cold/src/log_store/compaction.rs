//! Compaction: the rows of a segment that is less than half rows are appended again, and its file is deleted.
//!
//! ```text
//! chunk by chunk:  read a chunk of the old segment        without a lock
//!                  writer locked: which records are rows still? append them; index: key → new address
//! at the end:      new records on the disk, if rows are kept;  old file deleted
//! ```
//!
//! A row that is written or removed meanwhile is no longer the index's record, so it is not copied. Reads go on: whoever has
//! looked an address up holds the file, also after it is deleted. A segment is copied when more than half of it is dead, so
//! each byte of new rows causes at most about one byte of copies.

use std::sync::Arc;

use zagros_table::ColdError;
use zagros_zip::{ZipEq, number_from};

use super::counters::Counters;
use super::flushed::{SyncedUpTo, sync_folder};
use super::record::LogRecordKind;
use super::segment::RowSegment;
use super::table_log::TableLog;

/// Bytes of an old segment that are read at a time.
const CHUNK: usize = 256 << 10;

/// What a record of an old segment is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeptRecord {
    kind: LogRecordKind,
    cold_key: u64,
}

impl TableLog {
    /// Compacts the segment with the most dead records. Answers whether there was one with more than half.
    ///
    /// # Errors
    /// If files cannot be read or written. Nothing is lost then.
    pub(crate) fn compact(&self, counters: &Counters) -> Result<bool, ColdError> {
        let active = self.writer.lock().active;
        let wasteful = {
            let state = self.state.read();
            state.segments.wasteful(active).and_then(|slot| Some((slot, state.segments.get(slot)?)))
        };
        let Some((slot, (segment, rows))) = wasteful else { return Ok(false) };
        let bytes = self.layout.format.bytes();
        let at_once = (CHUNK / bytes).max(1) as u32;
        let mut chunk = Vec::new();
        for first in (0..rows).step_by(at_once as usize) {
            let counts = self.state.read().segments.counts(slot);
            if counts.live == 0 && counts.removals == 0 {
                break;
            }
            chunk.resize(at_once.min(rows - first) as usize * bytes, 0);
            segment.read(self.layout.offset(first), &mut chunk)?;
            self.copy_kept(slot, first, &segment, &chunk, counters)?;
        }
        self.drop_segment(slot, &segment)?;
        Ok(true)
    }

    /// Appends the records of a chunk that still count.
    fn copy_kept(
        &self,
        slot: usize,
        first: u32,
        segment: &RowSegment,
        chunk: &[u8],
        counters: &Counters,
    ) -> Result<(), ColdError> {
        let bytes = self.layout.format.bytes();
        let mut writer = self.writer.lock();
        // A call to remove all rows has taken the segment.
        if self.state.read().segments.get(slot).is_none_or(|(now, _)| now.number != segment.number) {
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
                    return Err(segment.damaged("compact", self.layout, row));
                }
            }
        }
        writer.records = records;
        let appended = self.append(&mut writer)?;
        counters.moved(kept.len() * bytes);
        let mut state = self.state.write();
        for (record, address) in kept.iter().zip_eq(self.addresses(&appended)) {
            match record.kind {
                LogRecordKind::Row => state.put(self.layout, record.cold_key, address),
                LogRecordKind::Removal => state.segments.note_removals(self.layout.place(address).0, 1),
            }
        }
        Ok(())
    }

    /// The record, if it still counts. An error if it does and is damaged.
    fn kept(&self, slot: usize, row: u32, record: &[u8]) -> Result<Option<KeptRecord>, ()> {
        let format = self.layout.format;
        let (state, address, cold_key) = (self.state.read(), self.layout.address(slot, row), format.key(record));
        let found = |kind| KeptRecord { kind, cold_key };
        match state.index.get(cold_key) {
            Some(now) if now == address => {
                let is_whole = format.read(record) == Some((LogRecordKind::Row, cold_key));
                is_whole.then(|| Some(found(LogRecordKind::Row))).ok_or(())
            }
            None if self.is_kept && state.segments.has_older(slot) => {
                let is_removal = format.read(record) == Some((LogRecordKind::Removal, cold_key));
                Ok(is_removal.then(|| found(LogRecordKind::Removal)))
            }
            _ => Ok(None),
        }
    }

    /// Deletes a segment whose rows are elsewhere.
    fn drop_segment(&self, slot: usize, segment: &Arc<RowSegment>) -> Result<(), ColdError> {
        if self.is_kept {
            // Else a loss of power could lose the copies after their originals are deleted.
            self.sync()?;
            sync_folder(&self.folder)?;
        }
        let _writer = self.writer.lock();
        let mut state = self.state.write();
        let is_there = state.segments.get(slot).is_some_and(|(now, _)| now.number == segment.number);
        if !is_there {
            return Ok(());
        }
        if state.segments.counts(slot).live > 0 {
            state.segments.note_damage(slot);
            let reason =
                format!("{} is damaged: the keys of some of its rows are not what was written", segment.path.display());
            return Err(ColdError { doing: "compact", reason });
        }
        state.segments.take(slot);
        drop(state);
        segment.delete()
    }

    /// Waits until all present records are on the disk. Answers up to where. Appending goes on meanwhile.
    pub(crate) fn sync(&self) -> Result<SyncedUpTo, ColdError> {
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
