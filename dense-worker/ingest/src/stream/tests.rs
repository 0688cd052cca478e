//! What a stream gives, whatever threads, splits and blocks it reads by.

use proptest::prelude::*;
use zagros_job::{HeldOutRows, MissingLabel, Numeric, Target, TargetKind};

use super::*;
use crate::fixture::{self, criteo_text, cut, samples, whole};
use crate::{BadRow, SplitTask, find_files, hash_value};

fn batches(job: &Job, part: DataPart, tasks: Vec<SplitTask>, block_bytes: usize) -> Result<Vec<Batch>, IngestError> {
    open(job, part, tasks, block_bytes).collect()
}

fn open(job: &Job, part: DataPart, tasks: Vec<SplitTask>, block_bytes: usize) -> BatchStream {
    BatchStream::open_in_blocks(job, StreamOptions::new(part), fixture::deal_splits(tasks), block_bytes).unwrap()
}

fn sizes(batches: &[Batch]) -> Vec<usize> {
    batches.iter().map(|batch| batch.size).collect()
}

/// Six good rows of Criteo and a malformed one in line 6.
fn with_bad_line() -> String {
    criteo_text(5) + "bad\n" + &criteo_text(1)
}

#[test]
fn a_file_becomes_batches_with_its_counts() {
    let (_folder, path) = fixture::file(criteo_text(20));
    let job = fixture::criteo();
    let infos = find_files(&job, &[path]).unwrap();
    let mut stream = BatchStream::open_files(&job, DataPart::All, &infos).unwrap();
    let batches: Vec<Batch> = stream.by_ref().map(Result::unwrap).collect();
    assert_eq!(sizes(&batches), [8, 8, 4]);
    assert_eq!(batches.iter().map(|batch| batch.bytes).sum::<u64>(), infos[0].bytes);
    let content = batches[2].completes[0].content;
    assert_eq!(batches[2].completes, [SplitEnd { split: 0, rows: 20, bad_rows: 0, content }]);
    let stats = stream.stats();
    assert_eq!((stats.rows, stats.bad_rows, stats.bytes), (20, 0, infos[0].bytes));
    assert!(stats.cpu_seconds > 0.0);
}

/// Purchases without a click; one whose click is not known contradicts nothing.
#[test]
fn labels_that_contradict_each_other_are_counted_and_the_first_is_found() {
    let mut job = fixture::delimited(|_| ());
    let given = |given| TargetKind::Click { positive: vec!["1".into()], negative: vec!["0".into()], given };
    let target = |column: &str, kind| Target { kind, missing: MissingLabel::Skip, ..Target::from(column) };
    job.features.targets = vec![target("click", given(None)), target("buy", given(Some(0)))];
    (job.features.numeric, job.features.categorical) = (vec![Numeric::from("x".to_owned())], Vec::new());
    let rows = ["1,1", "0,0", ",1", "0,1", "1,0", "0,1"].map(|labels| format!("{labels},7\n")).concat();
    let (_folder, path) = fixture::file(format!("click,buy,x\n{rows}"));
    for block_bytes in [8, 1 << 20] {
        let mut stream = open(&job, DataPart::Train, whole(&path), block_bytes);
        assert_eq!(stream.by_ref().map(|batch| batch.unwrap().size).sum::<usize>(), 6, "all are trained on");
        let found = stream.describe_contradictions().expect("there are some");
        assert!(found.starts_with("2 of 6 rows (33.333 %) have \"buy\" without \"click\""), "{found}");
        assert!(found.contains(&format!(" is at {}:5, or soon after", path.display())), "{found}");
    }
    job.features.targets[1].kind = given(None);
    let mut stream = open(&job, DataPart::Train, whole(&path), BLOCK_BYTES);
    assert_eq!((stream.by_ref().count(), stream.describe_contradictions()), (1, None), "two labels of their own");
}

