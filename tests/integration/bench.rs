//! The quick benchmark runs and its figures make sense; no figure is judged.

use serde_json::Value;
use zagros_tests::zagros_bench;
use zagros_zip::ZipEq;

#[track_caller]
fn assert_positive(figures: &Value, names: &[&str]) {
    for name in names {
        assert!(figures[*name].as_f64().is_some_and(|figure| figure > 0.0), "{name}: {figures}");
    }
}

#[test]
fn the_training_benchmark_prints_where_time_goes() {
    let figures = zagros_bench(["train", "--quick", "--json"]).expect(0).json();
    assert_positive(&figures, &["cpu_us_per_sample", "samples_per_second"]);
    for stage in ["parse", "lookup", "dense", "push"] {
        let spent = figures["split_us_per_sample"][stage].as_f64();
        assert!(spent.is_some_and(|spent| spent >= 0.0), "{stage}: {figures}");
    }
}

#[test]
fn the_scaling_benchmark_learns_the_same_with_one_worker_and_with_two() {
    let run = zagros_bench(["scaling", "--quick", "--workers", "1,2", "--json"]);
    let figures = run.expect(0).json();
    let settings = figures["settings"].as_array().expect("settings");
    let found: Vec<_> = settings.iter().map(|setting| setting["setting"].as_str()).collect();
    assert_eq!(found, [Some("1 worker(s)"), Some("2 worker(s)")]);
    let auc = |setting: usize| settings[setting]["runs"][0]["auc"].as_f64().expect("an AUC");
    assert!(auc(0) > 0.6 && (auc(0) - auc(1)).abs() < 0.05, "{figures}");
    for setting in settings {
        assert_positive(setting, &["speed_ratio", "cpu_ratio"]);
        assert_positive(&setting["runs"][0], &["samples_per_second", "cpu_us_per_sample"]);
    }
}

#[test]
fn the_embedding_benchmark_finds_the_same_rows_in_every_process() {
    // It fails when servers in other processes hold other rows than embedded ones.
    let run = zagros_bench(["embedding", "--quick", "--servers", "2", "--clients", "1", "--dim", "8", "--json"]);
    let figures = run.expect(0).json();
    let cases = figures["cases"].as_array().expect("cases");
    let found: Vec<_> = cases.iter().map(|case| (case["wire"].as_str(), case["path"].as_str())).collect();
    let expected = ["f32", "bf16"].map(|wire| ["embedded", "loopback"].map(|path| (Some(wire), Some(path))));
    assert_eq!(found, expected.concat());
    for case in cases {
        assert_positive(case, &["rows_looked_up_per_second", "rows_updated_per_second"]);
    }
}

#[test]
fn the_benchmark_of_modes_runs_each_and_writes_a_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let page = folder.path().join("modes.html");
    let run = zagros_bench(["modes", "--quick", "--json", "--rate", "1000", "--page", page.to_str().expect("UTF-8")]);
    let figures = run.expect(0).json();
    let settings = figures["settings"].as_array().expect("settings");
    let expected = [("sync", 0), ("hybrid, τ = 4", 4), ("async, τ = 4", 4)];
    assert_eq!(settings.len(), expected.len());
    for (setting, (name, most)) in settings.iter().zip_eq(expected) {
        assert_eq!(setting["setting"], name);
        let ran = &setting["runs"][0];
        assert_positive(ran, &["samples_per_second", "cpu_us_per_sample", "auc"]);
        assert_eq!(ran["samples"], 8_000);
        assert!(ran["staleness_max"].as_u64().is_some_and(|staleness| staleness <= most), "{setting}");
    }
    let page = std::fs::read_to_string(&page).expect("the page");
    assert!(page.contains("Modes of training") && page.contains("<svg"), "{page}");
}

#[test]
fn the_benchmark_of_forecasts_has_a_ratio_for_each_network() {
    let run = zagros_bench(["plan", "--quick", "--workers", "1", "--json"]);
    let figures = run.expect(0).json();
    let cases = figures["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 3);
    for case in cases {
        for pair in ["samples_per_second", "worker_cpu"] {
            assert!(case[pair]["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{pair}: {case}");
        }
    }
}
