//! Rows of text whose quoted fields may hold line breaks.

use super::{ParseOutcome, RowInBlock, RowParser, quote_fault};
use crate::parse::bad::LostRecord;
use crate::parse::sink::RowSink;
use crate::read::layout::ColumnPositions;
use crate::read::records::{RecordScanner, RecordSyntax};

impl RowParser {
    pub(super) fn parse_records<S: RowSink>(
        &mut self,
        records: RecordSyntax,
        (block, offset): (&[u8], u64),
        is_clean: bool,
        positions: &ColumnPositions,
        sink: &mut S,
        outcome: &mut ParseOutcome,
    ) {
        let (mut scanner, mut start, mut line) = (RecordScanner::new(records), 0, 0);
        while start < block.len() {
            let end = scanner.next_end(block, start);
            let record = &block[start..end.unwrap_or(block.len())];
            let row = record.strip_suffix(b"\n").unwrap_or(record);
            let lines = memchr::memchr_iter(b'\n', row).count() as u64 + 1;
            let place = RowInBlock { index: line, offset: offset + start as u64, lines };
            let is_open = end.is_none() && scanner.is_quoted();
            if lines > 1 && (is_open || row.len() > self.max_line_bytes) {
                self.lose(place, row, outcome);
            } else {
                self.take_row(place, row, is_clean, positions, sink, outcome);
            }
            line += lines;
            start += record.len();
        }
    }

    /// Notes a record that a stray quote has probably made of many rows.
    #[cold]
    fn lose(&mut self, place: RowInBlock, record: &[u8], outcome: &mut ParseOutcome) {
        let unclosed = match self.fields.tokenize(record, self.syntax) {
            Err(error) if record.len() <= self.max_line_bytes => quote_fault(error, true),
            _ => self.too_long(record),
        };
        outcome.bad.add(place.index, place.lines, (*unclosed).clone());
        let reason = "no number of malformed rows allows it";
        let lost = LostRecord { line: place.index, lines: place.lines, fault: *unclosed, reason };
        outcome.bad.lost.get_or_insert(lost);
    }
}
