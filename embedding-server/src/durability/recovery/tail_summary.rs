//! The first pass over the tail: what the log says besides rows. Each segment is read on a thread of its own, and its events are
//! put together in the order of the log.

use std::collections::HashSet;

use zagros_rows::log::{LogError, LogRecord, RecordHead, RecordKind, WindowGroup};
use zagros_table::{PushOrigin, TableTime};

use crate::datapath::SequenceWindows;

#[derive(Debug)]
enum TailEvent {
    /// The log is empty up to this lsn.
    Cleared(u64),
    LoadStarted,
    LoadComplete,
    Changed(PushOrigin),
    Commit {
        origin: PushOrigin,
        time: TableTime,
        groups: Vec<u32>,
    },
    WindowGroup(WindowGroup),
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
            RecordKind::Cleared => self.0.push(TailEvent::Cleared(head.end_lsn())),
            RecordKind::LoadStarted => self.0.push(TailEvent::LoadStarted),
            RecordKind::LoadComplete => self.0.push(TailEvent::LoadComplete),
            RecordKind::PushedRows | RecordKind::Pending => {
                // The records of a push lie one behind the other.
                let origin = LogRecord::push_origin(payload).filter(|origin| !self.ends_with(origin));
                self.0.extend(origin.map(TailEvent::Changed));
            }
            RecordKind::Commit => {
                if let Ok(LogRecord::Commit { origin, time, groups, .. }) = LogRecord::decode(head, payload) {
                    if self.ends_with(&origin) {
                        self.0.pop();
                    }
                    self.0.push(TailEvent::Commit { origin, time, groups });
                }
            }
            RecordKind::WindowGroup => {
                if let Ok(LogRecord::WindowGroup(group)) = LogRecord::decode(head, payload) {
                    self.0.push(TailEvent::WindowGroup(group));
                }
            }
            _ => {}
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
            match event {
                TailEvent::Cleared(end) => {
                    self.cleared = Some(end);
                    self.open.clear();
                    // Steps count from 0 again after a clear.
                    self.time.steps = 0;
                }
                TailEvent::LoadStarted => self.loading = true,
                TailEvent::LoadComplete => self.loading = false,
                TailEvent::Changed(origin) => _ = self.open.insert(origin),
                TailEvent::Commit { origin, time, groups } => {
                    self.open.remove(&origin);
                    self.time = time;
                    let groups = if groups.is_empty() { &[0][..] } else { &groups };
                    groups.iter().for_each(|group| windows.restore_applied(*group, origin));
                }
                TailEvent::WindowGroup(group) => windows.restore_group(&group),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use zagros_rows::log::{LogTail, LogWriter, SyncMode, SystemDisk, TailPlan, WindowImage, WriterConfig};
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
