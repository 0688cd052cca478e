//! A model that was trained on one format scores the same rows in any other: equal to the last bit, or refused.

use serde_json::{Value, json};

use super::fixture::Fixture;
use super::parquet::ColumnKind::{self, Boolean, Date, Dictionary, Double, Int32, Int64, List, Text};
use super::parquet::{write_arrow, write_parquet};

const JOB: &str = r#"
[data]
format = "delimited"
train = "rows.csv"
missing = ["?"]
threads = 1
[features]
label = "click"
numeric = ["n"]
categorical = ["user", "city", "paid", "day", "rate", { column = "tags", separator = "|", pooling = "mean" }]
[embedding]
dim = 4
[model]
kind = "ffnn"
hidden = [8]
[train]
batch_size = 64
threads = 1
"#;

const NAMES: [&str; 8] = ["click", "n", "user", "city", "paid", "day", "rate", "tags"];

type Row = [String; 8];

fn rows() -> Vec<Row> {
    let row = |i: usize| {
        let tags = ["a", "b", "c"].iter().enumerate().filter(|(tag, _)| i >> tag & 1 == 1).map(|(_, tag)| *tag);
        [
            (i * 7 % 3 % 2).to_string(),
            (i % 11).to_string(),
            (i * 13 % 40).to_string(),
            ["Basel", "a; \"quoted\", city", "?"][i % 3].to_owned(),
            (i % 4 == 1).to_string(),
            format!("2026-11-{:02}", 1 + i % 28),
            [(i % 6) as f64 / 4.0, (i % 5) as f64][i % 2].to_string(),
            tags.collect::<Vec<_>>().join("|"),
        ]
    };
    (0..600).map(row).collect()
}

fn separated(rows: &[Row], separator: &str, quote: bool) -> String {
    let field = |text: &str| match quote || text.contains([',', '"', ';']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    };
    let line = |fields: &[String]| fields.iter().map(|text| field(text)).collect::<Vec<_>>().join(separator) + "\n";
    let header = NAMES.map(String::from);
    std::iter::once(header).chain(rows.iter().cloned()).map(|row| line(&row)).collect()
}

