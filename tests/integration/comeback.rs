//! Processes that are killed and come back in place, and dense workers whose place another process takes: the run goes on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use zagros_fakes::s3::S3Fault;
use zagros_tests::{RunningCommand, signal_process};

use super::faults::pid;
use super::fixture::{Fixture, wait_for, with_sets};
use super::workers::RoleProcesses;

const ROWS: u32 = 20_000;
const EPOCHS: u64 = 6;
const ROLES: [&str; 5] =
    ["coordinator", "embedding-server-0", "embedding-server-1", "dense-worker-0", "dense-worker-1"];

fn up(fixture: &Fixture, sets: &[&str]) -> RunningCommand {
    let up = ["up", "job.toml", "--servers", "2", "--workers", "2", "--set", &format!("train.epochs={EPOCHS}")];
    fixture.start(with_sets(&up, sets))
}

fn pids(fixture: &Fixture, except: &str) -> BTreeSet<u32> {
    ROLES.into_iter().filter(|role| *role != except).map(|role| pid(fixture, role)).collect()
}

/// Invariants DP-3, MB-3 and MB-6: who comes back has what the process before had, and no other process is started again.
#[test]
fn coordinator_and_servers_that_are_killed_again_and_again_change_no_bit_of_a_sync_run() {
    let fixture = Fixture::new(ROWS);
    let sets = ["train.mode=sync", "cluster.durability=process"];
    up(&fixture, &sets).finish().expect(0);
    let undisturbed = fixture.losses();
    let mut run = up(&fixture, &sets);
    run.wait_for_line("epoch 0 is complete");
    for (kill, role, name, back) in [
        (1, "coordinator", "coordinator", "with the state of the process before"),
        (2, "embedding-server-1", "embedding server 1", "embedding server 1 is back with its rows"),
        (3, "coordinator", "coordinator", "with the state of the process before"),
        (4, "embedding-server-0", "embedding server 0", "embedding server 0 is back with its rows"),
    ] {
        let others = pids(&fixture, role);
        signal_process(pid(&fixture, role), Signal::KILL);
        run.wait_for_line(&format!("{name} was killed by signal 9; starting it again in place"));
        run.wait_for_line(back);
        run.wait_for_line(&format!("epoch {kill} is complete"));
        assert_eq!(pids(&fixture, role), others, "another process was started again");
    }
    run.finish().expect(0);
    assert_eq!(fixture.summary()["samples"].as_u64(), Some(EPOCHS * u64::from(ROWS)));
    assert_eq!(fixture.losses(), undisturbed);
    assert!(!fixture.run_folder().join("journal").exists(), "the journal of a run that is over is left");
}

fn steps(fixture: &Fixture) -> usize {
    fixture.losses().len()
}

