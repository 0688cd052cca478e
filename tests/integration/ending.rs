//! The end of a run. Until model and summary are written, its checkpoints are there to go on from. Ctrl-C and SIGTERM finish the step,
//! write what there is, and end with 130 and 143; workers save while servers and coordinator live.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zagros_tests::{RunningCommand, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, checkpoints, with_sets};
use super::workers::RoleProcesses;

const TRAIN: [&str; 6] = ["train", "job.toml", "--set", "train.epochs=3", "--set", "checkpoint.every_steps=20"];

/// Invariant CK-5. A summary that cannot be written, for something is in its place.
#[test]
fn a_run_that_cannot_write_its_summary_keeps_its_checkpoints() {
    let fixture = Fixture::new(20_000);
    let first = fixture.start_to_checkpoint(1, TRAIN);
    let run = fixture.run_folder();
    std::fs::create_dir(run.join("summary.json")).expect("something is in the way");
    let failed =
        first.finish().expect(6).says(&["cannot write", "summary.json", "move the file or folder that is in the way"]);
    assert!(!failed.stderr.contains("this is a bug"), "{}", failed.stderr);
    assert!(run.join("model/manifest.json").is_file() && !checkpoints(&run).is_empty());
    std::fs::remove_dir(run.join("summary.json")).expect("it is moved");
    fixture.zagros(TRAIN).expect(0).says(&["going on after step"]);
    assert_eq!(fixture.run_folder(), run);
    assert_eq!((fixture.summary()["complete"].clone(), checkpoints(&run)), (true.into(), Vec::new()));
}

/// Killed at whatever moment after the model is there: either all is written, or there is something to go on from.
#[test]
fn a_run_that_is_killed_after_its_model_loses_nothing() {
    let fixture = Fixture::new(4_000);
    let sets = ["checkpoint.every_steps=5", "output.keep_best=1", "data.validation_share=0.2"];
    let train = with_sets(&[&TRAIN[..4], &["--set", "train.early_stop={patience=50}"]].concat(), &sets);
    for _ in 0..4 {
        let run = fixture.start_to_checkpoint(1, train.iter().copied());
        let folder = fixture.run_folder();
        let deadline = Instant::now() + Duration::from_secs(60);
        while !folder.join("model/manifest.json").is_file() {
            assert!(Instant::now() < deadline, "no model");
            std::thread::yield_now();
        }
        // It may have ended by itself.
        run.kill();
        let is_over = folder.join("summary.json").is_file() && fixture.summary()["complete"] == true;
        assert!(is_over || !checkpoints(&folder).is_empty(), "neither a summary nor a checkpoint in {folder:?}");
        let again = fixture.zagros(train.iter().copied()).expect(0);
        assert_eq!(again.stderr.contains("going on after step"), !is_over, "{}", again.stderr);
        assert_eq!(fixture.run_folder() == folder, !is_over);
    }
}

/// Between the summary and the end of its process; what is left then is of no use to anyone.
#[test]
fn checkpoints_of_a_run_that_is_over_are_not_gone_on_from() {
    let fixture = Fixture::new(4_000);
    let train = ["train", "job.toml", "--set", "train.epochs=50", "--set", "checkpoint.every_steps=5"];
    fixture.start_to_checkpoint(1, train).interrupt();
    let run = fixture.run_folder();
    assert!(!checkpoints(&run).is_empty());
    let mut summary = fixture.summary();
    assert_eq!(summary["complete"], false);
    (summary["complete"], summary["outcome"]) = (true.into(), "finished".into());
    std::fs::write(run.join("summary.json"), summary.to_string()).expect("it is written");
    let short = [&train[..2], &["--set", "train.epochs=1"]].concat();
    let next = fixture.zagros(short).expect(0);
    assert!(!next.stderr.contains("going on") && fixture.run_folder() != run, "{}", next.stderr);
    assert_eq!(checkpoints(&run), Vec::<PathBuf>::new());
}

#[test]
fn a_folder_that_cannot_be_written_is_reported_once_with_its_own_code() {
    let fixture = Fixture::new(500);
    fixture.write("file", "in the way");
    for command in ["train", "up"] {
        let outcome = fixture.zagros([command, "job.toml", "--set", "output.folder=file/runs"]).expect(6);
        let outcome = outcome.says(&["cannot create file/runs", "name another folder"]).stderr;
        assert!(outcome.matches("file/runs").count() == 1 && !outcome.contains("bug"), "{outcome}");
    }
    let outcome = fixture.zagros(["train", "job.toml", "--set", "output.model_folder=file/models"]).expect(6);
    outcome.says(&["file/models", "`output.model_folder`"]);
}

const LONG: [&str; 7] =
    ["up", "job.toml", "--set", "cluster.workers=2", "--set", "cluster.servers=2", "--set=train.epochs=1000"];

/// The first worker to end is no reason to end the servers: the other one still saves the model by them.
#[test]
fn workers_that_are_stopped_save_everything_before_the_servers_end() {
    let fixture = Fixture::new(20_000);
    let run = fixture.start_until("dense worker 0     │ step ", LONG);
    run.signal(Signal::INT);
    let ended = run.finish().expect(130);
    ended.says(&["stopping: the dense workers finish their step and save", "a second Ctrl-C ends everything"]);
    let log = std::fs::read_to_string(fixture.run_folder().join("logs/coordinator.log")).expect("a log");
    assert!(!log.contains("run failed"), "{log}");
    let place = |text: &str| log.find(text).unwrap_or_else(|| panic!("no {text:?} in\n{log}"));
    let workers = place("dense worker 0 left").max(place("dense worker 1 left"));
    let servers = place("embedding server 0 left").min(place("embedding server 1 left"));
    assert!(workers < servers, "servers left before workers:\n{log}");
    let summary = fixture.summary();
    assert_eq!(summary["outcome"], "interrupted");
    let manifest = fixture.read_run_json("model/manifest.json");
    assert_eq!(manifest["steps"], summary["steps"], "{manifest}");
    let steps = summary["steps"].as_u64().expect("steps");
    assert!(fixture.run_folder().join(format!("checkpoints/resume-{steps:012}")).is_dir(), "no checkpoint of the end");
}

