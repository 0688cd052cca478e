//! Tests of the measurement of statistics.

use proptest::prelude::*;
use zagros_job::{Categorical, CategoryEncoding, ColumnReading, EncodeBy, HeldOutRows, IdRange, Scaling, ValueBuckets};

use super::*;
use crate::fixture;
use crate::{StreamOptions, hash_value};

fn fitted(job: &Job, column: usize) -> (f64, f64) {
    match &job.features.numeric[column].standardise {
        Scaling::Given(ColumnMoments { mean, deviation }) => (mean[0], deviation[0]),
        other => panic!("column {column} is {other:?}"),
    }
}

fn job_over(text: &str) -> (tempfile::TempDir, Job) {
    let (folder, path) = fixture::file(text);
    let mut job = fixture::delimited(|_| ());
    job.data.train = vec![path];
    job.features.numeric[0].standardise = Scaling::FIT;
    (folder, job)
}

#[test]
fn mean_and_deviation_are_those_of_the_present_values_after_the_logarithm() {
    let half = 100.0_f64.ln() / 2.0;
    for (ages, log, expected) in [
        (&["2", "?", "4", "9"][..], false, (5.0, (26.0_f64 / 3.0).sqrt())),
        (&["0", "99"], true, (half, half)),
        // A constant column, and one without values.
        (&["7", "7"], false, (7.0, 1.0)),
        (&["?", "?"], false, (0.0, 1.0)),
    ] {
        let rows: String = ages.iter().enumerate().map(|(n, age)| format!("{},{age},x,\n", u8::from(n == 0))).collect();
        let (_folder, mut job) = job_over(&format!("click,age,city,tags\n{rows}"));
        job.features.numeric[0].log = log;
        let (rows, positive_rate) = (ages.len() as u64, 1.0 / ages.len() as f64);
        assert_eq!(fit(&mut job).unwrap(), FitReport { rows, positive_rate, ..FitReport::default() });
        let (mean, deviation) = fitted(&job, 0);
        assert!((mean - expected.0).abs() < 1e-12 && (deviation - expected.1).abs() < 1e-12, "{ages:?}: {mean}");
    }
}

#[test]
fn bad_rows_are_tolerated_as_in_training_and_leave_no_trace() {
    let (_folder, mut job) = job_over("click,age,city,tags\n1,2,x,\n0,4,x\n9,9,x,\n0,4,x,\n");
    let error = fit(&mut job).unwrap_err();
    assert!(matches!(error, IngestError::TooManyBadRows { count: 2, .. }), "{error}");
    assert_eq!(job.features.numeric[0].standardise, Scaling::FIT);
    job.data.max_bad_rows = 2;
    assert_eq!(fit(&mut job).unwrap().bad_rows, 2);
    assert_eq!(fitted(&job, 0), (3.0, 1.0));
}

#[test]
fn nothing_to_fit_reads_nothing() {
    let mut job = fixture::delimited(|_| ());
    job.data.train = vec!["no/such/file".into()];
    assert_eq!(fit(&mut job).unwrap(), FitReport::default());
}

fn fit(job: &mut Job) -> Result<FitReport, IngestError> {
    fit_features(job, &AtomicU64::new(0), &Arc::default())
}

/// The job's own features, and the age in four ranges, the city with a vocabulary of those that occur twice, and the cross of both
/// of those that occur three times.
fn described(text: &str) -> (tempfile::TempDir, Job) {
    let (folder, mut job) = job_over(text);
    let frequent = |min_count, max_size| IdRange::Vocabulary(Vocabulary { min_count, max_size, ids: None });
    let features = &mut job.features;
    features.numeric.push(Numeric { min_max: Scaling::FIT, clip: Some([0.0, 5.0]), ..Numeric::from("age".to_owned()) });
    let source = IdSource::Column { column: "age".into(), reading: ColumnReading::Buckets(ValueBuckets::Fit(4)) };
    features.categorical.push(Categorical { source, ..Categorical::of_column("range", 0) });
    features.categorical[0].ids = frequent(2, 3);
    let source = IdSource::Cross(vec!["range".into(), "city".into()]);
    features.categorical.push(Categorical { source, ids: frequent(3, 9), ..Categorical::of_column("both", 0) });
    (folder, job)
}

#[test]
fn ranges_edges_and_vocabularies_are_measured_in_one_or_two_readings() {
    let rows = "1,1,a,\n1,1,b,\n1,2,a,\n0,2,a,\n0,2,a,\n0,9,b,\n0,9,c,\n0,?,,\n";
    let (_folder, mut job) = described(&format!("click,age,city,tags\n{rows}"));
    let read = AtomicU64::new(0);
    let report = fit_features(&mut job, &read, &Arc::default()).unwrap();
    assert_eq!((report.rows, report.positive_rate), (8, 0.375));
    let bytes = rows.len() as u64 + 20;
    assert!(read.load(Ordering::Relaxed) >= 2 * rows.len() as u64 && read.load(Ordering::Relaxed) <= 2 * bytes);
    assert_eq!(job.features.numeric[1].min_max, Scaling::Given(ColumnRange { min: vec![1.0], max: vec![5.0] }));
    let fitted = ValueBuckets::Fitted { quantiles: 4, edges: vec![2.0, 9.0] };
    assert_eq!(job.features.categorical[2].buckets(), Some(&fitted));
    let ids = |feature: usize| job.features.categorical[feature].vocabulary().unwrap().ids.clone().unwrap();
    let mut frequent = [hash_value(b"a"), hash_value(b"b")];
    frequent.sort_unstable();
    assert_eq!(ids(0), frequent);
    let mut both = crate::category::CrossId::default();
    both.add(hash_value(b"1"));
    both.add(hash_value(b"a"));
    assert_eq!(ids(3), [both.finish()]);
}

