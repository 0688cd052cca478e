//! `zagros data`: generate, inspect, validate.

use super::fixture::Fixture;

#[test]
fn the_generator_writes_criteo_lines_and_the_same_ones_again() {
    let fixture = Fixture::new(500);
    let first = fixture.read("train.txt");
    assert_eq!(first.lines().count(), 500);
    for line in first.lines() {
        assert_eq!(line.split('\t').count(), 40, "{line}");
    }
    fixture.zagros(["data", "generate", ".", "--rows", "500", "--test-rows", "100"]).expect(0);
    assert_eq!(fixture.read("train.txt"), first);
    fixture.zagros(["data", "generate", ".", "--rows", "500", "--test-rows", "100", "--seed", "2"]).expect(0);
    assert_ne!(fixture.read("train.txt"), first);
}

/// A teacher whose terms follow a power law: rows, a job that trains on them, and what is reachable.
#[test]
fn the_teacher_of_factors_writes_data_with_a_job_and_what_is_reachable() {
    let fixture = Fixture::new(10);
    let generate = |options: &[&str]| {
        let size = ["data", "generate", "factors", "--rows", "3000", "--test-rows", "1000"];
        fixture.zagros([&size, options].concat())
    };
    generate(&["--teacher", "factors", "--decay", "0.7", "--factors", "5"]).expect(0);
    assert_eq!(fixture.read("factors/train.csv").lines().next(), Some("label,x1,c1,x2,c2,x3"));
    let planted = fixture.read_json("factors/planted.json");
    let number = |key: &str| planted[key].as_f64().expect("a number");
    assert!((number("best_logloss") - number("irreducible_logloss")).abs() < 0.05, "{planted}");
    let ended = fixture.zagros(["train", "factors/job.toml", "--set", "train.batch_size=100"]).expect(0);
    ended.prints(&["best reachable"]);
    // Options of this teacher alone, and a teacher that cannot be.
    generate(&["--decay", "0.7"]).expect(2).says(&["--decay", "--teacher factors"]);
    generate(&["--teacher", "factors", "--order", "9"]).expect(2).says(&["the order 9"]);
}

/// A user's train.txt was overwritten unasked.
#[test]
fn the_generator_replaces_no_file_that_it_has_not_written() {
    let fixture = Fixture::new(10);
    let generate = |options: &[&str]| {
        fixture.zagros([&["data", "generate", ".", "--rows", "20", "--test-rows", "10"], options].concat())
    };
    std::fs::remove_file(fixture.path("planted.json")).expect("removed");
    fixture.write("train.txt", "mine");
    generate(&[]).expect(2).says(&["train.txt exists", "--force"]);
    generate(&["--keep"]).expect(0);
    assert_eq!(fixture.read("train.txt"), "mine");
    generate(&["--force"]).expect(0);
    assert_eq!(fixture.read("train.txt").lines().count(), 20);
    // It was interrupted: what is there is its own.
    std::fs::rename(fixture.path("planted.json"), fixture.path("planted.json.unfinished")).expect("renamed");
    generate(&[]).expect(0);
    assert!(fixture.path("planted.json").exists() && !fixture.path("planted.json.unfinished").exists());
}

#[test]
fn inspect_and_validate_describe_columns_and_rows() {
    let fixture = Fixture::new(500);
    fixture.zagros(["data", "inspect", "job.toml"]).expect(0).prints(&["I1", "I13", "C1", "C26"]);
    // 500 training and 100 test rows.
    fixture.zagros(["data", "validate", "job.toml"]).expect(0).prints(&["600"]);
    // Where all are malformed the first of them is shown.
    let labels = "features.label={column='label',positive=['yes'],negative=['no']}";
    let run = fixture.zagros(["data", "inspect", "job.toml", "--set", labels]).expect(3);
    assert!(run.stderr.contains("all 500 rows that were read are malformed"), "{}", run.stderr);
    assert!(run.stderr.contains("train.txt:1:1") && run.stderr.contains("zagros data validate"), "{}", run.stderr);
    assert!(run.stdout.is_empty(), "{}", run.stdout);
}
