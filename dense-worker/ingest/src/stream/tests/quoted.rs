//! Rows whose quoted fields hold line breaks: each belongs to one split (invariant SP-1), and is read whole.

use zagros_job::Job;

use super::*;
use crate::hash_value;

fn job() -> Job {
    fixture::delimited(|format| format.quoted_breaks = true)
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[test]
fn a_field_with_line_breaks_is_one_value_whose_row_has_its_first_line() {
    let (_folder, path) =
        fixture::file("click,age,\"ci\nty\",tags\n1,2,\"a\nb\",x\n1,old,\"a\n\nb\",x\n0,3,c,\"\n\"\n2,1,a,x\n");
    let mut job = job();
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
    let mut tolerant = job();
    (tolerant.data.max_bad_rows, tolerant.data.max_bad_share) = (u64::MAX, 1.0);
    // Whichever part the record is in.
    tolerant.data.test = zagros_job::TestPart::Fraction(0.5);
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
    let mut job = job();
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
    assert_eq!(batches(&job(), DataPart::All, whole(&path), 64).unwrap(), lines);
    // Where a record starts is not known in the middle of a file.
    assert!(!find_files(&job(), std::slice::from_ref(&path)).unwrap()[0].splittable);
    let error = batches(&job(), DataPart::All, cut(&path, vec![30]), 64).unwrap_err().to_string();
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
        let mut job = job();
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
        let mut job = job();
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
