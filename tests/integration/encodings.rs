//! Encoded categories, and all kinds of inputs together, from the file to the score.

use std::fmt::Write as _;

use rustix::process::Signal;

use super::fixture::{Fixture, measured};
use super::resume::{end, losses};

const HEAD: &str = r#"
name = "encoded"
embedding.optimizer = { kind = "adagrad", lr = 0.05 }
train.mode = "sync"
train.batch_size = 128
train.epochs = 4
checkpoint.every_steps = 20
"#;

/// Rows whose label follows from `city`; `user` has little to say, and is one of `users`.
fn rows(count: u64, seed: u64, users: u64) -> String {
    let mut text = "label,city,user,age,words,tfidf,times\n".to_owned();
    for row in 0..count {
        let mixed = (row + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (row + seed) << 17;
        let mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16;
        let (city, user, noise, age) = (mixed % 7, mixed / 7 % users, mixed / 9_001 % 10, mixed / 97 % 60);
        let label = u8::from((city < 3) != (noise < 3));
        let (words, tfidf) = match noise % 3 {
            0 => (String::new(), String::new()),
            1 => (format!("w{city}"), "1.5".to_owned()),
            _ => (format!("w{age}|w{noise}"), format!("0.5|0.{age}")),
        };
        writeln!(text, "{label},c{city},u{user},{age},{words},{tfidf},{}", 1 + noise % 2).expect("text");
    }
    text
}

fn fixture(job: &str, users: u64) -> Fixture {
    Fixture::with_csv(&format!("{HEAD}{job}"), rows(6_000, 0, users), rows(3_000, 1_000_000, users))
}

/// A category of one row or two has no say in the score of its own rows.
#[test]
fn an_encoded_category_of_few_rows_does_not_tell_the_label() {
    let job = r#"
[features]
label = "label"
numeric = [{ column = "user", encode = { by = "target", smoothing = 1 } }]
categorical = ["city"]
[model]
kind = "ffnn"
hidden = [16]
"#;
    let fixture = fixture(job, 3_500);
    let outcome = fixture.zagros(["train", "job.toml", "--set", "optimizer.lr=0.01"]).expect(0);
    assert!(!outcome.stderr.contains("most frequent"), "{}", outcome.stderr);
    let summary = fixture.summary();
    let [train, test] = [&summary["train_auc"], &summary["evaluation"]["auc"]].map(|auc| auc.as_f64().expect("an AUC"));
    assert!(test > 0.6, "{test}");
    assert!(train < test + 0.03, "training AUC {train}, test AUC {test}");
    let few = ["train", "job.toml", "--set", "train.epochs=1"];
    let text = fixture.read("job.toml").replace("smoothing = 1", "smoothing = 1, max_size = 5");
    fixture.write("job.toml", text);
    fixture.zagros(few).expect(0).says(&["feature `user` encodes the 5 most frequent of", "`max_size`"]);
}

/// FinalMLP, Dice, numeric embeddings, weighted bags, sample weights, a vocabulary and encodings.
const ALL: &str = r#"
[features]
label = "label"
weight = "times"
numeric_embedding = { dim = 3, frequencies = 4 }
numeric = [
    { column = "age", standardise = true },
    { column = "city", name = "rate", encode = { by = "target" } },
    { column = "user", name = "both", encode = { by = "target", with = ["range"], folds = 3 } },
    { column = "user", name = "count", encode = { by = "count" } },
]
categorical = [
    "city",
    { column = "user", vocabulary = { min_count = 2 } },
    { column = "age", name = "range", buckets = 4 },
    { column = "words", separator = "|", weights = "tfidf", pooling = "mean" },
]
[model]
kind = "finalmlp"
first = [16]
second = [8]
heads = 2
gate = { hidden = [4], first = ["user"], second = ["city", "rate"] }
[mlp]
activation = "dice"
"#;

/// Invariant CK-2: one that is killed, and one that is asked to stop. Scores are those of the run, to the last bit.
#[test]
fn all_kinds_of_inputs_together_die_and_go_on_bit_by_bit() {
    let (whole, broken) = (fixture(ALL, 600), fixture(ALL, 600));
    whole.zagros(["train", "job.toml"]).expect(0);
    for signal in [Signal::KILL, Signal::TERM] {
        let run = broken.start_to_checkpoint(1, ["train", "job.toml"]);
        run.signal(signal);
        let stopped = run.finish();
        assert_ne!(stopped.code(), Some(0), "{signal:?}");
    }
    broken.zagros(["train", "job.toml"]).expect(0).says(&["going on after step"]);
    assert_eq!(losses(&broken), (losses(&whole).0, 2));
    assert_eq!(end(&broken), end(&whole));
    let run = broken.run_name();
    broken.zagros(["predict", &run, "test.csv", "-o", "logits.csv", "--keys", "label", "--logits"]).expect(0);
    let eval = broken.evaluate();
    assert_eq!(measured(&broken.read("logits.csv")), eval);
    assert_eq!(eval["auc"], broken.summary()["evaluation"]["auc"]);
}

/// The first worker measures, and the others read as it does.
#[test]
fn two_workers_with_encodings_are_killed_and_go_on_bit_by_bit() {
    let (whole, broken) = (fixture(ALL, 600), fixture(ALL, 600));
    let up = ["up", "job.toml", "--servers", "2", "--workers", "2", "--restarts", "0"];
    whole.zagros(up).expect(0);
    broken.start_to_checkpoint(1, up).interrupt();
    broken.zagros(up).expect(0).says(&["going on after step"]);
    assert_eq!(losses(&broken), (losses(&whole).0, 1));
    assert_eq!(end(&broken), end(&whole));
}
