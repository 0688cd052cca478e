//! Ctrl-C and SIGTERM finish the step, write what there is, and end with 130 and 143.

use rustix::process::Signal;
use zagros_tests::RunningCommand;

use crate::fixture::Fixture;
use crate::workers::RoleProcesses;

#[test]
fn an_interrupted_training_writes_what_there_is() {
    let fixture = Fixture::new(4_000);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let mut run = fixture.start(["train", "job.toml", "--set", "train.epochs=1000"]);
        run.wait_for_line("step ");
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
    let model = fixture.run_folder().display().to_string();
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
    let folder = fixture.run_folder().join("checkpoints");
    let entries = std::fs::read_dir(&folder).expect("checkpoints").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.join("manifest.json").is_file()).max().expect("a checkpoint").display().to_string()
}
