//! Parquet and Arrow files as a user has them: the commands do with them what they do with the same rows as CSV.

use std::fmt::Debug;
use std::fs::File;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder, StringDictionaryBuilder};
use arrow_array::types::Int32Type as ArrowInt32;
use arrow_array::{ArrayRef, BooleanArray, Date32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
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

/// Days since 1970 of 2026-11-01.
const FIRST_DAY: i32 = 20_758;

#[derive(Clone, Copy)]
pub(crate) enum ColumnKind {
    /// In Arrow a number of 64 bits, too.
    Int32,
    Int64,
    Double,
    Boolean,
    /// A day of November 2026, as `2026-11-23`.
    Date,
    Text,
    /// A text, which Arrow has by its number in a dictionary.
    Dictionary,
    /// Texts separated by `|`.
    List,
}

/// Row groups of 250 rows, compressed, with dictionaries. An empty cell is null; a column that has none is required.
pub(crate) fn write_parquet(path: &Path, columns: &[(&str, ColumnKind)], rows: &[Vec<&str>]) {
    let is_required = |index: usize| rows.iter().all(|row| !row[index].is_empty());
    let field = |(index, (name, kind)): (usize, &(&str, ColumnKind))| {
        let (stored, meaning) = match kind {
            ColumnKind::Int32 => ("int32", ""),
            ColumnKind::Int64 => ("int64", ""),
            ColumnKind::Double => ("double", ""),
            ColumnKind::Boolean => ("boolean", ""),
            ColumnKind::Date => ("int32", "(DATE)"),
            ColumnKind::Text | ColumnKind::Dictionary => ("binary", "(UTF8)"),
            ColumnKind::List => {
                let list = "(LIST) { repeated group list { optional binary element (UTF8); } }";
                return format!("optional group {name} {list}");
            }
        };
        let presence = if is_required(index) { "required" } else { "optional" };
        format!("{presence} {stored} {name} {meaning};")
    };
    let fields: String = columns.iter().enumerate().map(field).collect();
    let schema = Arc::new(parse_message_type(&format!("message rows {{ {fields} }}")).expect("a schema"));
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let file = File::create(path).expect("a file");
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).expect("a writer");
    for part in rows.chunks(250) {
        let mut group = writer.next_row_group().expect("a row group");
        for (index, (_, kind)) in columns.iter().enumerate() {
            let cells: Vec<&str> = part.iter().map(|row| row[index]).collect();
            write_column(&mut group, *kind, is_required(index), &cells);
        }
        group.close().expect("the row group is complete");
    }
    writer.close().expect("the file is complete");
}

fn write_column(group: &mut SerializedRowGroupWriter<'_, File>, kind: ColumnKind, is_required: bool, cells: &[&str]) {
    let mut column = group.next_column().expect("columns are written in order").expect("there is a column");
    let present: Vec<i16> = cells.iter().map(|text| i16::from(!text.is_empty())).collect();
    let levels = (!is_required).then_some(&present[..]);
    let texts: Vec<&str> = cells.iter().copied().filter(|text| !text.is_empty()).collect();
    let written = match kind {
        ColumnKind::Int32 => column.typed::<Int32Type>().write_batch(&parsed::<i32>(&texts), levels, None),
        ColumnKind::Int64 => column.typed::<Int64Type>().write_batch(&parsed::<i64>(&texts), levels, None),
        ColumnKind::Double => column.typed::<DoubleType>().write_batch(&parsed::<f64>(&texts), levels, None),
        ColumnKind::Boolean => column.typed::<BoolType>().write_batch(&parsed::<bool>(&texts), levels, None),
        ColumnKind::Date => {
            let days: Vec<i32> = texts.into_iter().map(day).collect();
            column.typed::<Int32Type>().write_batch(&days, levels, None)
        }
        ColumnKind::Text | ColumnKind::Dictionary => {
            let values: Vec<ByteArray> = texts.into_iter().map(ByteArray::from).collect();
            column.typed::<ByteArrayType>().write_batch(&values, levels, None)
        }
        ColumnKind::List => {
            let counts = || cells.iter().map(|text| entries(text).count());
            let levels = |count: usize| (0..count.max(1)).map(|entry| i16::from(entry > 0));
            let repetition: Vec<i16> = counts().flat_map(levels).collect();
            let full = |count: usize| if count == 0 { vec![1] } else { vec![3; count] };
            let definition: Vec<i16> = counts().flat_map(full).collect();
            let values: Vec<ByteArray> = cells.iter().flat_map(|text| entries(text)).map(ByteArray::from).collect();
            column.typed::<ByteArrayType>().write_batch(&values, Some(&definition), Some(&repetition))
        }
    };
    written.expect("values are written");
    column.close().expect("the column is complete");
}

/// Record batches of 700 rows, compressed. An empty cell is null, or a list without values.
pub(crate) fn write_arrow(path: &Path, columns: &[(&str, ColumnKind)], rows: &[Vec<&str>]) {
    let batch = |rows: &[Vec<&str>]| {
        let arrays = columns.iter().enumerate().map(|(index, (name, kind))| {
            let cells: Vec<&str> = rows.iter().map(|row| row[index]).collect();
            (*name, arrow_column(*kind, &cells), true)
        });
        RecordBatch::try_from_iter_with_nullable(arrays).expect("columns of equal length")
    };
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).expect("LZ4");
    let file = File::create(path).expect("a file");
    let mut writer = FileWriter::try_new_with_options(file, &batch(&rows[..1]).schema(), options).expect("a writer");
    rows.chunks(700).for_each(|rows| writer.write(&batch(rows)).expect("room for the rows"));
    writer.finish().expect("the file is complete");
}

fn arrow_column(kind: ColumnKind, cells: &[&str]) -> ArrayRef {
    let texts = || cells.iter().map(|text| Some(*text).filter(|text| !text.is_empty()));
    match kind {
        ColumnKind::Int32 | ColumnKind::Int64 => {
            Arc::new(texts().map(|text| text.map(parse_cell::<i64>)).collect::<Int64Array>())
        }
        ColumnKind::Double => Arc::new(texts().map(|text| text.map(parse_cell::<f64>)).collect::<Float64Array>()),
        ColumnKind::Boolean => Arc::new(texts().map(|text| text.map(parse_cell::<bool>)).collect::<BooleanArray>()),
        ColumnKind::Date => Arc::new(texts().map(|text| text.map(day)).collect::<Date32Array>()),
        ColumnKind::Text => Arc::new(texts().collect::<StringArray>()),
        ColumnKind::Dictionary => {
            let mut values = StringDictionaryBuilder::<ArrowInt32>::new();
            texts().for_each(|text| values.append_option(text));
            Arc::new(values.finish())
        }
        ColumnKind::List => {
            let mut lists = ListBuilder::new(StringBuilder::new());
            cells.iter().for_each(|text| lists.append_value(entries(text).map(Some)));
            Arc::new(lists.finish())
        }
    }
}

fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split('|').filter(|entry| !entry.is_empty())
}

fn parse_cell<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().expect("a value of the column's type")
}

fn parsed<T: FromStr<Err: Debug>>(texts: &[&str]) -> Vec<T> {
    texts.iter().map(|text| parse_cell(text)).collect()
}

fn day(text: &str) -> i32 {
    FIRST_DAY - 1 + parse_cell::<i32>(&text[8..])
}
