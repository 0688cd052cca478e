//! `zagros data`, and what commands say of rows and job files that are wrong.

use std::process::Command;

use zagros_tests::{TestProgram, assert_contains};

use super::fixture::{Fixture, gzip};

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

fn good() -> String {
    let mut fields = vec!["1".to_owned()];
    fields.extend((0..13).map(|number| number.to_string()));
    fields.extend((0..26).map(|number| format!("{number:08x}")));
    fields.join("\t") + "\n"
}

fn with_bad_line(fixture: &Fixture, bad: &[u8]) {
    let mut content = good().repeat(3).into_bytes();
    content.extend_from_slice(bad);
    content.extend_from_slice(good().repeat(2).as_bytes());
    fixture.write("train.txt", content);
}

#[test]
fn a_malformed_row_is_shown_with_its_place_and_the_limit_decides() {
    let fixture = Fixture::new(100);
    let cases: [(&[u8], &[&str]); 5] = [
        (b"1\t2\t3\n", &["train.txt:4", "40"]),
        (&good().replace("\t5\t", "\tfive\t").into_bytes(), &["train.txt:4", "five"]),
        (&good().replacen('1', "7", 1).into_bytes(), &["train.txt:4", "7"]),
        (&[good().trim_end().as_bytes(), b"\xff\xfe\n"].concat(), &["train.txt:4", "UTF-8"]),
        (&good().replace("00000003", "0000\u{0}003").into_bytes(), &["train.txt:4", "NUL"]),
    ];
    for (bad, texts) in cases {
        with_bad_line(&fixture, bad);
        fixture.zagros(["train", "job.toml"]).expect(3).says(texts).says(&["max_bad_rows"]);
        fixture.zagros(["train", "job.toml", "--set", "data.max_bad_rows=1"]).expect(0);
        assert_eq!(fixture.summary()["samples"], 5);
        assert_eq!(fixture.summary()["bad_rows"], 1);
        fixture.zagros(["data", "validate", "job.toml"]).expect(3).prints(&["train.txt:4"]);
    }
}

#[test]
fn a_line_of_100_megabytes_is_refused_without_being_held() {
    let fixture = Fixture::new(100);
    let mut long = vec![b'x'; 100 << 20];
    long.push(b'\n');
    with_bad_line(&fixture, &long);
    fixture.zagros(["train", "job.toml"]).expect(3).says(&["train.txt:4", "max_line_bytes"]);
    fixture.zagros(["train", "job.toml", "--set", "data.max_bad_rows=1"]).expect(0);
    assert_eq!(fixture.summary()["samples"], 5);
}

#[test]
fn a_truncated_gzip_is_named() {
    let fixture = Fixture::new(3_000);
    let whole = gzip(&fixture.read("train.txt"));
    fixture.write("train.txt.gz", &whole[..whole.len() / 2]);
    let run = fixture.zagros(["train", "job.toml", "--set", "data.train=train.txt.gz"]).expect(3);
    run.says(&["train.txt.gz", "ends early"]);
}

#[test]
fn an_empty_file_is_refused_before_the_first_step() {
    let fixture = Fixture::new(100);
    fixture.write("train.txt", "");
    fixture.zagros(["train", "job.toml"]).expect(3).says(&["train.txt", "empty"]);
}

#[test]
fn a_test_file_of_another_shape_is_refused_before_the_first_step() {
    let fixture = Fixture::new(1_000);
    fixture.write("test.txt", good().replacen('1', "7", 1));
    let run = fixture.zagros(["train", "job.toml"]).expect(3).says(&["test.txt:1:1", "expected"]);
    assert!(!run.stderr.contains("step 1"), "{}", run.stderr);
    fixture.zagros(["train", "job.toml", "--dry-run"]).expect(3).says(&["test.txt:1:1"]);
}

#[test]
fn a_path_in_a_message_is_not_cut_in_two() {
    let fixture = Fixture::new(100);
    let name = format!("{}.txt", "a-rather-long-folder/".repeat(10));
    let run = fixture.zagros(["train", "job.toml", "--set", &format!("data.train={name}")]).expect(3);
    assert!(run.stderr.contains(&name), "{}", run.stderr);
}

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
