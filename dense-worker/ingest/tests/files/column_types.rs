//! Parquet and Arrow files that pyarrow wrote (`fixtures/write.py`): every kind of value, every codec.

use std::path::Path;

use zagros_ingest::{Batch, DataPart, find_files, hash_value, validate_rows};
use zagros_job::{Job, Overrides};

fn job(file: &str, features: &str) -> Job {
    let format = file.rsplit('.').next().unwrap_or_default();
    let text = format!(
        "[data]\nformat = '{format}'\ntrain = 'fixtures/{file}'\nshuffle_rows = 0\n[features]\nlabel = 'click'\n{features}\n\
         [model]\nkind = 'ffnn'\n[train]\nbatch_size = 60\n"
    );
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    Job::parse(&text, &tests.join("job.toml"), &Overrides::none()).unwrap()
}

fn read(file: &str, features: &str) -> Batch {
    let batch = crate::read(&job(file, features), DataPart::Train).unwrap().remove(0);
    assert_eq!((batch.size, batch.completes[0].rows), (60, 60));
    batch
}

fn assert_ids(batch: &Batch, column: usize, texts: impl Fn(u64) -> Vec<String>) {
    for row in 0..60 {
        let texts = texts(row);
        let expected: Vec<u64> = texts.iter().map(|text| hash_value(text.as_bytes())).collect();
        let found = batch.categorical[column].sample_ids(row as usize);
        assert_eq!(found, expected, "column {column}, row {row}: {texts:?}");
    }
}

fn unless_null(n: u64, every: u64, text: String) -> String {
    if n.is_multiple_of(every) { String::new() } else { text }
}

/// The day `n` days after 2026-01-01, for the first 60.
fn day(n: u64) -> String {
    match n {
        0..31 => format!("2026-01-{:02}", n + 1),
        31..59 => format!("2026-02-{:02}", n - 30),
        _ => "2026-03-01".into(),
    }
}

const CATEGORIES: &str = "categorical = ['city', 'user.id', 'user.name', 'price', 'day', 'moment', 'clock', 'large',
    { column = 'tags', pooling = 'mean' }, { column = 'deep', pooling = 'sum' }, { column = 'items.sku', pooling = 'sum' }]";

/// All with the same rows.
const FILES: [&str; 10] = [
    "types.none.parquet",
    "types.snappy.parquet",
    "types.gzip.parquet",
    "types.zstd.parquet",
    "types.lz4.parquet",
    "types.none.arrow",
    "types.lz4.arrow",
    "types.zstd.arrow",
    "kinds.arrow",
    "types.stream.arrow",
];

#[test]
fn every_kind_of_value_has_the_id_of_its_text() {
    for file in FILES {
        let batch = read(file, CATEGORIES);
        assert_eq!(batch.labels, (0..60).map(|n| (n % 2) as f32).collect::<Vec<_>>());
        assert_ids(&batch, 0, |n| vec![unless_null(n, 3, format!("c{}", n % 7))]);
        assert_ids(&batch, 1, |n| vec![unless_null(n, 11, (n * 1_000_003).to_string())]);
        assert_ids(&batch, 2, |n| vec![unless_null(n, 11, format!("n{n}"))]);
        assert_ids(&batch, 3, |n| vec![format!("0.{n:02}")]);
        assert_ids(&batch, 4, |n| vec![day(n)]);
        assert_ids(&batch, 5, |n| vec![format!("{} 00:00:00.5", day(n).replace("2026", "1970"))]);
        assert_ids(&batch, 6, |n| vec![format!("{:02}:{n:02}:01", n % 24)]);
        assert_ids(&batch, 7, |n| vec![(u64::MAX - n).to_string()]);
        let tags = |n: u64| (0..n % 4).filter(|k| k % 3 != 0).map(|k| format!("t{}", n + k)).collect();
        assert_ids(&batch, 8, |n| if n % 7 == 0 { Vec::new() } else { tags(n) });
        assert_ids(&batch, 9, |n| (n..n + 3).map(|k| k.to_string()).collect());
        assert_ids(&batch, 10, |n| vec![format!("s{n}"); n as usize % 3]);
    }
}

