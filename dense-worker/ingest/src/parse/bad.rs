//! Malformed rows: all are counted, and the first few are described.

use std::sync::Arc;

use zagros_job::Data;

use crate::parse::row::ParseOutcome;
use crate::read::layout::FileLayout;
use crate::read::reader::RowPlace;
use crate::{BadRow, IngestError};

/// Rows that an error lists.
pub(crate) const LISTED: usize = 5;

/// Rows of which `data.max_bad_share` is a share, until more are read: a few malformed rows at the start of a file are not
/// yet a share of it.
const LEAST_ROWS: u64 = 10_000;

/// Rows of a block that are described. The others are only counted.
pub(crate) const DESCRIBED: usize = 100;

/// Characters of a field that a message shows.
const SHOWN: usize = 40;

/// The problem of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldFault {
    /// Field, from 1.
    pub(crate) column: usize,
    /// The expected text.
    pub(crate) expected: String,
    /// The text that was found.
    pub(crate) found: String,
}

/// The malformed rows of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BadRows {
    /// How many.
    pub(crate) count: u64,
    /// The first of them, each with its line (from 0) in the block.
    first: Vec<(u64, FieldFault)>,
}

/// The first malformed rows of a block, with lines counted from the block's start.
#[cfg(test)]
impl std::fmt::Display for BadRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (line, FieldFault { column, expected, found }) = &self.first[0];
        write!(f, "{line}:{column}: expected {expected}, found {found}")
    }
}

impl BadRows {
    /// Counts a malformed row, and keeps it if it is among the first.
    #[cold]
    pub(crate) fn add(&mut self, line: u64, fault: FieldFault) {
        self.count += 1;
        if self.first.len() < DESCRIBED {
            self.first.push((line, fault));
        }
    }

    fn located(&self, layout: &FileLayout, place: RowPlace) -> Result<Vec<BadRow>, IngestError> {
        let locate = |(line, fault): &(u64, FieldFault)| {
            Ok(BadRow {
                path: layout.path.clone(),
                line: place.line_number(layout, *line)?,
                row_group: place.row_group(),
                column: fault.column,
                expected: fault.expected.clone(),
                found: fault.found.clone(),
            })
        };
        self.first.iter().map(locate).collect()
    }
}

/// The malformed rows of an epoch, and how many the job tolerates.
#[derive(Debug)]
pub(crate) struct BadBudget {
    limit: u64,
    /// The share of the rows that may be malformed.
    share: f64,
    listed: usize,
    /// Rows of this stream, good and malformed.
    rows: u64,
    /// Malformed rows of earlier streams.
    before: u64,
    count: u64,
    first: Vec<(BadRows, Arc<FileLayout>, RowPlace)>,
}

impl BadBudget {
    /// Tolerates as many malformed rows as the job, and keeps the first `listed`.
    pub(crate) fn of(data: &Data, listed: usize) -> Self {
        Self { limit: data.max_bad_rows, share: data.max_bad_share, ..Self::boundless(listed) }
    }

    /// Tolerates all malformed rows, and keeps the first `listed`.
    pub(crate) fn boundless(listed: usize) -> Self {
        Self { limit: u64::MAX, share: 0.0, listed, rows: 0, before: 0, count: 0, first: Vec::new() }
    }

    /// Starts with the malformed rows of earlier streams.
    pub(crate) fn after(self, before: u64) -> Self {
        Self { before, ..self }
    }

    /// Counts the rows of a block.
    pub(crate) fn add(
        &mut self,
        outcome: &ParseOutcome,
        layout: &Arc<FileLayout>,
        place: RowPlace,
    ) -> Result<(), IngestError> {
        let bad = &outcome.bad;
        self.rows += outcome.rows + bad.count;
        if bad.count == 0 {
            return Ok(());
        }
        if self.count < self.listed as u64 {
            self.first.push((bad.clone(), Arc::clone(layout), place));
        }
        self.count += bad.count;
        let all = self.before.saturating_add(self.count);
        if all <= self.limit || self.count as f64 <= self.share * self.rows.max(LEAST_ROWS) as f64 {
            return Ok(());
        }
        let (limit, share, rows) = (self.limit, self.share, self.rows);
        Err(IngestError::TooManyBadRows { count: all, limit, share, rows, first: self.first()? })
    }

    /// Malformed rows so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The first malformed rows, with their positions.
    pub(crate) fn first(&self) -> Result<Vec<BadRow>, IngestError> {
        let mut rows = Vec::new();
        for (bad, layout, place) in &self.first {
            rows.extend(bad.located(layout, *place)?);
        }
        rows.truncate(self.listed);
        Ok(rows)
    }
}

/// A field's text as a message shows it: quoted, on one line, shortened.
pub(crate) fn shown(text: &[u8]) -> String {
    let is_cut = text.len() > SHOWN;
    let start = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
    let escaped: String =
        start.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect();
    format!("\"{escaped}{}\"", if is_cut { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_on_one_short_line() {
        assert_eq!(shown(b"abc"), "\"abc\"");
        assert_eq!(shown(b"a\0b\tc\r"), r#""a\u{0}b\tc\r""#);
        assert_eq!(shown(&[b'x'; 100]), format!("\"{}…\"", "x".repeat(SHOWN)));
        assert_eq!(shown(b"a\xffb"), "\"a\u{fffd}b\"");
    }

    #[test]
    fn all_malformed_rows_are_counted_and_few_are_kept() {
        let mut bad = BadRows::default();
        for line in 0..1_000 {
            bad.add(line, FieldFault { column: 1, expected: "a".into(), found: "b".into() });
        }
        assert_eq!((bad.count, bad.first.len()), (1_000, DESCRIBED));
    }
}
