//! Features from the file to the score: of every description, measured once and saved with the model; weighted bags and vectors of numbers;
//! sequences.

use std::fmt::Write;

use serde_json::Value;
use zagros_tests::assert_contains;

use super::fixture::{Fixture, measured, with_sets};
use super::parquet::twins;

const FEATURES: &str = r#"
[features]
numeric = [
    { column = "I1", log = true, standardise = true },
    { column = "I1", name = "clipped", clip = [0, 50], min_max = true },
]
categorical = [
    "C1",
    { column = "C2", vocabulary = { min_count = 5, max_size = 50 } },
    { column = "I1", name = "range", buckets = 8 },
    { column = "I2", name = "given", buckets = [0, 3, 10], default = "0" },
    { cross = ["range", "C3"], vocabulary = { min_count = 3 } },
    { cross = ["C1", "C2", "C3"], hash_size = 500 },
]
"#;

fn described() -> Fixture {
    let fixture = Fixture::new(4_000);
    let job = fixture.read("job.toml").replacen("[embedding]", &format!("{FEATURES}[embedding]"), 1);
    fixture.write("job.toml", job);
    fixture
}

#[test]
fn measured_features_are_saved_and_applied_again() {
    let fixture = described();
    fixture.zagros(["train", "job.toml"]).expect(0).says(&["measuring"]);
    let resolved = fixture.read(&format!("{}/job.toml", fixture.run_folder().display()));
    assert_contains(&resolved, &["quantiles = 8", "edges = [", "ids = \"", "mean = ", "min = 0.0"]);
    let found = fixture.measures("test.txt", "label");
    assert_eq!(found["samples"], 800, "{found}");
    // A run that starts from the model measures nothing.
    let run = fixture.run_name();
    let again = fixture.zagros(["train", "job.toml", "--from", &run, "--fresh"]).expect(0);
    assert!(!again.stderr.contains("measuring"), "{}", again.stderr);
}

/// The wide part of Wide & Deep by FTRL and the deep one by Adagrad, as the paper has it. Rows of one value in two tables.
#[test]
fn a_column_has_two_tables_with_dims_and_optimisers_of_their_own() {
    let fixture = Fixture::new(4_000);
    let features = "[features]\ncategorical = ['C1', 'C2', { column = 'C1', name = 'C1_wide' }]\n\
        [tables]\nC1_wide = { dim = 1, optimizer = { kind = 'ftrl', lr = 0.1 } }\nC1 = { dim = 8 }\n[embedding]";
    let job = fixture.read("job.toml").replacen("[embedding]", features, 1);
    let job = job.replace("kind = \"dlrm\"\nbottom = [16]\ntop = [16]", "kind = \"wide_deep\"\nhidden = [16]");
    fixture.write("job.toml", job);
    fixture.zagros(["train", "job.toml", "--set", "cluster.servers=2"]).expect(0);
    assert_eq!(fixture.measures("test.txt", "label")["samples"], 800);
    let text = fixture.read("train.txt");
    let value = text.lines().filter_map(|line| line.split('\t').nth(14)).find(|value| !value.is_empty());
    let run = fixture.run_name();
    let lengths = |table: &str| {
        let row = ["inspect", &run, "--table", table, "--value", value.expect("a value"), "--json"];
        let row = fixture.zagros(row).expect(0).json();
        let parts = row["parts"].as_object().expect("parts").clone();
        assert!(parts["weights"].as_array().expect("a list").iter().any(|weight| *weight != 0.0), "{parts:?}");
        let length = |(name, values): (String, Value)| values.as_array().map(|values| (name, values.len()));
        parts.into_iter().filter_map(length).collect::<Vec<_>>()
    };
    let expected =
        |parts: &[(&str, usize)]| parts.iter().map(|(name, length)| ((*name).to_owned(), *length)).collect::<Vec<_>>();
    let mut wide = lengths("C1_wide");
    wide.sort();
    assert_eq!(wide, expected(&[("n", 1), ("weights", 1), ("z", 1)]));
    let mut deep = lengths("C1");
    deep.sort();
    assert_eq!(deep, expected(&[("sum_of_squares", 8), ("weights", 8)]));
}

const LISTS: &str = r#"
data.max_bad_rows = 5
embedding.optimizer = { kind = "adagrad", lr = 0.1 }
train.seed = 3
train.batch_size = 128
[features]
label = "click"
numeric = [
    { column = "image", width = 3, separator = " ", standardise = true, missing_indicator = true },
    { column = "age", missing_indicator = true },
]
categorical = ["user", { column = "words", separator = "|", weights = "tfidf", pooling = "mean" }]
[model]
kind = "dlrm"
bottom = [16]
top = [16]
"#;