#[test]
fn a_vocabulary_keeps_the_most_frequent_of_too_many() {
    let rows: String = (0..50).flat_map(|city| vec![format!("1,1,c{city},\n"); 2 + city % 7]).collect();
    let (_folder, mut job) = described(&format!("click,age,city,tags\n{rows}"));
    fit(&mut job).unwrap();
    let ids = job.features.categorical[0].vocabulary().unwrap().ids.clone().unwrap();
    let most: Vec<u64> =
        (0..50).filter(|city| city % 7 == 6).map(|city| hash_value(format!("c{city}").as_bytes())).collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.iter().all(|id| most.contains(id)));
}

#[test]
fn a_column_of_one_value_or_none_has_a_range_all_the_same() {
    for (value, expected) in [("3", (3.0, 6.0)), ("?", (0.0, 1.0))] {
        let (_folder, mut job) = described(&format!("click,age,city,tags\n1,{value},x,\n0,{value},x,\n"));
        fit(&mut job).unwrap();
        let range = ColumnRange { min: vec![expected.0], max: vec![expected.1] };
        assert_eq!(job.features.numeric[1].min_max, Scaling::Given(range));
        assert_eq!(job.features.categorical[2].buckets().unwrap().edges(), [0.0; 0]);
    }
}

/// The city, and the combination of the city and the measured range of ages, by mean label; the city by count.
fn encoded(text: &str) -> (tempfile::TempDir, Job) {
    let (folder, mut job) = described(text);
    let encoding = |by, others: &[&str]| {
        let columns = others.iter().map(|name| (*name).to_owned()).collect();
        CategoryEncoding { by, with: columns, folds: Some(3), max_size: 100, ..fixture::encoding(None) }
    };
    let feature = |name: &str, encoding| Numeric {
        name: Some(name.to_owned()),
        encode: Some(encoding),
        ..Numeric::from("city".to_owned())
    };
    job.features.numeric.insert(0, feature("mean", encoding(EncodeBy::Target, &[])));
    job.features.numeric.push(feature("both", encoding(EncodeBy::Target, &["range"])));
    job.features.numeric.push(feature("count", encoding(EncodeBy::Count, &[])));
    (folder, job)
}

fn read(job: &Job, part: DataPart, threads: usize) -> Vec<Vec<f32>> {
    let mut job = job.clone();
    job.data.threads = threads;
    let batches =
        fixture::stream(&job, StreamOptions::new(part), fixture::whole(&job.data.train[0])).map(Result::unwrap);
    let width = job.features.numeric_inputs();
    batches.flat_map(|batch| batch.numeric.chunks(width).map(<[f32]>::to_vec).collect::<Vec<_>>()).collect()
}

#[test]
fn training_rows_are_encoded_by_their_fold_and_other_rows_by_all_rows() {
    let rows: Vec<String> =
        (0..400).map(|n| format!("{},{},c{},\n", u8::from(n % 3 == 0), n % 17, n * n % 11)).collect();
    let (_folder, mut job) = encoded(&format!("click,age,city,tags\n{}", rows.concat()));
    fit(&mut job).unwrap();
    assert!(job.features.unmeasured_statistics().is_empty());
    let (train, all) = (read(&job, DataPart::Train, 1), read(&job, DataPart::All, 1));
    assert_eq!((train.len(), train.clone()), (400, read(&job, DataPart::Train, 3)));
    let table = |feature: usize| job.features.numeric[feature].encode.as_ref().unwrap().fitted.as_ref().unwrap();
    let mut place = "click,age,city,tags\n".len() as u64;
    for (row, line) in rows.iter().enumerate() {
        let city = hash_value(line.split(',').nth(2).unwrap().as_bytes());
        let table = table(0);
        let start = 4 * table.ids.iter().position(|id| *id == city).unwrap();
        let standard = |value: f32| ((f64::from(value) - table.mean) / table.deviation) as f32;
        let fold = crate::category::fold_of(place, 3);
        assert_eq!(train[row][0], standard(table.values[start + fold]));
        assert_eq!(all[row][0], standard(table.values[start + 3]));
        assert_eq!(train[row][1..3], all[row][1..3], "numbers");
        assert_eq!(train[row][4], all[row][4], "a count has no label");
        place += line.len() as u64;
    }
    assert!(train.iter().zip_eq(&all).any(|(train, all)| train[3] != all[3]));
    let moments = |column: usize| {
        let mean = train.iter().map(|row| f64::from(row[column])).sum::<f64>() / 400.0;
        (mean, train.iter().map(|row| (f64::from(row[column]) - mean).powi(2)).sum::<f64>() / 400.0)
    };
    for column in [0, 3, 4] {
        let (mean, variance) = moments(column);
        assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-4, "{column}: {mean} {variance}");
    }
    assert_eq!(table(3).ids.len(), table(3).values.len() / 4);
    assert!(table(3).ids.len() > 11, "combinations with the ranges");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn only_training_rows_count_and_threads_do_not(values in prop::collection::vec(-1_000_i32..1_000, 40..80), threads in 1_usize..5) {
        let rows: String = values.iter().map(|value| format!("1,{value},x,\n")).collect();
        let (_folder, mut job) = job_over(&format!("click,age,city,tags\n{rows}"));
        job.data.test = HeldOutRows::Share(0.3);
        let mut threaded = job.clone();
        threaded.data.threads = threads;
        let report = fit(&mut job).unwrap();
        prop_assert!(report.rows < values.len() as u64);
        fit(&mut threaded).unwrap();
        prop_assert_eq!(fitted(&job, 0), fitted(&threaded, 0));
    }
}
