//! The segments of a table by slot, and how many of their records are rows.

use std::sync::Arc;

use super::segment::RowSegment;

pub(crate) type RowSegmentFiles = Arc<Vec<Option<Arc<RowSegment>>>>;

#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentSet {
    /// Shared with reads and views, which go on reading a segment after it is deleted.
    files: RowSegmentFiles,
    counts: Vec<SegmentCounts>,
    /// Whether a segment lost a row and has less than half left.
    has_waste: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentCounts {
    pub(crate) rows: u32,
    pub(crate) live: u32,
    pub(crate) removals: u32,
    /// It could not be compacted, because a record is damaged.
    pub(crate) is_damaged: bool,
    /// How often it could not be read for compaction.
    pub(crate) failures: u32,
}

impl SegmentSet {
    pub(crate) fn files(&self) -> RowSegmentFiles {
        Arc::clone(&self.files)
    }

    pub(crate) fn get(&self, slot: usize) -> Option<(Arc<RowSegment>, u32)> {
        let segment = self.files.get(slot)?.as_ref()?;
        Some((Arc::clone(segment), self.counts[slot].rows))
    }

    pub(crate) fn add(&mut self, segment: Arc<RowSegment>) -> usize {
        let files = Arc::make_mut(&mut self.files);
        let slot = files.iter().position(Option::is_none).unwrap_or(files.len());
        if slot == files.len() {
            files.push(None);
            self.counts.push(SegmentCounts::default());
        }
        files[slot] = Some(segment);
        slot
    }

    /// Takes a segment out. Its slot is free.
    pub(crate) fn take(&mut self, slot: usize) -> Option<Arc<RowSegment>> {
        self.counts[slot] = SegmentCounts::default();
        Arc::make_mut(&mut self.files)[slot].take()
    }

    /// Segments with their slots, in the order in which they were begun.
    pub(crate) fn in_order(&self) -> Vec<(usize, Arc<RowSegment>)> {
        let mut all: Vec<_> =
            self.files.iter().enumerate().filter_map(|(slot, file)| Some((slot, Arc::clone(file.as_ref()?)))).collect();
        all.sort_unstable_by_key(|(_, segment)| segment.number);
        all
    }

    pub(crate) fn count_appended(&mut self, slot: usize, count: u32) {
        self.counts[slot].rows += count;
    }

    pub(crate) fn add_live(&mut self, slot: usize) {
        self.counts[slot].live += 1;
    }

    pub(crate) fn remove_live(&mut self, slot: usize) {
        let counts = &mut self.counts[slot];
        counts.live -= 1;
        self.has_waste |= counts.live < counts.rows / 2;
    }

    /// Whether a segment may have become wasteful since the last call.
    pub(crate) fn take_waste(&mut self) -> bool {
        std::mem::take(&mut self.has_waste)
    }

    pub(crate) fn note_removals(&mut self, slot: usize, count: u32) {
        self.counts[slot].removals += count;
    }

    pub(crate) fn note_damage(&mut self, slot: usize) {
        self.counts[slot].is_damaged = true;
    }

    pub(crate) fn note_failure(&mut self, slot: usize) {
        // All segments may have been removed meanwhile.
        if let Some(counts) = self.counts.get_mut(slot) {
            counts.failures += 1;
        }
    }

    /// The records of a segment. None if it is gone.
    pub(crate) fn segment_counts(&self, slot: usize) -> SegmentCounts {
        self.counts.get(slot).copied().unwrap_or_default()
    }

    pub(crate) fn record_count(&self) -> u64 {
        self.counts.iter().map(|counts| u64::from(counts.rows)).sum()
    }

    pub(crate) fn dead_records(&self) -> u64 {
        self.counts.iter().map(|counts| u64::from(counts.rows - counts.live)).sum()
    }

    /// By how many records the segments are larger than twice their rows. Damaged segments stay as they are, and do not count.
    pub(crate) fn overhang(&self) -> i64 {
        let segment_overhang = |counts: &SegmentCounts| i64::from(counts.rows) - 2 * i64::from(counts.live);
        self.counts.iter().filter(|counts| !counts.is_damaged).map(segment_overhang).sum()
    }

