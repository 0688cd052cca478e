//! Parquet files through the public functions only. The files are written by the crate parquet.

mod lists;
mod missing;
mod twins;

use std::fs;

use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::schema::types::ColumnPath;
use proptest::prelude::*;
use zagros_ingest::{
    Batch, BatchStream, DataPart, IngestError, LIST_SEPARATOR, SampleLimits, SplitTask, StreamCursor, StreamOptions,
    StreamStart, check_first_rows, check_same_types, find_files, sample_rows, validate_rows,
};
use zagros_job::{Job, PredictRows};

use crate::{Dealt, read, samples};
use twins::{Row, SCHEMA, Twins, small_pages, write, write_file};

fn assert_twins(twins: &Twins) {
    let text = read(&twins.job("delimited", ""), DataPart::Train).unwrap();
    let columns = read(&twins.parquet(), DataPart::Train).unwrap();
    assert_eq!(samples(&text), samples(&columns));
    let bytes: u64 = ["0.parquet", "1.parquet"].iter().map(|name| fs::metadata(twins.path(name)).unwrap().len()).sum();
    assert_eq!(columns.iter().map(|batch| batch.bytes).sum::<u64>(), bytes);
    let ends: Vec<_> =
        columns.iter().flat_map(|batch| batch.completes.clone()).map(|end| (end.split, end.rows)).collect();
    assert_eq!(ends, [(0, 500), (1, 1_000)]);
}

/// The shuffled batches too are the same: the order of rows depends on their number alone.
#[test]
fn the_same_rows_as_csv_and_as_parquet_are_the_same_batches() {
    assert_twins(&Twins::new(1_000, 150, &WriterProperties::builder));
    // A dictionary that became too large in the middle of a column: the rest is plain.
    assert_twins(&Twins::new(1_000, 500, &|| small_pages().set_dictionary_page_size_limit(200)));
}

#[test]
fn every_version_codec_and_encoding_gives_the_same_rows() {
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
            assert_twins(&Twins::new(1_000, 300, &|| {
                small_pages().set_writer_version(version).set_compression(compression)
            }));
        }
    }
    let texts = [Encoding::PLAIN, Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY];
    let columns = [
        (&["city"][..], &texts[..]),
        (&["tags", "list", "element"], &texts),
        (&["user"], &[Encoding::DELTA_BINARY_PACKED, Encoding::BYTE_STREAM_SPLIT]),
        (&["day"], &[Encoding::DELTA_BINARY_PACKED]),
        (&["age"], &[Encoding::BYTE_STREAM_SPLIT]),
        (&["mobile"], &[Encoding::RLE]),
    ];
    for (path, encodings) in columns {
        let path = ColumnPath::from(path.iter().map(ToString::to_string).collect::<Vec<_>>());
        for encoding in encodings {
            let plain = || small_pages().set_dictionary_enabled(false);
            assert_twins(&Twins::new(1_000, 300, &|| plain().set_column_encoding(path.clone(), *encoding)));
        }
    }
}

/// The batches of a job that is changed, which are the same for text and for columns.
#[track_caller]
fn assert_both_formats(twins: &Twins, change: impl Fn(Job) -> Job) -> Vec<Batch> {
    let [text, columns] =
        [twins.job("delimited", ""), twins.parquet()].map(|job| read(&change(job), DataPart::All).unwrap());
    assert_eq!(samples(&text), samples(&columns));
    columns
}

/// Without a label, and with keys that are features, other columns, repeated and null.
#[test]
fn rows_to_predict_have_the_same_keys_in_both_formats() {
    let predicting = |mut job: Job| {
        job.features.targets[0].column = "no such column".into();
        let keys = ["city", "day", "click", "city"].map(String::from).to_vec();
        job.eval.predict = Some(PredictRows { keys, keep_bad: true });
        job
    };
    for properties in [WriterProperties::builder, small_pages] {
        let twins = Twins::new(1_000, 150, &properties);
        let columns = assert_both_formats(&twins, predicting);
        let last = columns.last().unwrap().input.as_ref().unwrap();
        let row = last.iter().last().unwrap();
        assert_eq!([0, 1, 2, 3].map(|key| row.key(key)), [&b""[..], b"2024-10-13", b"0", b""]);
    }
}

