//! How many malformed rows a job tolerates.

use std::sync::Arc;

use zagros_job::DataSettings;

use crate::parse::bad::{BadRows, LostRecord, locate_row};
use crate::parse::row::ParseOutcome;
use crate::read::layout::FileLayout;
use crate::read::reader::RowPlace;
use crate::{BadRow, IngestError};

pub(crate) const LISTED: usize = 5;

/// Rows of which `data.max_bad_share` is a share, until more are read: a few malformed rows at the start of a file are not
/// yet a share of it.
const LEAST_ROWS: u64 = 10_000;

/// The malformed rows of an epoch, and how many the job tolerates.
#[derive(Debug)]
pub(crate) struct BadBudget {
    limit: u64,
    share: f64,
    listed: usize,
    rows: u64,
    /// Malformed rows of earlier streams.
    before: u64,
    pub(crate) count: u64,
    first: Vec<(BadRows, Arc<FileLayout>, RowPlace)>,
}

impl BadBudget {
    /// Tolerates as many malformed rows as the job, and keeps the first `listed`.
    pub(crate) fn new(data: &DataSettings, listed: usize) -> Self {
        Self { limit: data.max_bad_rows, share: data.max_bad_share, ..Self::without_limit(listed) }
    }

    /// Tolerates all malformed rows, and keeps the first `listed`.
    pub(crate) fn without_limit(listed: usize) -> Self {
        Self { limit: u64::MAX, share: 0.0, listed, rows: 0, before: 0, count: 0, first: Vec::new() }
    }

    /// Starts with the malformed rows of earlier streams.
    pub(crate) fn with_earlier(self, before: u64) -> Self {
        Self { before, ..self }
    }

    pub(crate) fn add(
        &mut self,
        outcome: &ParseOutcome,
        layout: &Arc<FileLayout>,
        place: RowPlace,
    ) -> Result<(), IngestError> {
        let bad = &outcome.bad;
        self.rows += outcome.rows + bad.count;
        if let Some(LostRecord { line, lines, fault, reason }) = &bad.lost {
            let (row, lines) = (locate_row(*line, fault, layout, place)?, *lines);
            return Err(IngestError::LostRecord { row: Box::new(row), lines, reason });
        }
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
        Err(IngestError::TooManyBadRows { count: all, limit, share, rows, first: self.first_rows()? })
    }

    pub(crate) fn first_rows(&self) -> Result<Vec<BadRow>, IngestError> {
        let mut rows = Vec::new();
        for (bad, layout, place) in &self.first {
            rows.extend(bad.locate_rows(layout, *place)?);
        }
        rows.truncate(self.listed);
        Ok(rows)
    }
}
