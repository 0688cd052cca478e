//! Features that read, combine and map cells, weighted bags and vectors of numbers: the same rows as CSV, Parquet and JSON lines are the
//! same batches.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parquet::file::properties::WriterProperties;
use zagros_ingest::{Batch, DataPart, FitReport, fit_features, hash_value, inspect_columns};
use zagros_job::{ColumnMoments, FeatureStatistic, Job, MeasuredValue, ValueBuckets};
use zagros_zip::ZipEq;

use crate::parquet::twins::{Row, Twins, small_pages};
use crate::parquet::{read, samples};

const FEATURES: &str = r#"
[features]
label = "click"
numeric = [
    { column = "age", missing_indicator = true },
    { column = "vector", width = 3, SEPARATOR standardise = true, missing = -9, missing_indicator = true },
]
categorical = ["user", { column = "tags", SEPARATOR weights = "weights", pooling = "POOLING" }]
[model]
kind = "ffnn"
hidden = [8]
"#;

const FORMATS: [&str; 3] = ["delimited", "parquet", "jsonl"];

const MOMENTS: FeatureStatistic = FeatureStatistic::Standardise(1);

/// The job of a format, and its rows. Their moments are `measured`, or of their own.
fn batch(twins: &Twins, format: &str, pooling: &str, measured: Option<MeasuredValue>) -> (zagros_job::Features, Batch) {
    let text = FEATURES.replace("POOLING", pooling);
    let mut job = twins.job_of(&text, format, "threads = 2");
    if let Some(measured) = measured {
        assert!(job.features.set_measured(MOMENTS, measured));
    }
    fit_features(&mut job, &AtomicU64::new(0), &Arc::default()).unwrap();
    let rows = samples(&read(&job, DataPart::Train).unwrap());
    (job.features, rows)
}

#[test]
fn weighted_bags_and_vectors_are_the_same_in_every_format() {
    for (properties, pooling) in [(WriterProperties::builder as fn() -> _, "mean"), (small_pages, "sqrtn")] {
        let twins = Twins::new(1_000, 150, &properties);
        write_json(&twins, 1_000);
        let first = batch(&twins, FORMATS[0], pooling, None);
        for format in FORMATS {
            let (_, rows) = batch(&twins, format, pooling, first.0.measured_value(MOMENTS));
            assert_eq!(rows, first.1, "{format}");
        }
        check(&first, pooling);
    }
}

/// What the values are, computed by hand from the rows.
fn check((features, batch): &(zagros_job::Features, Batch), pooling: &str) {
    let Some(MeasuredValue::Moments(ColumnMoments { mean, deviation })) = features.measured_value(MOMENTS) else {
        panic!()
    };
    let rows: Vec<Row> = (0..1_000).map(Row::new).collect();
    let row = |sample: usize| {
        let offsets = batch.categorical[1].offsets.as_ref().unwrap();
        let weights = batch.categorical[1].weights[offsets[sample] as usize..offsets[sample + 1] as usize].to_vec();
        let numbers = batch.numeric[6 * sample..6 * (sample + 1)].to_vec();
        (batch.categorical[0].ids[sample], numbers, batch.categorical[1].sample_ids(sample).to_vec(), weights)
    };
    let mut found: Vec<_> = (0..batch.size).map(row).collect();
    found.sort_by_key(|row| row.0);
    let mut expected: Vec<_> = rows.iter().map(|row| (hash_value(row.user.to_string().as_bytes()), row)).collect();
    expected.sort_by_key(|row| row.0);
    for ((user, numbers, ids, weights), (expected_user, row)) in found.into_iter().zip_eq(expected) {
        assert_eq!(user, expected_user);
        let vector = row.vector.clone().unwrap_or_else(|| vec![None; 3]);
        let scaled = |(index, number): (usize, &Option<f64>)| {
            number.map_or(-9.0, |number| ((number - mean[index]) / deviation[index]) as f32)
        };
        let is_missing = |missing: bool| f32::from(u8::from(missing));
        let age = [row.age.unwrap_or_default() as f32, is_missing(row.age.is_none())];
        let scaled: Vec<f32> = vector.iter().enumerate().map(scaled).collect();
        assert_eq!(numbers, [&age[..], &scaled, &[is_missing(vector.contains(&None))]].concat());
        let tags = row.tags.iter().flatten().flatten();
        assert_eq!(ids, tags.map(|tag| hash_value(tag.as_bytes())).collect::<Vec<_>>());
        let given: Vec<f64> = row.weights.iter().flatten().flatten().copied().collect();
        let whole = match pooling {
            "mean" => given.iter().sum(),
            _ => given.iter().map(|weight| weight * weight).sum::<f64>().sqrt(),
        };
        let share = |weight: f64| if whole > 0.0 { (weight / whole) as f32 } else { 0.0 };
        assert_eq!(weights, given.into_iter().map(share).collect::<Vec<_>>());
    }
}

