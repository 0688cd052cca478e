//! Splits: byte ranges of files, dealt out one after another, and a hash of the rows of each as they are read.

use std::collections::VecDeque;
use std::path::PathBuf;

use zagros_zip::ZipEq;

use crate::Batch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    pub path: PathBuf,
    /// Size on disk, bytes.
    pub bytes: u64,
    /// Whether reading can start in the middle. It cannot in gzip.
    pub splittable: bool,
}

/// The lines of a file whose first byte is in `[start, end)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitTask {
    /// The id that [`crate::Batch::completes`] reports.
    pub id: u64,
    pub path: PathBuf,
    pub start: u64,
    /// One past the last byte. A value past the end of the file means its end. Ignored for gzip files, which are read
    /// whole.
    pub end: u64,
}

/// Deals out splits. The reading thread calls it, and it may block that thread.
pub trait SplitSource: Send {
    /// The next split; `None` if there is nothing to read now.
    ///
    /// After `None` the stream delivers everything that it holds, in a short batch if need be, and ends. A source with
    /// leased splits must therefore not wait here until the splits of *this* stream are complete: they cannot be, because
    /// their last rows may wait for a full batch. It returns `None`, and its owner opens another stream when there are more
    /// splits.
    ///
    /// # Errors
    /// A message that says what failed and what to do. It ends the stream.
    fn next(&mut self) -> Result<Option<SplitTask>, String>;
}

/// Every file whole, in order: for evaluation, and for epochs of a single process.
#[derive(Clone, Debug)]
pub struct WholeFiles {
    tasks: VecDeque<SplitTask>,
}

impl WholeFiles {
    /// Split ids are positions in `files`.
    pub fn new(files: &[FileInfo]) -> Self {
        let task = |(id, file): (usize, &FileInfo)| SplitTask {
            id: id as u64,
            path: file.path.clone(),
            start: 0,
            end: file.bytes,
        };
        Self { tasks: files.iter().enumerate().map(task).collect() }
    }

    /// The part of rank `rank` of `world`: an equal share of the bytes of each file that can be divided; any other file
    /// whole or not at all. All parts together are [`Self::new`], and each line is in one of them.
    pub fn rank_share(files: &[FileInfo], rank: u32, world: u32) -> Self {
        let mut whole = Self::new(files);
        // u128: a product of a byte count.
        let bound = |end: u64, part: u32| (u128::from(end) * u128::from(part) / u128::from(world.max(1))) as u64;
        for (task, file) in whole.tasks.iter_mut().zip_eq(files).filter(|(_, file)| file.splittable) {
            let (start, end) = (bound(file.bytes, rank), bound(file.bytes, rank + 1));
            (task.start, task.end) = (start, end);
        }
        let mut indivisible = 0;
        let mut splittable = files.iter().map(|file| file.splittable);
        whole.tasks.retain(|task| {
            if splittable.next() == Some(true) {
                return task.end > task.start;
            }
            indivisible += 1;
            (indivisible - 1) % world.max(1) == rank
        });
        whole
    }
}

impl SplitSource for WholeFiles {
    fn next(&mut self) -> Result<Option<SplitTask>, String> {
        Ok(self.tasks.pop_front())
    }
}

/// The distance of rows all of whose values count.
const EVERY: u64 = 16;

/// A hash of the rows of a split as they are read, by which a later run knows whether they are still the same.
///
/// Every label counts, and all values of every 16th row: labels that were corrected and a stretch of the file that was written anew
/// are both noticed, for a hundredth of the time that parsing takes. The hash depends on the order of the rows in the file alone:
/// not on blocks, threads or shuffling.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SplitHash {
    rows: u64,
    labels: u64,
    values: u64,
}

impl SplitHash {
    /// Adds rows in the order of the file.
    pub(crate) fn add(&mut self, batch: &Batch) {
        for label in &batch.labels {
            mix(&mut self.labels, label.to_bits().into());
        }
        let first = (EVERY - self.rows % EVERY) % EVERY;
        for row in (first as usize..batch.size).step_by(EVERY as usize) {
            let width = batch.numeric.len() / batch.size;
            let numbers = &batch.numeric[row * width..(row + 1) * width];
            numbers
                .iter()
                .chain(batch.weights.get(row))
                .for_each(|number| mix(&mut self.values, number.to_bits().into()));
            for column in &batch.categorical {
                let (ids, range) = (column.sample_ids(row), column.sample_range(row));
                ids.iter().for_each(|id| mix(&mut self.values, *id));
                let weights = column.weights.get(range).unwrap_or_default();
                weights.iter().for_each(|weight| mix(&mut self.values, weight.to_bits().into()));
                mix(&mut self.values, ids.len() as u64);
            }
        }
        self.rows += batch.size as u64;
    }

