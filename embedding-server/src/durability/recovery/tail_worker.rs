//! The second pass over the tail: each thread puts in the records of its stripes, in their order.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use zagros_rows::log::{LogError, LogRecord, LogTail, LoggedGradient, RecordHead, RowsView, TailSegment};
use zagros_table::{PushOrigin, RequestBuffers, Table, TableError, TableSet};

use super::RecordError;
use crate::durability::partial_pushes::{AppliedRows, PartialPushes};

/// Positions at which a base read the counts of stripes.
pub(super) type CountPositions = HashMap<(u32, u32), u64>;

/// What the records of the tail are put into, and which of them count.
pub(super) struct TailReplay<'a> {
    pub(super) tables: &'a TableSet,
    pub(super) tail: &'a LogTail,
    pub(super) from: u64,
    pub(super) positions: &'a CountPositions,
    pub(super) open: &'a HashSet<PushOrigin>,
}

/// One thread's share of the tail.
#[derive(Default)]
pub(super) struct TailWorker {
    buffers: RequestBuffers,
    /// Gradients that wait for a row, in the order of their records.
    waiting: HashMap<(u32, u64), Vec<LoggedGradient>>,
    /// Rows of pushes without a commit.
    applied: HashMap<PushOrigin, AppliedRows>,
}

impl TailWorker {
    /// Puts in the records of the stripes of thread `number` of `threads`.
    pub(super) fn run(&mut self, replay: &TailReplay<'_>, number: u32, threads: u32) -> Result<(), RecordError> {
        replay.tail.segments.iter().try_for_each(|segment| self.read_segment(replay, segment, number, threads))
    }

    fn read_segment(
        &mut self,
        replay: &TailReplay<'_>,
        segment: &TailSegment,
        number: u32,
        threads: u32,
    ) -> Result<(), RecordError> {
        let is_mine =
            |head: &RecordHead| head.kind.has_stripe() && head.stripe.wrapping_add(head.table) % threads == number;
        segment.for_each(replay.from, is_mine, |head, payload| self.put_record(replay, &segment.path, head, payload))
    }

    fn put_record(
        &mut self,
        replay: &TailReplay<'_>,
        path: &Path,
        head: &RecordHead,
        payload: &[u8],
    ) -> Result<(), RecordError> {
        let (number, table) = (head.table, replay.tables.table(head.table)?);
        if let Some(rows) = RowsView::from_record(head, payload) {
            let rows = rows.map_err(damaged_at(path, head.lsn))?;
            return self.put_rows(replay, head, table, &rows);
        }
        let is_counted = replay.positions.get(&(number, head.stripe)).is_some_and(|lsn| head.lsn < *lsn);
        match LogRecord::decode(head, payload).map_err(damaged_at(path, head.lsn))? {
            LogRecord::Removed(ids) => {
                self.drop_waiting(number, &ids);
                table.remove_again(&ids).map_err(|source| TableError::Cold { table: number, source })?;
                if !is_counted {
                    table.forget_counts_again(&ids);
                }
            }
            LogRecord::StepRows(rows) => table.put_step_rows(&rows.as_slices())?,
            LogRecord::Pending(gradient) => {
                if replay.open.contains(&gradient.origin) {
                    self.applied.entry(gradient.origin).or_default().insert((number, gradient.id));
                }
                self.waiting.entry((number, gradient.id)).or_default().push(gradient);
            }
            LogRecord::Seen(ids) if !is_counted => table.observe_again(&ids),
            LogRecord::CountsAdded(ids, counts) if !is_counted => table.add_counts_again(&ids, &counts),
            LogRecord::SketchAdded(from, cells) if !is_counted => {
                table.add_sketch_again(head.stripe as usize, from as usize, &cells)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn put_rows(
        &mut self,
        replay: &TailReplay<'_>,
        head: &RecordHead,
        table: &Table,
        rows: &RowsView<'_>,
    ) -> Result<(), RecordError> {
        self.drop_waiting(head.table, rows.ids());
        if let Some(origin) = rows.origin.filter(|origin| replay.open.contains(origin)) {
            self.applied.entry(origin).or_default().extend(rows.ids().iter().map(|id| (head.table, *id)));
        }
        Ok(table.restore_rows(head.stripe as usize, &rows.as_slices(), &mut self.buffers)?)
    }

    /// The gradients that waited for these rows are in them.
    fn drop_waiting(&mut self, table: u32, ids: &[u64]) {
        if !self.waiting.is_empty() {
            ids.iter().for_each(|id| _ = self.waiting.remove(&(table, *id)));
        }
    }

    /// Hands over what waits: rows of pushes that are applied in part, and gradients whose row is not in memory.
    pub(super) fn finish(self, tables: &TableSet, partial: &PartialPushes) -> Result<(), RecordError> {
        partial.restore_rows(self.applied);
        for ((number, id), gradients) in &self.waiting {
            let table = tables.table(*number)?;
            gradients.iter().for_each(|logged| table.defer_again(*id, &logged.gradient, logged.step));
        }
        Ok(())
    }
}

/// The checksum of a record is right and its lengths disagree: no writer of this version does that.
pub(super) fn damaged_at(path: &Path, offset: u64) -> impl Fn(String) -> LogError {
    move |problem| LogError::Damaged { path: path.to_owned(), offset, problem }
}
