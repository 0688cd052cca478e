//! Features that read, combine and map cells: the same rows as CSV, Parquet and JSON lines are the same batches.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parquet::file::properties::WriterProperties;
use zagros_ingest::{Batch, DataPart, FitReport, fit_features, hash_value};
use zagros_job::{Job, ValueBuckets};
use zagros_zip::ZipEq;

use super::twins::{Row, Twins, small_pages};
use super::{read, samples};

const FEATURES: &str = r#"
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
    let mut job = twins.job_of(FEATURES, format, "");
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
        check(&all[0].0, &batches[0]);
    }
}

/// What some values are, computed by hand from the rows.
fn check(job: &Job, batch: &Batch) {
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
            FEATURES.replacen(r#""city","#, &format!(r#"{{ column = "city", name = "bad", {feature} }},"#), 1);
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
