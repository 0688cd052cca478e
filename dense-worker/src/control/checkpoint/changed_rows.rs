//! Whether rows that were trained on are still the same.

use std::collections::VecDeque;
use std::sync::Arc;

use zagros_ingest::{BatchStream, DataPart, IngestError, SplitSource, SplitTask, StreamOptions, StreamStart};
use zagros_job::Job;

struct SplitList(VecDeque<SplitTask>);

impl SplitSource for SplitList {
    fn next(&mut self) -> Result<Option<SplitTask>, String> {
        Ok(self.0.pop_front())
    }
}

/// The first split whose rows have another hash than the one beside it.
pub(super) fn changed_split(job: &Job, splits: Vec<(SplitTask, u64)>) -> Result<Option<SplitTask>, IngestError> {
    if splits.is_empty() {
        return Ok(None);
    }
    let bytes: u64 = splits.iter().map(|(task, _)| task.end.saturating_sub(task.start)).sum();
    tracing::info!(splits = splits.len(), bytes, "files were written since the checkpoint; comparing rows");
    let mut job = job.clone();
    (job.data.shuffle_rows, job.data.max_bad_rows) = (0, u64::MAX);
    let options = StreamOptions {
        part: DataPart::Train,
        epoch: 0,
        start: StreamStart::default(),
        bad_rows: 0,
        cancel: Arc::default(),
    };
    let tasks = SplitList(splits.iter().map(|(task, _)| task.clone()).collect());
    for batch in BatchStream::open(&job, options, Box::new(tasks))? {
        for end in batch?.completes {
            let other = splits.iter().find(|(task, content)| task.id == end.split && *content != end.content);
            if let Some((task, _)) = other {
                return Ok(Some(task.clone()));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use zagros_job::Overrides;

    use super::*;

    const ROWS: u64 = 20_000;

    fn job(folder: &Path) -> Job {
        let text = "[data]\nformat = 'delimited'\ntrain = 'rows.csv'\ntest_fraction = 0.1\n\
                    [features]\nlabel = 'click'\nnumeric = ['age']\ncategorical = ['city']\n[model]\nkind = 'ffnn'\n";
        Job::parse(text, &folder.join("job.toml"), &Overrides::none()).unwrap()
    }

    /// Rows whose label and values a function of their number and of the usual values changes, and always so many bytes.
    fn write(folder: &Path, change: impl Fn(u64, [u64; 3]) -> [u64; 3]) -> u64 {
        let row = |row: u64| {
            let [click, age, city] = change(row, [row % 2, row % 89, row * 7 % 1_000]);
            format!("{click},{age:02},c{city:03}\n")
        };
        let text = "click,age,city\n".to_owned() + &(0..ROWS).map(row).collect::<String>();
        std::fs::write(folder.join("rows.csv"), &text).unwrap();
        text.len() as u64
    }

    #[test]
    fn rows_that_changed_in_a_file_of_the_same_size_are_found_and_the_same_rows_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let (job, bytes) = (job(folder.path()), write(folder.path(), |_, values| values));
        let task = |id: u64| {
            let (start, end) = (id * bytes / 32, (id + 1) * bytes / 32);
            (SplitTask { id, path: job.data.train[0].clone(), start, end }, 0)
        };
        let mut splits: Vec<_> = (0..32).map(task).collect();
        let first = |splits: &[(SplitTask, u64)]| changed_split(&job, splits.to_vec()).unwrap().map(|task| task.id);
        // What a run has noted is what it finds: one split after the other is given its hash.
        for index in 0..splits.len() {
            assert_eq!(first(&splits), Some(index as u64));
            splits[index].1 = read(&job, &splits[index].0);
        }
        assert_eq!(first(&splits), None);
        assert_eq!(write(folder.path(), |_, values| values), bytes);
        assert_eq!(first(&splits), None, "the same rows, written again");
        let middle = |row: u64| (9_680..10_320).contains(&row);
        write(folder.path(), |row, [click, age, city]| [click, if middle(row) { 88 - age } else { age }, city]);
        assert_eq!(first(&splits), Some(15), "3.2 % of the file in its middle");
        let is_kept = |row: u64| row.is_multiple_of(30);
        write(folder.path(), |row, [click, age, city]| [if is_kept(row) { click } else { 1 - click }, age, city]);
        assert_eq!(first(&splits), Some(0), "96.6 % of the labels");
    }

    fn read(job: &Job, task: &SplitTask) -> u64 {
        let options = StreamOptions {
            part: DataPart::Train,
            epoch: 1,
            start: StreamStart::default(),
            bad_rows: 0,
            cancel: Arc::default(),
        };
        let tasks = SplitList(VecDeque::from([task.clone()]));
        let mut batches = BatchStream::open(job, options, Box::new(tasks)).unwrap();
        batches.find_map(|batch| Some(batch.unwrap().completes.first()?.content)).unwrap()
    }
}
