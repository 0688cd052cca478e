//! `zagros forget` of a run that trains: rows are gone from its servers for good, whatever is killed or loaded afterwards.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;
use zagros_tests::signal_process;

use crate::fixture::Fixture;
use crate::forget::{checkpoints, row, values};

/// The data of the run name the first value no more. Returns that value, another one, and the arguments of the run.
fn prepare(fixture: &Fixture) -> ([String; 2], Vec<String>) {
    fixture.zagros(["train", "job.toml", "--set", "train.max_steps=20"]).expect(0);
    let model = fixture.run_folder().join("model").display().to_string();
    let mut learned = values(fixture).into_iter().filter(|value| row(fixture, &model, value).is_some());
    let values = [learned.next().expect("a row"), learned.next().expect("another row")];
    let gone = values[0].clone();
    let text = fixture.read("train.txt");
    let is_kept = |line: &&str| line.split('\t').nth(14) != Some(gone.as_str());
    let kept: Vec<&str> = text.lines().filter(is_kept).collect();
    fixture.write("later.txt", kept.join("\n") + "\n");
    let sets = [
        "data.train=later.txt",
        "train.epochs=1000",
        "checkpoint.every_steps=20",
        "checkpoint.deltas=4",
        "checkpoint.keep=50",
        "output.folder=live",
    ];
    let sets = sets.into_iter().flat_map(|set| ["--set".to_owned(), set.to_owned()]);
    let run = ["up", "job.toml", "--servers", "2", "--from", &model].map(str::to_owned);
    ([gone, values[1].clone()], run.into_iter().chain(sets).collect())
}

fn live_run(fixture: &Fixture) -> PathBuf {
    let runs = std::fs::read_dir(fixture.path("live")).expect("a run").map(|run| run.expect("readable").path());
    runs.filter(|run| run.join("job.toml").is_file()).max().expect("a run")
}

fn pid_of(run: &Path, role: &str) -> u32 {
    let outcome: Value =
        serde_json::from_slice(&std::fs::read(run.join(format!("roles/{role}.json"))).expect("announced"))
            .expect("JSON");
    outcome["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process id")
}

fn newest(run: &Path) -> String {
    checkpoints(run).pop().expect("a checkpoint").display().to_string()
}

fn forget_live(fixture: &Fixture, run: &str, value: &str) -> Value {
    let done = fixture.zagros(["forget", run, "--table", "C1", "--value", value, "--json"]).expect(0);
    serde_json::from_str(&done.stdout).expect("JSON")
}

#[test]
fn a_row_that_a_live_run_forgets_stays_gone_after_kills_and_after_an_earlier_state_is_loaded() {
    let fixture = Fixture::new(20_000);
    let ([gone, other], arguments) = prepare(&fixture);
    let start = || fixture.start(arguments.iter().map(String::as_str));
    let mut training = start();
    training.wait_for_line("checkpoint after step");
    training.wait_for_line("checkpoint after step");
    let run = live_run(&fixture);
    let name = run.display().to_string();
    let first = checkpoints(&run).swap_remove(0);
    assert!(row(&fixture, &first.display().to_string(), &gone).is_some(), "the run has the row from its first model");

    let wrong = fixture.zagros(["forget", &name, "--table", "C91", "--value", &gone]).expect(2);
    wrong.says(&["there is no table `C91`", "did you mean `C9`?"]);
    let planned = fixture.zagros(["forget", &name, "--table", "C1", "--value", &gone, "--dry-run"]).expect(0).stdout;
    assert!(planned.contains("would remove their rows") && planned.contains("still in"), "{planned}");
    assert!(!run.join("forgotten.jsonl").exists());
    let done = forget_live(&fixture, &name, &gone);
    assert_eq!((&done["removed"], &done["trains"]), (&Value::from(1), &Value::from(true)), "{done}");
    assert!(done["still_held_by"].as_array().is_some_and(|saves| !saves.is_empty()), "{done}");
    assert_eq!(forget_live(&fixture, &name, &gone)["removed"], 0, "a retry finds nothing");
    let audit = std::fs::read_to_string(run.join("forgotten.jsonl")).expect("an audit file");
    assert!(audit.lines().count() == 1 && audit.contains("\"save\":\"embedding servers\""), "{audit}");

    for server in ["embedding-server-0", "embedding-server-1"] {
        signal_process(pid_of(&run, server), Signal::KILL);
    }
    let old_count = checkpoints(&run).len();
    while checkpoints(&run).len() < old_count + 2 {
        training.wait_for_line("checkpoint after step");
    }
    training.signal(Signal::INT);
    training.finish().expect(130);
    let last = newest(&run);
    assert_eq!(row(&fixture, &last, &gone), None, "{last}");
    assert!(row(&fixture, &last, &other).is_some());

    // All that was saved after the row was gone is lost: the run goes back to a state that still has it.
    for later in checkpoints(&run).into_iter().filter(|folder| *folder != first) {
        std::fs::remove_dir_all(later).expect("a checkpoint is deleted");
    }
    let mut again = start();
    again.wait_for_line("checkpoint after step");
    again.signal(Signal::INT);
    again.finish().expect(130);
    let last = newest(&run);
    assert_ne!(last, first.display().to_string());
    assert_eq!(row(&fixture, &last, &gone), None, "{last}");
    assert!(row(&fixture, &first.display().to_string(), &gone).is_some());

    // Now that no run trains, the same command cleans the checkpoints.
    fixture.zagros(["forget", &name, "--table", "C1", "--value", &gone]).expect(0);
    for folder in checkpoints(&run) {
        let folder = folder.display().to_string();
        assert_eq!(row(&fixture, &folder, &gone), None, "{folder}");
        fixture.zagros(["inspect", &folder, "--verify"]).expect(0);
    }
}
