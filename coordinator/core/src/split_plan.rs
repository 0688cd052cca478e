//! The plan of splits: files divided into byte ranges; and the order in which an epoch deals them out. Which worker reads
//! which split is in `split_assignment.rs`.

use serde::{Deserialize, Serialize};
use zagros_protocol::control::{DataFile, Split};
use zagros_zip::number_from;

/// The number of splits per worker and epoch that the plan aims at. With so many, a lost worker's share is read again in
/// small parts, and all workers end an epoch within a hundredth of it. A worker that ends first only waits.
const SPLITS_PER_WORKER: u64 = 64;
/// Splits per epoch that the plan of shuffled files aims at. A shuffle window then holds the rows of many splits, from all
/// parts of the files.
const SHUFFLED_SPLITS: u64 = 4096;
/// The smallest split. With smaller splits the calls cost more than the re-reading that they save.
const LEAST_BYTES: u64 = 1 << 20;
/// The range of the smallest split of shuffled files, where smaller splits are shuffled better. One byte per row of the
/// window is a 32nd of the window where a row has 32 bytes.
const LEAST_SHUFFLED_BYTES: std::ops::RangeInclusive<u64> = 4 << 10..=64 << 10;
/// The smallest split of an object in a store, where each split costs requests and waiting for their answers.
const LEAST_OBJECT_BYTES: u64 = 4 << 20;
/// The largest split. With larger splits a lost worker costs too much.
const MOST_BYTES: u64 = 64 << 20;
/// Splits of a plan beyond one per file. A run of more than 32 TiB has larger splits. A split takes memory in the
/// coordinator, and about 30 bytes of each message that holds the whole plan.
pub(crate) const MOST_SPLITS: usize = 1 << 19;
/// Splits per worker that a small file is divided into, so that every worker reads some.
const SPLITS_OF_LITTLE: u64 = 8;
/// The smallest split of a small file, bytes: a row or more.
const TINY_BYTES: u64 = 512;
const NAMED: usize = 4;

/// Bytes `start .. end` of a file: the lines whose first byte lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRange {
    /// Index into the run's files.
    pub file: u32,
    pub start: u64,
    /// Past the last byte.
    pub end: u64,
}

impl SplitRange {
    pub(crate) fn on_wire(self, id: u64) -> Split {
        let Self { file, start, end } = self;
        Split { id, file, start, end }
    }
}

/// In which order an epoch deals out its splits. The order is a function of (seed, epoch, split) alone (invariant SP-3). A
/// resumed run therefore deals out the remaining splits in the order of the first run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SplitOrder {
    #[default]
    AsInFiles,
    /// Another permutation for each epoch.
    Shuffled {
        seed: u64,
        /// Rows of the workers' shuffle window. A smaller window needs smaller splits.
        window_rows: u64,
    },
}

/// The position of a split in the order in which an epoch deals out its splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DealPosition {
    key: u64,
    /// Index into the plan. It makes positions unique.
    pub(crate) split: u32,
}

impl SplitOrder {
    pub(crate) fn position(self, epoch: u32, split: u32) -> DealPosition {
        let key = match self {
            Self::AsInFiles => u64::from(split),
            Self::Shuffled { seed, .. } => mix(mix(seed) ^ mix(u64::from(epoch) << 32 | u64::from(split))),
        };
        DealPosition { key, split }
    }
}

/// SplitMix64 (Steele, Lea & Flood 2014): neighbouring inputs have unrelated outputs.
fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Divides files into near-equal ranges, in file order, without gap or overlap (invariant SP-1). A file that cannot be
/// split is one range.
///
/// A range has at most clamp(total / (workers × 64), 1 MiB, 64 MiB) bytes. For shuffled files the limit is
/// clamp(total / max(workers × 64, 4096), 4 to 64 KiB, 64 MiB), and of an object in a store at least 4 MiB. A range also has at most an eighth of a worker's share of
/// the data, unless that is less than 512 bytes. If this makes more than [`MOST_SPLITS`] ranges, they are larger.
pub fn plan_splits(files: &[DataFile], workers: u32, order: SplitOrder) -> Vec<SplitRange> {
    let (total, workers) = (total_bytes(files), u64::from(workers.max(1)));
    let (splits, least) = match order {
        SplitOrder::AsInFiles => (workers * SPLITS_PER_WORKER, LEAST_BYTES),
        SplitOrder::Shuffled { window_rows, .. } => {
            let (start, end) = LEAST_SHUFFLED_BYTES.into_inner();
            ((workers * SPLITS_PER_WORKER).max(SHUFFLED_SPLITS), window_rows.clamp(start, end))
        }
    };
    let most = (total / splits).clamp(least, MOST_BYTES);
    let share = (total / (workers * SPLITS_OF_LITTLE)).max(TINY_BYTES);
    // Fits into u64: fewer than 2^18 files of fewer than 2^64 bytes each, divided by 2^19.
    let fewest = whole_bytes(files).div_ceil(MOST_SPLITS as u128) as u64;
    let most_of = |file: &DataFile| {
        let most = if is_object(file) { most.max(LEAST_OBJECT_BYTES) } else { most };
        most.min(share).max(fewest)
    };
    number_from(0, files).flat_map(|(index, file)| divide(index, file, most_of(file))).collect()
}

