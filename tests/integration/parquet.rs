//! Parquet and Arrow files as a user has them: the commands do with them what they do with the same rows as CSV.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::Value;
use zagros_tests::assert_contains;

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
    for (part, rows) in rows.chunks(rows.len().div_ceil(parts)).enumerate() {
        fixture.write(&format!("{name}{part}.csv"), format!("{}\n{}\n", names().join(","), rows.join("\n")));
        let fields: Vec<Vec<&str>> = rows.iter().map(|row| row.split(',').collect()).collect();
        write_parquet(&fixture.path(&format!("{name}{part}.parquet")), &names(), &fields);
    }
}

fn names() -> Vec<String> {
    let numbered = |letter: char, last: usize| (1..=last).map(move |n| format!("{letter}{n}"));
    let names = std::iter::once("label".to_owned()).chain(numbered('I', 13)).chain(numbered('C', 23));
    names.chain(std::iter::once("tags".into())).collect()
}

fn is_number(name: &str) -> bool {
    name.starts_with('I') || ["clicked", "age"].contains(&name)
}

/// Row groups of 700 rows, compressed, with dictionaries. Values of the column `tags` are separated by `|`; an empty field is null.
pub(crate) fn write_parquet(path: &Path, names: &[String], rows: &[Vec<&str>]) {
    let field = |name: &String| match name.as_str() {
        "label" => format!("required int32 {name};"),
        "tags" => {
            format!("optional group {name} (LIST) {{ repeated group list {{ optional binary element (UTF8); }} }}")
        }
        number if is_number(number) => format!("optional int64 {name};"),
        _ => format!("optional binary {name} (UTF8);"),
    };
    let fields: String = names.iter().map(field).collect();
    let schema = Arc::new(parse_message_type(&format!("message rows {{ {fields} }}")).expect("a schema"));
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let file = File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).expect("a writer");
    for rows in rows.chunks(700) {
        let mut group = writer.next_row_group().expect("a row group");
        for (index, name) in names.iter().enumerate() {
            let cells: Vec<&str> = rows.iter().map(|row| row[index]).collect();
            write_column(&mut group, name, &cells);
        }
        group.close().expect("the row group is complete");
    }
    writer.close().expect("the file is complete");
}

fn write_column(group: &mut SerializedRowGroupWriter<'_, File>, name: &str, cells: &[&str]) {
    let mut column = group.next_column().expect("columns are written in order").expect("there is a column");
    let present: Vec<i16> = cells.iter().map(|text| i16::from(!text.is_empty())).collect();
    let texts = || cells.iter().copied().filter(|text| !text.is_empty());
    let written = match name {
        "label" => {
            let labels: Vec<i32> = texts().map(|text| text.parse().expect("a label")).collect();
            column.typed::<Int32Type>().write_batch(&labels, None, None)
        }
        "tags" => {
            let counts = || cells.iter().map(|text| text.split('|').filter(|tag| !tag.is_empty()).count());
            let levels = |count: usize| (0..count.max(1)).map(|entry| i16::from(entry > 0));
            let repetition: Vec<i16> = counts().flat_map(levels).collect();
            let full = |count: usize| if count == 0 { vec![1] } else { vec![3; count] };
            let definition: Vec<i16> = counts().flat_map(full).collect();
            let values: Vec<ByteArray> = texts().flat_map(|text| text.split('|')).map(ByteArray::from).collect();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&definition), Some(&repetition))
        }
        number if is_number(number) => {
            let numbers: Vec<i64> = texts().map(|text| text.parse().expect("a number")).collect();
            column.typed::<Int64Type>().write_batch(&numbers, Some(&present), None)
        }
        _ => {
            let values: Vec<ByteArray> = texts().map(ByteArray::from).collect();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&present), None)
        }
    };
    written.expect("values are written");
    column.close().expect("the column is complete");
}

pub(crate) fn twins(rows: u32) -> Fixture {
    let fixture = Fixture::new(rows);
    write_twins(&fixture, "train", 2);
    write_twins(&fixture, "test", 1);
    for (format, end, separator) in [("delimited", "csv", "separator = '|',"), ("parquet", "parquet", "")] {
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

/// The rows of a CSV file in record batches of 700, compressed; the values of the last column are separated by `|`, and an empty field is null.
fn write_arrow(path: &Path, text: &str) {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let column = |rows: &[Vec<&str>], at: usize| -> ArrayRef {
        let texts = rows.iter().map(|row| Some(row[at]).filter(|text| !text.is_empty()));
        match names[at] {
            "tags" => {
                let mut lists = ListBuilder::new(StringBuilder::new());
                texts.for_each(|text| {
                    lists.append_value(text.unwrap_or_default().split('|').filter(|tag| !tag.is_empty()).map(Some))
                });
                Arc::new(lists.finish())
            }
            name if name.starts_with('C') => Arc::new(texts.collect::<StringArray>()),
            _ => Arc::new(texts.map(|text| text.map(|text| text.parse().expect("a number"))).collect::<Int64Array>()),
        }
    };
    let batch = |rows: &[Vec<&str>]| {
        let columns = names.iter().enumerate().map(|(at, name)| (*name, column(rows, at), true));
        RecordBatch::try_from_iter_with_nullable(columns).expect("columns of equal length")
    };
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).expect("LZ4");
    let file = File::create(path).expect("a file");
    let mut writer = FileWriter::try_new_with_options(file, &batch(&rows[..1]).schema(), options).expect("a writer");
    rows.chunks(700).for_each(|rows| writer.write(&batch(rows)).expect("room for the rows"));
    writer.finish().expect("the file is complete");
}

fn arrow_twins(rows: u32) -> Fixture {
    let fixture = twins(rows);
    for name in ["train0", "train1", "test0"] {
        write_arrow(&fixture.path(&format!("{name}.arrow")), &fixture.read(&format!("{name}.csv")));
    }
    fixture.write("arrow.toml", fixture.read("parquet.toml").replace("parquet", "arrow"));
    fixture
}

const JOBS: [&str; 3] = ["csv.toml", "parquet.toml", "arrow.toml"];

#[test]
fn every_command_does_with_parquet_and_arrow_files_what_it_does_with_the_same_rows_as_csv() {
    let fixture = arrow_twins(6_000);
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
    let fixture = arrow_twins(1_000);
    let text = fixture.zagros(["init", "train0.arrow", "--label", "label"]).expect(0).stdout;
    assert_contains(&text, &["format = \"arrow\"", "column = \"tags\"", "pooling = \"mean\""]);
}
