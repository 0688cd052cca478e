//! `zagros data`: generate, inspect, validate.

use crate::fixture::Fixture;

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
fn inspect_describes_every_column() {
    let fixture = Fixture::new(500);
    let run = fixture.zagros(["data", "inspect", "job.toml"]).expect(0);
    for column in ["I1", "I13", "C1", "C26"] {
        assert!(run.stdout.contains(column), "no {column} in:\n{}", run.stdout);
    }
}

#[test]
fn inspect_of_rows_that_are_all_malformed_is_an_error_with_the_first_of_them() {
    let fixture = Fixture::new(500);
    let labels = "features.label={column='label',positive=['yes'],negative=['no']}";
    let run = fixture.zagros(["data", "inspect", "job.toml", "--set", labels]).expect(3);
    assert!(run.stderr.contains("all 500 rows that were read are malformed"), "{}", run.stderr);
    assert!(run.stderr.contains("train.txt:1:1") && run.stderr.contains("zagros data validate"), "{}", run.stderr);
    assert!(run.stdout.is_empty(), "{}", run.stdout);
}

#[test]
fn validate_counts_good_rows() {
    let fixture = Fixture::new(500);
    let run = fixture.zagros(["data", "validate", "job.toml"]).expect(0);
    assert!(run.stdout.contains("600"), "500 training and 100 test rows:\n{}", run.stdout);
}