fn is_object(file: &DataFile) -> bool {
    file.path.contains("://")
}

/// The workers that have no or little data to read, in words, with what to do; `None` if each has at least half of an even
/// share.
pub(crate) fn uneven_shares(plan: &[SplitRange], files: &[DataFile], workers: u32) -> Option<String> {
    let workers = workers.max(1);
    let mut shares = vec![0_u64; workers as usize];
    for (index, split) in plan.iter().enumerate() {
        let share = &mut shares[index % workers as usize];
        *share = share.saturating_add(split.end - split.start);
    }
    let even = total_bytes(files) / u64::from(workers);
    let few: Vec<String> = number_from(0, &shares).filter(|(_, share)| **share < even / 2).map(name_of).collect();
    if few.is_empty() {
        return None;
    }
    let indivisible = files.iter().filter(|file| !file.splittable).count();
    let why = match indivisible {
        0 => format!("the training files have {} bytes", total_bytes(files)),
        _ => format!(
            "{indivisible} of {} training files are compressed or have a single row group, and one worker reads such a file whole",
            files.len()
        ),
    };
    let next = match indivisible {
        0 => "set cluster.workers = 1 for so little data".to_owned(),
        _ => format!(
            "decompress the files, write them as {} or more files or row groups of equal size, or lower cluster.workers",
            workers * 4
        ),
    };
    Some(format!("{} of {workers} dense workers have too little to read ({}): {why}; {next}", few.len(), list(&few)))
}

fn name_of((worker, share): (u32, &u64)) -> String {
    format!("dense worker {worker} has {share} bytes")
}

fn list(few: &[String]) -> String {
    let more = few.len().checked_sub(NAMED).filter(|more| *more > 0).map(|more| format!(", {more} more"));
    format!("{}{}", few[..few.len().min(NAMED)].join(", "), more.unwrap_or_default())
}

fn total_bytes(files: &[DataFile]) -> u64 {
    u64::try_from(whole_bytes(files)).unwrap_or(u64::MAX)
}

/// In 128 bits: a process that joins may report any sizes.
fn whole_bytes(files: &[DataFile]) -> u128 {
    files.iter().map(|file| u128::from(file.bytes)).sum()
}