#[test]
fn every_kind_of_number_is_a_number() {
    let features = "numeric = ['age', 'price', 'day', 'moment', 'clock', 'large', 'half']\ncategorical = ['city']";
    for (file, batch) in FILES.map(|file| (file, read(file, features))) {
        for row in 0..60 {
            let n = row as f64;
            let age = if row % 5 == 0 { 0.0 } else { n / 4.0 };
            let clock = (n % 24.0) * 3600.0 + n * 60.0 + 1.0;
            let expected = [age, n / 100.0, 20_454.0 + n, n * 86_400.0 + 0.5, clock, u64::MAX as f64, n / 2.0];
            assert_eq!(batch.numeric[row * 7..row * 7 + 7], expected.map(|value| value as f32), "{file}, row {row}");
        }
    }
}

#[test]
fn lists_are_vectors_and_weights() {
    let features = "numeric = [{ column = 'deep', width = 3 }]\n\
        categorical = [{ column = 'items.sku', weights = 'items.price', pooling = 'sum' }]";
    for (file, batch) in FILES.map(|file| (file, read(file, features))) {
        assert_ids(&batch, 0, |n| vec![format!("s{n}"); n as usize % 3]);
        let numbers: Vec<f32> = (0..60).flat_map(|n| [n, n + 1, n + 2].map(|n| n as f32)).collect();
        assert_eq!(batch.numeric, numbers, "{file}");
        let weights: Vec<f32> = (0..60).flat_map(|n| vec![n as f32; n % 3]).collect();
        assert_eq!(batch.categorical[0].weights, weights, "{file}");
    }
}

#[test]
fn old_timestamps_of_twelve_bytes_are_read() {
    let batch = read("int96.parquet", "numeric = ['moment']\ncategorical = ['city']");
    assert_eq!(batch.numeric[59], 59.0 * 86_400.0 + 0.5);
}

/// A folder of such parts is trained on: columns without a value agree with every kind, and a part without rows is one.
#[test]
fn parts_without_values_or_rows_are_parts() {
    let features = "numeric = ['age']\ncategorical = ['city', { column = 'tags', pooling = 'mean' }]";
    for file in ["nulls.parquet", "nulls.arrow"] {
        let batch = read(file, features);
        assert_eq!(batch.numeric, [0.0; 60]);
        assert_ids(&batch, 0, |_| vec![String::new()]);
        assert_ids(&batch, 1, |_| Vec::new());
    }
    let mut job = job("types.none.parquet", features);
    let fixture = |name: &str| job.data.train[0].with_file_name(name);
    job.data.train = ["types.none.parquet", "no_rows.parquet", "nulls.parquet"].map(fixture).to_vec();
    find_files(&job, &job.data.train).unwrap();
    assert_eq!(validate_rows(&job, 3).unwrap().good, 120);
    job.data.train.swap(0, 2);
    find_files(&job, &job.data.train).unwrap();
}

/// Pages of pyarrow have checksums here: a changed byte is no other value.
#[test]
fn a_page_whose_bytes_changed_is_refused() {
    let folder = tempfile::TempDir::new().unwrap();
    let good = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/types.none.parquet")).unwrap();
    let mut job = job("types.none.parquet", CATEGORIES);
    job.data.train = vec![folder.path().join("changed.parquet")];
    // Some bytes are headers, and those of columns that are not read.
    let refused = (4..good.len() / 2).step_by(9).filter(|at| {
        let mut bytes = good.clone();
        bytes[*at] ^= 0x10;
        std::fs::write(&job.data.train[0], &bytes).unwrap();
        validate_rows(&job, 3).is_err_and(|error| error.to_string().contains("CRC checksum mismatch"))
    });
    let refused = refused.count();
    assert!(refused > 20, "{refused}");
}

/// What is read twice has the same text, so a summary of the columns counts the same values.
#[test]
fn whole_files_are_good() {
    for file in FILES {
        let found = validate_rows(&job(file, CATEGORIES), 3).unwrap();
        assert_eq!((found.good, found.bad), (60, 0), "{:?}", found.first_bad);
    }
}