/// Rows whose click depends on the words by their weights, and on the second number of the vector.
fn rows(seed: u64, count: u64) -> String {
    let mut text = "click,user,words,tfidf,image,age\n".to_owned();
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for row in 0..count {
        let words: Vec<(u64, f64)> = (0..random(4)).map(|_| (random(20), random(100) as f64 / 20.0)).collect();
        let image: Vec<f64> = (0..3).map(|_| random(1_000) as f64 / 100.0).collect();
        let whole: f64 = words.iter().map(|(_, weight)| weight).sum();
        let value = |word: u64| if word < 10 { 1.0 } else { -1.0 };
        let text_score: f64 = words.iter().map(|(word, weight)| value(*word) * weight / whole.max(0.01)).sum();
        let score = 3.0 * text_score + (image[1] - 5.0) / 2.0;
        let click = f64::from(random(1_000) as u32) / 1_000.0 < 1.0 / (1.0 + (-score).exp());
        let joined = |texts: Vec<String>, by: &str| texts.join(by);
        let ids = joined(words.iter().map(|(word, _)| format!("w{word}")).collect(), "|");
        let weights = joined(words.iter().map(|(_, weight)| weight.to_string()).collect(), "|");
        let image = joined(image.iter().map(ToString::to_string).collect(), " ");
        let image = if row % 17 == 3 { String::new() } else { image };
        let age = if row % 3 == 0 { String::new() } else { random(80).to_string() };
        let user = random(50);
        writeln!(text, "{},u{user},{ids},{weights},{image},{age}", u8::from(click)).expect("a text takes every write");
    }
    text
}

fn lists() -> Fixture {
    Fixture::with_csv(LISTS, rows(1, 4_000), rows(2, 800))
}

#[test]
fn weights_and_vectors_are_learned_saved_and_scored() {
    let fixture = lists();
    fixture.zagros(["train", "job.toml"]).expect(0).says(&["measuring"]);
    let found = fixture.measures("test.csv", "click");
    assert!(found["auc"].as_f64() > Some(0.72), "{found}");
    let resolved = fixture.read(&format!("{}/job.toml", fixture.run_folder().display()));
    assert_contains(&resolved, &["weights = \"tfidf\"", "width = 3", "mean = [", "missing_indicator = true"]);
    let run = fixture.run_name();
    fixture.zagros(["eval", &run, "--importance"]).expect(0).prints(&["image", "words"]);
    // Without the weights, the same words say less.
    let plain = fixture.read("job.toml").replace(", weights = \"tfidf\"", "");
    fixture.write("plain.toml", plain);
    fixture.zagros(["train", "plain.toml"]).expect(0);
    let unweighted = fixture.measures("test.csv", "click");
    assert!(unweighted["auc"].as_f64() < found["auc"].as_f64(), "{unweighted} {found}");
}

/// The weights of the embedding are part of the model: a saved one scores as the trained one did.
#[test]
fn numbers_become_learned_vectors() {
    let fixture = lists();
    let vectors = "features.numeric_embedding={ dim = 4 }";
    fixture.train(&[vectors, "train.epochs=2"]);
    let found = fixture.measures("test.csv", "click");
    assert!(found["auc"].as_f64() > Some(0.72), "{found}");
    assert_eq!(fixture.summary()["evaluation"]["auc"], found["auc"]);
    let refused = ["train", "job.toml", "--set", "features.numeric_embedding={ dims = 4 }"];
    fixture.zagros(refused).expect(2).says(&["dim"]);
    fixture.zagros(with_sets(&["up", "job.toml", "--servers", "2", "--workers", "2"], &[vectors])).expect(0);
    assert!(fixture.measures("test.csv", "click")["auc"].as_f64() > Some(0.7));
}

#[test]
fn rows_whose_lists_do_not_fit_are_described() {
    let fixture = lists();
    let bad = "1,u1,a|b|c,1|2,1 2 3,5\n1,u1,a,-1,1 2 3,5\n0,u2,a,1,1 2,5\n";
    fixture.write("bad.csv", format!("click,user,words,tfidf,image,age\n{bad}"));
    let said = fixture.zagros(["data", "validate", "job.toml", "--set", "data.train=bad.csv"]).expect(3).stdout;
    assert_contains(&said, &["3 weights in column \"tfidf\", one for each value of column \"words\""]);
    assert_contains(&said, &["a number from 0 in column \"tfidf\"", "3 numbers in column \"image\""]);
}

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
