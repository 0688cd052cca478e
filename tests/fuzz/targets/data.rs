//! Data files: whatever bytes a path leads to.
//! Job files that a person typed.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bolero::check;
use miette::{GraphicalReportHandler, GraphicalTheme};
use tempfile::TempDir;
use zagros_ingest::{BatchStream, DataPart, StreamOptions, StreamStart, WholeFiles, find_files, validate_rows};
use zagros_job::{Job, JobErrors, Overrides};

const DELIMITED: &str = r#"
[data]
format = "delimited"
delimiter = ","
header = true
train = "train"
max_bad_rows = 1000000
[features]
label = { column = "click", positive = ["1"], negative = ["0"] }
numeric = ["age"]
categorical = ["city", { column = "tags", separator = "|", pooling = "mean" }]
[model]
kind = "ffnn"
"#;

const CRITEO: &str = r#"
[data]
format = "criteo"
train = "train"
max_bad_rows = 1000000
[model]
kind = "ffnn"
"#;

/// Each cell of cities has as many values as that of tags has numbers, and two of them.
const LISTS: &str = r#"
[data]
format = "delimited"
delimiter = ","
header = true
train = "train"
max_bad_rows = 1000000
[features]
label = { column = "click", positive = ["1"], negative = ["0"] }
numeric = [{ column = "tags", width = 2, separator = "|", missing_indicator = true }]
categorical = [{ column = "city", separator = "|", weights = "tags", pooling = "mean" }]
[model]
kind = "ffnn"
"#;

/// Fields may hold line breaks.
fn quoted_breaks() -> String {
    DELIMITED.replace("header = true", "header = true\nquoted_breaks = true")
}

struct FuzzedSource {
    job: Job,
    train: PathBuf,
    _folder: TempDir,
}

impl FuzzedSource {
    fn new(text: &str) -> Self {
        let folder = TempDir::new().expect("a folder");
        let job = Job::parse(text, &folder.path().join("job.toml"), &Overrides::none()).expect("the job is good");
        Self { job, train: folder.path().join("train"), _folder: folder }
    }

    /// Rows that were read, twice over; or nothing, with a reason.
    fn read(&self, bytes: &[u8]) -> Option<u64> {
        fs::write(&self.train, bytes).expect("room for a small file");
        let validated = validate_rows(&self.job, 3);
        let streamed = stream(&self.job, &self.train);
        match (validated, streamed) {
            (Ok(validation), Ok(rows)) => {
                assert_eq!(validation.good, rows, "a stream reads the rows that validation found good");
                Some(rows)
            }
            (validated, streamed) => {
                let reasons = [validated.err().map(|e| e.to_string()), streamed.err()];
                assert!(reasons.iter().flatten().all(|reason| !reason.is_empty()));
                None
            }
        }
    }
}

fn stream(job: &Job, path: &Path) -> Result<u64, String> {
    let found = find_files(job, &[path.to_owned()]).map_err(|error| error.to_string())?;
    let options = StreamOptions {
        part: DataPart::All,
        epoch: 0,
        start: StreamStart::default(),
        bad_rows: 0,
        cancel: Arc::default(),
    };
    let mut stream = BatchStream::open(job, options, Box::new(WholeFiles::new(&found))).map_err(|e| e.to_string())?;
    let mut rows = 0;
    for batch in &mut stream {
        rows += batch.map_err(|error| error.to_string())?.labels.len() as u64;
    }
    Ok(rows)
}

#[test]
fn any_bytes_are_rows_or_a_reason() {
    let (delimited, criteo) =
        (AssertUnwindSafe(FuzzedSource::new(DELIMITED)), AssertUnwindSafe(FuzzedSource::new(CRITEO)));
    let quoted = AssertUnwindSafe(FuzzedSource::new(&quoted_breaks()));
    check!().with_iterations(300).with_type::<Vec<u8>>().for_each(|bytes| {
        delimited.read(bytes);
        criteo.read(bytes);
        quoted.read(&[b"click,age,city,tags\n1,2,\"", &bytes[..]].concat());
        // As if it were gzip.
        delimited.read(&[&[0x1f, 0x8b, 8, 0], &bytes[..]].concat());
    });
}

