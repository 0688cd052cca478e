//! The log of one table: its segments, and the index that says which records are rows.
//!
//! ```text
//! write ─► encode ─► append to the active segment ─► index: key → new address   the record before is dead from now on
//! read  ─► index: addresses ─► sorted, neighbours together ─► read queue ─► check checksum and key ─► rows
//! ```
//!
//! One thread at a time appends, and it holds the writer's lock until the index has the new addresses. So the order of the
//! records of a key in the log is the order of its changes. The index itself is locked for memory work only: reads of
//! files go on while others append.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::{Mutex, RwLock};
use zagros_table::{ColdError, ColdRows};
use zagros_zip::ZipEq;

use super::folder::{FlushedTable, SyncedUpTo};
use super::key_index::KeyIndex;
use super::pieces::{FilePiece, RecordRead};
use super::segment::RecordFormat;
use super::segment::{RowSegment, SegmentLayout};
use super::segment_set::{RowSegmentFiles, SegmentSet};

/// A new segment takes one part in this many of its table.
const SEGMENT_SHARE: usize = 8;

#[derive(Debug)]
pub(crate) struct TableLog {
    pub(crate) layout: SegmentLayout,
    pub(crate) folder: PathBuf,
    /// Whether the rows outlive the process: removals are then records, too.
    pub(crate) is_kept: bool,
    least_segment: usize,
    pub(crate) writer: Mutex<TableWriter>,
    pub(crate) state: RwLock<TableState>,
    /// The thread that compacts holds it for a part of a segment. A writer that helps holds it for the parts that it owes.
    pub(crate) compaction: Mutex<CompactionState>,
    /// Whether the last attempt to compact failed. Then writers leave it to the thread, which pauses between its attempts.
    pub(crate) is_compaction_failing: AtomicBool,
    /// The first failure to put records on the disk. It stays: the system may have dropped them, and says nothing the next time.
    pub(crate) lost: Mutex<Option<ColdError>>,
}

#[derive(Debug, Default)]
pub(crate) struct TableWriter {
    pub(crate) active: Option<usize>,
    pub(crate) next: u64,
    pub(crate) records: Vec<u8>,
    /// Segments with records that may not be on the disk yet.
    pub(crate) unsynced: Vec<Arc<RowSegment>>,
    /// Segments whose files may go on behind their last record, and where they should end: an append has failed there.
    dirty: Vec<(Arc<RowSegment>, u64)>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TableState {
    pub(crate) index: KeyIndex,
    pub(crate) segments: SegmentSet,
}

/// Records that were appended together to one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendedRecords {
    pub(crate) slot: usize,
    /// The first of them.
    pub(crate) row: u32,
    pub(crate) count: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RemovalReport {
    pub(crate) appended: usize,
    /// Whether there may be something to compact.
    pub(crate) has_waste: bool,
}

impl TableLog {
    pub(crate) fn new(folder: &Path, format: RecordFormat, is_kept: bool, least_segment: usize) -> Self {
        Self {
            layout: SegmentLayout::new(format),
            folder: folder.to_owned(),
            is_kept,
            least_segment,
            writer: Mutex::default(),
            state: RwLock::default(),
            compaction: Mutex::default(),
            is_compaction_failing: AtomicBool::default(),
            lost: Mutex::default(),
        }
    }

    /// Lists the records of the rows at `cold_keys`, in the order of their addresses, and notes which keys have a row. Also
    /// answers the files that the records are in.
    pub(crate) fn find(&self, cold_keys: &[u64], into: &mut ColdRows) -> (Vec<RecordRead>, RowSegmentFiles) {
        into.found.clear();
        into.rows.clear();
        into.rows.resize(cold_keys.len() * self.layout.format.width, 0);
        let mut reads = Vec::with_capacity(cold_keys.len());
        let state = self.state.read();
        for (position, cold_key) in cold_keys.iter().enumerate() {
            state.index.prefetch_ahead(cold_keys, position);
            let address = state.index.get(*cold_key);
            into.found.push(address.is_some());
            reads.extend(address.map(|address| RecordRead { address, position: position as u32 }));
        }
        let files = state.segments.files();
        drop(state);
        reads.sort_unstable_by_key(|read| read.address);
        (reads, files)
    }

