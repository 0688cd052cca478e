//! What `zagros eval` measures besides the whole: after calibration, which is fitted to the validation part and saved with the model, by
//! slices, and the importance of features.

use std::collections::BTreeMap;

use serde_json::Value;
use zagros_eval::ClickScores;
use zagros_zip::ZipEq;

use super::fixture::{Fixture, measured, with_sets};

fn trained(command: &[&str], sets: &[&str]) -> (Fixture, String) {
    let fixture = Fixture::new(4_000);
    let calibrated = with_sets(command, &["data.validation_share=0.2", "eval.calibration=isotonic"]);
    fixture.zagros(with_sets(&calibrated, sets)).expect(0);
    let run = fixture.run_name();
    (fixture, run)
}

fn predict(fixture: &Fixture, run: &str, to: &str, more: &[&str]) -> String {
    let command = ["predict", run, "test.txt", "-o", to, "--keys", "label", "--logits"];
    fixture.zagros([&command[..], more].concat()).expect(0);
    fixture.read(to)
}

#[test]
fn measures_before_and_after_are_those_of_predictions_to_the_last_bit() {
    let (fixture, run) = trained(&["train", "job.toml"], &[]);
    let evaluated = fixture.evaluate();
    let summary = fixture.summary();
    assert_eq!(summary["calibrated"], evaluated["calibrated"], "at the end of training");
    assert_eq!(summary["evaluation"]["logloss"], evaluated["logloss"]);
    assert_eq!(measured(&predict(&fixture, &run, "after.csv", &[])), evaluated["calibrated"]);
    let mut plain = evaluated.clone();
    plain.as_object_mut().expect("an object").remove("calibrated");
    assert_eq!(measured(&predict(&fixture, &run, "before.csv", &["--uncalibrated"])), plain);
    assert_ne!(plain, evaluated["calibrated"]);
    fixture.zagros(["eval", &run]).expect(0).prints(&["after calibration"]);
    let manifest = fixture.read(&format!("{run}/model/manifest.json"));
    assert!(manifest.contains("\"calibration.json\""), "{manifest}");
    fixture.zagros(["inspect", &run, "--verify"]).expect(0);
    is_refused_where_it_is_damaged(&fixture, &run);
}

fn is_refused_where_it_is_damaged(fixture: &Fixture, run: &str) {
    let file = format!("{run}/model/calibration.json");
    let text = fixture.read(&file);
    fixture.write(&file, text.replacen('0', "1", 1));
    let changed = "calibration.json is not the file that was saved";
    fixture.zagros(["eval", run]).expect(3).says(&[changed]);
    fixture.zagros(["inspect", run, "--verify"]).expect(3).prints(&["calibration.json"]);
    std::fs::remove_file(fixture.path(&file)).expect("it is there");
    let predict = ["predict", run, "test.txt", "-o", "s.csv"];
    fixture.zagros(predict).expect(3).says(&["calibration.json is missing"]);
    // What the network says can still be had.
    fixture.zagros([&predict[..], &["--uncalibrated"]].concat()).expect(0);
}

#[test]
fn two_workers_fit_one_function_with_the_best_state() {
    let sets = ["train.mode=sync", "cluster.servers=1", "train.early_stop={patience=1}"];
    let (fixture, run) = trained(&["up", "job.toml", "--workers", "2"], &sets);
    let evaluated = fixture.evaluate();
    assert_eq!(fixture.summary()["calibrated"], evaluated["calibrated"]);
    assert_eq!(measured(&predict(&fixture, &run, "s.csv", &[])), evaluated["calibrated"]);
}

#[test]
fn importance_is_the_loss_of_each_feature_and_the_same_again() {
    let (fixture, run) = Fixture::trained(4_000, &[]);
    let eval = |more: &[&str]| fixture.zagros([&["eval", &run, "--json"], more].concat()).expect(0).json();
    let (plain, mut with) = (eval(&[]), eval(&["--importance=2"]));
    assert_eq!(with, eval(&["--importance=2", "--set", "data.threads=3"]), "for any number of threads");
    let importance = with.as_object_mut().expect("an object").remove("importance").expect("importance");
    assert_eq!(with, plain, "the measures stay what they are");
    let features = importance["features"].as_array().expect("features");
    assert_eq!((importance["repeats"].as_u64(), features.len()), (Some(2), 39));
    let losses: Vec<f64> = features.iter().filter_map(|feature| feature["auc_loss"]["mean"].as_f64()).collect();
    assert!(losses.len() == 39 && losses.is_sorted_by(|one, other| one >= other), "{losses:?}");
    assert!(losses[0] > 0.0 && features[0]["logloss_rise"]["deviation"].as_f64().is_some(), "{importance}");
    fixture.zagros(["eval", &run, "--importance"]).expect(0).prints(&["exchanged 5 times", "C26"]);
    fixture.zagros(["eval", &run, "--importance=0"]).expect(2).says(&["--importance"]);
}