/// Columns of slices stand after the column of groups. Training reads neither.
#[test]
fn held_out_rows_have_the_same_groups_and_slices_in_both_formats() {
    let slicing = |mut job: Job| {
        job.eval.group_by = Some("city".into());
        job.eval.slices = ["day", "city"].map(String::from).to_vec();
        job
    };
    let twins = Twins::new(1_000, 150, &small_pages);
    let columns = assert_both_formats(&twins, slicing);
    let last = columns.last().unwrap();
    let rows = last.input.as_ref().unwrap();
    assert_eq!((last.groups.len(), rows.len()), (last.size, last.size));
    assert_eq!(rows.iter().last().unwrap().key(0), b"2024-10-13");
    let trained = read(&slicing(twins.parquet()), DataPart::Train).unwrap();
    assert!(trained.iter().all(|batch| batch.input.is_none() && batch.groups.is_empty()));
}

#[test]
fn any_number_of_threads_gives_the_same_batches() {
    let twins = Twins::new(40_000, 30_000, &small_pages);
    let read_with = |threads: usize| {
        let mut job = twins.parquet();
        job.data.threads = threads;
        read(&job, DataPart::Train).unwrap()
    };
    let one = read_with(1);
    assert_eq!(one.iter().map(|batch| batch.size).sum::<usize>(), 40_000);
    for threads in [2, 3, 5] {
        assert!(read_with(threads) == one, "{threads} threads");
    }
}

/// A worker that reads a single row group leaves nothing to the others: the coordinator is not promised more.
#[test]
fn a_file_of_one_row_group_cannot_be_divided() {
    let twins = Twins::new(200, 50, &WriterProperties::builder);
    write(&twins.path("1.parquet"), &[Row::new(1), Row::new(2)], 50, WriterProperties::builder());
    let job = twins.parquet();
    let divisible: Vec<bool> = find_files(&job, &job.data.train).unwrap().iter().map(|file| file.splittable).collect();
    assert_eq!(divisible, [true, false]);
}

fn stream(job: &Job, borders: &[u64], start: StreamStart) -> BatchStream {
    let task = |(id, pair): (usize, &[u64])| SplitTask {
        id: id as u64,
        path: job.data.train[0].clone(),
        start: pair[0],
        end: pair[1],
    };
    let tasks: Vec<_> = borders.windows(2).enumerate().map(task).collect();
    let options = StreamOptions { start, ..StreamOptions::new(DataPart::Train) };
    BatchStream::open(job, options, Box::new(Dealt(tasks.into_iter()))).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_borders_partition_the_rows(mut borders in prop::collection::vec(0.0..1.0, 0..6), group in 1_usize..80) {
        let twins = Twins::new(200, group, &WriterProperties::builder);
        let mut job = twins.parquet();
        job.data.shuffle_rows = 0;
        let bytes = fs::metadata(&job.data.train[0]).unwrap().len();
        borders.extend([0.0, 1.0]);
        borders.sort_by(f64::total_cmp);
        let borders: Vec<u64> = borders.into_iter().map(|share: f64| (share * bytes as f64) as u64).collect();
        let whole: Vec<Batch> = stream(&job, &[0, bytes], StreamStart::default()).map(Result::unwrap).collect();
        let parts: Vec<Batch> = stream(&job, &borders, StreamStart::default()).map(Result::unwrap).collect();
        prop_assert_eq!(samples(&whole), samples(&parts));
        prop_assert_eq!(samples(&whole).size, 100);
        prop_assert_eq!(parts.iter().map(|batch| batch.bytes).sum::<u64>(), bytes);
        let completed: Vec<u64> = parts.iter().flat_map(|batch| &batch.completes).map(|end| end.split).collect();
        prop_assert_eq!(completed, (0..borders.len() as u64 - 1).collect::<Vec<_>>());
    }

    /// Invariant CK-3.
    #[test]
    fn a_stream_goes_on_where_it_stopped(delivered in 0_usize..7, window in 0_usize..50) {
        let twins = Twins::new(200, 30, &WriterProperties::builder);
        let mut job = twins.parquet();
        job.data.shuffle_rows = window;
        let bytes = fs::metadata(&job.data.train[0]).unwrap().len();
        let borders = [0, bytes / 3, bytes / 2, bytes];
        let all: Vec<Batch> = stream(&job, &borders, StreamStart::default()).map(Result::unwrap).collect();
        let mut cursor = StreamCursor::new(StreamStart::default(), window);
        all[..delivered].iter().for_each(|batch| cursor.record_delivery(batch));
        let remainder = cursor.remainder(&[0, 1, 2]);
        let first = remainder.splits.first().map_or(3, |split| *split as usize);
        let rest: Vec<Batch> = stream(&job, &borders[first..], remainder.start).map(Result::unwrap).collect();
        if all.len() > delivered {
            prop_assert_eq!(samples(&rest), samples(&all[delivered..]));
        } else {
            prop_assert!(rest.iter().all(|batch| batch.size == 0));
        }
    }
}

