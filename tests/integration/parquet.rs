//! Parquet and Arrow files as a user has them: the commands do with them what they do with the same rows as CSV.

use serde_json::Value;
use zagros_tests::assert_contains;

use super::columns::{ColumnKind, write_arrow, write_parquet};
use super::fixture::Fixture;

/// Three columns of Criteo's categories become one list.
const LISTED: std::ops::Range<usize> = 37..40;

const JOB: &str = r#"
name = "twin"
[data]
format = "FORMAT"
train = ["train0.END", "train1.END"]
test = "test0.END"
threads = 2
shuffle_rows = 0
[features]
label = "label"
numeric = [{ column = "I1", log = true }, { column = "I2", standardise = true }, "I3"]
categorical = ["C1", "C2", "C3", "C10", { column = "tags", SEPARATOR pooling = "mean" }]
[embedding]
dim = 4
[model]
kind = "dlrm"
bottom = [8]
top = [8]
[train]
batch_size = 256
threads = 1
mode = "sync"
[cluster]
timeout_seconds = 20
"#;

/// Criteo's rows with the last categories in one column.
fn csv_row(line: &str) -> String {
    let fields: Vec<&str> = line.split('\t').collect();
    let tags: Vec<&str> = fields[LISTED].iter().copied().filter(|text| !text.is_empty()).collect();
    format!("{},{}", fields[..LISTED.start].join(","), tags.join("|"))
}

fn write_twins(fixture: &Fixture, name: &str, parts: usize) {
    let rows: Vec<String> = fixture.read(&format!("{name}.txt")).lines().map(csv_row).collect();
    let names = names();
    let columns: Vec<(&str, ColumnKind)> = names.iter().map(|name| (name.as_str(), kind(name))).collect();
    for (part, rows) in rows.chunks(rows.len().div_ceil(parts)).enumerate() {
        fixture.write(&format!("{name}{part}.csv"), format!("{}\n{}\n", names.join(","), rows.join("\n")));
        let fields: Vec<Vec<&str>> = rows.iter().map(|row| row.split(',').collect()).collect();
        write_parquet(&fixture.path(&format!("{name}{part}.parquet")), &columns, &fields);
        write_arrow(&fixture.path(&format!("{name}{part}.arrow")), &columns, &fields);
    }
}

fn names() -> Vec<String> {
    let numbered = |letter: char, last: usize| (1..=last).map(move |n| format!("{letter}{n}"));
    let names = std::iter::once("label".to_owned()).chain(numbered('I', 13)).chain(numbered('C', 23));
    names.chain(std::iter::once("tags".into())).collect()
}

fn kind(name: &str) -> ColumnKind {
    match name {
        "label" => ColumnKind::Int32,
        "tags" => ColumnKind::List,
        number if number.starts_with('I') => ColumnKind::Int64,
        _ => ColumnKind::Text,
    }
}

pub(crate) fn twins(rows: u32) -> Fixture {
    let fixture = Fixture::new(rows);
    write_twins(&fixture, "train", 2);
    write_twins(&fixture, "test", 1);
    let separated = ("delimited", "csv", "separator = '|',");
    for (format, end, separator) in [separated, ("parquet", "parquet", ""), ("arrow", "arrow", "")] {
        let job = JOB.replace("FORMAT", format).replace("END", end).replace("SEPARATOR", separator);
        fixture.write(&format!("{end}.toml"), job);
    }
    fixture
}

#[test]
fn a_parquet_file_that_was_cut_off_stops_the_run_before_its_first_step() {
    let fixture = twins(1_000);
    let whole = std::fs::read(fixture.path("train1.parquet")).expect("the file is there");
    fixture.write("train1.parquet", &whole[..whole.len() / 2]);
    let run = fixture.zagros(["train", "parquet.toml"]).expect(3);
    run.says(&["train1.parquet", "does not end with PAR1", "write it again"]);
    let metrics = std::fs::read_to_string(fixture.run_folder().join("metrics.jsonl")).unwrap_or_default();
    assert!(!metrics.contains("\"loss\""), "{metrics}");
}

const JOBS: [&str; 3] = ["csv.toml", "parquet.toml", "arrow.toml"];

#[test]
fn every_command_does_with_parquet_and_arrow_files_what_it_does_with_the_same_rows_as_csv() {
    let fixture = twins(6_000);
    for command in ["inspect", "validate"] {
        let [text, columns, batches] = JOBS.map(|job| fixture.zagros(["data", command, job]).expect(0).stdout);
        assert_eq!([&columns, &batches], [&text; 2], "{command}");
        assert!(columns.contains("000 ") || columns.contains("200 "), "{columns}");
    }
    let [text, columns, batches] = JOBS.map(|job| {
        fixture.zagros(["train", job]).expect(0);
        (fixture.losses(), fixture.summary())
    });
    assert_eq!(text.0.len(), 24, "one loss per step of 256 samples");
    for (format, (losses, summary)) in [("Parquet", &columns), ("Arrow", &batches)] {
        assert_eq!((losses, &summary["samples"]), (&text.0, &Value::from(6_000)), "{format}");
        for measure in ["auc", "logloss", "samples"] {
            assert!(summary["evaluation"][measure].is_number(), "{format}: {summary}");
            assert_eq!(summary["evaluation"][measure], text.1["evaluation"][measure], "{format}: {measure}");
        }
    }
    // The saved model finds its files again.
    assert_eq!(fixture.evaluate()["auc"], batches.1["evaluation"]["auc"]);
    // Two workers share the record batches.
    let arguments = ["up", "arrow.toml", "--fresh", "--set", "cluster.workers=2", "--set", "train.batch_size=128"];
    fixture.zagros(arguments).expect(0);
    assert_eq!(fixture.summary()["samples"], Value::from(6_000));
    // The saved model scores rows of any format.
    let folder = fixture.run_name();
    for end in ["parquet", "arrow"] {
        let (rows, scores) = (format!("test0.{end}"), format!("{end}.csv"));
        fixture.zagros(["predict", &folder, &rows, "-o", &scores, "--set", &format!("data.format={end}")]).expect(0);
    }
    assert_eq!(fixture.read("arrow.csv"), fixture.read("parquet.csv"));
}

#[test]
fn init_recognises_an_arrow_file() {
    let fixture = twins(1_000);
    let text = fixture.zagros(["init", "train0.arrow", "--label", "label"]).expect(0).stdout;
    assert_contains(&text, &["format = \"arrow\"", "column = \"tags\"", "pooling = \"mean\""]);
}
