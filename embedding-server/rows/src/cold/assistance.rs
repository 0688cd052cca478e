//! The bound of the space on disk: writers help the compaction when it is behind.
//!
//! The thread of the store begins with a segment when less than half of it is rows. Where rows are written faster than one thread copies,
//! dead records would take the disk. So a call that finds more than `2 × rows + 2 segments` records goes itself over
//! four records of old segments for each that it made dead or appended:
//!
//! ```text
//! write n records ─► records > 2 × rows + 2 segments?  ─► owed += 4 n ─► compact parts of a segment until less than a part is owed
//! ```
//!
//! **The bound.** A table has at most `2 × rows + 3 × S` records beside those of the call in hand, where `S` is its largest segment
//! ([`LogOptions::segment`](super::store::LogOptions), an eighth of the rows, 256 MiB at most). Let `E = records − 2 × rows`.
//! 1. While `E > S` some segment has less than half to keep: one that is half rows adds nothing to `E`, and the one that is appended to at most `S`.
//! 2. A writer raises `E` by at most the `n` that it pays for. So while a segment of `s ≤ S` records is gone over, writers raise `E` by `s / 4`.
//!    Its copies raise it by less than `s / 2`, and its deletion lowers it by `s`. In all `E` falls by `s / 4` at least.
//! 3. So `E` is at most what it was when help began, `2 S` and a call, and within a segment `S / 4 + S / 2` more. What is owed and not yet paid is less
//!    than a quarter of a segment, so it adds `S / 16`.
//!
//! Where rows outlive the process, removals are records as well, and one that may hide an older record is kept. If no segment has
//! less than half to copy, the oldest one is copied, whose removals hide nothing. One round of the log drops all of them, and meanwhile
//! writers append a quarter of it: so at most `8/3 × rows + 4 × S`.
//!
//! **What is not bounded.** Segments with a damaged record stay. While compaction fails, writers do not wait for it: rows are
//! written until the disk is full, and the server's log and [`LogCounts`](super::counters::LogCounts) say so. If rows are removed without a
//! write the bound shrinks at once, and the files by and by. A snapshot and the sweep for expired rows read a view: a segment that is deleted meanwhile keeps its
//! space until the view has gone, so the files may need two to three times the bound during a save. Leaves of the index that only a view holds are not in the
//! budget of memory: up to as much again as the index.

use std::sync::atomic::Ordering;
use std::time::Duration;

use zagros_table::ColdError;

use super::compaction::CompactionStep;
use super::counters::LogCounters;
use super::table_log::{TableLog, TableState};

/// Records that a writer goes over for each record by which it brings the table nearer to the bound.
const RECORDS_PER_RECORD: u64 = 4;
/// Segments that a table may be larger than twice its rows before writers help.
const SPARE_SEGMENTS: i64 = 2;

impl TableLog {
    /// Records that the table may have beyond twice its rows before writers help.
    pub(crate) fn allowance(&self, state: &TableState) -> i64 {
        SPARE_SEGMENTS * i64::from(self.segment_rows_of(state))
    }