#[test]
fn too_many_bad_rows_are_listed_with_their_lines() {
    let text = criteo_text(5) + "1\tbad\n" + &criteo_text(3) + "2\n";
    let (_folder, path) = fixture::file(&text);
    let mut job = fixture::criteo();
    job.data.max_bad_rows = 1;
    // The second split starts in the middle, so its lines are found by counting.
    let error = batches(&job, DataPart::All, cut(&path, vec![text.len() as u64 / 3]), 256).unwrap_err();
    let IngestError::TooManyBadRows { count: 2, limit: 1, first, .. } = error else { panic!("{error}") };
    let places: Vec<_> = first.iter().map(|BadRow { line, column, .. }| (*line, *column)).collect();
    assert_eq!(places, [(6, 3), (10, 2)]);
}

#[test]
fn a_share_of_the_rows_may_be_malformed() {
    let (_folder, path) = fixture::file(with_bad_line());
    let mut job = fixture::criteo();
    job.data.max_bad_share = 0.000_09;
    let error = batches(&job, DataPart::All, whole(&path), 256).unwrap_err().to_string();
    assert!(error.contains("data.max_bad_rows allows 0, and data.max_bad_share 0.00009 of the 6 rows read"), "{error}");
    // Of few rows, the share is that of 10,000.
    job.data.max_bad_share = 0.000_1;
    assert_eq!(samples(&batches(&job, DataPart::All, whole(&path), 256).unwrap()).size, 6);
}

#[test]
fn a_short_last_batch_is_dropped_and_its_splits_end_all_the_same() {
    let (_folder, path) = fixture::file(criteo_text(20));
    let mut job = fixture::criteo();
    job.data.drop_last = true;
    let found = batches(&job, DataPart::Train, whole(&path), 256).unwrap();
    assert_eq!(sizes(&found), [8, 8, 0]);
    let content = found[2].completes[0].content;
    assert_eq!(found[2].completes, [SplitEnd { split: 0, rows: 20, bad_rows: 0, content }]);
    assert_eq!(found[2].labels.len() + found[2].numeric.len() + found[2].categorical[0].ids.len(), 0);
    let scored = batches(&job, DataPart::All, whole(&path), 256).unwrap();
    assert_eq!(samples(&scored).size, 20, "every row is scored");
}

#[test]
fn malformed_rows_of_earlier_streams_count() {
    let (_folder, path) = fixture::file(with_bad_line());
    let mut job = fixture::criteo();
    job.data.max_bad_rows = 4;
    let read = |bad_rows| {
        let options = StreamOptions { bad_rows, ..StreamOptions::new(DataPart::All) };
        let mut stream = fixture::stream(&job, options, whole(&path));
        stream.by_ref().collect::<Result<Vec<_>, _>>().map(|_| stream.stats().bad_rows)
    };
    assert_eq!(read(3).unwrap(), 1);
    let error = read(4).unwrap_err().to_string();
    assert!(error.starts_with("5 malformed rows") && error.contains("data.txt:6:"), "{error}");
}

#[test]
fn a_file_without_rows_is_an_error_in_one_split_and_in_several() {
    let (_folder, path) = fixture::file("click,age,city,tags\n\n\n\n\n");
    let task = |id, start, end| SplitTask { id, path: path.clone(), start, end };
    let read = |tasks| batches(&fixture::delimited(|_| ()), DataPart::Train, tasks, 64);
    for tasks in [whole(&path), vec![task(1, 21, 24), task(0, 0, 21)]] {
        let error = read(tasks.clone()).unwrap_err().to_string();
        assert!(error.contains("data.txt: no rows (only empty lines"), "{tasks:?}: {error}");
    }
    assert_eq!(read(vec![task(1, 21, 24)]).unwrap().len(), 1, "the rest of the file may have rows");
}

