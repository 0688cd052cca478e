//! Splits: byte ranges of files, dealt out one after another.

use std::collections::VecDeque;
use std::path::PathBuf;

use zagros_zip::ZipEq;

/// A data file.
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
    #[must_use]
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
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
