//! What a log holds, for a person. The folder is not locked: a server may write to it meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::log::base::{BaseManifest, LogBase};
use crate::log::folder::{LineageFile, list_segments, read_lineage};
use crate::log::format::origin_of;
use crate::log::{LogError, LogRecord, LogTail, RecordKind};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogSummary {
    pub lineage: Option<LineageFile>,
    pub base: Option<BaseManifest>,
    /// Segments of the tail.
    pub segments: usize,
    /// The lsn of its first record.
    pub first: u64,
    /// The lsn behind its last record.
    pub end: u64,
    /// Bytes of a record that was being written.
    pub torn: u64,
    pub records: BTreeMap<RecordKind, RecordCount>,
    /// By writer and incarnation.
    pub writers: BTreeMap<(u64, u32), WriterSummary>,
    /// Rows that are in the tail, each as often as it changed, by table.
    pub rows: BTreeMap<u32, u64>,
    /// Pushes whose end is not in the log.
    pub partial: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCount {
    pub records: u64,
    pub bytes: u64,
}

/// Pushes of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterSummary {
    /// Pushes whose end is in the log.
    pub pushes: u64,
    /// The highest number of these.
    pub newest: u64,
    pub step: u64,
}

impl LogSummary {
    /// Reads all records of the tail and checks them.
    pub fn read(folder: &Path) -> Result<Self, LogError> {
        let base = LogBase::find_newest(folder)?.map(|base| base.manifest);
        let oldest = list_segments(folder)?.first().map_or(0, |segment| segment.0);
        let first = base.as_ref().map_or(oldest, |base| base.start);
        let reached = base.as_ref().map_or(first, |base| base.end);
        let mut summary = Self { lineage: read_lineage(folder)?, base, first, end: first, ..Self::default() };
        let mut open = BTreeSet::new();
        let tail = LogTail::scan(folder, first..reached, None, |head, payload| {
            let count = summary.records.entry(head.kind).or_default();
            (count.records, count.bytes) = (count.records + 1, count.bytes + head.record_bytes());
            let record = LogRecord::decode(head, payload);
            match record.map_err(|problem| LogError::damaged(folder, head.lsn, problem))? {
                LogRecord::Rows(_, rows) => *summary.rows.entry(head.table).or_default() += rows.ids.len() as u64,
                LogRecord::Commit { origin, step, .. } => {
                    let writer = summary.writers.entry((origin.writer, origin.incarnation)).or_default();
                    *writer = WriterSummary { pushes: writer.pushes + 1, newest: writer.newest.max(origin.seq), step };
                    open.remove(&origin);
                }
                _ => {}
            }
            if let (RecordKind::PushedRows, Some((origin, _))) = (head.kind, origin_of(payload)) {
                open.insert(origin);
            }
            Ok(())
        })?;
        summary.partial = open.len() as u64;
        (summary.segments, summary.end, summary.torn) = (tail.segments.len(), tail.end, tail.torn);
        Ok(summary)
    }
}
