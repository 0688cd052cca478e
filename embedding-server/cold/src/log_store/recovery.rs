//! The log of an earlier process: its records are read in the order in which they were appended, and make the index again.

use std::path::PathBuf;
use std::sync::Arc;

use zagros_table::ColdError;
use zagros_zip::number_from;

use super::flushed::SyncedUpTo;
use super::record::LogRecordKind;
use super::segment::{RowSegment, failed};
use super::table_log::TableLog;

/// Bytes of a segment that are read at a time.
const CHUNK: usize = 1 << 20;

impl TableLog {
    /// Takes the segments of an earlier process over, which are given by number. New records go to new segments.
    ///
    /// # Errors
    /// If a file cannot be read, or a record that was surely on the disk is missing or damaged.
    pub(crate) fn recover(&self, mut files: Vec<(u64, PathBuf)>, flushed: SyncedUpTo) -> Result<(), ColdError> {
        files.sort_unstable();
        let mut writer = self.writer.lock();
        writer.next = flushed.number;
        for (number, path) in files {
            writer.next = writer.next.max(number + 1);
            match RowSegment::open(&path, self.layout.format, number)? {
                Some(segment) => self.recover_segment(Arc::new(segment), flushed)?,
                None if flushed.has(number, 0) => {
                    return Err(ColdError { doing: "open", reason: format!("{} is cut off", path.display()) });
                }
                None => std::fs::remove_file(&path).map_err(|error| failed("open", &error, &path))?,
            }
        }
        Ok(())
    }

    fn recover_segment(&self, segment: Arc<RowSegment>, flushed: SyncedUpTo) -> Result<(), ColdError> {
        let bytes = self.layout.format.bytes();
        let length = segment.length()?;
        let records = (length / bytes as u64).min(u64::from(self.layout.most_rows())) as u32;
        if flushed.number == segment.number && records < flushed.rows {
            let (path, rows) = (segment.path.display(), flushed.rows);
            let reason = format!("{path} is cut off: it has {records} records, and {rows} were on the disk");
            return Err(ColdError { doing: "open", reason });
        }
        let mut state = self.state.write();
        let slot = state.segments.add(Arc::clone(&segment));
        let (at_once, mut chunk) = ((CHUNK / bytes).max(1) as u32, Vec::new());
        for first in (0..records).step_by(at_once as usize) {
            let count = at_once.min(records - first);
            chunk.resize(count as usize * bytes, 0);
            segment.read(self.layout.offset(first), &mut chunk)?;
            for (row, record) in number_from(first, chunk.chunks_exact(bytes)) {
                let Some((kind, cold_key)) = self.layout.format.read(record) else {
                    if flushed.has(segment.number, row) {
                        return Err(segment.damaged("open", self.layout, row));
                    }
                    // A torn end. What follows was not acknowledged as flushed, and the server's log has it.
                    return segment.cut(self.layout.offset(row));
                };
                state.segments.append(slot, 1);
                match kind {
                    LogRecordKind::Row => state.put(self.layout, cold_key, self.layout.address(slot, row)),
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
