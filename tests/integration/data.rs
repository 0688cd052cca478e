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

#[test]
fn inspect_describes_every_column() {
    let fixture = Fixture::new(500);
    let run = fixture.zagros(["data", "inspect", "job.toml"]).expect(0);
    for column in ["I1", "I13", "C1", "C26"] {
        assert!(run.stdout.contains(column), "no {column} in:\n{}", run.stdout);
    }
}

#[test]
fn validate_counts_good_rows() {
    let fixture = Fixture::new(500);
    let run = fixture.zagros(["data", "validate", "job.toml"]).expect(0);
    assert!(run.stdout.contains("600"), "500 training and 100 test rows:\n{}", run.stdout);
}
