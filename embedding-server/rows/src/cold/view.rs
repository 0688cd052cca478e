//! A view: the content of a store at one moment. It has clones of the indices, which share what has not changed since, and
//! holds the files that they point into.

use std::ops::RangeInclusive;
use std::sync::Arc;

use zagros_table::{ColdError, ColdScan, ColdView};
use zagros_zip::number_from;

use super::pieces::{RecordRead, group_reads};
use super::shared::SharedLog;
use super::table_log::TableState;

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
