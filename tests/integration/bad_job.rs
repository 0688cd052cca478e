//! A wrong job file: every problem at once, each with its place and the nearest right key. A job that cannot fit into memory is
//! refused before anything is allocated.

use std::process::Command;

use zagros_tests::{TestProgram, assert_contains};

use super::fixture::Fixture;

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

/// Enough for the program and its libraries, far from enough for the network below.
const KIB: &str = "6000000";
/// 40,000² weights with their gradient and two moments: 24 GiB.
const NETWORK: &str = "model.top=[40000,40000]";

#[test]
fn a_network_beyond_memory_is_refused_with_the_key_to_change() {
    let fixture = Fixture::new(2_000);
    for arguments in ["train job.toml", "train job.toml --dry-run", "up job.toml", "up job.toml --dry-run"] {
        let limited = format!("ulimit -v {KIB}; exec \"$0\" {arguments} --set '{NETWORK}'");
        let run = Command::new("sh")
            .args(["-c", &limited])
            .arg(TestProgram::Zagros.path())
            .current_dir(fixture.folder())
            .output()
            .expect("a shell starts");
        let outcome = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{arguments}: {outcome}");
        // It is too large for one process with streamed weights, too: 18 GiB of weights and moments.
        assert_contains(
            &outcome,
            &[
                "of memory before its first row",
                "`ulimit -v` allows 5.72 GiB",
                "make the layers in [model] narrower",
                "GiB too little as well",
            ],
        );
        assert!(!outcome.contains("stack backtrace"), "{outcome}");
    }
    assert!(!fixture.path("runs").exists(), "a run was started");
}
