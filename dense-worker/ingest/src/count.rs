//! How many rows the training part has: counted in small files, estimated by the first rows of large ones.

use std::sync::Arc;

use zagros_job::Job;

use crate::parse::BlockParser;
use crate::parse::sink::NullSink;
use crate::read::reader::{BlockReader, RowBlock};
use crate::{DataPart, FileInfo, IngestError, WholeFiles};

/// Bytes that are read of all files together.
const MOST_BYTES: u64 = 8 << 20;
/// Bytes that are read of each file at least: some hundred rows.
const LEAST_BYTES: u64 = 64 << 10;
/// Files that are read at most, evenly spread over all.
const MOST_FILES: usize = 64;
const BLOCK_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowCount {
    Counted(u64),
    /// By the rows and the bytes of what was read.
    Estimated(u64),
}

impl RowCount {
    pub fn rows(self) -> u64 {
        match self {
            Self::Counted(rows) | Self::Estimated(rows) => rows,
        }
    }
}

/// Rows of the training part in training files, without malformed ones. Reads 8 MiB, or 64 KiB of each of many files.
pub fn training_rows(job: &Job, files: &[FileInfo]) -> Result<RowCount, IngestError> {
    let step = files.len().div_ceil(MOST_FILES).max(1);
    let chosen: Vec<&FileInfo> = files.iter().step_by(step).collect();
    let most = (MOST_BYTES / chosen.len().max(1) as u64).max(LEAST_BYTES);
    let job = Arc::new(job.clone());
    let (mut rows, mut bytes, mut is_whole) = (0.0, 0, step == 1);
    for file in chosen {
        let part = read_part(&job, file, most)?;
        is_whole &= part.is_whole;
        rows += if part.is_whole {
            part.rows as f64
        } else {
            part.rows as f64 * file.bytes as f64 / part.bytes.max(1) as f64
        };
        bytes += file.bytes;
    }
    if is_whole {
        return Ok(RowCount::Counted(rows as u64));
    }
    let all: u64 = files.iter().map(|file| file.bytes).sum();
    Ok(RowCount::Estimated((rows * all as f64 / bytes.max(1) as f64).round() as u64))
}

struct ReadPart {
    rows: u64,
    /// Of the file.
    bytes: u64,
    is_whole: bool,
}

fn read_part(job: &Arc<Job>, file: &FileInfo, most: u64) -> Result<ReadPart, IngestError> {
    let mut parser = BlockParser::new(job, DataPart::Train);
    let whole = Box::new(WholeFiles::new(std::slice::from_ref(file)));
    let mut reader = BlockReader::new(Arc::clone(job), whole, BLOCK_BYTES, Arc::default());
    let (mut rows, mut bytes) = (0, 0);
    while bytes < most {
        let Some(RowBlock { layout, content, bytes: taken, completes, .. }) = reader.next_block(Vec::new())? else {
            return Ok(ReadPart { rows, bytes, is_whole: true });
        };
        bytes += taken;
        if completes.is_none() {
            rows += parser.parse(&layout, &content, &mut NullSink)?.rows;
        }
    }
    Ok(ReadPart { rows, bytes, is_whole: bytes >= file.bytes })
}

#[cfg(test)]
mod tests {
    use zagros_job::HeldOutRows;

    use super::*;
    use crate::{find_files, fixture};

    fn counted(text: &str, change: impl FnOnce(&mut Job)) -> RowCount {
        let (_folder, path) = fixture::file(text);
        let mut job = fixture::delimited(|_| ());
        job.data.train = vec![path];
        change(&mut job);
        let found = find_files(&job, &job.data.train).unwrap();
        training_rows(&job, &found).unwrap()
    }

    fn text(rows: usize) -> String {
        let row = |row: usize| format!("{},{},city{},x|y\n", row % 2, row % 90, row % 7);
        "click,age,city,tags\n".to_owned() + &(0..rows).map(row).collect::<String>()
    }

    #[test]
    fn rows_of_a_small_file_are_counted_without_held_out_and_malformed_ones() {
        assert_eq!(counted(&text(1000), |_| ()), RowCount::Counted(1000));
        let malformed = text(10) + "1,two,x,y\n";
        assert_eq!(counted(&malformed, |_| ()), RowCount::Counted(10));
        let RowCount::Counted(rows) = counted(&text(1000), |job| job.data.test = HeldOutRows::Share(0.25)) else {
            panic!("it was estimated")
        };
        assert!((700..800).contains(&rows), "{rows}");
    }

    #[test]
    fn rows_of_a_large_file_are_estimated() {
        let RowCount::Estimated(rows) = counted(&text(900_000), |_| ()) else { panic!("it was counted") };
        assert!((880_000..920_000).contains(&rows), "{rows}");
    }

    #[test]
    fn of_many_files_some_are_read() {
        let (folder, path) = fixture::file(text(100));
        let paths: Vec<_> = (0..200).map(|number| folder.path().join(format!("{number}.csv"))).collect();
        paths.iter().for_each(|copy| {
            std::fs::copy(&path, copy).unwrap();
        });
        let job = fixture::delimited(|_| ());
        let found = find_files(&job, &paths).unwrap();
        assert_eq!(training_rows(&job, &found).unwrap(), RowCount::Estimated(20_000));
        assert_eq!(training_rows(&job, &found[..10]).unwrap(), RowCount::Counted(1000));
    }
}
