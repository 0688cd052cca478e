//! Features of every description from training to predictions: measured once, saved with the model, applied to every row.

use serde_json::Value;
use zagros_tests::assert_contains;

use super::fixture::Fixture;

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
    assert_contains(&resolved, &["quantiles = 8", "edges = [", "ids = \"", "mean = ", "min = 0.0"]);
    let found = fixture.measures("test.txt", "label");
    assert_eq!(found["samples"], 800, "{found}");
    // A run that starts from the model measures nothing.
    let run = fixture.run_name();
    let again = fixture.zagros(["train", "job.toml", "--from", &run, "--fresh"]).expect(0);
    assert!(!again.stderr.contains("measuring"), "{}", again.stderr);
}

/// The wide part of Wide & Deep by FTRL and the deep one by Adagrad, as the paper has it. Rows of one value in two tables.
#[test]
fn a_column_has_two_tables_with_dims_and_optimisers_of_their_own() {
    let fixture = Fixture::new(4_000);
    let features = "[features]\ncategorical = ['C1', 'C2', { column = 'C1', name = 'C1_wide' }]\n\
        [tables]\nC1_wide = { dim = 1, optimizer = { kind = 'ftrl', lr = 0.1 } }\nC1 = { dim = 8 }\n[embedding]";
    let job = fixture.read("job.toml").replacen("[embedding]", features, 1);
    let job = job.replace("kind = \"dlrm\"\nbottom = [16]\ntop = [16]", "kind = \"wide_deep\"\nhidden = [16]");
    fixture.write("job.toml", job);
    fixture.zagros(["train", "job.toml", "--set", "cluster.servers=2"]).expect(0);
    assert_eq!(fixture.measures("test.txt", "label")["samples"], 800);
    let text = fixture.read("train.txt");
    let value = text.lines().filter_map(|line| line.split('\t').nth(14)).find(|value| !value.is_empty());
    let run = fixture.run_name();
    let lengths = |table: &str| {
        let row = ["inspect", &run, "--table", table, "--value", value.expect("a value"), "--json"];
        let row = fixture.zagros(row).expect(0).json();
        let parts = row["parts"].as_object().expect("parts").clone();
        assert!(parts["weights"].as_array().expect("a list").iter().any(|weight| *weight != 0.0), "{parts:?}");
        let length = |(name, values): (String, Value)| values.as_array().map(|values| (name, values.len()));
        parts.into_iter().filter_map(length).collect::<Vec<_>>()
    };
    let expected =
        |parts: &[(&str, usize)]| parts.iter().map(|(name, length)| ((*name).to_owned(), *length)).collect::<Vec<_>>();
    let mut wide = lengths("C1_wide");
    wide.sort();
    assert_eq!(wide, expected(&[("n", 1), ("weights", 1), ("z", 1)]));
    let mut deep = lengths("C1");
    deep.sort();
    assert_eq!(deep, expected(&[("sum_of_squares", 8), ("weights", 8)]));
}
