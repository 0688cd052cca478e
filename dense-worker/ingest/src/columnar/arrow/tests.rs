//! Arrow files on a disk and in a store, whole and damaged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::arrow_array::builder::{Float32Builder, ListBuilder, StringBuilder};
use ::arrow_array::types::Int8Type;
use ::arrow_array::{ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray};
use ::arrow_ipc::writer::{FileWriter, StreamWriter};
use ::arrow_schema::Schema;
use zagros_fakes::s3::{FakeS3, S3Fault};
use zagros_job::{ColumnarFormat, Format, Job, PoolAt, Pooling, Values};

use crate::fixture::{self, DealtSplits};
use crate::source::use_store;
use crate::{Batch, BatchStream, DataPart, IngestError, SplitTask, StreamOptions, StreamStart, find_files};

const ROWS: usize = 30_000;
const BATCHES: usize = 5;
const TYPES: &[u8] = include_bytes!("../../../tests/fixtures/types.none.arrow");

/// Rows of a record batch. The last column is used by no job.
fn record_batch(number: usize) -> RecordBatch {
    let rows = number * ROWS..(number + 1) * ROWS;
    let numbers = |every: usize| -> ArrayRef {
        Arc::new(rows.clone().map(|row| i32::from(row % every == 0)).collect::<Int32Array>())
    };
    let texts = |name: &str| -> ArrayRef {
        Arc::new(rows.clone().map(|row| Some(format!("{name}|a much longer text {row}"))).collect::<StringArray>())
    };
    let columns = [
        ("click", numbers(3)),
        ("age", numbers(7)),
        ("city", texts("c")),
        ("tags", texts("t")),
        ("unused", texts("u")),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

fn arrow() -> Vec<u8> {
    let schema: Arc<Schema> = record_batch(0).schema();
    let mut writer = FileWriter::try_new(Vec::new(), &schema).unwrap();
    (0..BATCHES).for_each(|number| writer.write(&record_batch(number)).unwrap());
    writer.into_inner().unwrap()
}

fn job() -> Job {
    let mut job = fixture::delimited(|_| ());
    job.data.format = Format::Arrow(ColumnarFormat::default());
    job.train.batch_size = 1_000;
    job
}

fn options() -> StreamOptions {
    let (start, cancel) = (StreamStart::default(), Arc::default());
    StreamOptions { part: DataPart::All, epoch: 0, start, bad_rows: 0, cancel }
}

/// The batches of a file in three splits.
fn read(job: &Job, path: &str) -> Result<Vec<Batch>, IngestError> {
    let path = PathBuf::from(path);
    let bytes = find_files(job, std::slice::from_ref(&path))?[0].bytes;
    let borders: Vec<u64> = (0..4).map(|part| bytes * part / 3).collect();
    let task = |pair: &[u64]| SplitTask { id: pair[0], path: path.clone(), start: pair[0], end: pair[1] };
    BatchStream::open(job, options(), DealtSplits::new(borders.windows(2).map(task).collect()))?.collect()
}

fn refused(job: &Job, bytes: &[u8]) -> String {
    let (_folder, path) = fixture::file(bytes);
    read(job, path.to_str().unwrap()).unwrap_err().to_string()
}

#[test]
fn an_object_gives_the_batches_of_a_file_and_only_used_columns_are_fetched() {
    let (store, content) = (FakeS3::start("arrow-logs"), arrow());
    use_store("s3://arrow-logs", &store);
    store.put_object("day/a.arrow", content.clone());
    let (_folder, path) = fixture::file(&content);
    let mut job = job();
    job.data.threads = 1;
    let expected = read(&job, path.to_str().unwrap()).unwrap();
    assert_eq!(expected.iter().map(|batch| batch.size).sum::<usize>(), ROWS * BATCHES);
    for threads in [1, 3] {
        job.data.threads = threads;
        assert_eq!(read(&job, path.to_str().unwrap()).unwrap(), expected);
        let earlier_requests = store.request_log().len();
        assert_eq!(read(&job, "s3://arrow-logs/day/a.arrow").unwrap(), expected);
        // Twice the start, the end and each batch's metadata. 2 MB of a record batch are used, in pieces of 1 MiB, and 1 MB is not.
        let requests = store.request_log().len() - earlier_requests;
        assert!((BATCHES * 4..BATCHES * 6 + 10).contains(&requests), "{requests} requests");
    }
}

#[test]
fn what_the_store_says_is_the_error() {
    let store = FakeS3::start("arrow-bad");
    use_store("s3://arrow-bad", &store);
    store.put_object("a", arrow());
    let path = PathBuf::from("s3://arrow-bad/a");
    let found = find_files(&job(), std::slice::from_ref(&path)).unwrap();
    store.inject_fault(S3Fault::Denies, "GET /arrow-bad/a", 1_000);
    let stream = BatchStream::open(&job(), options(), Box::new(crate::WholeFiles::new(&found))).unwrap();
    let denied = stream.collect::<Result<Vec<_>, _>>().unwrap_err();
    assert!(denied.to_string().contains("(AccessDenied)"), "{denied}");
}

#[test]
fn a_file_of_another_format_is_refused_with_the_way_out() {
    assert!(refused(&job(), b"FEA1 an old file").contains("Feather file of version 1"));
    assert!(refused(&job(), b"click,age\n1,2\n").contains("does not start with ARROW1"));
    let content = arrow();
    let cut = refused(&job(), &content[..content.len() / 2]);
    assert!(cut.contains("does not end with ARROW1: it was cut off"), "{cut}");
    let schema = record_batch(0).project(&[0, 1, 2]).unwrap().schema();
    let lacking = FileWriter::try_new(Vec::new(), &schema).unwrap().into_inner().unwrap();
    let text = refused(&job(), &lacking);
    assert!(text.contains("no column \"tags\"") && text.contains("its columns are: click, age, city"), "{text}");
}

fn stream() -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &record_batch(0).schema()).unwrap();
    (0..BATCHES).for_each(|number| writer.write(&record_batch(number)).unwrap());
    writer.into_inner().unwrap()
}