    /// Copies the rows of a piece into `rows`. `row_of` says whose row a record is, and where its words go.
    pub(crate) fn take_rows(
        &self,
        piece: &FilePiece,
        bytes: &[u8],
        reads: &[RecordRead],
        row_of: &dyn Fn(&RecordRead) -> (u64, usize),
        rows: &mut [u32],
    ) -> Result<(), ColdError> {
        let format = self.layout.format;
        for read in &reads[piece.records.clone()] {
            let row = self.layout.split_address(read.address).1;
            let start = (self.layout.record_offset(row) - piece.offset) as usize;
            let (cold_key, at) = row_of(read);
            if !format.read_row(&bytes[start..][..format.record_bytes()], cold_key, &mut rows[at..][..format.width]) {
                return Err(piece.segment.damage_error("read", self.layout, row));
            }
        }
        Ok(())
    }

    /// Appends rows, and makes them the rows of their keys. All or none. Answers whether there may be something to compact.
    pub(crate) fn write(&self, cold_keys: &[u64], rows: &[u32]) -> Result<bool, ColdError> {
        let format = self.layout.format;
        let mut writer = self.writer.lock();
        writer.records.clear();
        for (row, cold_key) in cold_keys.iter().enumerate() {
            format.append_row(*cold_key, &rows[row * format.width..][..format.width], &mut writer.records);
        }
        let appended = self.append(&mut writer)?;
        let mut state = self.state.write();
        for ((position, cold_key), address) in cold_keys.iter().enumerate().zip_eq(self.record_addresses(&appended)) {
            state.index.prefetch_ahead(cold_keys, position);
            state.set_address(self.layout, *cold_key, address);
        }
        Ok(state.segments.take_waste())
    }

    /// Removes rows. Where rows are kept, this is a record for each.
    pub(crate) fn remove(&self, cold_keys: &[u64]) -> Result<RemovalReport, ColdError> {
        let mut writer = self.writer.lock();
        let mut bytes = 0;
        if self.is_kept {
            writer.records.clear();
            for cold_key in self.present_keys(cold_keys) {
                self.layout.format.append_removal(cold_key, &mut writer.records);
            }
            let appended = self.append(&mut writer)?;
            bytes = writer.records.len();
            let mut state = self.state.write();
            appended.iter().for_each(|part| state.segments.note_removals(part.slot, part.count));
        }
        let mut state = self.state.write();
        cold_keys.iter().for_each(|cold_key| state.remove(self.layout, *cold_key));
        Ok(RemovalReport { appended: bytes, has_waste: state.segments.take_waste() })
    }

    pub(crate) fn present_keys(&self, cold_keys: &[u64]) -> Vec<u64> {
        let state = self.state.read();
        cold_keys.iter().copied().filter(|cold_key| state.index.get(*cold_key).is_some()).collect()
    }

    /// Removes all rows, and the files that have them. Answers what they were, which takes a while to drop.
    pub(crate) fn remove_all(&self) -> Result<TableState, ColdError> {
        let mut writer = self.writer.lock();
        writer.active = None;
        writer.unsynced.clear();
        writer.dirty.clear();
        let state = std::mem::take(&mut *self.state.write());
        // The oldest first: an older copy of a row never outlives a newer one.
        state.segments.in_order().into_iter().try_for_each(|(_, segment)| self.delete_segment(&segment))?;
        Ok(state)
    }

    pub(crate) fn delete_segment(&self, segment: &RowSegment) -> Result<(), ColdError> {
        if self.is_kept { segment.retire() } else { segment.delete() }
    }

    /// What of this table is on the disk once it is synced up to here.
    pub(crate) fn flushed_table(&self, up_to: SyncedUpTo) -> FlushedTable {
        let state = self.state.read();
        let segments = state.segments.in_order().into_iter().filter(|(_, segment)| segment.number <= up_to.number);
        let rows = |slot: usize, number: u64| {
            if number == up_to.number { up_to.rows } else { state.segments.segment_counts(slot).rows }
        };
        let segments = segments.map(|(slot, segment)| (segment.number, rows(slot, segment.number))).collect();
        FlushedTable { up_to, segments }
    }

    /// Appends the writer's records, all or none: recovery takes every record that it finds in a file for a row.
    pub(crate) fn append(&self, writer: &mut TableWriter) -> Result<Vec<AppendedRecords>, ColdError> {
        writer.cut_dirty()?;
        let mut appended = Vec::new();
        if let Err(error) = self.append_parts(writer, &mut appended) {
            // What cannot be cut off now is cut off before the next append, and before anything counts as flushed.
            let _ = writer.cut_dirty();
            return Err(error);
        }
        writer.dirty.clear();
        let mut state = self.state.write();
        appended.iter().for_each(|part| state.segments.count_appended(part.slot, part.count));
        Ok(appended)
    }

