//! Parquet and Arrow files of strangers: whole ones with some bytes changed, and pieces of them.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bolero::check;
use tempfile::TempDir;
use zagros_ingest::{
    BatchStream, DataPart, FileInfo, StreamOptions, StreamStart, WholeFiles, check_first_rows, find_files,
    fit_features, inspect_columns, validate_rows,
};
use zagros_job::{Job, Overrides};
use zagros_zip::ZipEq;

use crate::allocations::AllocatedBytes;

fn job_on(features: &str, format: &str) -> String {
    format!(
        r#"
[data]
format = "{format}"
train = "train"
max_bad_rows = 1000000
[model]
kind = "ffnn"
[features]
label = "click"{features}"#
    )
}

const KINDS: &str = r#"
numeric = ["age", "price", "half"]
categorical = ["city", "user.id", "moment", "large", { column = "tags", pooling = "mean" }, { column = "deep", pooling = "sum" }]
"#;

/// Lists as weights and as vectors: rows of empty lists are good.
const LISTS: &str = r#"
numeric = [{ column = "deep", width = 2, missing_indicator = true }]
categorical = [{ column = "tags", weights = "deep" }, { column = "tags", name = "same", weights = "tags", pooling = "mean" }]
"#;

/// Encoded categories, also of the parts of a cross, with sample weights.
const ENCODED: &str = r#"
weight = "age"
numeric = [
    { column = "city", encode = { by = "target", with = ["user.id", "range"] } },
    "half",
    { column = "moment", encode = { by = "count" } },
]
categorical = ["city", { column = "price", name = "range", buckets = [0, 1, 10] }, { column = "moment", name = "hour", date = "hour" }]
"#;

const FILES: [&[u8]; 5] = [
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/types.none.parquet"),
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/types.snappy.parquet"),
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/types.gzip.parquet"),
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/types.zstd.parquet"),
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/types.lz4.parquet"),
];

/// The same rows in Arrow files of pyarrow, one of which is a stream and one has them stored in other ways.
const ARROW_FILES: [&[u8]; 5] = [
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/types.none.arrow"),
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/types.lz4.arrow"),
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/types.zstd.arrow"),
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/kinds.arrow"),
    include_bytes!("../../../dense-worker/ingest/tests/fixtures/types.stream.arrow"),
];

/// What reading a file of 10 KB may take: the largest page that can be claimed, and what a slice of rows needs.
const MOST_BYTES: usize = (2 << 30) + (300 << 20);

struct FuzzedFile {
    job: Job,
    train: PathBuf,
    allocated: &'static AllocatedBytes,
    _folder: TempDir,
}

impl FuzzedFile {
    fn new(features: &str, format: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let job = Job::parse(&job_on(features, format), &folder.path().join("job.toml"), &Overrides::none())
            .expect("the job is good");
        Self { job, train: folder.path().join("train"), allocated: AllocatedBytes::new(), _folder: folder }
    }

    /// Rows that were read, by every reader; or nothing, with a reason.
    fn read(&self, bytes: &[u8]) -> Option<u64> {
        fs::write(&self.train, bytes).expect("room for a small file");
        self.allocated.count_this_thread();
        // In this thread, so that its memory is counted.
        let (first, most) = self.allocated.during(|| {
            let found = find_files(&self.job, &self.job.data.train)?;
            check_first_rows(&self.job, &found, DataPart::All).map(|()| found)
        });
        assert!(most < MOST_BYTES, "{most} bytes for a file of {}", bytes.len());
        let found = match first {
            Ok(found) => found,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return None;
            }
        };
        let rows = stream(&self.job, DataPart::All, &found);
        let validated = validate_rows(&self.job, 3).ok().map(|validation| validation.good);
        let inspected = inspect_columns(&self.job, None).ok().map(|columns| columns.rows);
        // A file without rows is an error of a stream alone.
        assert_eq!(rows.unwrap_or(0), validated.unwrap_or(0));
        assert_eq!(validated, inspected);
        let mut measured = self.job.clone();
        let fitted = fit_features(&mut measured, &AtomicU64::new(0), &Arc::default());
        // It reads the columns that it needs, and not the faults of the others.
        if !self.job.features.unmeasured_statistics().is_empty() {
            let trained = stream(&measured, DataPart::Train, &found).unwrap_or(0);
            assert!(fitted.is_ok_and(|report| report.rows >= trained) || trained == 0);
        }
        rows
    }
}

fn in_both_formats(features: &str) -> [FuzzedFile; 2] {
    ["parquet", "arrow"].map(|format| FuzzedFile::new(features, format))
}

/// Reads a file of each format with some bytes changed. Answers how many rows were good.
fn read_changed(files: &[FuzzedFile; 2], which: u8, changes: &[(u16, u8)]) -> u64 {
    let all: [&[&[u8]]; 2] = [&FILES, &ARROW_FILES];
    let read = |(file, of_format): (&FuzzedFile, &[&[u8]])| {
        let mut bytes = of_format[usize::from(which) % of_format.len()].to_vec();
        for (at, byte) in changes.iter().take(4) {
            let position = usize::from(*at) % bytes.len();
            bytes[position] ^= byte;
        }
        file.read(&bytes).unwrap_or(0)
    };
    files.iter().zip_eq(all).map(read).sum()
}

