//! Lines of every format become rows, malformed rows, or rows of another part.

use proptest::prelude::*;
use zagros_job::{ColumnarFormat, DecimalMark, Format, HeldOutRows, NewestRows, TimeBound};

use super::*;
use crate::parse::sink::BatchSink;
use crate::{Batch, fixture, hash_value};

fn parse(job: &Job, part: DataPart, text: &[u8]) -> (Batch, ParseOutcome) {
    let mut sink = BatchSink::new(&job.features, part);
    let outcome = RowParser::new(job, part).parse((text, 0), &fixture::positions(job), &mut sink);
    (sink.rows, outcome)
}

/// The single malformed row of a text, as a message without its position.
fn fault(job: &Job, text: &[u8]) -> String {
    let (rows, outcome) = parse(job, DataPart::All, text);
    assert_eq!((rows.size, outcome.bad.count), (0, 1), "{outcome:?}");
    outcome.bad.to_string()
}

#[test]
fn a_criteo_row_in_full() {
    let text = b"1\t0\t-3\t\t7\t\t\t\t\t\t\t\t\t1000000\t68fd1e64\t\tx\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\tffffffff\r\n";
    let (rows, outcome) = parse(&fixture::criteo(), DataPart::All, text);
    assert_eq!((outcome.rows, rows.labels.as_slice()), (1, &[1.0][..]));
    let expected = [0.0, -(4.0_f32.ln()), 0.0, 8.0_f32.ln(), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 13.815_512];
    assert_eq!(rows.numeric, expected);
    assert_eq!(rows.categorical[0].ids, [hash_value(b"68fd1e64")]);
    assert_eq!(rows.categorical[1].ids, [hash_value(b"")]);
    assert_eq!(rows.categorical[25].ids, [hash_value(b"ffffffff")]);
}

#[test]
fn numbers_with_a_decimal_comma_and_texts_with_any() {
    let job = fixture::delimited(|format| (format.delimiter, format.decimal) = (b';', DecimalMark::Comma));
    let (rows, _) = parse(&job, DataPart::All, b"0;-3,25;\"a,b\";c\n1;2.5;a,b;c\n0;\"1,5\";x;c\n");
    assert_eq!(rows.numeric, [-3.25, 2.5, 1.5]);
    assert_eq!(rows.categorical[0].ids, [b"a,b".as_slice(), b"a,b", b"x"].map(hash_value));
    let mut missing = job.clone();
    let Format::Delimited(format) = &mut missing.data.format else { unreachable!() };
    format.missing = vec!["-3,25".into()];
    assert_eq!(parse(&missing, DataPart::All, b"0;-3,25;x;c\n").0.numeric, [-1.0]);
    let point = fixture::delimited(|format| format.delimiter = b';');
    assert!(fault(&point, b"0;3,25;x;c\n").contains("found \"3,25\""));
}

#[test]
fn missing_texts_and_bags_of_a_csv() {
    let job = fixture::delimited(|_| ());
    let (rows, _) = parse(&job, DataPart::All, b"0,?,?,a||b|a\n1,2.5,Basel,\n0,3,\"a,b\",?\n\n\r\n");
    assert_eq!((rows.labels.as_slice(), rows.numeric.as_slice()), (&[0.0, 1.0, 0.0][..], &[-1.0, 2.5, 3.0][..]));
    assert_eq!(rows.categorical[0].ids, [b"".as_slice(), b"Basel", b"a,b"].map(hash_value));
    assert_eq!(rows.categorical[1].sample_ids(0), [b"a", b"b", b"a"].map(|text| hash_value(text)));
    assert!(rows.categorical[1].sample_ids(1).is_empty() && rows.categorical[1].sample_ids(2).is_empty());
    let (rows, _) = parse(&job, DataPart::All, b"0,3,x,a|?|b\n");
    assert_eq!(rows.categorical[1].sample_ids(0), [b"a", b"b"].map(|text| hash_value(text)));
}

#[test]
fn comments_are_skipped_and_blanks_removed() {
    let job = fixture::delimited(|format| (format.comment, format.trim) = (Some("|".into()), true));
    let (rows, outcome) = parse(&job, DataPart::All, b"|1x3 Cross validator\n 1 , 7,  Basel ,a | b\n");
    assert_eq!((outcome.rows, outcome.bad.count), (1, 0));
    assert_eq!(rows.categorical[0].ids, [hash_value(b"Basel")]);
    assert_eq!(rows.categorical[1].ids, [hash_value(b"a"), hash_value(b"b")]);
}