/// The test ends long before ten minutes have passed.
#[test]
fn a_run_that_lost_a_server_waits_for_nobody() {
    let fixture = Fixture::new(20_000);
    // A server with a log comes back.
    let sets = ["--set", "cluster.timeout_seconds=600", "--set", "cluster.durability=checkpoint"];
    let run = fixture.start_until("dense worker 0     │ step ", LONG.into_iter().chain(sets));
    signal_process(pid(&fixture, "embedding-server-1"), Signal::KILL);
    run.finish().expect(4).says(&["embedding server 1 was killed by signal 9"]);
}

#[test]
fn a_second_interrupt_ends_every_process_at_once() {
    let fixture = Fixture::new(20_000);
    let mut run = fixture.start(LONG.into_iter().chain(["--set", "cluster.timeout_seconds=600"]));
    run.wait_for_line("dense worker 0     │ step ");
    // It can neither finish its step nor save.
    let worker = pid(&fixture, "dense-worker-1");
    signal_process(worker, Signal::STOP);
    run.signal(Signal::INT);
    run.wait_for_line("stopping: ");
    run.interrupt().says(&["dense worker 1 is killed", "since the last checkpoint is lost"]);
}

#[test]
fn an_interrupted_training_writes_what_there_is() {
    let fixture = Fixture::new(4_000);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let run = fixture.start_until("step ", ["train", "job.toml", "--set", "train.epochs=1000"]);
        run.signal(signal);
        let run = run.finish().expect(code);
        assert!(run.stdout.contains("stopped after"), "{}", run.stdout);
        let summary = fixture.summary();
        assert_eq!(summary["outcome"], "interrupted");
        assert!(summary["steps"].as_u64().is_some_and(|steps| steps > 0), "{summary}");
        assert_eq!(fixture.losses().len() as u64, summary["steps"].as_u64().unwrap_or(0), "one loss a step");
    }
}

#[test]
fn a_signal_has_its_own_code_also_before_and_after_training() {
    let fixture = Fixture::new(4_000);
    fixture.zagros(["train", "job.toml"]).expect(0);
    let model = fixture.run_name();
    // The data are read over and over, so that every command still reads when it is asked to stop.
    let many = format!("data.train=[{}]", vec!["'train.txt'"; 1000].join(", "));
    let standardise = "features.numeric=[{column='I1', standardise=true}]";
    let fitting = vec!["train", "job.toml", "--set", &many, "--set", standardise];
    let scoring: Vec<&str> = ["eval", &model, "--data"].into_iter().chain(vec!["train.txt"; 1000]).collect();
    for (command, line) in [(fitting, "measuring"), (scoring, "scoring")] {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let mut run = fixture.start(command.iter().copied());
            run.wait_for_line(line);
            run.signal(signal);
            run.finish().expect(code).says(&["interrupted"]);
        }
    }
}

/// As `kubectl delete` and a machine that shuts down do: servers and coordinator serve until the last checkpoint is
/// written.
#[test]
fn when_all_roles_are_asked_to_end_at_once_a_checkpoint_is_written() {
    let fixture = Fixture::new(20_000);
    let sets = ["train.epochs=1000", "cluster.timeout_seconds=200"];
    let (mut roles, [mut first, second]) = RoleProcesses::start(&fixture, &sets);
    first.wait_for_line("step ");
    roles.signal(Signal::TERM);
    for worker in [&first, &second] {
        worker.signal(Signal::TERM);
    }
    first.finish().expect(143).says(&["checkpoint after step"]);
    second.finish().expect(143);
    for role in roles.take_others() {
        role.finish().expect(143);
    }
    assert_eq!(fixture.summary()["outcome"], "interrupted");
    fixture.zagros(["inspect", &newest_checkpoint(&fixture), "--verify"]).expect(0);
}

/// A server alone is asked to end, and not the last one, which would hand its buckets over: the run ends in order, with a checkpoint.
#[test]
fn when_a_server_is_asked_to_end_the_workers_save_before_it_does() {
    let fixture = Fixture::new(20_000);
    let sets = ["train.epochs=1000", "cluster.timeout_seconds=200"];
    let (mut roles, [mut first, second]) = RoleProcesses::start(&fixture, &sets);
    first.wait_for_line("step ");
    let mut others = roles.take_others();
    others[0].signal(Signal::TERM);
    first.finish().expect(143).says(&["embedding server 0 was asked to end", "checkpoint after step"]);
    second.finish().expect(143);
    let coordinator = others.pop().map(RunningCommand::finish).expect("a coordinator");
    coordinator.expect(0).says(&["embedding server 0 was asked to end; waiting until dense worker"]);
    let codes: Vec<_> = others.into_iter().map(|server| server.finish().code()).collect();
    assert_eq!(codes, [Some(143), Some(0)]);
    fixture.zagros(["inspect", &newest_checkpoint(&fixture), "--verify"]).expect(0);
}

fn newest_checkpoint(fixture: &Fixture) -> String {
    checkpoints(&fixture.run_folder()).pop().expect("a checkpoint").display().to_string()
}
