//! The plan: files cut into byte ranges, in file order.

use zagros_protocol::control::{DataFile, Split};

/// Splits per worker and pass that the plan aims at: enough that a lost worker's share is re-read in small parts, and
/// that all workers end a pass within a hundredth of it. Who ends first only waits.
const SPLITS_PER_WORKER: u64 = 64;
/// Below this the calls cost more than the re-reading they save.
const LEAST_BYTES: u64 = 1 << 20;
/// Above this a lost worker costs too much.
const MOST_BYTES: u64 = 64 << 20;
/// Splits of a plan beyond one per file: a run of more than 32 TiB has larger ones. Each takes memory here, and about 30
/// bytes of the messages that tell the whole plan.
pub(crate) const MOST_SPLITS: usize = 1 << 19;

/// Bytes `start .. end` of a file: the lines whose first byte lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitRange {
    /// Index into the run's files.
    pub file: u32,
    /// First byte.
    pub start: u64,
    /// Past the last byte.
    pub end: u64,
}

impl SplitRange {
    /// As workers see it.
    pub(crate) fn on_wire(self, id: u64) -> Split {
        let Self { file, start, end } = self;
        Split { id, file, start, end }
    }
}

/// Cuts files into near-equal ranges of at most clamp(total / (workers × 64), 1 MiB, 64 MiB), or larger ones where these
/// would be more than [`MOST_SPLITS`]; a file that cannot be split is one range. Without gap or overlap (invariant SP-1), in
/// file order, so that one worker reads the files as they are.
#[must_use]
pub fn plan_splits(files: &[DataFile], workers: u32) -> Vec<SplitRange> {
    // u128: what a stranger says of files may be anything.
    let total = files.iter().map(|file| u128::from(file.bytes)).sum::<u128>();
    let share = total / (u128::from(workers.max(1)) * u128::from(SPLITS_PER_WORKER));
    let least = total.div_ceil(MOST_SPLITS as u128);
    // Fewer than 2^18 files of fewer than 2^64 bytes each, divided by 2^19.
    let most = share.clamp(LEAST_BYTES.into(), MOST_BYTES.into()).max(least) as u64;
    (0..).zip(files).flat_map(|(index, file)| cut(index, file, most)).collect()
}

fn cut(file: u32, data: &DataFile, most: u64) -> impl Iterator<Item = SplitRange> + use<> {
    let bytes = data.bytes;
    let parts = if data.splittable { bytes.div_ceil(most) } else { bytes.min(1) };
    // u128: a product of two byte counts.
    let bound = move |part: u64| (u128::from(part) * u128::from(bytes) / u128::from(parts)) as u64;
    (0..parts).map(move |part| SplitRange { file, start: bound(part), end: bound(part + 1) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(bytes: u64, splittable: bool) -> DataFile {
        DataFile { path: String::new(), bytes, splittable }
    }

    #[test]
    fn a_gibibyte_for_two_workers_is_a_hundred_and_twenty_eight_equal_splits() {
        let plan = plan_splits(&[file(1 << 30, true)], 2);
        assert_eq!(plan.len(), 128);
        assert!(plan.iter().all(|split| split.end - split.start == 8 << 20));
    }

    #[test]
    fn a_compressed_file_is_one_split_and_a_small_file_too() {
        let plan = plan_splits(&[file(9 << 30, false), file(0, true), file(5, true)], 4);
        let expected = [SplitRange { file: 0, start: 0, end: 9 << 30 }, SplitRange { file: 2, start: 0, end: 5 }];
        assert_eq!(plan, expected);
    }

    /// Thousands of gigabytes for a plan once ended the coordinator.
    #[test]
    fn the_plan_of_any_files_is_small() {
        let whole = [file(u64::MAX, true)];
        assert_eq!(plan_splits(&whole, 1).len(), MOST_SPLITS);
        let many = [(); 3].map(|()| file(u64::MAX, true));
        let plan = plan_splits(&many, 1024);
        assert!(plan.len() <= MOST_SPLITS + many.len(), "{} splits", plan.len());
        assert_eq!((plan[0].start, plan[plan.len() - 1].end), (0, u64::MAX));
    }

    proptest! {
        #[test]
        fn the_splits_are_the_files_in_order_without_gap_or_overlap(
            files in prop::collection::vec((0_u64..3 << 30, any::<bool>()), 0..6), workers in 1_u32..9
        ) {
            let files: Vec<_> = files.into_iter().map(|(bytes, splittable)| file(bytes, splittable)).collect();
            let plan = plan_splits(&files, workers);
            let mut splits = plan.iter();
            for (index, data) in (0..).zip(&files) {
                let mut covered = 0;
                while covered < data.bytes {
                    let split = splits.next().expect("a file is not covered");
                    prop_assert_eq!((split.file, split.start), (index, covered));
                    prop_assert!(split.end > split.start);
                    prop_assert!(!data.splittable || split.end - split.start <= MOST_BYTES);
                    covered = split.end;
                }
                prop_assert_eq!(covered, data.bytes);
            }
            prop_assert!(splits.next().is_none());
        }

        #[test]
        fn no_split_is_larger_than_a_small_part_of_a_workers_share_unless_that_is_tiny(bytes in 1_u64..1 << 40, workers in 1_u32..9) {
            let share = (bytes / (u64::from(workers) * SPLITS_PER_WORKER)).max(LEAST_BYTES);
            for split in plan_splits(&[file(bytes, true)], workers) {
                prop_assert!(split.end - split.start <= share, "{split:?}");
            }
        }
    }
}