/// Waits until worker 0 has written more steps than `before`; false if it has not within `most`.
fn grows(fixture: &Fixture, before: usize, most: Duration) -> bool {
    let deadline = Instant::now() + most;
    while Instant::now() < deadline {
        if steps(fixture) > before {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

#[test]
fn workers_train_while_the_coordinator_is_away_and_no_member_is_started_again() {
    let fixture = Fixture::new(ROWS);
    let epochs = format!("train.epochs={EPOCHS}");
    // The lease is long: its proof lasts for as long as this test has no coordinator.
    let sets = [epochs.as_str(), "cluster.lease_seconds=120", "cluster.timeout_seconds=120"];
    let (mut roles, [mut first, second]) = RoleProcesses::start_with_journal(&fixture, &sets);
    first.wait_for_line("epoch 1/");

    let mut others = roles.take_others();
    let mut coordinator = others.pop().expect("the coordinator is last");
    // They train on what they hold, until a split is needed. At some moments they hold nothing.
    let mut trained = false;
    for _ in 0..20 {
        coordinator.kill();
        let old_steps = steps(&fixture);
        trained = grows(&fixture, old_steps, Duration::from_secs(3));
        coordinator = roles.restart_coordinator(&sets);
        if trained {
            break;
        }
        assert!(grows(&fixture, old_steps, Duration::from_secs(60)), "no step after the coordinator is back");
    }
    assert!(trained, "no step while the coordinator was away, 20 times");
    for process in [first, second, coordinator].into_iter().chain(others) {
        let ended = process.finish().expect(0);
        assert!(!ended.stderr.contains("(incarnation 2)"), "a member joined again: {}", ended.stderr);
    }
    assert_eq!(fixture.summary()["samples"].as_u64(), Some(EPOCHS * u64::from(ROWS)));
}

#[test]
fn killed_workers_come_back_one_after_the_other_and_the_run_goes_on() {
    const EPOCHS: u64 = 8;
    let fixture = Fixture::new(ROWS);
    let epochs = format!("train.epochs={EPOCHS}");
    let sets = [epochs.as_str(), "checkpoint.every_steps=50", "checkpoint.keep=1"];
    let (roles, [mut first, mut second]) = RoleProcesses::start(&fixture, &sets);
    first.wait_for_line("checkpoint after step");

    signal_process(roles.worker(1), Signal::KILL);
    second.wait_for_end();
    let lost = first.wait_for_line("dense worker 1 lost after step");
    let mut second = roles.start_worker(1, &sets);
    let back = first.wait_for_line("training continues after step");
    second.wait_for_line("training continues after step");
    println!("{lost}\n{back}");

    first.wait_for_line("checkpoint after step");
    let step = |line: &str| line.split("after step ").nth(1).and_then(number).expect("a step");
    signal_process(roles.worker(0), Signal::KILL);
    first.wait_for_end();
    let lost = second.wait_for_line("dense worker 0 lost after step");
    let mut first = roles.start_worker(0, &sets);
    // Not from the checkpoint: the other one is further.
    let back = first.wait_for_line("training continues after step");
    println!("{lost}\n{back}");
    assert!(step(&back) >= step(&lost));
    assert!(back.contains("from the state of dense worker 1"), "{back}");

    let (first, second) = (first.finish().expect(0), second.finish().expect(0));
    assert!(!first.stderr.contains("going on after step"), "{}", first.stderr);
    let summary = fixture.summary();
    let samples = summary["samples"].as_u64().expect("samples");
    let auc = fixture.auc();
    println!("{samples} samples of {}, AUC {auc:.4}\n{}", EPOCHS * u64::from(ROWS), second.stderr);
    // At most what one worker reads of an epoch is trained on twice, for each worker that was lost.
    assert!((EPOCHS * u64::from(ROWS)..=(EPOCHS + 2) * u64::from(ROWS)).contains(&samples), "{samples}");
    assert!(auc > 0.65, "AUC {auc}");
    assert_eq!(fixture.run_folders().len(), 1, "the new process went on in another folder");
}

#[test]
fn a_worker_that_is_killed_is_started_again_unless_that_is_not_wanted() {
    let fixture = Fixture::new(ROWS);
    let arguments = ["up", "job.toml", "--workers", "2", "--set", "train.epochs=10"];
    let mut run = fixture.start_until("epoch 1/", arguments);
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("dense worker 1 was killed by signal 9; starting it again (2 restarts left");
    run.finish().expect(0).says(&["dense worker 1 lost after step", "training continues after step"]);
    assert!(fixture.summary()["samples"].as_u64() >= Some(10 * u64::from(ROWS)));

    let run = fixture.start_until("epoch 1/", arguments.into_iter().chain(["--restarts", "0"]));
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.finish().expect(4).says(&["dense worker 1 was killed by signal 9"]);
}

/// As on a machine that swaps. The others do not wait for their timeout, which is longer than this test may take; and
/// it is taken back, or started again where it is fenced.
#[test]
fn a_worker_that_stood_still_for_longer_than_its_lease_ends_no_run() {
    let fixture = Fixture::new(ROWS);
    let sets = ["train.epochs=10", "cluster.lease_seconds=2", "cluster.timeout_seconds=3600"];
    let mut run = fixture.start_until("epoch 1/", with_sets(&["up", "job.toml", "--workers", "2"], &sets));
    let second = pid(&fixture, "dense-worker-1");
    signal_process(second, Signal::STOP);
    run.wait_for_line("dense worker 1 lost after step");
    signal_process(second, Signal::CONT);
    run.wait_for_line("training continues after step");
    run.finish().expect(0);
    assert!(fixture.summary()["samples"].as_u64() >= Some(10 * u64::from(ROWS)));
}

#[test]
fn where_enough_are_left_the_run_goes_on_without_a_killed_worker() {
    let fixture = Fixture::new(ROWS);
    let sets = ["train.epochs=10", "cluster.min_workers=1", "cluster.lease_seconds=2", "cluster.timeout_seconds=8"];
    let mut run = fixture.start(with_sets(&["up", "job.toml", "--workers", "2", "--restarts", "0"], &sets));
    run.wait_for_line("epoch 1/");
    signal_process(pid(&fixture, "dense-worker-1"), Signal::KILL);
    run.wait_for_line("dense worker 1 was killed by signal 9; 1 workers are left and continue without it");
    let ended = run.finish().expect(0);
    ended.says(&[
        "the run continues with 1 of its workers",
        "training continues after step",
        "with dense worker 0 alone",
    ]);
    // At least every row once an epoch, by this one worker from then on.
    assert!(fixture.summary()["samples"].as_u64() >= Some(10 * u64::from(ROWS)));
}

/// Invariant RK-6. The store of the model answers no write until worker 0 is killed.
#[test]
fn a_first_worker_that_is_killed_while_it_saves_is_replaced_and_its_replacement_saves() {
    let (store, fixture) = Fixture::with_store(ROWS);
    let sets = [
        "output.model_folder=s3://models/ads",
        "train.epochs=3",
        "data.validation_share=0.2",
        "train.early_stop={patience=9}",
        "checkpoint.every_steps=20",
    ];
    let mut run = fixture.start(with_sets(&["up", "job.toml", "--workers", "2"], &sets));
    // At its start the run has tried whether it may write there.
    run.wait_for_line("checkpoint after step");
    store.inject_fault(S3Fault::Hangs, "P", usize::MAX);
    let tried = store.request_log().len();
    wait_for(Duration::from_secs(120), || {
        if store.request_log().len() > tried { Ok(()) } else { Err("worker 0 saves no model".to_owned()) }
    });
    signal_process(pid(&fixture, "dense-worker-0"), Signal::KILL);
    run.wait_for_line("dense worker 0 was killed by signal 9; starting it again");
    store.clear_faults();
    run.finish().expect(0).says(&["dense worker 0 is lost", "from the state of dense worker 1"]);
    let summary = fixture.summary();
    assert_eq!(summary["complete"], true);
    assert!(summary["evaluation"]["auc"].as_f64() > Some(0.6), "{summary}");
    let model = store.object_keys().into_iter().filter(|key| key.ends_with("/manifest.json")).count();
    assert_eq!(model, 1, "{:?}", store.object_keys());
    let scored = fixture.evaluate();
    assert_eq!(scored["auc"], summary["evaluation"]["auc"]);
}

/// The digits that a text begins with, between which may be commas.
fn number(text: &str) -> Option<u64> {
    let digits = text.chars().take_while(|letter| letter.is_ascii_digit() || *letter == ',');
    digits.filter(char::is_ascii_digit).collect::<String>().parse().ok()
}
