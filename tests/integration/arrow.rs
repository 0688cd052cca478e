//! Arrow files as a user has them: the commands do with them what they do with the same rows as Parquet.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use serde_json::Value;

use crate::fixture::Fixture;
use crate::parquet::twins;

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

#[test]
fn every_command_does_with_arrow_files_what_it_does_with_parquet_files() {
    let fixture = arrow_twins(6_000);
    for command in ["inspect", "validate"] {
        let [columns, batches] =
            ["parquet.toml", "arrow.toml"].map(|job| fixture.zagros(["data", command, job]).expect(0).stdout);
        assert_eq!(batches, columns, "{command}");
    }
    let train = |job: &str| {
        fixture.zagros(["train", job]).expect(0);
        (fixture.losses(), fixture.summary())
    };
    let ((expected_losses, expected), (losses, found)) = (train("parquet.toml"), train("arrow.toml"));
    assert_eq!((losses.len(), &losses), (24, &expected_losses));
    assert_eq!(found["evaluation"]["auc"], expected["evaluation"]["auc"]);
    // Two workers share the record batches.
    let arguments = ["up", "arrow.toml", "--fresh", "--set", "cluster.workers=2", "--set", "train.batch_size=128"];
    fixture.zagros(arguments).expect(0);
    assert_eq!(fixture.summary()["samples"], Value::from(6_000));
    // The saved model scores rows of any format.
    let folder = fixture.run_folder().display().to_string();
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
    for part in ["format = \"arrow\"", "column = \"tags\"", "pooling = \"mean\""] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
}
