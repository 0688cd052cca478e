//! Scores of new rows by a saved model: equal to those of `zagros eval`, in the order of the rows, whole or not at all.

use std::process::Command;

use serde_json::Value;
use zagros_eval::measure::sigmoid;
use zagros_tests::TestProgram;
use zagros_zip::ZipEq;

use super::fixture::{Fixture, measured};

fn trained() -> (Fixture, String) {
    let (fixture, run) = Fixture::trained(4_000, &[]);
    let new: String = fixture.read("test.txt").lines().map(|line| without_label(line) + "\n").collect();
    fixture.write("new.txt", new);
    (fixture, run)
}

fn without_label(line: &str) -> String {
    line.split_once('\t').expect("a label").1.to_owned()
}

/// Fields of a file of comma-separated values without quotes, after its header.
fn lines(text: &str) -> Vec<Vec<String>> {
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn measures_of_predictions_are_those_of_eval_to_the_last_bit() {
    let (fixture, run) = trained();
    let eval = |batch: &str| fixture.zagros(["eval", &run, "--json", "--set", batch]).expect(0).json();
    let (expected, same) = (eval("train.batch_size=256"), eval("train.batch_size=100"));
    assert_eq!(expected["samples"], 800);
    assert_eq!(same, expected, "in other batches");
    for (index, sets) in [
        ["train.batch_size=256", "data.threads=1"],
        ["train.batch_size=7", "data.threads=3"],
        ["train.batch_size=1000", "cluster.servers=2"],
    ]
    .iter()
    .enumerate()
    {
        let output = format!("{index}.csv");
        let command = ["predict", &run, "test.txt", "-o", &output, "--keys", "label", "--logits"];
        fixture.zagros([&command[..], &["--set", sets[0], "--set", sets[1]]].concat()).expect(0);
        assert_eq!(measured(&fixture.read(&output)), expected, "{sets:?}");
        assert_eq!(fixture.read(&output), fixture.read("0.csv"), "{sets:?}");
    }
}

#[test]
fn scores_are_those_of_their_rows() {
    let (fixture, run) = trained();
    fixture.zagros(["predict", &run, "test.txt", "-o", "s.csv", "--keys", "label,C1"]).expect(0).says(&["800 rows"]);
    fixture.zagros(["predict", &run, "test.txt", "-o", "z.csv", "--keys", "label", "--logits"]).expect(0);
    let (scores, logits) = (lines(&fixture.read("s.csv")), lines(&fixture.read("z.csv")));
    assert_eq!(scores.len(), 800);
    let rows = fixture.read("test.txt");
    for ((score, logit), line) in scores.iter().zip_eq(&logits).zip_eq(rows.lines().collect::<Vec<_>>()) {
        let fields: Vec<&str> = line.split('\t').collect();
        assert_eq!((score[0].as_str(), score[1].as_str()), (fields[0], fields[14]), "rows keep their order");
        let logit: f32 = logit[1].parse().expect("a number");
        assert_eq!(score[2].parse(), Ok(sigmoid(f64::from(logit))), "a score is that of its logit");
    }
}

#[test]
fn rows_without_labels_have_the_same_scores_in_every_format_and_layout() {
    let (fixture, run) = trained();
    let predict = |data: &str, more: &[&str]| fixture.zagros([&["predict", &run, data], more].concat()).expect(0);
    predict("test.txt", &["-o", "with.csv", "--keys", "C1"]);
    predict("new.txt", &["-o", "without.csv", "--keys", "C1"]);
    assert_eq!(fixture.read("with.csv"), fixture.read("without.csv"));
    let printed =
        predict("new.txt", &["-o", "-", "--keys", "C1", "--set", "cluster.servers=3", "--set", "data.threads=3"]);
    assert_eq!(printed.stdout, fixture.read("with.csv"), "however many servers and threads");
    predict("new.txt", &["-o", "s.jsonl", "--score-column", "p"]);
    let score = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["p"].as_f64().expect("a score");
    let scores: Vec<f64> = fixture.read("s.jsonl").lines().map(score).collect();
    let expected: Vec<f64> =
        lines(&fixture.read("with.csv")).iter().map(|row| row[1].parse().expect("a number")).collect();
    assert_eq!(scores, expected);
    predict("new.txt", &["-o", "z.csv", "--logits"]);
    let logits: Vec<f32> = lines(&fixture.read("z.csv")).iter().map(|row| row[0].parse().expect("a number")).collect();
    for (logit, score) in logits.iter().zip_eq(&expected) {
        assert!((1.0 / (1.0 + f64::from(-logit).exp()) - score).abs() < 1e-15, "{logit} {score}");
    }
    let report = predict("new.txt", &["-o", "s.parquet", "--json"]).json();
    assert_eq!((report["rows"].as_u64(), report["malformed"].as_u64()), (Some(800), Some(0)));
    // What was written is data for the next command.
    let parquet = std::fs::read(fixture.path("s.parquet")).expect("a file");
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
}

#[test]
fn malformed_rows_are_refused_skipped_or_keep_their_place() {
    let (fixture, run) = trained();
    let good = fixture.read("new.txt");
    let bad: Vec<String> = good
        .lines()
        .enumerate()
        .map(|(row, line)| match row {
            3 | 799 => "nonsense".to_owned(),
            300 => line.replacen('\t', "x\t", 1),
            _ => line.to_owned(),
        })
        .collect();
    fixture.write("bad.txt", bad.join("\n"));
    let predict = |data: &str, to: &str, what: &str| {
        fixture.zagros(["predict", &run, data, "-o", to, "--keys", "C1", "--bad-rows", what])
    };
    predict("bad.txt", "s.csv", "refuse").expect(3).says(&["bad.txt:4", "39 fields"]);
    assert!(!fixture.path("s.csv").exists() && !fixture.path("s.csv.part").exists());
    predict("bad.txt", "s.csv", "empty").expect(0).says(&["800 rows, 3 of them malformed"]);
    let scores = lines(&fixture.read("s.csv"));
    assert_eq!(scores.len(), 800);
    assert_eq!([3, 799].map(|row| scores[row].clone()), [(); 2].map(|()| vec![String::new(), String::new()]));
    assert!(!scores[300][0].is_empty() && scores[300][1].is_empty(), "its key could be read");
    predict("bad.txt", "skipped.csv", "skip").expect(0);
    let kept: Vec<_> = scores.into_iter().filter(|row| !row[1].is_empty()).collect();
    assert_eq!(lines(&fixture.read("skipped.csv")), kept);
    predict("job.toml", "none.csv", "empty").expect(3).says(&["job.toml", "rows read, none in"]);
}

/// The kernel kills a process whose file gets longer than its limit, so the place does not depend on time.
#[test]
fn predictions_that_were_killed_go_on_to_the_same_bytes() {
    let (fixture, run) = trained();
    for to in ["s.csv", "s.parquet"] {
        let whole = format!("whole-{to}");
        fixture.zagros(["predict", &run, "new.txt", "-o", &whole, "--keys", "C1"]).expect(0);
        let (program, more) = (TestProgram::Zagros.path().display(), "--keys C1 --save-every 1");
        for (trap, signalled) in [("", true), ("trap '' XFSZ; ", false)] {
            // Blocks of 512 bytes: between the first batch of 256 rows and all 800.
            let command = format!("{trap}ulimit -f 20; exec {program} predict {run} new.txt -o {to} {more} --force");
            let ended =
                Command::new("sh").args(["-c", &command]).current_dir(fixture.folder()).output().expect("sh runs");
            assert_eq!(ended.status.code().is_none(), signalled, "{ended:?}");
            assert!(!fixture.path(to).exists(), "no half file");
            if !signalled {
                let said = String::from_utf8_lossy(&ended.stderr).into_owned();
                assert!(said.contains("cannot write") && said.contains("goes on after"), "{said}");
            }
        }
        fixture.zagros(["predict", &run, "new.txt", "-o", to, "--keys", "C1"]).expect(0).says(&["going on after"]);
        let read = |name: &str| std::fs::read(fixture.path(name)).expect("a file");
        assert!(read(to) == read(&whole), "{to}");
        assert!(!fixture.path(&format!("{to}.part")).exists() && !fixture.path(&format!("{to}.journal")).exists());
    }
}

#[test]
fn what_cannot_be_scored_or_written_is_refused_with_what_to_do() {
    let (fixture, run) = trained();
    let predict = |data: &str, more: &[&str]| fixture.zagros([&["predict", &run, data], more].concat());
    fixture.write("old.csv", "kept");
    predict("new.txt", &["-o", "old.csv"]).expect(2).says(&["old.csv exists and is kept", "--force"]);
    assert_eq!(fixture.read("old.csv"), "kept");
    predict("new.txt", &["-o", "s.tsv"]).expect(2).says(&["s.tsv", ".csv, .jsonl or .parquet"]);
    predict("new.txt", &["-o", "-", "--format", "parquet"]).expect(2).says(&["cannot be written to standard output"]);
    predict("new.txt", &["-o", "s.csv", "--keys", "C1,C1"]).expect(2).says(&["two columns", "\"C1\""]);
    let ended = predict("new.txt", &["-o", "s.csv", "--keys", "C99"]).expect(3);
    ended.says(&["new.txt", "no column \"C99\"", "did you mean"]);
    // Criteo's layout has all columns always, so another one is given.
    fixture.write("other.csv", "I1,C1\n1,x\n");
    let as_csv = ["-o", "s.csv", "--set", "data.format=delimited"];
    let ended = predict("other.csv", &as_csv).expect(3);
    ended.says(&["other.csv: no column", "trained with this column", "its columns are: I1, C1"]);
    predict("new.txt", &["-o", "no/s.csv"]).expect(6).says(&["no/s.csv.part", "choose another folder"]);
    predict("none.txt", &["-o", "s.csv"]).expect(3).says(&["none.txt"]);
    let short: String = fixture.read("new.txt").lines().map(|line| without_label(line) + "\n").collect();
    fixture.write("short.txt", short);
    predict("short.txt", &["-o", "s.csv"]).expect(3).says(&["short.txt:1", "40 fields", "38"]);
    assert!(!fixture.path("s.csv").exists() && !fixture.path("s.csv.part").exists());
    predict("new.txt", &["-o", "old.csv", "--force"]).expect(0);
    assert_eq!(lines(&fixture.read("old.csv")).len(), 800);
}

/// Of three runs of one job with other seeds.
#[test]
fn scores_of_several_models_are_averaged_and_a_stopped_command_goes_on() {
    let fixture = Fixture::new(4_000);
    let runs: Vec<String> = ["1", "2", "3"]
        .map(|seed| {
            let (key, folder) = (format!("train.seed={seed}"), format!("seed-{seed}"));
            let output = format!("output.folder={folder}");
            fixture.train(&[&key, &output]);
            fixture.newest_run(&folder).display().to_string()
        })
        .to_vec();
    let predict = |models: &str, to: &str, more: &[&str]| {
        let command = ["predict", models, "test.txt", "-o", to, "--keys", "label"];
        fixture.zagros([&command[..], more].concat()).expect(0);
        lines(&fixture.read(to)).into_iter().map(|row| row[1].parse::<f64>().expect("a number")).collect::<Vec<_>>()
    };
    for (name, more) in [("scores", &[][..]), ("logits", &["--logits"])] {
        let of_each: Vec<_> =
            runs.iter().enumerate().map(|(i, run)| predict(run, &format!("{name}-{i}.csv"), more)).collect();
        let mean = predict(&runs.join(","), &format!("{name}.csv"), more);
        assert_eq!(mean.len(), 800);
        for (row, mean) in mean.iter().enumerate() {
            let expected = of_each.iter().map(|scores| scores[row]).sum::<f64>() / 3.0;
            assert!((expected - mean).abs() < 1e-12, "row {row}: {mean}, expected {expected}");
        }
    }
    let by_logits = predict(&runs.join(","), "by-logits.csv", &["--average", "logits"]);
    let logits = lines(&fixture.read("logits.csv"));
    for (score, logit) in by_logits.iter().zip_eq(&logits) {
        let logit: f64 = logit[1].parse().expect("a number");
        assert!((score - sigmoid(logit)).abs() < 1e-6, "{score} of {logit}");
    }
    let left = std::fs::read_dir(fixture.path("")).expect("a folder").map(|file| file.expect("readable").file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains(".model-")).collect();
    assert_eq!(left, Vec::<std::ffi::OsString>::new());

    let stdin = fixture.zagros(["predict", &runs.join(","), "-", "-o", "s.csv"]).expect(2);
    stdin.says(&["can be read by one model only"]);
    fixture.train(&["features.label={column='label', kind='regression'}", "output.folder=other"]);
    let run = fixture.newest_run("other").display().to_string();
    let refused = fixture.zagros(["predict", &format!("{},{run}", runs[0]), "test.txt", "-o", "s.csv"]).expect(2);
    refused.says(&["predict different labels", "label (click)", "label (regression)"]);
}
