//! A wrong job file: every problem at once, each with its place and the nearest right key.

use crate::fixture::Fixture;

#[test]
fn all_problems_are_reported_with_place_and_suggestion() {
    let fixture = Fixture::new(100);
    let job = fixture.read("job.toml").replace("batch_size", "batch_sise").replace("dim = 4", "dim = \"four\"");
    fixture.write("wrong.toml", job);
    let run = fixture.zagros(["train", "wrong.toml"]).expect(2);
    run.says(&["batch_sise", "batch_size", "wrong.toml:16", "wrong.toml:9", "dim"]);
    assert!(!fixture.path("runs").exists(), "nothing was started");
}

#[test]
fn a_wrong_override_is_answered_like_a_wrong_key() {
    let fixture = Fixture::new(100);
    fixture.zagros(["train", "job.toml", "--set", "train.sed=3"]).expect(2).says(&["sed", "seed"]);
    fixture.zagros(["train", "job.toml", "--set", "train.epochs=0"]).expect(2).says(&["epochs", "1"]);
}

#[test]
fn a_missing_job_file_and_a_missing_data_file_are_named() {
    let fixture = Fixture::new(100);
    fixture.zagros(["train", "nowhere.toml"]).expect(2).says(&["nowhere.toml"]);
    fixture.zagros(["train", "job.toml", "--set", "data.train=nowhere.txt"]).expect(3).says(&["nowhere.txt"]);
}

#[test]
fn dims_that_do_not_fit_the_model_are_caught_before_anything_runs() {
    let fixture = Fixture::new(100);
    let job = fixture.read("job.toml") + "[tables.C3]\ndim = 8\n";
    fixture.write("dims.toml", job);
    fixture.zagros(["train", "dims.toml"]).expect(2).says(&["C3", "8", "4"]);
}