    /// Whether a removal in this segment may still hide a record in an older one.
    pub(crate) fn has_older(&self, slot: usize) -> bool {
        let number = |slot: usize| self.files.get(slot).and_then(|file| file.as_ref().map(|file| file.number));
        number(slot).is_some_and(|this| (0..self.files.len()).filter_map(number).any(|other| other < this))
    }

    /// The segment with the least to keep, of those with less than half to keep. The one that is appended to is no such segment.
    ///
    /// A removal that may hide an older record counts as half a row: it may have been overtaken. A segment of such removals alone
    /// is not compacted, else it would be copied again and again.
    pub(crate) fn find_wasteful(&self, active: Option<usize>) -> Option<usize> {
        self.below_half(active, 0.5)
    }

    /// The segment to compact while the segments take too much space: one with less than half to copy, or else the oldest, in which
    /// removals hide nothing. If the oldest is damaged there is no such segment: removals stay for as long as it does.
    pub(crate) fn for_space(&self, active: Option<usize>) -> Option<usize> {
        let oldest = || self.oldest().filter(|slot| Some(*slot) != active && !self.counts[*slot].is_damaged);
        self.below_half(active, 1.0).or_else(oldest)
    }

    /// The segment with the least to keep, of those with less than half to keep. Segments that could not be read come last. A removal
    /// that may hide something counts as so many rows.
    fn below_half(&self, active: Option<usize>, removal: f64) -> Option<usize> {
        let oldest = self.oldest();
        let kept = |slot: usize| {
            let counts = self.counts[slot];
            let removals = if oldest == Some(slot) { 0.0 } else { f64::from(counts.removals) * removal };
            (f64::from(counts.live) + removals) / f64::from(counts.rows.max(1))
        };
        let candidates = (0..self.files.len()).filter(|slot| Some(*slot) != active && self.files[*slot].is_some());
        let shares = candidates.filter(|slot| !self.counts[*slot].is_damaged).map(|slot| (kept(slot), slot));
        let failures = |slot: usize| self.counts[slot].failures;
        let order = |a: &(f64, usize), b: &(f64, usize)| failures(a.1).cmp(&failures(b.1)).then(a.0.total_cmp(&b.0));
        shares.filter(|(share, _)| *share < 0.5).min_by(order).map(|(_, slot)| slot)
    }

    fn oldest(&self) -> Option<usize> {
        let numbers = self.files.iter().enumerate().filter_map(|(slot, file)| Some((file.as_ref()?.number, slot)));
        numbers.min().map(|(_, slot)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::segment::RecordFormat;

    #[test]
    fn the_segment_with_the_fewest_rows_is_compacted_first_and_a_removal_is_kept_while_it_hides_something() {
        let folder = tempfile::tempdir().unwrap();
        let format = RecordFormat { table: 0, width: 1 };
        let mut set = SegmentSet::default();
        for number in 0..4 {
            let slot = set.add(Arc::new(RowSegment::create(folder.path(), format, number).unwrap()));
            set.count_appended(slot, 10);
            (0..10).for_each(|_| set.add_live(slot));
        }
        assert_eq!((set.find_wasteful(None), set.record_count()), (None, 40));
        (0..5).for_each(|_| set.remove_live(1));
        assert_eq!(set.find_wasteful(None), None, "half of it is rows");
        set.remove_live(1);
        (0..7).for_each(|_| set.remove_live(2));
        assert_eq!((set.find_wasteful(None), set.find_wasteful(Some(2))), (Some(2), Some(1)));
        set.note_removals(2, 4);
        assert_eq!(set.find_wasteful(None), Some(1), "three rows and four removals of ten records are kept");
        set.note_damage(1);
        assert_eq!(set.find_wasteful(None), None);
        set.take(0);
        set.take(1);
        assert_eq!((set.find_wasteful(None), set.has_older(2), set.has_older(3)), (Some(2), false, true));
        assert_eq!(set.add(Arc::new(RowSegment::create(folder.path(), format, 9).unwrap())), 0);
        assert_eq!(set.in_order().iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [2, 3, 0]);
        assert_eq!(set.segment_counts(0), SegmentCounts::default());
    }
}