#[test]
fn malformed_rows_are_counted_by_split() {
    let text = criteo_text(3) + "bad\n" + &criteo_text(2) + "bad\nbad\n";
    let (_folder, path) = fixture::file(&text);
    let mut job = fixture::criteo();
    job.data.max_bad_rows = 3;
    let border = criteo_text(3).len() as u64 + 5;
    let found = batches(&job, DataPart::All, cut(&path, vec![border]), 64).unwrap();
    let ends: Vec<_> = found.iter().flat_map(|batch| &batch.completes).map(|end| end.bad_rows).collect();
    assert_eq!(ends, [1, 2]);
}

/// Otherwise training would wait at the end of each window.
#[test]
fn reading_is_ahead_of_delivery_by_a_window_of_rows() {
    let (_folder, path) = fixture::file(criteo_text(4_000));
    let mut job = fixture::criteo();
    job.data.shuffle_rows = 400;
    let mut stream = open(&job, DataPart::Train, whole(&path), 512);
    let mut delivered = 0;
    while delivered < 3_000 {
        delivered += stream.next().unwrap().unwrap().size as u64;
        let lead = stream.stats().rows - delivered;
        assert!((392..420).contains(&lead), "{lead} rows ahead after {delivered}");
    }
}

#[test]
fn a_split_without_rows_still_completes() {
    let (_folder, path) = fixture::file("click,age,city,tags\n1,2,x,y\n");
    let inside_the_header = SplitTask { id: 5, path, start: 0, end: 3 };
    let batches = batches(&fixture::delimited(|_| ()), DataPart::Train, vec![inside_the_header], 64).unwrap();
    assert_eq!(batches[0].size, 0);
    assert_eq!(batches[0].completes, [SplitEnd { split: 5, rows: 0, bad_rows: 0, content: 0 }]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn arbitrary_bytes_give_batches_or_an_error_and_end_no_thread(
        header: bool,
        text in prop::collection::vec(prop_oneof![Just(b','), Just(b'\n'), Just(b'1'), Just(b'"'), any::<u8>()], 1..400),
        block_bytes in 1_usize..100,
    ) {
        let start: &[u8] = if header { b"click,age,city,tags\n" } else { b"" };
        let (_folder, path) = fixture::file([start, &text].concat());
        for mut job in [fixture::criteo(), fixture::delimited(|format| format.trim = true)] {
            (job.data.max_bad_rows, job.data.max_line_bytes) = (10, 64);
            let found = batches(&job, DataPart::All, whole(&path), block_bytes);
            prop_assert!(!matches!(found, Err(IngestError::ThreadDied { .. })), "{:?}", found);
        }
    }

    #[test]
    fn threads_splits_and_blocks_do_not_change_the_samples(
        rows in 1_u64..60,
        borders in prop::collection::vec(1_u64..6_000, 0..5),
        threads in 1_usize..5,
        block_bytes in 64_usize..4_096,
        shuffle_rows in prop_oneof![Just(0_usize), 1_usize..50],
        returns: bool,
        last_line_end: bool,
    ) {
        let mut text = criteo_text(rows);
        if !last_line_end {
            text.pop();
        }
        let (_folder, path) = fixture::file(if returns { text.replace('\n', "\r\n") } else { text });
        let mut job = fixture::criteo();
        (job.data.threads, job.data.shuffle_rows, job.data.test) = (1, shuffle_rows, HeldOutRows::Share(0.2));
        let Ok(expected) = batches(&job, DataPart::Train, whole(&path), BLOCK_BYTES) else {
            // By chance all rows are in the test part.
            return Ok(());
        };
        let tasks = cut(&path, borders);
        let splits = tasks.len() as u64;
        job.data.threads = threads;
        let found = batches(&job, DataPart::Train, tasks, block_bytes).unwrap();
        prop_assert_eq!(samples(&found), samples(&expected));
        prop_assert!(found.iter().rev().skip(1).all(|batch| batch.size == job.train.batch_size));
        let completed: Vec<u64> = found.iter().flat_map(|batch| &batch.completes).map(|end| end.split).collect();
        prop_assert_eq!(completed, (0..splits).collect::<Vec<_>>());
    }
}

// Rows whose quoted fields hold line breaks: each belongs to one split (invariant SP-1), and is read whole.

fn quoted_job() -> Job {
    fixture::delimited(|format| format.quoted_breaks = true)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[test]
fn a_field_with_line_breaks_is_one_value_whose_row_has_its_first_line() {
    let (_folder, path) =
        fixture::file("click,age,\"ci\nty\",tags\n1,2,\"a\nb\",x\n1,old,\"a\n\nb\",x\n0,3,c,\"\n\"\n2,1,a,x\n");
    let mut job = quoted_job();
    job.features.categorical[0] = zagros_job::Categorical::of_column("ci\nty", 0);
    // The malformed record has three lines.
    job.data.max_bad_rows = 4;
    let found = samples(&batches(&job, DataPart::All, whole(&path), 16).unwrap());
    assert_eq!(found.categorical[0].ids, [b"a\nb".as_slice(), b"c"].map(hash_value));
    assert_eq!(found.categorical[1].ids, [b"x".as_slice(), b"\n"].map(hash_value));
    job.data.max_bad_rows = 3;
    let error = batches(&job, DataPart::All, whole(&path), 16).unwrap_err();
    let IngestError::TooManyBadRows { first, .. } = error else { panic!("{error}") };
    assert_eq!(first.iter().map(|row| row.line).collect::<Vec<_>>(), [5, 10]);
}

#[test]
fn a_quote_that_is_not_closed_is_an_error_however_many_malformed_rows_are_allowed() {
    let (_folder, path) = fixture::file("click,age,city,tags\n1,2,a,x\n1,3,\"b,x\n1,4,c,x\n1,5,d,x\n");
    let mut tolerant = quoted_job();
    (tolerant.data.max_bad_rows, tolerant.data.max_bad_share) = (u64::MAX, 1.0);
    // Whichever part the record is in.
    tolerant.data.test = zagros_job::HeldOutRows::Share(0.5);
    for (block_bytes, part) in [(16, DataPart::All), (1 << 20, DataPart::Train), (1 << 20, DataPart::Test)] {
        let error = batches(&tolerant, part, whole(&path), block_bytes).unwrap_err().to_string();
        assert!(error.contains("data.txt:3:3: expected a closing quote, found the end of the file"), "{error}");
        assert!(error.contains("its 3 lines may be as many rows, so no number of malformed rows allows it"), "{error}");
    }
    // Of a record that is too long the end is not looked for.
    tolerant.data.max_line_bytes = 20;
    for block_bytes in [8, 1 << 20] {
        let error = batches(&tolerant, DataPart::All, whole(&path), block_bytes).unwrap_err().to_string();
        assert!(error.contains("data.max_line_bytes") && error.contains("many rows"), "{error}");
    }
    let mut lines = fixture::delimited(|_| ());
    lines.data.max_bad_rows = 0;
    let error = batches(&lines, DataPart::All, whole(&path), 16).unwrap_err().to_string();
    assert!(error.contains("data.txt:3:3") && error.contains("set data.quoted_breaks = true"), "{error}");
}

/// Each of the lines may have been a row: a budget of one must not let thousands go.
#[test]
fn a_stray_quote_counts_each_line_up_to_the_next_quote() {
    let line = |n: usize| match n {
        10 => "1,7,\"b,x\n".to_owned(),
        90 => "1,7,\"c,x\n".to_owned(),
        _ => format!("1,{n},a,x\n"),
    };
    let (_folder, path) = fixture::file("click,age,city,tags\n".to_owned() + &(0..100).map(line).collect::<String>());
    let mut job = quoted_job();
    job.data.max_bad_rows = 80;
    let error = batches(&job, DataPart::All, whole(&path), 1 << 20).unwrap_err().to_string();
    assert!(error.starts_with("81 malformed rows"), "{error}");
    job.data.max_bad_rows = 81;
    assert_eq!(samples(&batches(&job, DataPart::All, whole(&path), 1 << 20).unwrap()).size, 19);
    job.eval.predict = Some(zagros_job::PredictRows { keys: vec![], keep_bad: true });
    let error = batches(&job, DataPart::All, whole(&path), 1 << 20).unwrap_err().to_string();
    assert!(
        error.contains("data.txt:12:3") && error.contains("its 81 lines") && error.contains("--bad-rows skip"),
        "{error}"
    );
}

#[test]
fn a_file_of_lines_has_the_same_rows_whether_breaks_are_allowed_or_not() {
    let rows: String = (0..50).map(|n| format!("{},{n},\"c{}\",5\" pipe|t{n}\n", n % 2, n % 7)).collect();
    let (_folder, path) = fixture::file(format!("click,age,city,tags\n{rows}"));
    let lines = batches(&fixture::delimited(|_| ()), DataPart::All, whole(&path), 64).unwrap();
    assert_eq!(batches(&quoted_job(), DataPart::All, whole(&path), 64).unwrap(), lines);
    // Where a record starts is not known in the middle of a file.
    assert!(!find_files(&quoted_job(), std::slice::from_ref(&path)).unwrap()[0].splittable);
    let error = batches(&quoted_job(), DataPart::All, cut(&path, vec![30]), 64).unwrap_err().to_string();
    assert!(error.contains("cannot be read from byte 30 on; give it as one split"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn threads_and_blocks_do_not_change_quoted_rows(
        cities in prop::collection::vec("[ab\n,\"]{0,12}|[ab]{1,3}", 1..40),
        threads in 1_usize..5,
        block_bytes in 8_usize..400,
        returns: bool,
        comments: bool,
    ) {
        let row = |(n, city): (usize, &String)| {
            let comment = if comments && n % 3 == 0 { "# \"no, quote\n" } else { "" };
            format!("{comment}{},{n},{},{}\n", n % 2, quoted(city), quoted("x|\ny"))
        };
        let text = "click,age,city,tags\n".to_owned() + &cities.iter().enumerate().map(row).collect::<String>();
        let text = if returns { text.replace('\n', "\r\n") } else { text };
        let (_folder, path) = fixture::file(&text);
        let mut job = quoted_job();
        if comments {
            let zagros_job::Format::Delimited(format) = &mut job.data.format else { unreachable!() };
            format.comment = Some("#".into());
        }
        job.data.threads = threads;
        let found = samples(&batches(&job, DataPart::All, whole(&path), block_bytes).unwrap());
        let ids: Vec<_> = cities.iter().map(|city| if returns { city.replace("\n", "\r\n") } else { city.clone() }).collect();
        prop_assert_eq!(&found.numeric, &(0..cities.len()).map(|n| n as f32).collect::<Vec<_>>());
        prop_assert_eq!(&found.categorical[0].ids, &ids.iter().map(|city| hash_value(city.as_bytes())).collect::<Vec<_>>());
    }

    /// Any bytes: the rows, good and malformed, do not depend on blocks.
    #[test]
    fn any_text_has_the_same_rows_in_any_blocks(
        text in prop::collection::vec(prop_oneof![Just(b','), Just(b'\n'), Just(b'1'), Just(b'"'), Just(b'a'), any::<u8>()], 0..300),
        block_bytes in 1_usize..100,
        max_line_bytes in 20_usize..80,
    ) {
        let (_folder, path) = fixture::file([&b"click,age,city,tags\n1,2,x,y\n"[..], &text].concat());
        let mut job = quoted_job();
        (job.data.max_bad_rows, job.data.max_line_bytes) = (1_000, max_line_bytes);
        // A record that may be many rows is an error.
        let read = |block_bytes| {
            let mut stream = open(&job, DataPart::All, whole(&path), block_bytes);
            let found = stream.by_ref().collect::<Result<Vec<Batch>, _>>().ok()?;
            Some((samples(&found), stream.stats().bad_rows))
        };
        prop_assert_eq!(read(block_bytes), read(BLOCK_BYTES));
    }
}