    /// Writes the writer's records to one segment after another. They count once all of them are written.
    fn append_parts(&self, writer: &mut TableWriter, appended: &mut Vec<AppendedRecords>) -> Result<(), ColdError> {
        let (bytes, whole) = (self.layout.format.record_bytes(), self.segment_rows());
        let mut left = 0..writer.records.len();
        while !left.is_empty() {
            let (slot, segment, row) = self.active(writer, whole)?;
            let room = (whole - row) as usize;
            let count = room.min(left.len() / bytes);
            writer.dirty.push((Arc::clone(&segment), self.layout.record_offset(row)));
            segment.write(self.layout.record_offset(row), &writer.records[left.start..][..count * bytes])?;
            appended.push(AppendedRecords { slot, row, count: count as u32 });
            left.start += count * bytes;
            if count == room {
                writer.active = None;
            }
        }
        Ok(())
    }

    /// The segment to append to, and its next record. Begins one if there is none, or the last one is whole.
    fn active(&self, writer: &mut TableWriter, whole: u32) -> Result<(usize, Arc<RowSegment>, u32), ColdError> {
        if let Some(slot) = writer.active {
            let state = self.state.read();
            if let Some((segment, rows)) = state.segments.get(slot).filter(|(_, rows)| *rows < whole) {
                return Ok((slot, segment, rows));
            }
        }
        let segment = Arc::new(RowSegment::create(&self.folder, self.layout.format, writer.next)?);
        let mut state = self.state.write();
        let slot = state.segments.add(Arc::clone(&segment));
        if slot >= self.layout.most_segments() {
            state.segments.take(slot);
            let (table, most) = (self.layout.format.table, self.layout.most_segments());
            let reason = format!("table {table} has {most} segments, the most that it can; use more servers");
            return Err(ColdError { doing: "write", reason });
        }
        (writer.active, writer.next) = (Some(slot), writer.next + 1);
        if self.is_kept {
            writer.unsynced.push(Arc::clone(&segment));
        }
        Ok((slot, segment, 0))
    }

    pub(crate) fn segment_rows(&self) -> u32 {
        self.segment_rows_of(&self.state.read())
    }

    /// As [`Self::segment_rows`], of a state that the caller has locked.
    pub(crate) fn segment_rows_of(&self, state: &TableState) -> u32 {
        let bytes = self.layout.format.record_bytes();
        let wanted = (state.index.row_count() / SEGMENT_SHARE).max(self.least_segment / bytes);
        (wanted.max(1) as u32).min(self.layout.most_rows())
    }

    pub(crate) fn record_addresses(&self, appended: &[AppendedRecords]) -> Vec<u32> {
        let part_addresses = |part: &AppendedRecords| {
            let (slot, row) = (part.slot, part.row);
            (0..part.count).map(move |more| self.layout.address(slot, row + more))
        };
        appended.iter().flat_map(part_addresses).collect()
    }
}

impl TableWriter {
    /// Cuts off what failed appends have left.
    pub(crate) fn cut_dirty(&mut self) -> Result<(), ColdError> {
        while let Some((segment, end)) = self.dirty.last() {
            segment.truncate(*end)?;
            self.dirty.pop();
        }
        Ok(())
    }
}

impl TableState {
    /// Makes a record the row of a key. The record before is dead from now on.
    pub(crate) fn set_address(&mut self, layout: SegmentLayout, cold_key: u64, address: u32) {
        self.segments.add_live(layout.split_address(address).0);
        if let Some(before) = self.index.insert(cold_key, address) {
            self.segments.remove_live(layout.split_address(before).0);
        }
    }

    pub(crate) fn remove(&mut self, layout: SegmentLayout, cold_key: u64) {
        if let Some(before) = self.index.remove(cold_key) {
            self.segments.remove_live(layout.split_address(before).0);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct CompactionState {
    pub(crate) cursor: Option<CompactionCursor>,
    /// Records that writers have to go over.
    pub(crate) owed: u64,
    pub(crate) chunk: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct CompactionCursor {
    pub(crate) slot: usize,
    pub(crate) segment: Arc<RowSegment>,
    pub(crate) rows: u32,
    /// The first record that may not be copied yet.
    pub(crate) next: u32,
}
