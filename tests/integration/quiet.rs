//! How a command reports its progress: as lines, as log lines in JSON, or not at all.

use serde_json::Value;

use crate::fixture::Fixture;

fn json_lines(text: &str) -> Vec<Value> {
    let parsed = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: no JSON: {line}"));
    text.lines().map(parsed).collect()
}

#[test]
fn a_quiet_command_prints_its_result_and_what_is_wrong() {
    let fixture = Fixture::new(4_000);
    // With more samples in a step there would be a warning that an epoch has few steps.
    let run = fixture.zagros(["train", "job.toml", "--quiet", "--set", "train.batch_size=32"]).expect(0);
    assert!(run.stderr.is_empty() && run.stdout.contains("test AUC"), "{}{}", run.stderr, run.stdout);
    fixture.zagros(["train", "nowhere.toml", "--quiet"]).expect(2).says(&["cannot read job file nowhere.toml"]);
    let run = fixture.zagros(["up", "job.toml", "--quiet", "--fresh"]).expect(0);
    for words in ["INFO", "step 1 ", "live page", "threads"] {
        assert!(!run.stderr.contains(words), "{words:?} in\n{}", run.stderr);
    }
    assert!(run.stderr.contains("test AUC"), "{}", run.stderr);
}

#[test]
fn progress_is_log_lines_where_that_is_asked_for() {
    let fixture = Fixture::new(4_000);
    let run = fixture.zagros(["train", "job.toml", "--log-json"]).expect(0);
    let lines = json_lines(&run.stderr);
    let step = lines.iter().find(|line| line["message"] == "training").expect("a line of a step");
    assert!(step["step"].as_u64() == Some(1) && step["loss"].is_f64() && step["level"] == "INFO", "{step}");
    assert!(run.stdout.contains("test AUC"), "{}", run.stdout);

    let run = fixture.zagros(["up", "job.toml", "--log-json", "--fresh"]).expect(0);
    let lines = json_lines(&run.stderr);
    for role in ["coordinator", "embedding server 0", "dense worker 0"] {
        assert!(lines.iter().any(|line| line["role"] == role), "no line of {role}:\n{}", run.stderr);
    }
    let said = |text: &str| lines.iter().any(|line| line["message"].as_str().is_some_and(|said| said.contains(text)));
    assert!(said("live page: http://"), "{}", run.stderr);

    let run = fixture.zagros(["train", "nowhere.toml", "--log-json"]).expect(2);
    let error = &json_lines(&run.stderr)[0];
    assert!(error["level"] == "ERROR" && error["exit_code"] == 2, "{error}");
    assert!(error["message"].as_str().is_some_and(|outcome| outcome.contains("nowhere.toml")), "{error}");
}

#[test]
fn log_lines_show_words_and_no_empty_fields() {
    let fixture = Fixture::new(4_000);
    let run = fixture.zagros(["up", "job.toml"]).expect(0);
    assert!(run.stderr.contains("reason=run finished"), "{}", run.stderr);
    for leak in ["Reported(", "address=\"\""] {
        assert!(!run.stderr.contains(leak), "{leak} in\n{}", run.stderr);
    }
}