#[test]
fn each_number_of_a_vector_is_standardised_by_its_own_moments() {
    let twins = Twins::new(200, 50, &WriterProperties::builder);
    write_json(&twins, 200);
    for format in FORMATS {
        let (features, _) = batch(&twins, format, "sum", None);
        let Some(MeasuredValue::Moments(ColumnMoments { mean, deviation })) = features.measured_value(MOMENTS) else {
            panic!()
        };
        for number in 0..3 {
            let values = (0..200).filter_map(|n| Row::new(n).vector.and_then(|vector| vector[number]));
            let values: Vec<f64> = values.collect();
            let by_hand = values.iter().sum::<f64>() / values.len() as f64;
            assert!((mean[number] - by_hand).abs() < 1e-9 && deviation[number] > 0.1, "{mean:?} {deviation:?}");
        }
    }
    let job = twins.job_of(&FEATURES.replace("POOLING", "sum"), "parquet", "");
    let summary = inspect_columns(&job, None).unwrap();
    assert!(summary.to_string().contains("\nvector ") && summary.bad_rows == 0, "{summary}");
}

#[test]
fn lists_of_other_lengths_are_malformed_rows_in_every_format() {
    let twins = Twins::new(20, 10, &WriterProperties::builder);
    write_json(&twins, 20);
    let bad = |format: &str, from: &str, to: &str| {
        let text = FEATURES.replace("POOLING", "sum").replace("standardise = true, ", "");
        let error = read(&twins.job_of(&text.replace(from, to), format, ""), DataPart::Train).unwrap_err();
        error.to_string()
    };
    for format in FORMATS {
        let error = bad(format, "width = 3", "width = 2");
        assert!(error.contains("expected 2 numbers in column \"vector\", found 3"), "{format}: {error}");
        let error = bad(format, "weights = \"weights\"", "weights = \"vector\"");
        let expected = "expected 1 weights in column \"vector\", one for each value of column \"tags\", found 3";
        assert!(error.contains(expected), "{format}: {error}");
        let error = bad(format, "weights = \"weights\", pooling = \"sum\"", "weights = \"tags\"");
        let expected = "expected a number in column \"tags\" for each value of column \"tags\", found \"t7\"";
        assert!(error.contains(expected), "{format}: {error}");
    }
    // A column of single values.
    let error = bad("parquet", "weights = \"weights\"", "weights = \"age\"");
    assert!(error.contains("column \"age\"") && error.contains("it does not hold lists"), "{error}");
    let error = bad("parquet", "column = \"vector\"", "column = \"age\", name = \"v\"");
    assert!(error.contains("it does not hold lists; remove `width`"), "{error}");
}

const DESCRIBED: &str = r#"
[features]
label = "click"
numeric = [
    "age",
    { column = "age", name = "scaled", clip = [2, 100], log = true, min_max = true },
    { column = "user", standardise = { mean = 5e8, deviation = 3e8 } },
]
categorical = [
    "city",
    { column = "age", name = "given", buckets = [1, 30.5, 200] },
    { column = "age", name = "range", buckets = 7 },
    { column = "day", name = "weekday", date = "weekday" },
    { column = "day", date = "month", default = "12" },
    { column = "city", name = "known", default = "nowhere", vocabulary = { min_count = 40, max_size = 9 } },
    { cross = ["city", "range", "user"], name = "all", hash_size = 1000 },
    { cross = ["range", "weekday"], vocabulary = { min_count = 17 } },
    { column = "tags", SEPARATOR pooling = "mean", vocabulary = { min_count = 20 } },
]
[model]
kind = "ffnn"
hidden = [8]
[train]
batch_size = 16
"#;

fn fitted(twins: &Twins, format: &str) -> (Job, FitReport) {
    let mut job = twins.job_of(DESCRIBED, format, "");
    let report = fit_features(&mut job, &AtomicU64::new(0), &Arc::default()).unwrap();
    (job, report)
}

