//! The log of an earlier process: its records are read in the order in which they were appended, and make the index again.

use std::path::PathBuf;
use std::sync::Arc;

use zagros_table::ColdError;
use zagros_zip::number_from;

use super::folder::{FlushedTable, SyncedUpTo};
use super::segment::LogRecordKind;
use super::segment::{RowSegment, file_error, gone_path, segment_path};
use super::table_log::TableLog;

/// Bytes of a segment that are read at a time.
const CHUNK: usize = 1 << 20;

impl TableLog {
    /// Takes the segments of an earlier process over, which are given by number. New records go to new segments.
    /// A record that was surely on the disk and is missing or damaged is an error.
    pub(crate) fn recover(&self, mut files: Vec<(u64, PathBuf)>, flushed: &FlushedTable) -> Result<(), ColdError> {
        files.sort_unstable();
        let FlushedTable { up_to: flushed, segments } = flushed;
        for (number, rows) in segments {
            let path = segment_path(&self.folder, self.layout.format, *number);
            if !files.iter().any(|(found, _)| found == number) && !gone_path(&path).exists() {
                let next =
                    "restore it, or delete the folders of the cold tier and of the log and resume from a checkpoint";
                let reason = format!("{} is missing: it had {rows} records on the disk; {next}", path.display());
                return Err(ColdError { doing: "open", reason });
            }
        }
        let mut writer = self.writer.lock();
        // The file of a segment that the mark names may be deleted since: its number is not used again.
        writer.next = flushed.number + u64::from(flushed.rows > 0);
        for (number, path) in files {
            writer.next = writer.next.max(number + 1);
            match RowSegment::open(&path, self.layout.format, number)? {
                Some(segment) => {
                    let rows = segments.iter().find(|(found, _)| *found == number).map_or(0, |segment| segment.1);
                    self.recover_segment(Arc::new(segment), *flushed, rows)?;
                }
                None if flushed.has_record(number, 0) => {
                    return Err(ColdError { doing: "open", reason: format!("{} is cut off", path.display()) });
                }
                None => std::fs::remove_file(&path).map_err(|error| file_error("open", &error, &path))?,
            }
        }
        Ok(())
    }

    /// `rows` records of the segment were on the disk at least.
    fn recover_segment(&self, segment: Arc<RowSegment>, flushed: SyncedUpTo, rows: u32) -> Result<(), ColdError> {
        let bytes = self.layout.format.record_bytes();
        let length = segment.records_len()?;
        let records = (length / bytes as u64).min(u64::from(self.layout.most_rows())) as u32;
        let rows = if flushed.number == segment.number { rows.max(flushed.rows) } else { rows };
        if records < rows {
            let path = segment.path.display();
            let reason = format!("{path} is cut off: it has {records} records, and {rows} were on the disk");
            return Err(ColdError { doing: "open", reason });
        }
        let mut state = self.state.write();
        let slot = state.segments.add(Arc::clone(&segment));
        let (at_once, mut chunk) = ((CHUNK / bytes).max(1) as u32, Vec::new());
        for first in (0..records).step_by(at_once as usize) {
            let count = at_once.min(records - first);
            chunk.resize(count as usize * bytes, 0);
            segment.read(self.layout.record_offset(first), &mut chunk)?;
            for (row, record) in number_from(first, chunk.chunks_exact(bytes)) {
                let Some((kind, cold_key)) = self.layout.format.read(record) else {
                    if flushed.has_record(segment.number, row) {
                        return Err(segment.damage_error("open", self.layout, row));
                    }
                    // A torn end. What follows was not acknowledged as flushed, and the server's log has it.
                    return segment.truncate_and_sync(self.layout.record_offset(row));
                };
                state.segments.count_appended(slot, 1);
                match kind {
                    LogRecordKind::Row => state.set_address(self.layout, cold_key, self.layout.address(slot, row)),
                    LogRecordKind::Removal => {
                        state.segments.note_removals(slot, 1);
                        state.remove(self.layout, cold_key);
                    }
                }
            }
        }
        Ok(())
    }
}