fn divide(file: u32, data: &DataFile, most: u64) -> impl Iterator<Item = SplitRange> + use<> {
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

    const SHUFFLED: SplitOrder = SplitOrder::Shuffled { seed: 7, window_rows: 32_768 };

    fn file(bytes: u64, splittable: bool) -> DataFile {
        DataFile { path: String::new(), bytes, splittable, fingerprint: 0 }
    }

    #[test]
    fn the_size_of_splits_is_that_of_the_files_the_workers_and_the_order() {
        let object = |bytes| DataFile { path: "s3://logs/a.csv".to_owned(), ..file(bytes, true) };
        let window = |window_rows| SplitOrder::Shuffled { seed: 1, window_rows };
        for (what, files, workers, order, splits) in [
            ("a GiB", vec![file(1 << 30, true)], 2, SHUFFLED, 4096),
            ("many workers have 64 each", vec![file(1 << 40, true)], 1024, SHUFFLED, 1024 * 64),
            ("without shuffling", vec![file(1 << 30, true)], 2, SplitOrder::AsInFiles, 128),
            ("an object is read in large parts", vec![object(1 << 30)], 2, SHUFFLED, 256),
            ("an object and a file", vec![object(16 << 20), file(16 << 20, true)], 1, SHUFFLED, 4 + 512),
            ("every worker reads some of an object", vec![object(8_000)], 2, SHUFFLED, 16),
            ("a window of a row", vec![file(4 << 20, true)], 1, window(1), 1024),
            ("a small window", vec![file(4 << 20, true)], 1, window(8_192), 512),
            ("a larger window", vec![file(4 << 20, true)], 1, window(32_768), 128),
            ("a window beyond the file", vec![file(4 << 20, true)], 1, window(1 << 30), 64),
            ("every worker reads some of a small file", vec![file(100_000, true)], 2, SplitOrder::AsInFiles, 16),
            ("a tiny file", vec![file(1_000, true)], 2, SHUFFLED, 2),
        ] {
            let plan = plan_splits(&files, workers, order);
            assert_eq!(plan.len(), splits, "{what}");
            let bytes = plan.iter().map(|split| split.end - split.start).collect::<std::collections::BTreeSet<_>>();
            assert!(bytes.len() == 1 || files[0].bytes < 1 << 30, "{what}: equal splits, not of {bytes:?} bytes");
        }
    }

    fn order(order: SplitOrder, epoch: u32, splits: u32) -> Vec<u32> {
        let mut positions: Vec<DealPosition> = (0..splits).map(|split| order.position(epoch, split)).collect();
        positions.sort_unstable();
        positions.into_iter().map(|position| position.split).collect()
    }

    /// Pinned: a run that resumes after an upgrade deals out the remaining splits in the order of the first run.
    #[test]
    fn the_order_is_one_for_each_seed_and_epoch() {
        let shuffled = |seed, epoch| order(SplitOrder::Shuffled { seed, window_rows: 9 }, epoch, 8);
        assert_eq!(order(SplitOrder::AsInFiles, 3, 4), [0, 1, 2, 3]);
        assert_eq!(shuffled(0, 0), [6, 4, 7, 3, 1, 2, 0, 5]);
        assert_eq!(shuffled(0, 0), shuffled(0, 0));
        assert_ne!(shuffled(0, 0), shuffled(0, 1));
        assert_ne!(shuffled(0, 0), shuffled(1, 0));
    }

    #[test]
    fn workers_with_too_little_to_read_are_named_with_what_to_do() {
        let warning =
            |files: &[DataFile], workers| uneven_shares(&plan_splits(files, workers, SHUFFLED), files, workers);
        let zipped = [file(900, false)];
        let whole = "1 of 2 dense workers have too little to read (dense worker 1 has 0 bytes): 1 of 1 training files are compressed or have a single row group, \
             and one worker reads such a file whole; decompress the files, write them as 8 or more files or row groups of equal size, \
             or lower cluster.workers";
        assert_eq!(warning(&zipped, 2).unwrap(), whole);
        let tiny = warning(&[file(600, true)], 9).unwrap();
        assert!(tiny.contains("7 of 9 dense workers"), "{tiny}");
        assert!(tiny.contains(", 3 more)"), "{tiny}");
        assert!(tiny.ends_with("for so little data"), "{tiny}");
        assert_eq!(warning(&zipped, 1), None);
        assert_eq!(warning(&[file(100_000, true)], 2), None);
        assert_eq!(warning(&[file(9, false), file(9, false)], 2), None);
        assert!(warning(&[file(9, false), file(1, false)], 2).is_some());
    }

    #[test]
    fn a_compressed_file_is_one_split_and_a_tiny_file_too() {
        let plan = plan_splits(&[file(9 << 30, false), file(0, true), file(5, true)], 4, SHUFFLED);
        let expected = [SplitRange { file: 0, start: 0, end: 9 << 30 }, SplitRange { file: 2, start: 0, end: 5 }];
        assert_eq!(plan, expected);
    }

    /// Regression: a plan once took thousands of gigabytes and ended the coordinator.
    #[test]
    fn the_plan_of_any_files_is_small() {
        let whole = [file(u64::MAX, true)];
        assert_eq!(plan_splits(&whole, 1, SHUFFLED).len(), MOST_SPLITS);
        let many = [(); 3].map(|()| file(u64::MAX, true));
        let plan = plan_splits(&many, 1024, SHUFFLED);
        assert!(plan.len() <= MOST_SPLITS + many.len(), "{} splits", plan.len());
        assert_eq!((plan[0].start, plan[plan.len() - 1].end), (0, u64::MAX));
    }

    proptest! {
        #[test]
        fn the_splits_are_the_files_in_order_without_gap_or_overlap(
            files in prop::collection::vec((0_u64..3 << 30, any::<bool>()), 0..6), workers in 1_u32..9
        ) {
            let files: Vec<_> = files.into_iter().map(|(bytes, splittable)| file(bytes, splittable)).collect();
            let plan = plan_splits(&files, workers, SHUFFLED);
            let mut splits = plan.iter();
            for (index, data) in number_from(0, &files) {
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
            let eighth = (bytes / (u64::from(workers) * SPLITS_OF_LITTLE)).max(TINY_BYTES);
            for split in plan_splits(&[file(bytes, true)], workers, SplitOrder::AsInFiles) {
                prop_assert!(split.end - split.start <= share.min(eighth), "{split:?}");
            }
        }

        #[test]
        fn an_epoch_deals_out_every_split_once_and_hardly_any_neighbours_in_a_row(seed: u64, epoch in 0_u32..100) {
            let found = order(SplitOrder::Shuffled { seed, window_rows: 9 }, epoch, 256);
            let neighbours = found.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
            prop_assert!(neighbours < 20, "{} neighbours stay neighbours", neighbours);
            let mut sorted = found;
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..256).collect::<Vec<_>>());
        }
    }
}
