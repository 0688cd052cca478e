//! Measures of slices: by the values of columns, at the end of training and of a saved model, on one worker and on several.

use std::collections::BTreeMap;

use serde_json::Value;
use zagros_eval::ClickScores;
use zagros_zip::ZipEq;

use super::fixture::{Fixture, with_sets};

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