pub(super) fn write_json(twins: &Twins, rows: i64) {
    let rows: Vec<String> = (0..rows).map(|n| Row::new(n).object()).collect();
    for (part, rows) in rows.chunks(rows.len().div_ceil(2)).enumerate() {
        fs::write(twins.path(&format!("{part}.jsonl")), rows.concat()).unwrap();
    }
}

#[test]
fn described_features_are_the_same_in_every_format() {
    for properties in [WriterProperties::builder, small_pages] {
        let twins = Twins::new(1_000, 150, &properties);
        write_json(&twins, 1_000);
        let all = ["delimited", "parquet", "jsonl"].map(|format| fitted(&twins, format));
        let batches = all.clone().map(|(job, _)| samples(&read(&job, DataPart::Train).unwrap()));
        for ((job, report), batch) in all.iter().zip_eq(&batches) {
            let mut features = job.features.clone();
            // A text has a separator, a list none.
            features.categorical[8].values = all[0].0.features.categorical[8].values.clone();
            assert_eq!((&features, report), (&all[0].0.features, &all[0].1));
            assert_eq!(batch, &batches[0]);
        }
        assert!(all[0].0.features.unmeasured_statistics().is_empty());
        check_described(&all[0].0, &batches[0]);
    }
}

/// What some values are, computed by hand from the rows.
fn check_described(job: &Job, batch: &Batch) {
    let ids = |feature: usize| &batch.categorical[feature].ids;
    let (least, most) = (2.0_f64.ln_1p(), 100.0_f64.ln_1p());
    let scaled = |age: f64| (age.clamp(2.0, 100.0).ln_1p() - least) / (most - least);
    let mut expected: Vec<(u32, u64, u64, u64)> = (0..1_000)
        .map(Row::new)
        .map(|row| {
            let number = row.age.map_or(0.0, |age| scaled(age) as f32);
            let range = row.age.map(|age| [1.0, 30.5, 200.0].iter().filter(|edge| **edge <= age).count());
            // 20,000 days after 1970-01-01, a Thursday, is a Friday.
            let weekday = (row.day - 20_000 + 4) % 7 + 1;
            let text = |value: Option<String>| hash_value(value.unwrap_or_default().as_bytes());
            (
                number.to_bits(),
                text(range.map(|range| range.to_string())),
                hash_value(weekday.to_string().as_bytes()),
                text(row.city),
            )
        })
        .collect();
    let mut found: Vec<_> = (0..batch.size)
        .map(|row| (batch.numeric[3 * row + 1].to_bits(), ids(1)[row], ids(3)[row], ids(0)[row]))
        .collect();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
    let Some(ValueBuckets::Fitted { quantiles: 7, edges }) = job.features.categorical[2].buckets() else { panic!() };
    assert_eq!(edges.len(), 6);
    // Each of 13 cities is in about 51 rows, and a third of the rows has none: nine are known, and all others are one.
    let known: std::collections::HashSet<u64> = ids(5).iter().copied().collect();
    assert!(
        known.len() == 10 && known.contains(&hash_value(b"nowhere")) && !known.contains(&hash_value(b"")),
        "{known:?}"
    );
    assert!(ids(6).iter().all(|id| *id < 1_000));
    let crosses: std::collections::HashSet<u64> = ids(7).iter().copied().collect();
    assert!((8..50).contains(&crosses.len()), "{}", crosses.len());
}

#[test]
fn a_cell_that_is_no_number_or_date_is_a_malformed_row_in_every_format() {
    let twins = Twins::new(20, 10, &WriterProperties::builder);
    write_json(&twins, 20);
    let bad = |format: &str, feature: &str| {
        let features =
            DESCRIBED.replacen(r#""city","#, &format!(r#"{{ column = "city", name = "bad", {feature} }},"#), 1);
        let features = features.replace("vocabulary = {", "vocabulary = { ids = \"\", ");
        read(&twins.job_of(&features, format, ""), DataPart::Train).unwrap_err().to_string()
    };
    for format in ["delimited", "parquet", "jsonl"] {
        let error = bad(format, "buckets = [1]");
        assert!(error.contains("expected a number in column \"city\", found \"c1\""), "{format}: {error}");
        let error = bad(format, "date = \"hour\"");
        assert!(error.contains("expected a date in column \"city\", such as 2026-11-25"), "{format}: {error}");
    }
}
