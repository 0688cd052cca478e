//! Several labels of all kinds, with sample weights, through training, evaluation and prediction.

use std::fmt::Write as _;
use std::num::ParseFloatError;
use std::str::FromStr;

use serde_json::Value;
use zagros_tests::assert_contains;
use zagros_zip::ZipEq;

use super::fixture::{Fixture, with_sets};

/// The best AUC of the first label would end the run while the others have more to learn: so patience is as long as the
/// run, and no best state is kept. `click` and `price` follow from `a`; `buy` only comes with a click; `level` follows
/// from `b`; `rating` is often missing.
const JOB: &str = r#"
name = "labels"
data.validation = "test.csv"
embedding.optimizer = { kind = "adagrad", lr = 0.1 }
train.batch_size = 64
train.epochs = 8
train.early_stop = { patience = 8 }
output.keep_best = 0
[features]
label = [
    "click",
    { column = "buy", given = "click", weight = 0.5 },
    { column = "level", kind = "classes", classes = ["low", "middle", "high"] },
    { column = "rating", kind = "regression", loss = "huber", missing = "skip" },
    { column = "price", name = "count", kind = "regression", loss = "poisson", weight = 0.25 },
]
weight = "times"
numeric = ["x"]
categorical = ["a", "b"]
[optimizer]
kind = "adam"
lr = 0.01
[model]
kind = "mmoe"
experts = 2
hidden = [16]
tower = [8]
"#;

fn rows(count: u64) -> String {
    let mut text = "id,click,buy,level,rating,price,times,x,a,b\n".to_owned();
    for row in 0..count {
        let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let (a, b, noise) = (mixed % 8, mixed / 8 % 6, mixed / 64 % 10);
        let click = (a < 4) != (noise == 0);
        let buy = click && (b < 3) != (noise == 1);
        let level = ["low", "middle", "high"][(b / 2) as usize];
        let rating = if noise < 5 { format!("{}", a as f64 / 2.0) } else { String::new() };
        let (click, buy) = (u8::from(click), u8::from(buy));
        writeln!(text, "{row},{click},{buy},{level},{rating},{},{},0.{noise},a{a},b{b}", a % 4, noise % 3)
            .expect("text");
    }
    text
}

fn fixture() -> Fixture {
    Fixture::with_csv(JOB, rows(4_000), rows(700))
}

fn target<'a>(measures: &'a Value, label: &str) -> &'a Value {
    let targets = measures["targets"].as_array().expect("measures of several labels");
    targets.iter().find(|target| target["target"] == label).expect("the label is measured")
}

fn measure(measures: &Value, label: &str, name: &str) -> f64 {
    let target = target(measures, label);
    target[name].as_f64().unwrap_or_else(|| panic!("no {name} of {label}: {target}"))
}

/// What is random here is a tenth of the clicks. Constants would have a mean squared error of 1.3 and a deviance of
/// 1.1.
fn assert_learned(measures: &Value) {
    assert!(measure(measures, "click", "auc") > 0.85, "{measures}");
    assert!(measure(measures, "buy", "auc") > 0.85, "{measures}");
    assert!(measure(measures, "level", "accuracy") > 0.95, "{measures}");
    assert!(measure(measures, "rating", "mse") < 0.4, "{measures}");
    assert!(measure(measures, "count", "deviance") < 0.9, "{measures}");
}

