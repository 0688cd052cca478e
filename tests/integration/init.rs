//! `zagros init`: from a data file to a trained model, without editing anything.

use std::fmt::Write as _;

use zagros_fakes::s3::FakeS3;
use zagros_tests::{assert_contains, real_data};

use super::fixture::{Fixture, gzip};
use super::parquet::{ColumnKind, write_parquet};

/// Rows whose label depends on all columns, sorted by it.
fn rows() -> String {
    let mut rows: Vec<String> = (0_u64..6_000)
        .map(|row| {
            let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            let (age, city, tag) = (mixed % 60, mixed / 60 % 17, mixed / 1020 % 11);
            let click = u64::from(age / 4 + city + 2 * tag > 24);
            format!("{click};{age};\"c{city}\";{tag}|{}", mixed % 5)
        })
        .collect();
    rows.sort_unstable();
    let mut text = "clicked;age;city;tags\n".to_owned();
    rows.iter().for_each(|row| writeln!(text, "{row}").expect("a text"));
    text
}

#[test]
fn a_file_is_described_and_trained_without_editing() {
    let fixture = Fixture::new(100);
    fixture.write("rows.csv", rows());
    let printed = fixture.zagros(["init", "rows.csv"]).expect(0).stdout;
    for line in ["delimiter = \";\"", "column = \"clicked\"", "column = \"tags\", dim = 8, separator = \"|\""] {
        assert!(printed.contains(line), "no {line} in\n{printed}");
    }
    fixture.zagros(["init", "rows.csv", "-o", "mine.toml"]).expect(0).says(&["zagros train mine.toml"]);
    assert!(fixture.read("mine.toml").contains("train = \"rows.csv\""));
    fixture.zagros(["init", "rows.csv", "-o", "mine.toml"]).expect(2).says(&["mine.toml exists"]);
    fixture.zagros(["train", "mine.toml", "--set", "train.threads=1"]).expect(0);
    let auc = fixture.auc();
    assert!(auc > 0.95, "{auc}");
    // Without a job file: it is written, and used again.
    for _ in 0..2 {
        let arguments = ["train", "rows.csv", "--fresh", "--set", "train.threads=1", "--max-steps", "3"];
        fixture.zagros(arguments).expect(0).says(&["the job is rows.toml"]);
    }
    assert_eq!(fixture.read("rows.toml"), fixture.read("mine.toml"));
}

fn fields(text: &str) -> Vec<Vec<&str>> {
    text.lines().skip(1).map(|line| line.split(';').map(|field| field.trim_matches('"')).collect()).collect()
}

/// The rows as objects, one column inside another one.
fn objects(text: &str) -> String {
    let object = |row: Vec<&str>| {
        let tags: Vec<String> = row[3].split('|').map(|tag| format!("\"{tag}\"")).collect();
        let (click, age, city, tags) = (row[0], row[1], row[2], tags.join(","));
        format!("{{\"clicked\":{click},\"who\":{{\"age\":{age},\"city\":\"{city}\"}},\"tags\":[{tags}]}}\n")
    };
    fields(text).into_iter().map(object).collect()
}

#[test]
fn the_same_rows_are_described_and_learned_in_every_shape() {
    let store = FakeS3::start("logs");
    let fixture = Fixture::new(100).with_environment(store.environment_variables());
    let text = rows();
    fixture.write("zipped.csv.gz", gzip(&text));
    fixture.write("objects.jsonl", objects(&text));
    let [number, category, list] = [ColumnKind::Int64, ColumnKind::Text, ColumnKind::List];
    let columns = [("clicked", number), ("age", number), ("city", category), ("tags", list)];
    write_parquet(&fixture.path("columns.parquet"), &columns, &fields(&text));
    std::fs::create_dir(fixture.path("parts")).expect("a folder");
    let lines: Vec<&str> = text.lines().collect();
    for (part, rows) in lines[1..].chunks(700).enumerate() {
        let part_text = format!("{}\n{}\n", lines[0], rows.join("\n"));
        fixture.write(&format!("parts/part-{part}.csv"), &part_text);
        store.put_object(&format!("clicks/part-{part}.csv"), part_text.into_bytes());
    }
    for (data, job, lists) in [
        ("zipped.csv.gz", "zipped.toml", "separator = \"|\", pooling"),
        ("objects.jsonl", "objects.toml", "\"tags\", dim = 8, pooling"),
        ("columns.parquet", "columns.toml", "\"tags\", dim = 8, pooling"),
        ("parts", "parts.toml", "separator = \"|\", pooling"),
        ("parts/part-*.csv", "parts.toml", "separator = \"|\", pooling"),
        ("s3://logs/clicks/", "clicks.toml", "separator = \"|\", pooling"),
    ] {
        let _ = std::fs::remove_dir_all(fixture.path("runs"));
        let _ = std::fs::remove_file(fixture.path(job));
        let quick = ["--set", "train.threads=1", "--set", "train.epochs=6"];
        fixture.zagros([&["train", data][..], &quick].concat()).expect(0).says(&[&format!("the job is {job}")]);
        assert!(fixture.read(job).contains(lists), "{data}: {}", fixture.read(job));
        let auc = fixture.auc();
        assert!(auc > 0.88, "{data}: {auc}");
    }
    // A job that an earlier command wrote for other data is not taken for this one.
    fixture.write("zipped.csv", &text);
    fixture.zagros(["train", "zipped.csv"]).expect(2).says(&["zipped.toml is a job for other data", "zipped.csv.gz"]);
}