    /// Compacts some of the table after a call that raised `records − 2 × rows` by at most `raised`, if compaction is behind. A failure is
    /// logged and counted: the call itself has succeeded.
    pub(crate) fn assist(&self, raised: usize, patience: Duration, counters: &LogCounters) {
        if !self.needs_help() || self.is_compaction_failing.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut compaction) = self.compaction.try_lock_for(patience) else {
            let reason =
                format!("the disk has not answered for {} s ({})", patience.as_secs_f64(), self.folder.display());
            self.note_compaction(Some(&ColdError { doing: "compact", reason }), counters);
            return;
        };
        compaction.owed += RECORDS_PER_RECORD * raised as u64;
        let part = u64::from(self.records_at_once());
        while compaction.owed >= part && self.needs_help() {
            // A failure is logged where it happens, and is no failure of the caller.
            let Ok(CompactionStep::Records(records)) = self.compact_part(&mut compaction, counters) else { break };
            compaction.owed = compaction.owed.saturating_sub(u64::from(records));
            counters.update(|counts| {
                counts.assisted_bytes += u64::from(records) * self.layout.format.record_bytes() as u64
            });
        }
        // A later writer pays for at most a part of what could not be compacted now.
        compaction.owed = compaction.owed.min(part);
    }

    fn needs_help(&self) -> bool {
        let state = self.state.read();
        state.segments.overhang() > self.allowance(&state)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use parking_lot::MutexGuard;
    use proptest::prelude::*;

    use super::*;
    use crate::cold::folder::{FlushedTable, SyncedUpTo};
    use crate::cold::segment::RecordFormat;
    use crate::cold::segment::parse_name;

    const FORMAT: RecordFormat = RecordFormat { table: 0, width: 5 };
    const NO_WAIT: Duration = Duration::ZERO;

    /// A table of a store whose thread is paused: only its writers compact.
    struct PausedLog {
        table: TableLog,
        counters: LogCounters,
        /// Removed rows leave records.
        is_kept: bool,
    }

    impl PausedLog {
        fn new(folder: &Path, is_kept: bool) -> Self {
            let table = TableLog::new(folder, FORMAT, is_kept, 64 * FORMAT.record_bytes());
            Self { table, counters: LogCounters::default(), is_kept }
        }

        fn write(&self, cold_keys: &[u64]) {
            let words: Vec<u32> = cold_keys.iter().flat_map(|key| [*key as u32; FORMAT.width]).collect();
            self.table.write(cold_keys, &words).unwrap();
            self.table.assist(cold_keys.len(), NO_WAIT, &self.counters);
        }

        fn remove(&self, cold_keys: &[u64]) {
            self.table.remove(cold_keys).unwrap();
            self.table.assist(3 * cold_keys.len(), NO_WAIT, &self.counters);
        }

        fn rows(&self) -> u64 {
            self.table.state.read().index.row_count() as u64
        }

        fn largest(&self) -> u64 {
            let state = self.table.state.read();
            let slots = 0..state.segments.files().len();
            slots.map(|slot| u64::from(state.segments.segment_counts(slot).rows)).max().unwrap_or(0)
        }

        /// Records in the files of the folder, whatever the table says.
        fn in_files(&self) -> u64 {
            let files = fs::read_dir(&self.table.folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
            files.map(|bytes| bytes.saturating_sub(64) / FORMAT.record_bytes() as u64).sum()
        }

        /// Asserts the bound of the module's docs, after a call with so many records.
        fn assert_bounded(&self, most_rows: u64, largest: u64, call: u64) {
            let spare = if self.is_kept { most_rows * 2 / 3 + 4 * largest } else { 3 * largest };
            let (records, bound) = (self.in_files(), 2 * most_rows + spare + call);
            assert!(records <= bound, "{records} records in files of {most_rows} rows, {bound} at most");
        }

        fn assert_has(&self, cold_keys: &[u64]) {
            let present = self.table.present_keys(cold_keys);
            assert_eq!(present, cold_keys);
            let (state, mut record) = (self.table.state.read(), vec![0; FORMAT.record_bytes()]);
            for key in cold_keys {
                let (slot, row) = self.table.layout.split_address(state.index.get(*key).unwrap());
                state.segments.get(slot).unwrap().0.read(self.table.layout.record_offset(row), &mut record).unwrap();
                let mut words = [0; FORMAT.width];
                assert!(FORMAT.read_row(&record, *key, &mut words) && words == [*key as u32; FORMAT.width], "{key}");
            }
        }
    }

    /// A generator of keys (Knuth's), so that a failure is seen again.
    fn draw(seed: &mut u64, below: u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % below
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Rows are overwritten 12 times each in any pattern, by calls of any size, and the thread does nothing.
        #[test]
        fn files_stay_within_the_bound_without_the_thread(rows in 200_u64..3000, call in 1_u64..100, hot in 1_u64..8, mut seed: u64) {
            let folder = tempfile::tempdir().unwrap();
            let log = PausedLog::new(folder.path(), false);
            let all: Vec<u64> = (0..rows).collect();
            all.chunks(call as usize).for_each(|keys| log.write(keys));
            for _ in 0..12 * rows / call {
                // Half of the calls write to a part of the rows.
                let range = if draw(&mut seed, 2) == 0 { rows } else { rows.div_ceil(hot) };
                let mut keys: Vec<u64> = (0..call).map(|_| draw(&mut seed, range)).collect();
                keys.sort_unstable();
                log.write(&keys);
                log.assert_bounded(rows, log.largest(), call);
            }
            prop_assert!(log.counters.log_counts(0).assisted_bytes > 0);
            log.assert_has(&all);
        }
    }

    /// Rows that come and go leave a removal each. Older rows that never change must not keep the removals for ever.
    #[test]
    fn removals_do_not_fill_a_log_that_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let log = PausedLog::new(folder.path(), true);
        let stable: Vec<u64> = (0..500).collect();
        stable.chunks(50).for_each(|keys| log.write(keys));
        for turn in 0..60 {
            let keys: Vec<u64> = (0..40).map(|key| 1000 + turn * 40 + key).collect();
            log.write(&keys);
            log.remove(&keys);
            log.assert_bounded(540, log.largest(), 40);
        }
        assert_eq!(log.rows(), 500);
        log.assert_has(&stable);
        // The next process has no row of them either.
        log.table.sync().unwrap();
        let next = PausedLog::new(folder.path(), true);
        let mut files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let numbered = files.into_iter().filter_map(|path| Some((parse_name(&path)?.1, path)));
        let up_to = SyncedUpTo { table: 0, number: 0, rows: 0 };
        let nothing = FlushedTable { up_to, segments: Vec::new() };
        next.table.recover(numbered.collect(), &nothing).unwrap();
        assert_eq!(next.rows(), 500);
        next.assert_has(&stable);
    }

    fn overwritten(log: &PausedLog, times: u64) {
        let all: Vec<u64> = (0..2000).collect();
        (0..times).for_each(|_| all.chunks(100).for_each(|keys| log.write(keys)));
    }

    /// A compaction that does not end, or cannot read, stops no writer. It goes on by itself later.
    #[test]
    fn writers_go_on_where_compaction_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let log = PausedLog::new(folder.path(), false);
        let stuck: MutexGuard<'_, _> = log.table.compaction.lock();
        overwritten(&log, 6);
        assert!(log.in_files() >= 6 * 2000 && log.table.is_compaction_failing.load(Ordering::Relaxed));
        assert_eq!(log.counters.log_counts(0).compaction_failures, 1, "it is waited for once");
        drop(stuck);
        while log.table.compact(&log.counters).unwrap() != CompactionStep::Nothing {}
        assert!(!log.table.is_compaction_failing.load(Ordering::Relaxed));
        overwritten(&log, 6);
        log.assert_bounded(2000, log.largest(), 100);
    }

    #[test]
    fn a_segment_that_cannot_be_read_is_left_for_later_and_the_others_are_compacted() {
        let folder = tempfile::tempdir().unwrap();
        let log = PausedLog::new(folder.path(), false);
        let all: Vec<u64> = (0..2000).collect();
        all.chunks(100).for_each(|keys| log.write(keys));
        let files = log.table.state.read().segments.files();
        let cut: Vec<_> = files.iter().flatten().take(2).cloned().collect();
        cut.iter().for_each(|segment| segment.file.set_len(64).unwrap());
        // A fiftieth of the rows stays where it is, so the two segments that lost their end have the least to copy, and of the others a fourth.
        let in_cut =
            |key: &u64| cut.len() as u64 * u64::from(log.table.state.read().segments.segment_counts(0).rows) > *key;
        let changes = |key: &u64| if in_cut(key) { !key.is_multiple_of(50) } else { !key.is_multiple_of(4) };
        let changed: Vec<u64> = all.iter().copied().filter(changes).collect();
        changed.chunks(100).for_each(|keys| log.write(keys));
        let failed = (0..1000).filter(|_| log.table.compact(&log.counters).is_err()).count();
        assert!(failed >= 2 && cut.iter().all(|segment| segment.path.exists()), "{failed} attempts failed");
        let others = files.iter().flatten().skip(2).filter(|segment| segment.path.exists()).count();
        assert!(others <= 1, "{others} of {} others are left", files.iter().flatten().count() - 2);
        log.assert_has(&changed);
    }
}