#[test]
fn bad_rows_say_what_was_expected() {
    let mut job = fixture::delimited(|_| ());
    for (text, expected) in [
        (&b"1,2,x\n"[..], "0:4: expected 4 fields separated by \",\", found 3"),
        (b"1,2,x,y,z\n", "0:5: expected 4 fields separated by \",\", found 5"),
        (b"1;2;x;y\n", "0:2: expected 4 fields separated by \",\", found 1 (is the separator \";\"?)"),
        (b"1;2;x\n", "0:2: expected 4 fields separated by \",\", found 1"),
        (b"1,old,x,y\n", "0:2: expected a number in column \"age\", found \"old\""),
        (b"1,nan,x,y\n", "0:2: expected a number in column \"age\", found \"nan\""),
        (b"1,2,a\xffb,y\n", "0:3: expected UTF-8, found \"a\u{fffd}b\""),
        (b"1,2,x,a\0\n", "0:4: expected text without NUL bytes, found \"a\\u{0}\""),
        (
            b"1,2,\"x,y\n",
            "0:3: expected a closing quote on the same line (set data.quoted_breaks = true if quoted fields hold line breaks), found the end of the line",
        ),
    ] {
        assert_eq!(fault(&job, text), expected);
    }
    job.data.max_line_bytes = 10;
    let (rows, outcome) = parse(&job, DataPart::All, b"1,2,xxxxxxx\n1,2,x,y\n");
    assert_eq!(rows.size, 1);
    let message = "0:1: expected a line of at most 10 bytes (data.max_line_bytes), found a longer one that starts with \"1,2,xxxxxxx\"";
    assert_eq!(outcome.bad.to_string(), message);
}

#[test]
fn a_bad_row_does_not_disturb_its_neighbours() {
    let job = fixture::delimited(|_| ());
    let good = b"1,2,x,a|b\n0,3,y,c\n";
    let mixed = b"1,2,x,a|b\n1,2,x\n\xff\n0,4,z,d|e\0\n0,3,y,c\n";
    let (rows, outcome) = parse(&job, DataPart::All, mixed);
    assert_eq!((rows, outcome.bad.count), (parse(&job, DataPart::All, good).0, 3));
}

#[test]
fn held_out_rows_have_a_group_and_training_rows_have_none() {
    let mut job = fixture::delimited(|_| ());
    job.eval.group_by = Some("tags".into());
    let text = b"1,2,x,a|b\n1,bad,x,c\n0,3,y,?\n";
    let (rows, _) = parse(&job, DataPart::All, text);
    assert_eq!(rows.groups, [hash_value(b"a|b"), hash_value(b"")]);
    assert!(parse(&job, DataPart::Train, text).0.groups.is_empty());
    job.eval.group_by = None;
    assert!(parse(&job, DataPart::All, text).0.groups.is_empty());
}

#[test]
fn the_parts_of_a_hash_split_partition_the_rows() {
    let mut job = fixture::criteo();
    job.data.test = HeldOutRows::Share(0.3);
    job.data.validation = HeldOutRows::Share(0.2);
    let text = fixture::criteo_text(500);
    let (train, seen) = parse(&job, DataPart::Train, text.as_bytes());
    let [test, validation] = [DataPart::Test, DataPart::Validation].map(|part| parse(&job, part, text.as_bytes()).0);
    assert_eq!(train.size + test.size + validation.size, 500);
    assert_eq!(seen.other_part as usize, test.size + validation.size);
    assert!((60..140).contains(&validation.size), "{}", validation.size);
    job.data.validation = HeldOutRows::None;
    assert_eq!(parse(&job, DataPart::Test, text.as_bytes()).0, test, "a validation part changes no test part");
    assert!((100..200).contains(&test.size), "{}", test.size);
}

fn json_job() -> Job {
    let mut job = fixture::delimited(|_| ());
    job.data.format = Format::Jsonl(ColumnarFormat { missing: vec!["?".into()] });
    job
}

fn parse_objects(job: &Job, text: &str) -> (Batch, Vec<String>) {
    let mut sink = BatchSink::new(&job.features, DataPart::All);
    let positions = ColumnPositions { group: Some(2), ..fixture::positions(job) };
    let outcome = RowParser::new(job, DataPart::All).parse((text.as_bytes(), 0), &positions, &mut sink);
    let bad = if outcome.bad.count > 0 { vec![outcome.bad.to_string()] } else { Vec::new() };
    (sink.rows, bad)
}

#[test]
fn objects_make_the_rows_that_the_same_lines_of_a_csv_make() {
    let objects = "{\"click\":0,\"age\":\"?\",\"city\":\"?\",\"tags\":[\"a\",\"b\",\"a\"]}\n\
                   {\"tags\":null,\"click\":true,\"age\":2.5,\"city\":\"Basel\",\"else\":{}}\n\n\
                   {\"click\":\"0\",\"age\":\"3\",\"city\":12.50,\"tags\":\"c|d\"}\n";
    let lines = "0,?,?,a|b|a\n1,2.5,Basel,\n0,3,12.50,c|d\n";
    let (rows, bad) = parse_objects(&json_job(), objects);
    assert_eq!(bad, [""; 0]);
    assert_eq!(rows, parse_objects(&fixture::delimited(|_| ()), lines).0);
    assert_eq!(rows.categorical[0].sample_ids(2), [hash_value(b"12.50")]);
}