#[test]
fn the_newest_rows_are_the_test_part_where_a_column_says_when_a_row_was() {
    let fixture = Fixture::new(100);
    let text: String = fields(&rows())
        .into_iter()
        .enumerate()
        .map(|(row, fields)| {
            format!("{},{},{},{}\n", fields[0], fields[1], fields[2], 1_700_000_000 + row * 5_003 % 6_000)
        })
        .collect();
    fixture.write("log.csv", format!("clicked,age,city,event_time\n{text}"));
    fixture.zagros(["train", "log.csv", "--set", "train.threads=1", "--set", "train.epochs=2"]).expect(0);
    let job = fixture.read("log.toml");
    assert_contains(&job, &["time_column = \"event_time\"", "validation_from = 1700004800", "test_from = 1700005400"]);
    assert_eq!(fixture.summary()["evaluation"]["samples"], 600);
    fixture.zagros(["train", "log.toml", "--dry-run"]).expect(0).prints(&["event_time is 1700005400 or later"]);
}

#[test]
fn data_that_says_too_little_is_refused_with_what_to_do() {
    let fixture = Fixture::new(100);
    fixture.zagros(["init", "none.csv"]).expect(3).says(&["cannot read", "none.csv", "No such file"]);
    fixture.write("few.csv", "a,b\n1,2\n");
    fixture.zagros(["init", "few.csv"]).expect(3).says(&["at least 10 are needed"]);
    fixture.write("rows.csv", rows());
    fixture.zagros(["init", "rows.csv", "--label", "tags"]).expect(2).says(&["a label is one of two texts"]);
    let ended = fixture.zagros(["init", "rows.csv", "--label", "sex"]).expect(2);
    ended.says(&["there is no column \"sex\"", "clicked, age"]);
    fixture.write("numbers.csv", (0..50).map(|row| format!("{row},{}\n", row % 7)).collect::<String>());
    fixture.zagros(["init", "numbers.csv"]).expect(2).says(&["no column has exactly two values", "--label COLUMN"]);
}

/// The hand-written job reaches .93 on rows of the same file.
#[test]
fn census_rows_are_learned_without_editing() {
    let Some(adult) = real_data("adult") else { return };
    let fixture = Fixture::new(100);
    let data = adult.join("adult.data").display().to_string();
    fixture.zagros(["init", &data, "-o", "adult.toml"]).expect(0);
    fixture.zagros(["train", "adult.toml", "--set", "train.threads=1", "--set", "train.epochs=6"]).expect(0);
    let auc = fixture.auc();
    println!("test AUC {auc:.4}");
    assert!(auc > 0.91, "{auc}");
}

#[test]
fn a_number_of_many_values_is_learned_as_a_regression_from_rows_with_line_breaks() {
    let fixture = Fixture::new(100);
    let row = |n: u64| {
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let (city, day) = (mixed % 17, 1 + mixed / 17 % 28);
        format!("{}.5,\"c{city}\nof {n}\",c{city},2026-10-{day:02}\n", 3 * city + day % 7)
    };
    fixture.write("rows.csv", "price,text,city,day\n".to_owned() + &(0..4_000).map(row).collect::<String>());
    fixture.zagros(["init", "rows.csv"]).expect(2).says(&["--label COLUMN", "regression", "classes"]);
    fixture.zagros(["init", "rows.csv", "--label", "price", "-o", "mine.toml"]).expect(0);
    let job = fixture.read("mine.toml");
    assert_contains(&job, &["quoted_breaks = true", "kind = \"regression\""]);
    assert_contains(&job, &["name = \"day_weekday\", date = \"weekday\""]);
    fixture.zagros(["train", "mine.toml", "--set", "train.threads=1"]).expect(0);
    let mse = fixture.summary()["evaluation"]["mse"].as_f64().expect("a squared error");
    // The variance of the label is 220.
    assert!(mse < 60.0, "{mse}");
}

#[test]
fn standard_input_is_refused_with_what_to_do() {
    let fixture = Fixture::new(100);
    for command in ["init", "train"] {
        let ended = fixture.zagros([command, "-"]).expect(2);
        ended.says(&["standard input cannot be described", "head -n 100000", "data.train=-"]);
    }
}
