//! Weighted bags and vectors of numbers from training to predictions, with one and with several workers and servers.

use std::fmt::Write;

use zagros_tests::assert_contains;

use super::fixture::{Fixture, with_sets};

const JOB: &str = r#"
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

fn fixture() -> Fixture {
    Fixture::with_csv(JOB, rows(1, 4_000), rows(2, 800))
}

#[test]
fn weights_and_vectors_are_learned_saved_and_scored() {
    let fixture = fixture();
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
    let fixture = fixture();
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
    let fixture = fixture();
    let bad = "1,u1,a|b|c,1|2,1 2 3,5\n1,u1,a,-1,1 2 3,5\n0,u2,a,1,1 2,5\n";
    fixture.write("bad.csv", format!("click,user,words,tfidf,image,age\n{bad}"));
    let said = fixture.zagros(["data", "validate", "job.toml", "--set", "data.train=bad.csv"]).expect(3).stdout;
    assert_contains(&said, &["3 weights in column \"tfidf\", one for each value of column \"words\""]);
    assert_contains(&said, &["a number from 0 in column \"tfidf\"", "3 numbers in column \"image\""]);
}
