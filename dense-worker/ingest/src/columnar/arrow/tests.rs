//! Arrow files on a disk and in a store, whole and damaged.

use std::path::Path;
use std::sync::Arc;

use ::arrow_array::builder::{ListBuilder, StringBuilder};
use ::arrow_array::types::{Float32Type, Int8Type};
use ::arrow_array::{ArrayRef, DictionaryArray, Int32Array, ListArray, RecordBatch, StringArray};
use ::arrow_ipc::writer::{FileWriter, StreamWriter};
use zagros_job::{ColumnarFormat, Format, Job, PoolAt, Pooling, Values};

use crate::fixture::{self, read_thirds as read, samples};

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
    let numbers = [("click", numbers(3)), ("age", numbers(7))].into_iter();
    RecordBatch::try_from_iter(numbers.chain(["city", "tags", "unused"].map(|name| (name, texts(&name[..1]))))).unwrap()
}

fn arrow() -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &record_batch(0).schema()).unwrap();
    (0..BATCHES).for_each(|number| writer.write(&record_batch(number)).unwrap());
    writer.into_inner().unwrap()
}

fn stream() -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &record_batch(0).schema()).unwrap();
    (0..BATCHES).for_each(|number| writer.write(&record_batch(number)).unwrap());
    writer.into_inner().unwrap()
}

fn job() -> Job {
    let mut job = fixture::delimited(|_| ());
    job.data.format = Format::Arrow(ColumnarFormat::default());
    job.train.batch_size = 1_000;
    job
}

fn refused(job: &Job, bytes: &[u8]) -> String {
    let (_folder, path) = fixture::file(bytes);
    read(job, path.to_str().unwrap()).unwrap_err().to_string()
}

#[test]
fn an_object_gives_the_batches_of_a_file_and_only_used_columns_are_fetched() {
    // Twice the start, the end and each batch's metadata. 2 MB of a record batch are used, in pieces of 1 MiB, and 1 MB is not.
    let requests = BATCHES * 4..BATCHES * 6 + 10;
    assert_eq!(fixture::read_object("arrow-logs", &arrow(), &job(), requests), ROWS * BATCHES);
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

#[test]
fn a_stream_gives_the_batches_of_a_file() {
    let ((_file, file), (_stream, path)) = (fixture::file(arrow()), fixture::file(stream()));
    let whole = |path: &Path| samples(&read(&job(), path.to_str().unwrap()).unwrap());
    assert_eq!(whole(&path), whole(&file));
    // A writer that is killed, or never says that it is done.
    let content = stream();
    std::fs::write(&path, &content[..content.len() - 8]).unwrap();
    assert_eq!(whole(&path).size, ROWS * BATCHES);
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
    assert_eq!(samples(&read(&job, path.to_str().unwrap()).unwrap()).size, 3);
    writer.write(&second).unwrap();
    let text = refused(&job, &writer.into_inner().unwrap());
    assert!(text.contains("it replaces a dictionary") && text.contains("write an Arrow file"), "{text}");
}

/// A null in a list is no value, and has no weight.
#[test]
fn nulls_in_lists_beside_weights_are_skipped_with_their_weights() {
    let mut words = ListBuilder::new(StringBuilder::new());
    words.append_value([Some("a"), None, Some("b")]);
    words.append_null();
    words.append_value([Some("c"), Some("d")]);
    words.append_value([None::<&str>]);
    let weights =
        [Some(vec![Some(1.0), Some(2.0), Some(3.0)]), None, Some(vec![Some(4.0), None]), Some(vec![Some(5.0)])];
    let weights = ListArray::from_iter_primitive::<Float32Type, _, _>(weights);
    let click: ArrayRef = Arc::new(Int32Array::from(vec![1; 4]));
    let lists: [ArrayRef; 2] = [Arc::new(words.finish()), Arc::new(weights)];
    let [tags, tfidf] = lists;
    let columns = [("click", Arc::clone(&click)), ("age", click), ("tags", tags), ("tfidf", tfidf)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
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
        read(&job, path.to_str().unwrap()).map_or_else(|error| error.to_string(), |_| String::new())
    };
    let texts: Vec<String> = (8..TYPES.len()).map(|at| seen(at, 0xff)).filter(|text| !text.is_empty()).collect();
    for part in ["record batch 0: ", "record batch 1, column \"city\": ", "a dictionary: ", "its footer "] {
        assert!(texts.iter().any(|text| text.contains(part)), "{part}: {} errors", texts.len());
    }
    assert!(texts.iter().all(|text| text.contains("data.txt")));
}