#[test]
fn a_share_of_the_rows_is_held_out_by_their_number() {
    let twins = Twins::new(1_000, 100, &WriterProperties::builder);
    let mut job = twins.job("parquet", "test_fraction = 0.3\nshuffle_rows = 0");
    let parts = |job: &Job| [DataPart::Train, DataPart::Test].map(|part| samples(&read(job, part).unwrap()));
    let [train, test] = parts(&job);
    assert_eq!(train.size + test.size, 1_000);
    assert!((220..380).contains(&test.size), "{}", test.size);
    // Other row groups, another folder and fewer features hold out the same rows.
    let moved = Twins::new(1_000, 7, &small_pages);
    assert_eq!(parts(&moved.job("parquet", "test_fraction = 0.3\nshuffle_rows = 0"))[1], test);
    job.features.categorical.truncate(1);
    job.features.numeric.clear();
    assert_eq!(parts(&job)[1].categorical[0], test.categorical[0]);
}

/// Writes one file and lets a job read it.
fn with_rows(rows: &[Row], more: &str) -> (Twins, Job) {
    let twins = Twins::new(2, 1, &WriterProperties::builder);
    write(&twins.path("0.parquet"), rows, 10, WriterProperties::builder());
    let mut job = twins.job("parquet", more);
    job.data.train.truncate(1);
    (twins, job)
}

#[test]
fn bad_rows_have_their_row_group_and_row() {
    let mut rows: Vec<Row> = (0..35).map(Row::new).collect();
    (rows[3].click, rows[27].age) = (7, Some(f64::NAN));
    let (_twins, job) = with_rows(&rows, "max_bad_rows = 2");
    let found = validate_rows(&job, 5).unwrap();
    assert_eq!((found.good, found.bad), (33, 2));
    let text = found.first_bad.iter().map(ToString::to_string).collect::<Vec<_>>();
    let label = "row group 0, row 4, column 1: expected \"1\" (positive) or \"0\" (negative) in label column \"click\", found \"7\"";
    let age = "row group 2, row 8, column 2: expected a number in column \"age\", found \"NaN\"";
    assert!(text[0].ends_with(label) && text[1].ends_with(age), "{text:?}");
    assert_eq!(samples(&read(&job, DataPart::All).unwrap()).size, 33);
    let (_twins, job) = with_rows(&rows, "max_bad_rows = 1");
    assert!(matches!(read(&job, DataPart::All).unwrap_err(), IngestError::TooManyBadRows { count: 2, .. }));
    let infos = find_files(&job, &job.data.train).unwrap();
    check_first_rows(&job, &infos, DataPart::All).unwrap();
    let (_twins, job) = with_rows(&rows, "max_bad_rows = 1\nmissing = ['NaN']");
    assert_eq!(samples(&read(&job, DataPart::All).unwrap()).size, 34);
}

