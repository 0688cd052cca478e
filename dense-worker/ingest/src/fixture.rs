//! Jobs and files for the tests of this crate.

use std::fs;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use csv_core::{ReadRecordResult, ReaderBuilder};
use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;
use zagros_fakes::s3::FakeS3;
use zagros_job::{
    Categorical, CategoryEncoding, DelimitedFormat, EncodeBy, EncodingTable, Format, Job, Numeric, Overrides, PoolAt,
    Pooling, Values,
};

use crate::read::layout::ColumnPositions;
use crate::read::records::RecordSyntax;
use crate::source::use_store;
use crate::split::SplitSource;
use crate::{Batch, BatchStream, DataPart, IngestError, SplitTask, StreamOptions, find_files};

/// Of a job, only what reads data is looked at here.
static CRITEO: LazyLock<Job> = LazyLock::new(|| {
    let text = "[data]\nformat = 'criteo'\ntrain = 'a.txt'\nthreads = 2\nshuffle_rows = 0\n[train]\nbatch_size = 8\n";
    let mut job = Job::parse(text, Path::new("/jobs/job.toml"), &Overrides::none()).unwrap();
    job.data.train.clear();
    job
});

/// A job over Criteo's format: logarithms, no standardisation.
pub(crate) fn criteo() -> Job {
    CRITEO.clone()
}

/// A job over CSV files with a header: `click`, a number `age`, a category `city`, a bag `tags`
/// separated by `|`; `?` is missing.
pub(crate) fn delimited(change: impl FnOnce(&mut DelimitedFormat)) -> Job {
    let mut format = DelimitedFormat {
        delimiter: b',',
        header: true,
        columns: Vec::new(),
        comment: None,
        trim: false,
        quoted_breaks: false,
        decimal: zagros_job::DecimalMark::Point,
        missing: vec!["?".into()],
    };
    change(&mut format);
    let (pooling, pool_at) = (Pooling::Mean, PoolAt::Worker);
    let bag = Values::Many { separator: "|".into(), pooling, pool_at, weights: None };
    let tags = Categorical { values: bag, ..Categorical::of_column("tags", 1) };
    let mut job = criteo();
    job.data.format = Format::Delimited(format);
    job.features.targets = vec!["click".into()];
    job.features.numeric = vec![Numeric { missing: -1.0, ..Numeric::from("age".to_owned()) }];
    job.features.categorical = vec![Categorical::of_column("city", 0), tags];
    job
}

/// An encoding by mean label in two folds.
pub(crate) fn encoding(fitted: Option<EncodingTable>) -> CategoryEncoding {
    let (by, with) = (EncodeBy::Target, Vec::new());
    CategoryEncoding { by, with, smoothing: None, folds: Some(2), max_size: 9, fitted }
}

/// How records with quoted line breaks are written.
pub(crate) fn quoted_records() -> RecordSyntax {
    let Format::Delimited(format) = delimited(|format| format.quoted_breaks = true).data.format else {
        panic!("not delimited")
    };
    RecordSyntax::from_format(&format).unwrap()
}

struct DealtSplits<F>(F);

impl<F: FnMut() -> Result<Option<SplitTask>, String> + Send> SplitSource for DealtSplits<F> {
    fn next(&mut self) -> Result<Option<SplitTask>, String> {
        (self.0)()
    }
}

/// Splits as a function gives them.
pub(crate) fn make_splits(
    next: impl FnMut() -> Result<Option<SplitTask>, String> + Send + 'static,
) -> Box<dyn SplitSource> {
    Box::new(DealtSplits(next))
}

/// Splits that are dealt in this order.
pub(crate) fn deal_splits(tasks: Vec<SplitTask>) -> Box<dyn SplitSource> {
    let mut tasks = tasks.into_iter();
    make_splits(move || Ok(tasks.next()))
}

/// The splits of a file that its start, these places and its end bound.
pub(crate) fn cut(path: &Path, mut borders: Vec<u64>) -> Vec<SplitTask> {
    borders.extend([0, u64::MAX]);
    borders.sort_unstable();
    borders.dedup();
    let task =
        |(id, pair): (usize, &[u64])| SplitTask { id: id as u64, path: path.into(), start: pair[0], end: pair[1] };
    borders.windows(2).enumerate().map(task).collect()
}

/// One split with the whole file.
pub(crate) fn whole(path: &Path) -> Vec<SplitTask> {
    cut(path, Vec::new())
}