/// Lists of nearly as many values as weights, as text and as JSON.
#[test]
fn lists_that_may_not_fit_are_rows_or_a_reason() {
    let json = LISTS.replace("delimited", "jsonl").replace("delimiter = \",\"\nheader = true\n", "");
    let lists = AssertUnwindSafe([FuzzedSource::new(LISTS), FuzzedSource::new(&json)]);
    let read = AtomicU64::new(0);
    check!().with_iterations(300).with_type::<Vec<(Vec<u8>, Vec<i8>, u8)>>().for_each(|rows| {
        let [mut text, mut objects] = [b"click,age,city,tags\n".to_vec(), Vec::new()];
        for (values, weights, noise) in rows {
            let weights: Vec<String> = weights.iter().take(3).map(ToString::to_string).collect();
            let values: Vec<String> = values.iter().take(3).map(|value| format!("{value:x}")).collect();
            let (values, weights) = (values.join("|"), weights.join("|"));
            text.extend_from_slice(format!("1,2,{values},{weights}").as_bytes());
            text.extend_from_slice(&[*noise, b'\n']);
            let (values, weights) = (values.replace('|', "\",\""), weights.replace('|', ","));
            objects
                .extend_from_slice(format!("{{\"click\":1,\"city\":[\"{values}\"],\"tags\":[{weights}]}}").as_bytes());
            objects.extend_from_slice(&[*noise, b'\n']);
        }
        let [one, other] = [(&lists[0], &text), (&lists[1], &objects)].map(|(source, bytes)| source.read(bytes));
        read.fetch_add(one.unwrap_or(0) + other.unwrap_or(0), Ordering::Relaxed);
        // Surely two of both.
        let whole = lists[0].read(b"click,age,city,tags\n1,2,a|b,1|2\n");
        assert_eq!(whole, Some(1));
    });
}

/// Lines made of the right fields, some of them noise.
#[test]
fn nearly_good_rows_are_counted_good_or_bad() {
    let (source, read) = (AssertUnwindSafe(FuzzedSource::new(DELIMITED)), AtomicU64::new(0));
    let quoted = AssertUnwindSafe(FuzzedSource::new(&quoted_breaks()));
    check!().with_iterations(300).with_type::<Vec<(bool, i16, Vec<u8>)>>().for_each(|rows| {
        let mut text = b"click,age,city,tags\n".to_vec();
        for (label, age, noise) in rows {
            text.extend_from_slice(format!("{},{age},", u8::from(*label)).as_bytes());
            text.extend_from_slice(noise);
            text.extend_from_slice(b",a|b\n");
        }
        read.fetch_add(source.read(&text).unwrap_or(0) + quoted.read(&text).unwrap_or(0), Ordering::Relaxed);
    });
    assert!(read.into_inner() > 0, "some rows are good");
}

const GOOD: &str = include_str!("../../../examples/quickstart.toml");

fn parse(text: &str) -> Option<Job> {
    parse_with(text, &Overrides::none())
}

fn parse_with(text: &str, overrides: &Overrides) -> Option<Job> {
    Job::parse(text, Path::new("examples/job.toml"), overrides).map_err(|errors| show(&errors)).ok()
}

/// A refusal says why, on a page that a person can read, whatever the text is.
fn show(errors: &JobErrors) {
    let mut page = String::new();
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::none()).with_width(100);
    handler.render_report(&mut page, errors).expect("it is shown");
    let plain = errors.plain_text();
    assert!(!errors.problems().is_empty() && page.len() < 200_000 && plain.len() < 100_000, "{} bytes", page.len());
}

/// Pieces of job files, repeated: long lines, deep brackets, many problems.
#[test]
fn repeated_pieces_are_a_job_or_are_refused_on_one_page() {
    const PIECES: [&str; 16] =
        ["[", "]", "{", "}", "a", ".", " = ", "\n", "'", "\"", "\"\"\"", ",", "é", "[data]\n", "[[data.train]]\n", "#"];
    check!().with_iterations(200).with_type::<Vec<(u8, u16)>>().for_each(|pieces| {
        let piece =
            |(piece, times): &(u8, u16)| PIECES[usize::from(*piece) % PIECES.len()].repeat(usize::from(times % 9_000));
        let text: String = pieces.iter().take(8).map(piece).collect();
        parse(&text);
    });
}

#[test]
fn any_setting_is_taken_or_refused_on_one_page() {
    check!().with_iterations(400).with_type::<(String, u16)>().for_each(|(value, times)| {
        let value = value.repeat(usize::from(times % 2_000));
        parse_with(GOOD, &Overrides::sets([format!("model.hidden={value}"), format!("{value}=1")]));
    });
}

#[test]
fn any_text_is_a_job_or_says_why_not() {
    check!().with_type::<String>().for_each(|text| {
        parse(text);
    });
}

/// A good file with some bytes changed, skipped or doubled.
#[test]
fn a_damaged_job_is_a_job_that_reads_back_or_says_why_not() {
    check!().with_iterations(400).with_type::<Vec<(u16, u8, u8)>>().for_each(|edits| {
        let mut bytes = GOOD.as_bytes().to_vec();
        for (place, kind, byte) in edits.iter().take(6) {
            let place = usize::from(*place) % bytes.len();
            match kind % 3 {
                0 => bytes[place] = *byte,
                1 => drop(bytes.remove(place)),
                _ => bytes.insert(place, bytes[place]),
            }
        }
        let Some(job) = std::str::from_utf8(&bytes).ok().and_then(parse) else { return };
        let again = parse(&job.to_toml()).expect("a resolved job loads again");
        assert_eq!(again.fingerprint(), job.fingerprint());
    });
}
