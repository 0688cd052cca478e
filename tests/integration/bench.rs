//! The quick benchmark runs and its figures make sense; no figure is judged.

use serde_json::Value;

use zagros_tests::zagros;

#[test]
fn the_training_benchmark_prints_where_time_goes() {
    let run = zagros(["bench", "train", "--quick", "--json"]).expect(0);
    let figures: Value = serde_json::from_str(&run.stdout).expect("JSON");
    for name in ["cpu_us_per_sample", "samples_per_second"] {
        assert!(figures[name].as_f64().is_some_and(|figure| figure > 0.0), "{name}: {figures}");
    }
    for stage in ["parse", "lookup", "dense", "push"] {
        assert!(
            figures["split_us_per_sample"][stage].as_f64().is_some_and(|figure| figure >= 0.0),
            "{stage}: {figures}"
        );
    }
}
