//! The first pass over the tail: what the log says besides rows. Each segment is read on a thread of its own, and its events are
//! put together in the order of the log.
//!
//! The second pass over the tail: each thread puts in the records of its stripes, in their order.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use zagros_rows::log::{LogError, LogRecord, LogTail, LoggedGradient, RecordHead, RecordKind, RowsView};
use zagros_table::{PushOrigin, RequestBuffers, Table, TableError, TableSet, TableTime};

use super::RecordError;
use crate::datapath::SequenceWindows;
use crate::durability::partial_pushes::{AppliedRows, PartialPushes};

#[derive(Debug)]
enum TailEvent {
    Changed(PushOrigin),
    /// A record of no stripe, and the lsn behind it.
    Record(LogRecord, u64),
}

/// The events of one segment, in their order.
#[derive(Debug, Default)]
pub(super) struct SegmentEvents(Vec<TailEvent>);

#[derive(Debug, Default)]
pub(super) struct TailSummary {
    /// The lsn behind the last clear.
    pub(super) cleared: Option<u64>,
    pub(super) time: TableTime,
    /// Pushes without a commit so far.
    pub(super) open: HashSet<PushOrigin>,
    /// A load has started and not ended so far.
    pub(super) loading: bool,
}

impl SegmentEvents {
    pub(super) fn note_record(&mut self, head: &RecordHead, payload: &[u8]) -> Result<(), LogError> {
        match head.kind {
            RecordKind::PushedRows | RecordKind::Pending => {
                // The records of a push lie one behind the other.
                let origin = LogRecord::push_origin(payload).filter(|origin| !self.ends_with(origin));
                self.0.extend(origin.map(TailEvent::Changed));
            }
            kind if kind.has_stripe() => {}
            _ => {
                let Ok(record) = LogRecord::decode(head, payload) else { return Ok(()) };
                if matches!(&record, LogRecord::Commit { origin, .. } if self.ends_with(origin)) {
                    self.0.pop();
                }
                self.0.push(TailEvent::Record(record, head.end_lsn()));
            }
        }
        Ok(())
    }

    /// Whether the last event is of a change by this push.
    fn ends_with(&self, origin: &PushOrigin) -> bool {
        matches!(self.0.last(), Some(TailEvent::Changed(last)) if last == origin)
    }
}

impl TailSummary {
    pub(super) fn add_segment(&mut self, events: SegmentEvents, windows: &SequenceWindows) {
        for event in events.0 {
            let (record, end) = match event {
                TailEvent::Changed(origin) => {
                    self.open.insert(origin);
                    continue;
                }
                TailEvent::Record(record, end) => (record, end),
            };
            match record {
                LogRecord::Cleared => {
                    self.cleared = Some(end);
                    self.open.clear();
                    // Steps count from 0 again after a clear.
                    self.time.steps = 0;
                }
                LogRecord::LoadStarted => self.loading = true,
                LogRecord::LoadComplete => self.loading = false,
                LogRecord::Commit { origin, time, groups, .. } => {
                    self.open.remove(&origin);
                    self.time = time;
                    let groups = if groups.is_empty() { &[0][..] } else { &groups };
                    groups.iter().for_each(|group| windows.restore_applied(*group, origin));
                }
                LogRecord::WindowGroup(group) => windows.restore_group(&group),
                _ => {}
            }
        }
    }
}

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
        let is_mine =
            |head: &RecordHead| head.kind.has_stripe() && head.stripe.wrapping_add(head.table) % threads == number;
        replay.tail.segments.iter().try_for_each(|segment| {
            segment
                .for_each(replay.from, is_mine, |head, payload| self.put_record(replay, &segment.path, head, payload))
        })
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use zagros_rows::log::{
        LogTail, LogWriter, SyncMode, SystemDisk, TailPlan, WindowGroup, WindowImage, WriterConfig,
    };
    use zagros_table::{ChangeKind, StripeChange, UpdateLog};

    use super::*;

    fn origin(seq: u64) -> PushOrigin {
        PushOrigin { writer: 5, incarnation: 1, seq }
    }

    fn append(log: &LogWriter, act: u8, seq: u64) {
        let change = |kind, origin| log.append(&StripeChange { table: 0, stripe: 0, origin, kind });
        match act {
            0..4 => change(ChangeKind::Rows { ids: &[1, 2], slots: &[3; 40], access: &[] }, Some(&origin(seq))),
            4..8 => log.append_commit(&origin(seq), seq, TableTime { steps: seq, seconds: 1 }, &[]),
            8 => change(ChangeKind::Removed(&[7]), None),
            9 => log.cleared(),
            10 => log.start_load(),
            11 => log.complete_load(),
            _ => {
                let windows = vec![WindowImage { writer: 6, incarnation: 1, applied: vec![[seq, seq]] }];
                log.append_window_group(&WindowGroup { group: 1, buckets: vec![seq as u32], windows });
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A push may begin in one segment and end in another one. What the segments say together is what one pass over
        /// the records says.
        #[test]
        fn segments_that_are_read_side_by_side_say_what_one_pass_says(
            acts in prop::collection::vec((0..13_u8, 1..12_u64), 1..150),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let config = WriterConfig { mode: SyncMode::Process, lineage: 1, segment_bytes: 1024, next: 0 };
            let log = LogWriter::open(folder.path(), Arc::new(SystemDisk), &config).unwrap();
            for (act, seq) in &acts {
                append(&log, *act, *seq);
                log.flush_appended().unwrap();
            }
            drop(log);
            let plan = TailPlan::new(folder.path(), 0..0, Some(1)).unwrap();
            let (mut found, windows) = (TailSummary::default(), SequenceWindows::default());
            for number in 0..plan.segment_count() {
                let mut events = SegmentEvents::default();
                plan.check_segment(number, |head, payload| events.note_record(head, payload)).unwrap();
                found.add_segment(events, &windows);
            }
            let (mut open, mut cleared, mut loading, mut steps) = (HashSet::new(), None, false, 0);
            let expected = SequenceWindows::default();
            LogTail::scan(folder.path(), 0..0, Some(1), |head, payload| {
                match LogRecord::decode(head, payload).unwrap() {
                    LogRecord::Rows(Some(origin), _) => _ = open.insert(origin),
                    LogRecord::Commit { origin, time, .. } => {
                        open.remove(&origin);
                        expected.restore_applied(0, origin);
                        steps = time.steps;
                    }
                    LogRecord::Cleared => {
                        (cleared, steps) = (Some(head.end_lsn()), 0);
                        open.clear();
                    }
                    LogRecord::LoadStarted => loading = true,
                    LogRecord::LoadComplete => loading = false,
                    LogRecord::WindowGroup(group) => expected.restore_group(&group),
                    _ => {}
                }
                Ok(())
            }).unwrap();
            prop_assert_eq!((found.open, found.cleared, found.loading, found.time.steps), (open, cleared, loading, steps));
            prop_assert_eq!(windows.group_images(), expected.group_images());
        }
    }
}