#[test]
fn a_stream_gives_the_batches_of_a_file() {
    let ((_file, file), (_stream, path)) = (fixture::file(arrow()), fixture::file(stream()));
    let whole = |path: &Path| read(&job(), path.to_str().unwrap()).unwrap();
    let samples = |batches: &[Batch]| {
        let mut all = batches[0].empty_like();
        batches.iter().for_each(|batch| all.append_samples(batch, 0..batch.size));
        all
    };
    assert_eq!(samples(&whole(&path)), samples(&whole(&file)));
    // A writer that is killed, or never says that it is done.
    let content = stream();
    std::fs::write(&path, &content[..content.len() - 8]).unwrap();
    assert_eq!(samples(&whole(&path)).size, ROWS * BATCHES);
    let cut = refused(&job(), &content[..content.len() / 2]);
    assert!(cut.contains("names a place outside of the file"), "{cut}");
}

#[test]
fn a_stream_that_replaces_a_dictionary_is_refused() {
    let batch = |texts: &[&str]| {
        let city: DictionaryArray<Int8Type> = texts.iter().copied().collect();
        let click: ArrayRef = Arc::new(Int32Array::from(vec![1; texts.len()]));
        let columns = [("click", Arc::clone(&click)), ("age", click), ("city", Arc::new(city) as ArrayRef)];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let [first, second] = [&["a", "b", "a"][..], &["c", "d"]].map(batch);
    let mut writer = StreamWriter::try_new(Vec::new(), &first.schema()).unwrap();
    writer.write(&first).unwrap();
    let mut job = job();
    job.features.categorical.truncate(1);
    let (_folder, path) = fixture::file(writer.get_ref().clone());
    let rows: usize = read(&job, path.to_str().unwrap()).unwrap().iter().map(|batch| batch.size).sum();
    assert_eq!(rows, 3);
    writer.write(&second).unwrap();
    let text = refused(&job, &writer.into_inner().unwrap());
    assert!(text.contains("it replaces a dictionary") && text.contains("write an Arrow file"), "{text}");
}

/// A null in a list is no value, and has no weight.
#[test]
fn nulls_in_lists_beside_weights_are_skipped_with_their_weights() {
    let (mut words, mut weights) = (ListBuilder::new(StringBuilder::new()), ListBuilder::new(Float32Builder::new()));
    words.append_value([Some("a"), None, Some("b")]);
    weights.append_value([Some(1.0), Some(2.0), Some(3.0)]);
    words.append_null();
    weights.append_null();
    words.append_value([Some("c"), Some("d")]);
    weights.append_value([Some(4.0), None]);
    words.append_value([None::<&str>]);
    weights.append_value([Some(5.0)]);
    let click: ArrayRef = Arc::new(Int32Array::from(vec![1; 4]));
    let columns = [
        ("click", Arc::clone(&click)),
        ("age", click),
        ("tags", Arc::new(words.finish()) as ArrayRef),
        ("tfidf", Arc::new(weights.finish())),
    ];
    let batch = RecordBatch::try_from_iter(columns.map(|(name, column)| (name, column))).unwrap();
    let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    let mut job = job();
    job.features.categorical.remove(0);
    let (pooling, pool_at) = (Pooling::Mean, PoolAt::Worker);
    job.features.categorical[0].values =
        Values::Many { separator: String::new(), pooling, pool_at, weights: Some("tfidf".into()) };
    let (_folder, path) = fixture::file(writer.into_inner().unwrap());
    let path = path.to_str().unwrap();
    let error = read(&job, path).unwrap_err().to_string();
    assert!(error.contains("record batch 0, row 3") && error.contains("column \"tfidf\""), "{error}");
    job.data.max_bad_rows = 1;
    let batches = read(&job, path).unwrap();
    let bag = &batches[0].categorical[0];
    assert_eq!(batches[0].size, 3, "the row whose weight is null is malformed");
    assert_eq!(bag.sample_ids(0), [b"a", b"b"].map(|text| crate::hash_value(text)));
    assert_eq!(bag.weights, [0.25, 0.75], "of the mean");
    assert!(bag.sample_ids(1).is_empty() && bag.sample_ids(2).is_empty());
}

#[test]
fn damage_is_named_with_its_place() {
    let (_folder, path) = fixture::file(TYPES);
    let mut job = job();
    job.features.numeric[0].column = "age".into();
    job.features.categorical.truncate(1);
    let seen = |at: usize, byte: u8| {
        let mut bytes = TYPES.to_vec();
        bytes[at] = byte;
        std::fs::write(&path, bytes).unwrap();
        match read(&job, path.to_str().unwrap()) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    };
    let texts: Vec<String> = (8..TYPES.len()).map(|at| seen(at, 0xff)).filter(|text| !text.is_empty()).collect();
    for part in ["record batch 0: ", "record batch 1, column \"city\": ", "a dictionary: ", "its footer "] {
        assert!(texts.iter().any(|text| text.contains(part)), "{part}: {} errors", texts.len());
    }
    let name = Path::new(&path).file_name().unwrap().to_string_lossy().into_owned();
    assert!(texts.iter().all(|text| text.contains(&name)));
}