    /// The hash, at the end of the split.
    pub(crate) fn finish(self) -> u64 {
        let mut hash = self.rows;
        mix(&mut hash, self.labels);
        mix(&mut hash, self.values);
        hash
    }
}

/// A step of FxHash: neither numbers nor hashed ids are chosen to collide.
#[inline]
fn mix(state: &mut u64, value: u64) {
    *state = (state.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::row::RowParser;
    use crate::parse::sink::BatchSink;
    use crate::{DataPart, SplitEnd, StreamOptions, fixture};

    #[test]
    fn shares_are_the_files_without_gap_or_overlap() {
        let file = |path: &str, bytes, splittable| FileInfo { path: path.into(), bytes, splittable };
        let files = [file("a", 10, true), file("b.gz", 7, false), file("c.gz", 7, false), file("d", 1, true)];
        let part = |rank| WholeFiles::rank_share(&files, rank, 3).tasks;
        let bytes = |rank: u32| part(rank).into_iter().map(|task| (task.id, task.start, task.end)).collect::<Vec<_>>();
        assert_eq!(bytes(0), [(0, 0, 3), (1, 0, 7)]);
        assert_eq!(bytes(1), [(0, 3, 6), (2, 0, 7)]);
        assert_eq!(bytes(2), [(0, 6, 10), (3, 0, 1)]);
        assert_eq!(WholeFiles::rank_share(&files, 0, 1).tasks, WholeFiles::new(&files).tasks);
    }

    /// Rows of a text in two splits, and the hash of each.
    fn hashes(text: &str, threads: usize, shuffle_rows: usize) -> Vec<u64> {
        let (_folder, path) = fixture::file(text);
        let mut job = fixture::criteo();
        (job.data.threads, job.data.shuffle_rows) = (threads, shuffle_rows);
        let options = StreamOptions { epoch: 3, ..StreamOptions::new(DataPart::Train) };
        let stream = fixture::stream(&job, options, fixture::cut(&path, vec![9_000]));
        let mut ends: Vec<SplitEnd> = stream.flat_map(|batch| batch.unwrap().completes).collect();
        ends.sort_by_key(|end| end.split);
        ends.iter().map(|end| end.content).collect()
    }

    fn lines(change: impl Fn(u64, String) -> String) -> String {
        (0..300).map(|row| change(row, fixture::criteo_line(row)) + "\n").collect()
    }

    #[test]
    fn any_label_and_any_stretch_of_rows_changes_the_hash_of_its_split() {
        let original = hashes(&lines(|_, line| line), 2, 0);
        assert_eq!(original, hashes(&lines(|_, line| line), 1, 40), "whatever the order of training");
        let other = hashes(&lines(|row, line| if row == 251 { format!("1{}", &line[1..]) } else { line }), 2, 0);
        assert!(other[0] == original[0] && other[1] != original[1], "a label");
        let stretch = |row| (10..26).contains(&row);
        let swapped =
            hashes(&lines(|row, line| if stretch(row) { fixture::criteo_line(row + 18_018) } else { line }), 2, 0);
        assert!(swapped[0] != original[0] && swapped[1] == original[1], "rows of the same length");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn the_hash_does_not_depend_on_blocks(mut cuts in prop::collection::vec(0_usize..100, 0..6)) {
            let job = fixture::criteo();
            let sink = BatchSink::new(&job.features, DataPart::All);
            let text = lines(|_, line| line);
            let rows: Vec<&str> = text.split_inclusive('\n').take(100).collect();
            let positions = fixture::positions(&job);
            let hash = |cuts: &[usize]| {
                let (mut hash, mut from) = (SplitHash::default(), 0);
                for to in cuts.iter().copied().chain([100]) {
                    let mut sink = sink.clone();
                    let block = rows[from..to].concat();
                    RowParser::new(&job, DataPart::All).parse((block.as_bytes(), 0), &positions, &mut sink);
                    hash.add(&sink.rows);
                    from = to;
                }
                hash.finish()
            };
            cuts.sort_unstable();
            prop_assert_eq!(hash(&cuts), hash(&[]));
        }
    }
}