#[test]
fn all_labels_are_learned_measured_and_predicted() {
    let fixture = fixture();
    fixture.zagros(["train", "job.toml"]).expect(0);
    let run = fixture.run_name();
    let measures = fixture.evaluate();
    assert_learned(&measures);
    assert_eq!(measures["auc"], measures["targets"][0]["auc"], "the first label is the main one");
    let summary = fixture.summary();
    assert_eq!(summary["targets"], measures["targets"], "the model is what was scored last");
    fixture.zagros(["eval", &run]).expect(0).prints(&["  level", "  accuracy "]);
    // Rows to predict need neither labels nor weights.
    let unlabelled = rows(700).lines().map(unlabelled).collect::<Vec<_>>().join("\n");
    fixture.write("new.csv", unlabelled);
    fixture.zagros(["predict", &run, "new.csv", "-o", "scores.csv", "--keys", "id"]).expect(0);
    let scores = fixture.read("scores.csv");
    let names = "id,score_click,score_buy,score_level_low,score_level_middle,score_level_high,score_rating,score_count";
    assert_eq!(scores.lines().next(), Some(names));
    let predicted: Vec<Vec<f64>> = scores.lines().skip(1).map(numbers).collect();
    assert_eq!(predicted.len(), 700);
    let (mut rated, mut squared) = (0, 0.0);
    let text = rows(700);
    let tests: Vec<&str> = text.lines().skip(1).collect();
    for (row, test) in predicted.iter().zip_eq(tests) {
        assert!((row[3] + row[4] + row[5] - 1.0).abs() < 1e-9, "{row:?}");
        assert!(row[2] <= row[1] && row[7] > 0.0, "a purchase is never likelier than its click: {row:?}");
        if let Ok(rating) = test.split(',').nth(4).expect("a rating").parse::<f64>() {
            rated += 1;
            squared += (row[6] - rating).powi(2);
        }
    }
    assert!((squared / f64::from(rated) - measure(&measures, "rating", "mse")).abs() < 1e-9);
}

fn unlabelled(line: &str) -> String {
    let fields: Vec<&str> = line.split(',').collect();
    [&fields[..1], &fields[7..]].concat().join(",")
}

fn numbers<T: FromStr<Err = ParseFloatError>>(line: &str) -> Vec<T> {
    line.split(',').map(|field| field.parse().expect("a number")).collect()
}

/// A label of each kind: clicks have an isotonic function, classes a temperature, numbers nothing.
#[test]
fn each_label_is_calibrated_on_its_own_and_predictions_are_what_is_measured() {
    let fixture = fixture();
    let job = fixture.read("job.toml").replace("data.validation = \"test.csv\"\n", "");
    fixture.write("job.toml", job.replace("train.early_stop = { patience = 8 }\n", ""));
    let up = ["up", "job.toml", "--servers", "1", "--workers", "2"];
    fixture.zagros(with_sets(&up, &["eval.calibration=isotonic", "data.validation_share=0.2"])).expect(0);
    let run = fixture.run_name();
    let measures = fixture.evaluate();
    let calibrated_measures = |label: &str| target(&measures, label)["calibrated"].clone();
    assert!(calibrated_measures("rating").is_null() && calibrated_measures("count").is_null(), "{measures}");
    assert_eq!(measures["calibrated"], calibrated_measures("click"));
    let file = fixture.read_json(&format!("{run}/model/calibration.json"));
    let methods = ["click", "buy", "level"].map(|label| file["labels"][label]["method"].as_str().expect("a method"));
    assert_eq!(methods, ["isotonic", "isotonic", "temperature"]);

    let predict = |to: &str, more: &[&str]| {
        let command = ["predict", &run, "test.csv", "-o", to, "--logits", "--keys", "click,buy"];
        fixture.zagros([&command[..], more].concat()).expect(0);
        fixture.read(to)
    };
    let (plain, calibrated) = (predict("plain.csv", &["--uncalibrated"]), predict("after.csv", &[]));
    let temperature = file["labels"]["level"]["temperature"].as_f64().expect("a temperature");
    let mut scores = [zagros_eval::ClickScores::new(), zagros_eval::ClickScores::new()];
    let (plain, calibrated): (Vec<&str>, Vec<&str>) = (plain.lines().collect(), calibrated.lines().collect());
    for (before, after) in plain.into_iter().zip_eq(calibrated).skip(1) {
        let (before, after): (Vec<f32>, Vec<f32>) = (numbers(before), numbers(after));
        for (index, scores) in scores.iter_mut().enumerate() {
            scores.push(after[index], after[2 + index]);
        }
        for class in 4..7 {
            assert_eq!(after[class], (f64::from(before[class]) / temperature) as f32);
        }
        assert_eq!(before[7..], after[7..], "numbers stay");
    }
    for (label, mut scores) in ["click", "buy"].into_iter().zip_eq(scores) {
        let measured = serde_json::to_value(scores.compute_measures()).expect("JSON");
        assert_eq!(measured, calibrated_measures(label), "{label}");
    }
    let shown = fixture.zagros(["eval", &run]).expect(0).stdout;
    assert_eq!(shown.matches("after calibration").count(), 4, "{shown}");
}