/// Of a click and a number, from the same exchanges.
#[test]
fn importance_of_several_labels_is_a_table_for_each_by_its_own_measure() {
    let fixture = Fixture::new(4_000);
    let labels = "features.label=['label', {column='label', name='level', kind='regression'}]";
    fixture.train(&[labels, "model={kind='shared_bottom', bottom=[16], tower=[]}"]);
    let run = fixture.run_name();
    let importance = fixture.zagros(["eval", &run, "--json", "--importance=2"]).expect(0).json()["importance"].take();
    assert!(importance["features"][0]["auc_loss"]["mean"].as_f64() > Some(0.0), "{importance}");
    let level = &importance["targets"][0];
    assert_eq!((&level["target"], level["features"].as_array().map(Vec::len)), (&Value::from("level"), Some(39)));
    let rises: Vec<f64> =
        level["features"].as_array().into_iter().flatten().filter_map(|of| of["mse_rise"]["mean"].as_f64()).collect();
    assert!(rises.len() == 39 && rises[0] > 0.0 && rises.is_sorted_by(|a, b| a >= b), "{importance}");
    fixture.zagros(["eval", &run, "--importance"]).expect(0).prints(&["importance for level", "MSE rises by"]);
}

const SLICES: &str = "eval.slices=['C14', 'I2']";

/// Samples by value, the most frequent first, of one column of the slices.
fn counts(slices: &Value) -> Vec<(Option<String>, u64)> {
    let slices = slices["slices"].as_array().expect("slices").iter();
    slices
        .map(|slice| (slice["value"].as_str().map(str::to_owned), slice["samples"].as_u64().expect("a count")))
        .collect()
}

#[test]
fn slices_are_the_measures_of_the_rows_with_each_value() {
    let fixture = Fixture::new(4_000);
    fixture.train(&[SLICES, "eval.slice_values=4"]).prints(&["slices by C14", "slices by I2"]);
    let run = fixture.run_name();
    let evaluated = fixture.evaluate();
    assert_eq!(fixture.summary()["slices"], evaluated["slices"], "at the end of training");
    let predict = ["predict", &run, "test.txt", "-o", "z.csv", "--keys", "label,C14", "--logits"];
    fixture.zagros(predict).expect(0);
    let mut by_value: BTreeMap<String, ClickScores> = BTreeMap::new();
    for row in fixture.read("z.csv").lines().skip(1) {
        let [label, value, logit] = row.split(',').collect::<Vec<_>>()[..] else { panic!("{row}") };
        let scores = by_value.entry(value.to_owned()).or_default();
        scores.push(label.parse().expect("a label"), logit.parse().expect("a logit"));
    }
    let slices = &evaluated["slices"][0];
    assert_eq!((slices["column"].as_str(), slices["exact"].as_bool()), (Some("C14"), Some(true)));
    assert_eq!(slices["values"].as_u64(), Some(by_value.len() as u64));
    let counted = counts(slices);
    assert_eq!(counted.len(), 5, "four values and all others: {counted:?}");
    assert_eq!(counted.iter().map(|(_, samples)| samples).sum::<u64>(), 800);
    for slice in slices["slices"].as_array().expect("slices") {
        let Some(value) = slice["value"].as_str() else { continue };
        let expected = by_value.get_mut(value).expect("a value of the data").compute_measures();
        assert_eq!(slice["samples"].as_u64(), Some(expected.samples));
        let near = |name: &str, expected: Option<f64>, bound: f64| {
            let found = slice[name].as_f64();
            let is_near = found.is_some() == expected.is_some()
                && (found.unwrap_or(0.0) - expected.unwrap_or(0.0)).abs() <= bound;
            assert!(is_near, "{name} of {value}: {found:?} {expected:?}");
        };
        near("logloss", expected.logloss, 1e-9);
        near("calibration", expected.calibration, 1e-9);
        // Logits that differ by less than 1/2048 of their value tie.
        near("auc", expected.auc, 0.01);
    }
    fixture.zagros(["eval", &run]).expect(0).prints(&["all others", "slices by I2"]);
}

#[test]
fn two_workers_count_each_sample_of_a_slice_once() {
    let fixture = Fixture::new(4_000);
    let up = ["up", "job.toml", "--workers", "2", "--servers", "1"];
    fixture.zagros(with_sets(&up, &["train.mode=hybrid", SLICES])).expect(0);
    let evaluated = fixture.evaluate();
    for (summary, alone) in fixture.summary()["slices"].as_array().expect("slices").iter().zip_eq([0, 1]) {
        assert_eq!(counts(summary), counts(&evaluated["slices"][alone]));
        assert_eq!(counts(summary).iter().map(|(_, samples)| samples).sum::<u64>(), 800);
    }
}