#[test]
fn changed_bytes_under_encodings_are_rows_or_a_reason() {
    let (files, read) = (AssertUnwindSafe(in_both_formats(ENCODED)), AtomicU64::new(0));
    check!().with_iterations(300).with_type::<(u8, Vec<(u16, u8)>)>().for_each(|(which, changes)| {
        read.fetch_add(read_changed(&files, *which, changes), Ordering::Relaxed);
    });
    assert!(read.into_inner() > 0, "some files are still good");
}

/// In the footer or not, where, and what is flipped there.
type Change = (bool, u16, u8);

/// Changes up to four bytes behind the first `head`.
fn change(bytes: &mut [u8], head: usize, footer: usize, changes: &[Change]) {
    for (in_footer, at, byte) in changes.iter().take(4) {
        let (start, length) = if *in_footer { (footer, bytes.len() - footer) } else { (head, footer - head) };
        bytes[start + usize::from(*at) % length] ^= byte;
    }
}

/// Noise between the start and a piece of one of the files, and a file of noise between two marks.
fn read_pieces(file: &FuzzedFile, files: &[&[u8]], (first, last): (&[u8], &[u8]), piece: &(u16, u16, Vec<u8>)) {
    let (start, length, noise) = piece;
    let whole = files[usize::from(*start) % files.len()];
    let start = usize::from(*start) % whole.len();
    let end = (start + usize::from(*length)).min(whole.len());
    file.read(&[&whole[..start], noise, &whole[start..end]].concat());
    file.read(&[first, &noise[..], &(noise.len() as u32).to_le_bytes()[..], last].concat());
}

#[test]
fn changed_bytes_of_a_parquet_file_are_rows_or_a_reason() {
    let (file, read) = (AssertUnwindSafe(FuzzedFile::new(KINDS, "parquet")), AtomicU64::new(0));
    // The footer is a fifth of the file; it decides what all other bytes mean, so half of the changes are there.
    check!().with_iterations(1_500).with_type::<(u8, Vec<Change>)>().for_each(|(which, changes)| {
        let mut bytes = FILES[usize::from(*which) % FILES.len()].to_vec();
        let footer = bytes.len() - 8 - footer_bytes(&bytes, 8);
        change(&mut bytes, 4, footer, changes);
        read.fetch_add(file.read(&bytes).unwrap_or(0), Ordering::Relaxed);
    });
    assert!(read.into_inner() > 0, "some files are still good");
}

#[test]
fn changed_bytes_of_lists_are_rows_or_a_reason() {
    let files = AssertUnwindSafe(in_both_formats(LISTS));
    check!().with_iterations(300).with_type::<(u8, Vec<(u16, u8)>)>().for_each(|(which, changes)| {
        read_changed(&files, *which, changes);
    });
}

#[test]
fn changed_bytes_of_an_arrow_file_are_rows_or_a_reason() {
    let (file, read) = (AssertUnwindSafe(FuzzedFile::new(KINDS, "arrow")), AtomicU64::new(0));
    // Half of the changes are in the footer, and some in what record batches say of themselves.
    check!().with_iterations(1_500).with_type::<(u8, Vec<Change>)>().for_each(|(which, changes)| {
        let mut bytes = ARROW_FILES[usize::from(*which) % ARROW_FILES.len()].to_vec();
        let is_file = bytes.starts_with(b"ARROW1");
        let footer = if is_file { bytes.len() - 10 - footer_bytes(&bytes, 10) } else { bytes.len() / 2 };
        change(&mut bytes, 8, footer, changes);
        read.fetch_add(file.read(&bytes).unwrap_or(0), Ordering::Relaxed);
    });
    assert!(read.into_inner() > 0, "some files are still good");
}

#[test]
fn pieces_of_files_are_rows_or_a_reason() {
    let files = AssertUnwindSafe(in_both_formats(KINDS));
    check!().with_iterations(300).with_type::<(u16, u16, Vec<u8>)>().for_each(|piece| {
        let [parquet, arrow] = &*files;
        read_pieces(parquet, &FILES, (b"PAR1", b"PAR1"), piece);
        read_pieces(arrow, &ARROW_FILES, (b"ARROW1\0\0", b"ARROW1"), piece);
    });
}

/// The rows of a part; `None` if they cannot be read.
fn stream(job: &Job, part: DataPart, found: &[FileInfo]) -> Option<u64> {
    let options = StreamOptions { part, epoch: 0, start: StreamStart::default(), bad_rows: 0, cancel: Arc::default() };
    let stream = BatchStream::open(job, options, Box::new(WholeFiles::new(found))).expect("threads start");
    stream.map(|batch| batch.map(|batch| batch.size as u64)).sum::<Result<u64, _>>().ok()
}

/// Of a file whose last bytes are the footer's length and `tail` less four bytes.
fn footer_bytes(bytes: &[u8], tail: usize) -> usize {
    let start = bytes.len() - tail;
    u32::from_le_bytes([bytes[start], bytes[start + 1], bytes[start + 2], bytes[start + 3]]) as usize
}