#[test]
fn classes_alone_have_a_temperature_and_a_number_has_none() {
    let fixture = fixture();
    let train = |label: &str, kind: &str| {
        let label = format!("features.label={label}");
        let kind = format!("eval.calibration={kind}");
        let sets = [label.as_str(), "model={kind='ffnn', hidden=[16]}", "train.early_stop={patience=4}", &kind];
        fixture.zagros(with_sets(&["train", "job.toml"], &sets))
    };
    let level = "{column='level', kind='classes', classes=['low', 'middle', 'high']}";
    train(level, "isotonic")
        .expect(2)
        .says(&["isotonic calibration is of one probability", "eval.calibration = \"temperature\""]);
    train("{column='rating', kind='regression', missing='skip'}", "temperature")
        .expect(2)
        .says(&["\"rating\" is a number"]);
    train(level, "temperature").expect(0).prints(&["calibrated", "accuracy"]);
    let measures = fixture.evaluate();
    let loss = |of: &Value| of["logloss"].as_f64().expect("a loss");
    assert!(loss(&measures["calibrated"]) <= loss(&measures) + 1e-6, "{measures}");
    assert_eq!(measures["calibrated"]["accuracy"], measures["accuracy"]);
    assert_eq!(fixture.summary()["calibrated"], measures["calibrated"]);
}

#[test]
fn purchases_without_a_click_are_warned_of_with_their_share() {
    let fixture = fixture();
    let consistent = fixture.zagros(["train", "job.toml", "--set", "train.epochs=1"]).expect(0).stderr;
    assert!(!consistent.contains("which it is given"), "{consistent}");
    let contradictory = rows(4_000).lines().enumerate().fold(String::new(), |text, (line, row)| {
        let mut fields: Vec<&str> = row.split(',').collect();
        if line > 0 && line % 100 == 0 {
            (fields[1], fields[2]) = ("0", "1");
        }
        text + &fields.join(",") + "\n"
    });
    fixture.write("train.csv", contradictory);
    let warned = fixture.zagros(["train", "job.toml", "--set", "train.epochs=1"]).expect(0).stderr;
    assert_contains(&warned, &["40 of 4000 rows (1.000 %) have \"buy\" without \"click\", which it is given"]);
    assert_contains(&warned, &["01, or soon after: they are trained on as they are"]);
}

#[test]
fn workers_learn_all_labels_together() {
    let fixture = fixture();
    fixture.zagros(["up", "job.toml", "--servers", "2", "--workers", "2"]).expect(0);
    assert_learned(&fixture.summary());
}

#[test]
fn a_label_or_a_weight_that_is_none_is_a_malformed_row() {
    let fixture = fixture();
    let refused = |from: &str, to: &str, expected: &str| {
        fixture.write("train.csv", rows(300).replacen(from, to, 1));
        let said = fixture.zagros(["train", "job.toml"]).expect(3).stderr;
        assert!(said.contains(expected), "{said}");
    };
    let classes = r#"expected one of the classes "low" or "middle" or "high" in label column "level""#;
    refused(",middle,", ",medium,", classes);
    refused(",0.0,a", ",x,0.0,a", "expected 10 fields");
    let weights = rows(300).replace(",times,", ",often,");
    fixture.write("train.csv", weights);
    let said = fixture.zagros(["train", "job.toml"]).expect(3).stderr;
    assert!(said.contains("no column \"times\""), "{said}");
}