fn json_lines(rows: &[Row]) -> String {
    let number =
        |text: &str| text.parse::<i64>().map_or_else(|_| json!(text.parse::<f64>().expect("a number")), Value::from);
    let line = |row: &Row| {
        let tags: Vec<&str> = row[7].split('|').filter(|tag| !tag.is_empty()).collect();
        let city = Some(&row[3]).filter(|city| *city != "?");
        let object = json!({
            "click": number(&row[0]), "n": number(&row[1]), "user": number(&row[2]), "city": city, "paid": row[4] == "true",
            "day": row[5], "rate": number(&row[6]), "tags": tags,
        });
        object.to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

/// The kinds of the columns; some writers have other ones for users and tags.
fn columns(user: ColumnKind, tags: ColumnKind) -> [(&'static str, ColumnKind); 8] {
    let kinds = [Int32, Double, user, Dictionary, Boolean, Date, Double, tags];
    std::array::from_fn(|index| (NAMES[index], kinds[index]))
}

fn fixture() -> Fixture {
    let (fixture, rows) = (Fixture::new(10), rows());
    fixture.write("rows.csv", separated(&rows, ",", false));
    fixture.write("rows.tsv", separated(&rows, "\t", false));
    fixture.write("quoted.txt", separated(&rows, ";", true));
    fixture.write("rows.jsonl", format!("\n{}", json_lines(&rows)));
    let texts = rows.iter().map(|row| row.iter().map(|text| if text == "?" { "" } else { text.as_str() }).collect());
    let cells: Vec<Vec<&str>> = texts.collect();
    write_parquet(&fixture.path("numbers.parquet"), &columns(Int64, Text), &cells);
    write_parquet(&fixture.path("texts.parquet"), &columns(Text, Text), &cells);
    write_arrow(&fixture.path("rows.arrow"), &columns(Text, List), &cells);
    fixture.write("job.toml", JOB);
    fixture
}

/// Trains, then scores and measures the rows in each of the formats.
fn score_all(fixture: &Fixture, sets: &[&str], files: &[(&str, &str)]) {
    let arguments = ["train", "job.toml"].into_iter().chain(sets.iter().flat_map(|set| ["--set", *set]));
    fixture.zagros(arguments).expect(0);
    let run = fixture.run_name();
    let (mut scores, mut measures) = (None, None);
    for (file, taken) in files {
        let predicted = fixture.zagros(["predict", &run, file, "-o", "s.csv", "--force", "--keys", "day"]).expect(0);
        match *taken {
            "" => assert!(!predicted.stderr.contains("is read as"), "{file}: {}", predicted.stderr),
            taken => _ = predicted.says(&[&format!("{file} is read as {taken}; the model was trained on ")]),
        }
        let found = fixture.read("s.csv");
        assert_eq!(found.lines().count(), 601, "{file}");
        assert!(scores.get_or_insert(found.clone()) == &found, "{file}: other scores");
        let measured = fixture.zagros(["eval", &run, "--data", file, "--json"]).expect(0).stdout;
        assert_eq!(measures.get_or_insert(measured.clone()), &measured, "{file}");
    }
}

#[test]
fn a_model_of_csv_scores_the_same_rows_in_every_format() {
    let fixture = fixture();
    let files = [
        ("rows.csv", ""),
        ("rows.tsv", "TSV with a header"),
        ("quoted.txt", "text separated by ';' with a header"),
        ("rows.jsonl", "JSON lines"),
        ("numbers.parquet", "Parquet"),
        ("texts.parquet", "Parquet"),
        ("rows.arrow", "Arrow"),
    ];
    score_all(&fixture, &[], &files);
    // Rows of standard input, and a format that the user names.
    let run = fixture.run_name();
    fixture.zagros(["predict", &run, "rows.jsonl", "-o", "auto.csv"]).expect(0);
    let named = ["--set", "data.format=jsonl", "--set", "data.missing=['?']"];
    fixture.zagros(["predict", &run, "rows.jsonl", "-o", "named.csv"].into_iter().chain(named)).expect(0);
    assert_eq!(fixture.read("named.csv"), fixture.read("auto.csv"));
    let mixed = fixture.zagros(["predict", &run, "rows.jsonl", "rows.csv", "-o", "mixed.csv"]).expect(3);
    mixed.says(&["several formats", "1 JSON lines", "1 text with separators"]);
}

/// The same truths as the texts `1` and `0`, as some programs write them.
#[test]
fn values_that_are_written_otherwise_are_refused_by_file_and_column() {
    let fixture = fixture();
    let rewritten = |at: usize, write: &dyn Fn(&str) -> String| {
        let mut rows = rows();
        rows.iter_mut().for_each(|row| row[at] = write(&row[at]));
        separated(&rows, ",", false)
    };
    fixture.write("ones.csv", rewritten(4, &|text| u8::from(text == "true").to_string()));
    fixture.write("floats.csv", rewritten(2, &|text| format!("{text}.0")));
    fixture.write("times.csv", rewritten(5, &|text| format!("{text} 00:00:00")));
    fixture.zagros(["train", "job.toml"]).expect(0);
    let run = fixture.run_name();
    for (file, parts) in [
        ("ones.csv", ["\"paid\"", "0 and 1", "true and false"]),
        ("floats.csv", ["\"user\"", "7.0", "such as 7:"]),
        ("times.csv", ["\"day\"", "2026-11-23 18:45:00", "dates, such as 2026-11-23:"]),
    ] {
        for refused in
            [fixture.zagros(["predict", &run, file, "-o", "s.csv"]), fixture.zagros(["eval", &run, "--data", file])]
        {
            refused.expect(3).says(&parts).says(&[file, "write this column as the training files do"]);
        }
    }
    // A model of texts refuses truths of a column of their type.
    fixture.zagros(["train", "job.toml", "--fresh", "--set", "data.train=ones.csv"]).expect(0);
    let run = fixture.run_name();
    let refused = fixture.zagros(["predict", &run, "numbers.parquet", "-o", "s.csv"]).expect(3);
    refused.says(&["numbers.parquet", "\"paid\" holds true and false", "trained on 0 and 1"]);
}

#[test]
fn a_model_of_lists_scores_texts_and_objects() {
    let fixture = fixture();
    let features =
        "features.categorical=['user', 'city', 'paid', 'day', 'rate', { column = 'tags', pooling = 'mean' }]";
    let sets = [features, "data.format=arrow", "data.train=rows.arrow"];
    let files = [
        ("rows.arrow", ""),
        ("rows.csv", "CSV with a header"),
        ("rows.tsv", "TSV with a header"),
        ("rows.jsonl", "JSON lines"),
    ];
    score_all(&fixture, &sets, &files);
}