#[test]
fn a_malformed_object_says_what_was_expected() {
    let bad = |text| parse_objects(&json_job(), text).1.concat();
    assert_eq!(
        bad("{\"click\":2}\n"),
        "0:1: expected \"1\" (positive) or \"0\" (negative) in label column \"click\", found \"2\""
    );
    assert_eq!(bad("{\"click\":1,\"age\":\"old\"}\n"), "0:1: expected a number in column \"age\", found \"old\"");
    assert_eq!(
        bad("{\"click\":1,\"age\":[1]}\n"),
        "0:1: expected a number in column \"age\"; give the feature `width` to use arrays, found an array"
    );
    assert!(bad("{\"click\":1,\"city\":[\"x\"]}\n").contains("give the feature `pooling` to use arrays"));
    assert!(bad("[1,2]\n").starts_with("0:1: expected a JSON object, found invalid type: sequence"));
    let (rows, _) = parse_objects(&json_job(), "{\"click\":1,\"age\":\"x\",\"tags\":[\"a\"]}\n{\"click\":1}\n");
    assert_eq!((rows.size, rows.numeric.as_slice()), (1, &[-1.0][..]));
}

#[test]
fn a_group_is_a_single_value() {
    let mut job = json_job();
    job.eval.group_by = Some("city".into());
    let (rows, _) = parse_objects(&job, "{\"click\":1,\"city\":\"Bern\"}\n{\"click\":1}\n");
    assert_eq!(rows.groups, [hash_value(b"Bern"), hash_value(b"")]);
}

proptest! {
    /// Also malformed rows: each is a row of the training part.
    #[test]
    fn each_row_is_in_one_part_of_a_split_by_time(
        times in prop::collection::vec(prop_oneof![(-50_i32..50).prop_map(|time| time.to_string()), Just(String::new()), Just("?".to_owned()), Just("x".to_owned())], 0..60),
        validation in -60.0..60.0_f64,
        test in -60.0..60.0_f64,
    ) {
        let mut job = fixture::delimited(|_| ());
        let newest = |from| NewestRows { column: "age".into(), from: TimeBound::Number(from) };
        job.data.test = HeldOutRows::Newest(newest(test));
        job.data.validation = HeldOutRows::Newest(newest(validation));
        let text: String = times.iter().map(|time| format!("1,{time},x,y\n1,{time}\n")).collect();
        let count = |part| {
            let (rows, outcome) = parse(&job, part, text.as_bytes());
            prop_assert_eq!(outcome.rows + outcome.bad.count + outcome.other_part, 2 * times.len() as u64);
            Ok((rows.size, outcome.bad.count as usize))
        };
        let (train, validation_rows, test_rows) = (count(DataPart::Train)?, count(DataPart::Validation)?, count(DataPart::Test)?);
        let numbers: Vec<f64> = times.iter().filter_map(|time| time.parse().ok()).collect();
        let newest = numbers.iter().filter(|time| **time >= test).count();
        let middle = numbers.iter().filter(|time| **time >= validation && **time < test).count();
        let unreadable = times.iter().filter(|time| *time == "x").count();
        prop_assert_eq!((test_rows, validation_rows), ((newest, 0), (middle, 0)));
        prop_assert_eq!(train, (times.len() - newest - middle - unreadable, times.len() + unreadable));
    }

    #[test]
    fn any_bytes_are_rows_or_bad_rows(text in prop::collection::vec(prop_oneof![Just(b'\t'), Just(b','), Just(b'\n'), Just(b'"'), Just(b'1'), any::<u8>()], 0..300)) {
        for mut job in [fixture::criteo(), fixture::delimited(|format| format.trim = true)] {
            job.data.max_line_bytes = 50;
            let (rows, outcome) = parse(&job, DataPart::All, &text);
            let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && *line != b"\r").count();
            prop_assert_eq!(rows.size as u64, outcome.rows);
            prop_assert_eq!(outcome.rows + outcome.bad.count, lines as u64);
            prop_assert_eq!(rows.numeric.len(), rows.size * job.features.numeric.len());
        }
    }

    #[test]
    fn damaged_rows_do_not_break_the_columns(line in 0_usize..5, at in 0_usize..100, byte: u8) {
        let job = fixture::criteo();
        let mut lines: Vec<Vec<u8>> = (0..5).map(|n| (fixture::criteo_line(n) + "\n").into_bytes()).collect();
        let place = at % lines[line].len();
        lines[line][place] = byte;
        let (rows, _) = parse(&job, DataPart::All, &lines.concat());
        prop_assert!(rows.categorical.iter().all(|column| column.ids.len() == rows.size));
        prop_assert_eq!(rows.labels.len(), rows.size);
    }
}
