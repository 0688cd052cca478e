//! From a job file to batches, through the public functions only.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;
use zagros_ingest::{
    Batch, BatchStream, DataPart, IngestError, SplitTask, StreamOptions, WholeFiles, find_files, hash_value,
};
use zagros_job::{Job, Overrides, Scaling};

use crate::{Dealt, read};

const JOB: &str = r#"
[data]
format = "delimited"
delimiter = ","
header = true
train = ["a.csv", "b.csv"]
test_fraction = 0.25

[features]
label = { column = "click", positive = ["1"], negative = ["0"] }
numeric = [{ column = "age", standardise = true }]
categorical = ["city", { column = "tags", separator = "|", pooling = "mean" }]

[model]
kind = "ffnn"
hidden = [8]

[train]
batch_size = 16
"#;

struct Bench {
    folder: TempDir,
}

impl Bench {
    /// `b.csv` has its columns in another order, and one more column.
    fn new() -> Self {
        let bench = Self { folder: TempDir::new().unwrap() };
        let a: String = (0..300).map(|n| format!("{},{n},c{},a|t{n}\n", n % 2, n % 7)).collect();
        let b: String = (300..500).map(|n| format!("more,c{},t{n},{n},{}\r\n", n % 7, n % 2)).collect();
        bench.write("a.csv", format!("click,age,city,tags\n{a}").as_bytes());
        bench.write("b.csv", format!("\u{feff}more,city,tags,age,click\r\n{b}").as_bytes());
        bench.write("job.toml", JOB.as_bytes());
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    fn job(&self) -> Job {
        Job::load(&self.path("job.toml"), &Overrides::none()).unwrap()
    }

    /// Replaces a file by its gzip form. Returns its size.
    fn compress(&self, name: &str) -> u64 {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&fs::read(self.path(name)).unwrap()).unwrap();
        let bytes = encoder.finish().unwrap();
        self.write(name, &bytes);
        bytes.len() as u64
    }
}

/// Ids of the `city` column and the ages, in order.
fn columns(batches: &[Batch]) -> (Vec<u64>, Vec<f32>) {
    let cities = batches.iter().flat_map(|batch| batch.categorical[0].ids.clone()).collect();
    (cities, batches.iter().flat_map(|batch| batch.numeric.clone()).collect())
}

#[test]
fn files_with_their_columns_in_any_order_are_one_stream() {
    let bench = Bench::new();
    let mut job = bench.job();
    job.features.numeric[0].standardise = Scaling::NO;
    let batches = read(&job, DataPart::All).unwrap();
    let (cities, ages) = columns(&batches);
    assert_eq!(ages, (0..500_u16).map(f32::from).collect::<Vec<_>>());
    assert_eq!(cities, (0..500).map(|n| hash_value(format!("c{}", n % 7).as_bytes())).collect::<Vec<_>>());
    let last = batches.last().unwrap();
    assert_eq!((last.size, last.completes[0].split), (500 % 16, 1));
    assert_eq!(last.categorical[1].sample_ids(last.size - 1), [hash_value(b"t499")]);
}

#[test]
fn compressed_files_give_the_same_batches_and_count_their_own_bytes() {
    let bench = Bench::new();
    let plain = read(&bench.job(), DataPart::Train).unwrap();
    let bytes = bench.compress("a.csv") + bench.compress("b.csv");
    let zipped = read(&bench.job(), DataPart::Train).unwrap();
    assert_eq!(columns(&plain), columns(&zipped));
    assert_eq!(zipped.iter().map(|batch| batch.bytes).sum::<u64>(), bytes);
}

#[test]
fn a_gzip_file_is_not_read_from_its_middle() {
    let bench = Bench::new();
    bench.compress("a.csv");
    let middle = SplitTask { id: 0, path: bench.path("a.csv"), start: 100, end: 200 };
    let (options, splits) = (StreamOptions::new(DataPart::All), Box::new(Dealt(vec![middle].into_iter())));
    let mut stream = BatchStream::open(&bench.job(), options, splits).unwrap();
    let error = stream.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("cannot be read from byte 100 on"), "{error}");
}

#[test]
fn a_cancelled_stream_does_not_look_finished() {
    let bench = Bench::new();
    let (job, options) = (bench.job(), StreamOptions::new(DataPart::All));
    let cancel = Arc::clone(&options.cancel);
    let infos = find_files(&job, &job.data.train).unwrap();
    let mut stream = BatchStream::open(&job, options, Box::new(WholeFiles::new(&infos))).unwrap();
    assert!(stream.next().unwrap().is_ok());
    cancel.store(true, Ordering::Relaxed);
    // Batches that were already assembled may still come.
    let last = stream.by_ref().last().unwrap();
    assert!(matches!(last, Err(IngestError::Cancelled)), "{last:?}");
    assert!(stream.next().is_none());
}

#[test]
fn a_file_that_vanishes_after_the_check_is_named() {
    let bench = Bench::new();
    let job = bench.job();
    let infos = find_files(&job, &job.data.train).unwrap();
    fs::remove_file(bench.path("b.csv")).unwrap();
    let mut stream = BatchStream::open_files(&job, DataPart::All, &infos).unwrap();
    let error = stream.by_ref().map(|batch| batch.map(drop)).find_map(Result::err).unwrap().to_string();
    assert!(error.contains("b.csv: No such file"), "{error}");
    assert!(stream.next().is_none(), "a stream ends after an error");
}