#[test]
fn a_column_that_is_missing_or_has_another_shape_is_named() {
    let twins = Twins::new(20, 5, &WriterProperties::builder);
    let refused = |change: &dyn Fn(&mut Job)| {
        let mut job = twins.parquet();
        change(&mut job);
        find_files(&job, &job.data.train).unwrap_err().to_string()
    };
    let many = twins.parquet().features.categorical[1].values.clone();
    type Change<'a> = &'a dyn Fn(&mut Job);
    let changes: [(Change<'_>, &str); 4] = [
        (
            &|job| job.features.categorical[0] = zagros_job::Categorical::of_column("City", 0),
            "no column \"City\", did you mean \"city\"?; its columns are: click, age, city, tags, user",
        ),
        (
            &|job| job.features.categorical[1].values = zagros_job::Values::One,
            "0.parquet: column \"tags\": it holds lists; give it `pooling`",
        ),
        (&|job| job.features.categorical[0].values = many.clone(), "column \"city\": it does not hold lists"),
        (&|job| job.features.targets[0].column = "tags".into(), "a label or number is a single value"),
    ];
    for (change, expected) in changes {
        let error = refused(change);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_damaged_or_other_file_is_refused() {
    let twins = Twins::new(500, 100, &small_pages);
    let (job, path) = (twins.parquet(), twins.path("1.parquet"));
    let good = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        read(&job, DataPart::All).unwrap_err().to_string()
    };
    let claims = [&good[..good.len() - 8], &[0xff, 0xff, 0xff, 0x7f], b"PAR1"].concat();
    let damaged = [&good[..4], &[0xff; 20], &good[24..]].concat();
    for (bytes, expected) in [
        (&b"click,age\n1,2\n1,2\n"[..], "1.parquet: it does not start with PAR1, so it is no Parquet file"),
        (&good[..good.len() / 2], "does not end with PAR1: it was cut off"),
        (&claims, "its footer claims 2147483647 bytes, the file has room for"),
        (&damaged, "1.parquet: row group 0, column \"click\": Unexpected struct field type 15"),
    ] {
        let error = refused(bytes);
        assert!(error.contains(expected), "{error}");
    }
    fs::write(&path, &good).unwrap();
    assert!(read(&job, DataPart::All).is_ok());
}

#[test]
fn a_column_that_changed_its_type_between_files_is_refused() {
    let twins = Twins::new(20, 5, &WriterProperties::builder);
    let schema = SCHEMA.replace("required int64 user", "required binary user (UTF8)");
    let no_groups = std::iter::empty::<&[Row]>();
    write_file(&twins.path("1.parquet"), (&schema, WriterProperties::builder()), no_groups, |_, _| ());
    let error = read(&twins.parquet(), DataPart::All).unwrap_err().to_string();
    assert!(error.contains("1.parquet: column \"user\" holds text here and numbers in "), "{error}");
    assert!(error.contains("0.parquet; write both files with one type"), "{error}");
    // Also where one file is trained on and the other one is held out.
    let job = twins.parquet();
    let [train, held_out] = [0, 1].map(|part| find_files(&job, &job.data.train[part..=part]).unwrap());
    let differ = check_same_types(&job, &train, &held_out).unwrap_err().to_string();
    assert_eq!(differ, error);
    check_same_types(&job, &train, &train).unwrap();
}

/// The parts by time are the same rows as those of the CSV file, and each row is in one of them.
#[test]
fn the_newest_rows_are_held_out_as_of_a_csv_file() {
    let twins = Twins::new(1_000, 100, &WriterProperties::builder);
    let bounds =
        "time_column = \"day\"\nvalidation_from = \"2024-12-01\"\ntest_from = \"2024-12-20\"\nshuffle_rows = 0";
    let by_user = "time_column = \"user\"\ntest_from = 600_000_000\nvalidation_share = 0.25\nshuffle_rows = 0";
    let parts = [DataPart::Train, DataPart::Validation, DataPart::Test];
    let read = |format: &str, more: &str| parts.map(|part| samples(&read(&twins.job(format, more), part).unwrap()));
    assert_eq!(read("parquet", bounds), read("delimited", bounds));
    let sizes = read("parquet", by_user).map(|part| part.size);
    assert_eq!((sizes[2], sizes.iter().sum()), (399, 1_000));
    assert!((90..210).contains(&sizes[1]), "{sizes:?}");
}

#[test]
fn a_sample_has_the_texts_that_a_csv_file_has() {
    let twins = Twins::new(1_000, 100, &WriterProperties::builder);
    let limits = |rows| SampleLimits { rows, bytes: 1 << 20, files: 8 };
    let parquet = ["0.parquet", "1.parquet"].map(|name| twins.path(name));
    let whole = sample_rows(&parquet, limits(2_000)).unwrap();
    assert_eq!((whole.files, whole.is_whole, whole.is_spread), (2, true, true));
    let columns = whole.columns;
    assert_eq!(whole.unusable, []);
    let rows: Vec<Row> = (0..1_000).map(Row::new).collect();
    // A sample has no nulls of lists.
    let without_nulls = |field: &str| field.split('|').filter(|item| !item.is_empty()).collect::<Vec<_>>().join("|");
    let fields = |row: &Row| row.line().trim_end().split(',').map(without_nulls).collect::<Vec<_>>().join(",") + "\n";
    let expected: Vec<String> = rows.iter().map(fields).collect();
    let line = |row: usize| {
        let texts: Vec<String> = columns.iter().map(|column| column.texts[row].replace(LIST_SEPARATOR, "|")).collect();
        texts.join(",") + "\n"
    };
    assert_eq!((0..1_000).map(line).collect::<Vec<_>>(), expected);
    let lists: Vec<usize> = (0..columns.len()).filter(|place| columns[*place].is_list).collect();
    assert_eq!(lists, [3, 7, 8]);
    // A part: rows of the whole file, in order.
    let part = sample_rows(&parquet[..1], limits(160)).unwrap();
    let users: Vec<i64> = part.columns[4].texts.iter().map(|text| text.parse().unwrap()).collect();
    assert!(!part.is_whole && users.is_sorted() && users.len() <= 160, "{users:?}");
    assert_eq!((users[0], *users.last().unwrap()), (rows[0].user, rows[499].user));
}
