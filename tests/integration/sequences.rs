//! Sequences from the file to the score: formats, servers, workers, interruptions, predictions.

use serde_json::Value;

use super::fixture::{Fixture, measured};
use super::parquet::twins;
use super::resume::{end, losses};

/// Jobs with the network DIN. Cells have up to three values, sequences two positions.
fn din(rows: u32) -> Fixture {
    let fixture = twins(rows);
    for end in ["csv", "parquet"] {
        let job = fixture.read(&format!("{end}.toml"));
        let job = job.replace("pooling = \"mean\"", "table = \"C10\", sequence = { length = 2 }");
        let network = "kind = \"din\"\nattention_hidden = [6]\nhidden = [8]";
        let job = job.replace("kind = \"dlrm\"\nbottom = [8]\ntop = [8]", network);
        assert!(job.contains("sequence") && job.contains("din"), "{job}");
        fixture.write(&format!("{end}.toml"), job);
    }
    for name in ["train0", "train1", "test0"] {
        fixture.write(&format!("{name}.jsonl"), objects(&fixture.read(&format!("{name}.csv"))));
    }
    let job = fixture.read("parquet.toml").replace("\"parquet\"", "\"jsonl\"").replace(".parquet", ".jsonl");
    fixture.write("jsonl.toml", job);
    fixture
}

/// The rows of a file of comma-separated values as objects; the last column is an array.
fn objects(text: &str) -> String {
    let names: Vec<&str> = text.lines().next().expect("a header").split(',').collect();
    let last = names.len() - 1;
    let object = |line: &str| {
        let value = |(index, text): (usize, &str)| match (index, text) {
            (_, "") => Value::Null,
            (index, text) if index == last => text.split('|').map(Value::from).collect(),
            (_, text) => Value::from(text),
        };
        let fields = line.split(',').enumerate().map(|(index, text)| (names[index].to_owned(), value((index, text))));
        Value::Object(fields.collect()).to_string() + "\n"
    };
    text.lines().skip(1).map(object).collect()
}

#[test]
fn sequences_are_the_same_in_every_format_and_on_any_number_of_servers() {
    let fixture = din(4_000);
    let train = |arguments: &[&str]| {
        fixture.zagros([&["train"], arguments].concat()).expect(0);
        (fixture.losses(), fixture.summary()["evaluation"].clone())
    };
    let (expected, evaluation) = train(&["csv.toml"]);
    assert!(expected.len() >= 16 && evaluation["auc"].as_f64().is_some_and(|auc| auc > 0.5), "{evaluation}");
    assert_eq!(train(&["csv.toml", "--set", "cluster.servers=3"]), (expected.clone(), evaluation.clone()));
    let run = fixture.run_name();
    fixture.zagros(["predict", &run, "test0.csv", "-o", "logits.csv", "--keys", "label", "--logits"]).expect(0);
    let eval = fixture.evaluate();
    assert_eq!(measured(&fixture.read("logits.csv")), eval);
    for format in ["parquet.toml", "jsonl.toml"] {
        assert_eq!(train(&[format]).0, expected, "{format}");
    }
    // What is kept of a cell matters.
    let first = fixture.read("csv.toml").replace("length = 2", "length = 2, keep = \"first\"");
    fixture.write("first.toml", first);
    assert_ne!(train(&["first.toml"]).0, expected);
}

/// Invariant CK-2.
#[test]
fn two_workers_with_sequences_that_die_go_on_bit_by_bit() {
    let (whole, broken) = (din(12_000), din(12_000));
    let sets = ["--set", "train.epochs=3", "--set", "checkpoint.every_steps=20", "--restarts", "0"];
    let up = [&["up", "csv.toml", "--servers", "2", "--workers", "2"], &sets[..]].concat();
    whole.zagros(up.iter().copied()).expect(0);
    broken.start_to_checkpoint(1, up.iter().copied()).interrupt();
    broken.zagros(up.iter().copied()).expect(0).says(&["going on after step"]);
    assert_eq!(losses(&broken), (losses(&whole).0, 1));
    assert_eq!(end(&broken), end(&whole));
}
