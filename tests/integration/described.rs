//! Features of every description from training to predictions: measured once, saved with the model, applied to every row.

use crate::fixture::Fixture;

const FEATURES: &str = r#"
[features]
numeric = [
    { column = "I1", log = true, standardise = true },
    { column = "I1", name = "clipped", clip = [0, 50], min_max = true },
]
categorical = [
    "C1",
    { column = "C2", vocabulary = { min_count = 5, max_size = 50 } },
    { column = "I1", name = "range", buckets = 8 },
    { column = "I2", name = "given", buckets = [0, 3, 10], default = "0" },
    { cross = ["range", "C3"], vocabulary = { min_count = 3 } },
    { cross = ["C1", "C2", "C3"], hash_size = 500 },
]
"#;

fn fixture() -> Fixture {
    let fixture = Fixture::new(4_000);
    let job = fixture.read("job.toml").replacen("[embedding]", &format!("{FEATURES}[embedding]"), 1);
    fixture.write("job.toml", job);
    fixture
}

#[test]
fn measured_features_are_saved_and_applied_again() {
    let fixture = fixture();
    fixture.zagros(["train", "job.toml"]).expect(0).says(&["measuring"]);
    let resolved = fixture.read(&format!("{}/job.toml", fixture.run_folder().display()));
    for known in ["quantiles = 8", "edges = [", "ids = \"", "mean = ", "min = 0.0"] {
        assert!(resolved.contains(known), "{known} in {resolved}");
    }
    let found = fixture.measures("test.txt", "label");
    assert_eq!(found["samples"], 800, "{found}");
    // A run that starts from the model measures nothing.
    let run = fixture.run_folder().display().to_string();
    let again = fixture.zagros(["train", "job.toml", "--from", &run, "--fresh"]).expect(0);
    assert!(!again.stderr.contains("measuring"), "{}", again.stderr);
}

#[test]
fn several_workers_share_what_the_first_has_measured() {
    let fixture = fixture();
    fixture.zagros(["up", "job.toml", "--servers", "2", "--workers", "2"]).expect(0);
    let found = fixture.measures("test.txt", "label");
    assert_eq!(found["samples"], 800, "{found}");
}

#[test]
fn keys_that_exclude_each_other_are_named() {
    let fixture = fixture();
    let refused = |feature: &str| {
        let sets = format!("features.categorical=['C1', {feature}]");
        fixture.zagros(["train", "job.toml", "--set", &sets]).expect(2).stderr
    };
    assert!(refused("{ column = 'C1' }").contains("column \"C1\" is a categorical feature twice"));
    assert!(refused("{ cross = ['C1', 'C99'] }").contains("no feature or column is named \"C99\""));
    let both = refused("{ column = 'C2', hash_size = 5, vocabulary = {} }");
    assert!(both.contains("`vocabulary` and `hash_size` exclude each other"), "{both}");
}