/// The stream of splits that are dealt in this order.
pub(crate) fn stream(job: &Job, options: StreamOptions, tasks: Vec<SplitTask>) -> BatchStream {
    BatchStream::open(job, options, deal_splits(tasks)).unwrap()
}

/// All rows of a file, or of an object, in three splits.
pub(crate) fn read_thirds(job: &Job, path: &str) -> Result<Vec<Batch>, IngestError> {
    let path = PathBuf::from(path);
    let bytes = find_files(job, std::slice::from_ref(&path))?[0].bytes;
    stream(job, StreamOptions::new(DataPart::All), cut(&path, vec![bytes / 3, bytes * 2 / 3])).collect()
}

/// A store's object with these bytes gives the batches of a file with them, by as many requests, for any number of threads.
/// Returns its rows.
pub(crate) fn read_object(bucket: &str, content: &[u8], job: &Job, requests: Range<usize>) -> usize {
    let (store, root) = (FakeS3::start(bucket), format!("s3://{bucket}"));
    use_store(&root, &store);
    store.put_object("day/a", content.to_vec());
    let (_folder, path) = file(content);
    let read = |path: &str, threads: usize| {
        let mut job = job.clone();
        job.data.threads = threads;
        read_thirds(&job, path).unwrap()
    };
    let expected = read(path.to_str().unwrap(), 1);
    for threads in [1, 3] {
        assert_eq!(read(path.to_str().unwrap(), threads), expected);
        let earlier_requests = store.request_log().len();
        assert_eq!(read(&format!("{root}/day/a"), threads), expected);
        let found = store.request_log().len() - earlier_requests;
        assert!(requests.contains(&found), "{found} requests");
    }
    expected.iter().map(|batch| batch.size).sum()
}

/// All samples in one batch, without the fields that depend on how they were assembled.
pub(crate) fn samples(batches: &[Batch]) -> Batch {
    let mut all = batches.first().map(Batch::empty_like).unwrap_or_default();
    batches.iter().for_each(|batch| all.append_samples(batch, 0..batch.size));
    all
}

/// Where columns are in lines that have the label, the numbers and then the categories.
pub(crate) fn positions(job: &Job) -> ColumnPositions {
    let fields = if job.data.format == Format::Criteo { 40 } else { 4 };
    let numeric = job.features.numeric.len();
    ColumnPositions {
        fields,
        labels: vec![0],
        weight: None,
        numeric: (1..=numeric).collect(),
        categorical: (1 + numeric..fields).collect(),
        group: Some(fields - 1),
        keys: vec![],
        time: job.data.time_column().map(|_| 1),
    }
}

/// Text with little repetition, so that its compressed form is long.
pub(crate) fn long_text() -> Vec<u8> {
    (0..60_000_u32).flat_map(|n| format!("{}\n", n.wrapping_mul(2_654_435_761)).into_bytes()).collect()
}

pub(crate) fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn criteo_text(rows: u64) -> String {
    (0..rows).map(|n| criteo_line(n) + "\n").collect()
}

/// Records and their fields as csv-core finds them.
pub(crate) fn by_csv_core(text: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let (mut reader, mut records, mut rest) = (ReaderBuilder::new().build(), Vec::new(), text);
    loop {
        let (mut out, mut ends) = (vec![0; text.len() + 1], vec![0; text.len() + 2]);
        let (mut written, mut fields) = (0, 0);
        loop {
            let (result, read, w, f) = reader.read_record(rest, &mut out[written..], &mut ends[fields..]);
            (rest, written, fields) = (&rest[read..], written + w, fields + f);
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::Record => break,
                ReadRecordResult::End => return records,
                other => panic!("{other:?}"),
            }
        }
        let start = |field: usize| if field == 0 { 0 } else { ends[field - 1] };
        records.push((0..fields).map(|field| out[start(field)..ends[field]].to_vec()).collect());
    }
}

/// A file in a folder that lives as long as the first value.
pub(crate) fn file(bytes: impl AsRef<[u8]>) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("data.txt");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// A well-formed Criteo line, different for each `n`, with missing values; even `n` are positive.
pub(crate) fn criteo_line(n: u64) -> String {
    let integers =
        (0..13_u64).map(|j| if (n + j).is_multiple_of(5) { String::new() } else { (n * (j + 1) % 1_000).to_string() });
    let categories =
        (0..26_u64).map(|f| if (n + f).is_multiple_of(7) { String::new() } else { format!("{:08x}", n % (f + 2)) });
    let label = u64::from(n.is_multiple_of(2)).to_string();
    std::iter::once(label).chain(integers).chain(categories).collect::<Vec<_>>().join("\t")
}
