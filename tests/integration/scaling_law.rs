//! `zagros scaling-law`: a family that is trained, interrupted, resumed and verified, and what is refused.

use serde_json::Value;
use zagros_tests::assert_contains;

use super::fixture::Fixture;

const FAMILY: &str =
    "scaling-law factors/job.toml --sizes 300,900,2700,8100 --seeds 2 --budget 0s --data 0.25,0.5,1 --verify";

fn family() -> impl Iterator<Item = &'static str> {
    FAMILY.split(' ')
}

/// Data of the teacher of factors. Runs are bit for bit the same each time.
fn fixture(rows: u32) -> Fixture {
    let fixture = Fixture::new(10);
    let rows = rows.to_string();
    let generate = ["data", "generate", "factors", "--teacher", "factors", "--factors", "4", "--decay", "0.4"];
    fixture.zagros([&generate[..], &["--rows", &rows, "--test-rows", "2000"]].concat()).expect(0);
    let job = fixture.read("factors/job.toml").replace("batch_size = 1024", "batch_size = 100\nmode = \"sync\"");
    fixture.write("factors/job.toml", job.replace("dim = 8", "dim = 2"));
    fixture
}

fn json(fixture: &Fixture, name: &str) -> Value {
    fixture.read_json(&format!("runs/factors-scaling/{name}"))
}

/// What must be the same, however often the family was interrupted: all but times.
fn measured(fixture: &Fixture) -> Vec<Value> {
    let runs = json(fixture, "scaling-law.json")["runs"].as_array().expect("runs").clone();
    let keys = ["size", "share", "parameters", "samples", "seed", "loss"];
    let mut measured: Vec<Value> = runs.iter().map(|run| keys.iter().map(|key| run[*key].clone()).collect()).collect();
    measured.sort_by_key(Value::to_string);
    measured
}

#[test]
fn a_family_is_trained_and_reported_and_one_that_is_interrupted_comes_to_the_same() {
    let straight = fixture(8_000);
    straight.zagros(family()).expect(0).prints(&["log loss", "law", "forecast", "300", "8.1k", "report.html"]);
    is_measured_and_reported(&straight);
    comes_to_the_same_after_interruptions(&fixture(8_000), &measured(&straight));
}

fn is_measured_and_reported(fixture: &Fixture) {
    let runs = measured(fixture);
    // Four sizes with two seeds, three measurements each.
    assert_eq!(runs.len(), 24, "{runs:?}");
    let report = json(fixture, "scaling-law.json");
    let samples = report["runs"][0]["samples"].as_f64().expect("samples");
    assert!([2_000.0, 4_000.0, 8_000.0].contains(&samples), "{report}");
    assert!(report["forecast"]["forecast"]["loss"].as_f64().is_some_and(|loss| (0.2..0.8).contains(&loss)), "{report}");
    let page = fixture.read("runs/factors-scaling/report.html");
    assert_contains(&page, &["by size", "by samples", "by compute", "<svg", "All measurements"]);
    assert_contains(&page, &["Laws that were compared"]);
    fixture.zagros(family()).expect(0).says(&["going on with the family"]);
    assert_eq!(measured(fixture), runs);
    // Another family has another folder.
    let other: Vec<&str> = family().map(|word| if word == "2" { "3" } else { word }).collect();
    fixture.zagros(other).expect(2).says(&["holds a family of other sizes", "--folder"]);
}

/// Refused or made, a forecast is a file before the next size has a folder, and the truth does not change it.
#[test]
fn a_forecast_is_written_before_the_truth_is_known_and_stays() {
    let fixture = fixture(20_000);
    let unverified: Vec<&str> = family().filter(|word| *word != "--verify").collect();
    fixture.zagros(unverified).expect(0);
    let forecast = json(&fixture, "forecast.json");
    let next = fixture.path("runs/factors-scaling/size-24.3k-seed-1");
    assert!(!next.exists() && forecast["size"] == "24.3k", "{forecast}");
    let verified = fixture.zagros(family()).expect(0);
    assert_eq!(json(&fixture, "forecast.json"), forecast);
    if forecast["forecast"]["decision"]["kind"] == "made" {
        let verification = json(&fixture, "verification.json");
        let number = |value: &Value| value.as_f64().expect("a number");
        let error = number(&forecast["forecast"]["loss"]) - number(&verification["loss"]);
        assert!((number(&verification["error"]) - error).abs() < 1e-9, "{verification}");
        assert!(verified.stdout.contains("the last value is off by"), "{}", verified.stdout);
    } else {
        assert!(!next.exists());
        assert!(verified.stdout.contains("none of size 24.3k"), "{}", verified.stdout);
    }
}

fn comes_to_the_same_after_interruptions(broken: &Fixture, expected: &[Value]) {
    let first = broken.start_until("log loss", family());
    first.kill();
    let second = broken.start_until("going on with the family", family());
    second.interrupt().says(&["stopped; the same command goes on"]);
    broken.zagros(family()).expect(0);
    assert_eq!(measured(broken), expected);
}

#[test]
fn what_makes_no_family_is_refused_before_anything_is_trained() {
    let fixture = fixture(2_000);
    let refused = |options: &[&str], texts: &[&str]| {
        fixture.zagros([&["scaling-law", "factors/job.toml"], options].concat()).expect(2).says(texts);
    };
    refused(&["--sizes", "300,900"], &["a law needs 3", "--sizes"]);
    refused(&["--sizes", "300,900,2700", "--next", "900"], &["is not larger than the largest"]);
    refused(&["--sizes", "300,900,2700", "--data", "0.3,0.5"], &["not a whole multiple"]);
    refused(&["--sizes", "300,900,many"], &["many"]);
    refused(&["--sizes", "10,900,2700"], &["cannot be had"]);
    refused(&["--set", "train.seed=3"], &["train.seed", "--seeds"]);
    refused(&["--set", "model.hidden=[4]", "--sizes", "300,900,2700"], &["given twice"]);
    refused(&["--sizes", "300,900,2700", "--set", "train.schedule={kind='linear', decay=5}"], &["in steps", "epochs"]);
    assert!(!fixture.path("runs").exists(), "nothing was trained");
    // Who means this command by another name learns its name.
    fixture.zagros(["scale", "factors/job.toml"]).expect(2).says(&["zagros scaling-law factors/job.toml"]);
}
